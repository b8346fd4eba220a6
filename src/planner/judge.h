// The planner against measured rounds: calibrated on some points, judged on the others.
#pragma once

#include <string>
#include <vector>

#include "planner/round_file.h"

namespace coppice {

struct JudgedRound {
  MeasuredRound measured;
  bool is_calibration = false;
  RoundTime predicted;
  double predicted_total_us = 0;  // of the device

  // (predicted - measured) / measured.
  double error(Part part) const;
  double total_error() const { return predicted_total_us / measured.total_us - 1; }
};

struct Judgement {
  RoundFile file;
  double predicted_weights = 0, predicted_drafter = 0;  // bytes
  std::vector<JudgedRound> rounds;
};

// Calibrates on the rounds of 1, 8 and 64 rows at contexts of 1k and 32k alone.
Judgement judge(const std::string& path);

// Signed errors as Markdown.
std::string judgement_as_text(const Judgement& judgement);

}  // namespace coppice
