// The planner against measured rounds: calibrated on some points, judged on the others.
#pragma once

#include <string>
#include <vector>

#include "planner/judge_memory.h"
#include "planner/round_file.h"

namespace coppice {

// Times are predicted for as many distinct experts as the calibration's points let expect.
// `counted`: for those that the rows were counted to choose.
struct JudgedRound {
  MeasuredRound measured;
  bool is_calibration = false;
  RoundTime predicted;            // each part timed alone
  double predicted_total_us = 0;  // of the device
  RoundTime counted;
  double counted_total_us = 0;

  // (predicted - measured) / measured.
  double error(Part part) const;
  double total_error() const { return predicted_total_us / measured.total_us - 1; }
  double counted_total_error() const { return counted_total_us / measured.total_us - 1; }
};

struct Judgement {
  RoundFile file;
  std::vector<JudgedMemory> memory;
  std::vector<JudgedRound> rounds;
};

// Calibrates on the rounds of 1, 8 and 64 rows at contexts of 1k and 32k alone.
Judgement judge(const std::string& path);

// Signed errors as Markdown.
std::string judgement_as_text(const Judgement& judgement);
// The measured stages, and how far their runs lie apart.
std::string spread_as_text(const Judgement& judgement);

}  // namespace coppice
