// The planner's memory against what a benchmark of rounds saw the device lose.
#pragma once

#include <string>
#include <vector>

#include "planner/round_file.h"

namespace coppice {

struct JudgedMemory {
  std::string what;
  double predicted = 0, allocated = 0;  // bytes

  double error() const { return predicted / allocated - 1; }
};

// Target, drafter, caches and buffers of all points, workspaces, graphs, and their sum.
std::vector<JudgedMemory> judge_memory(const RoundFile& file);

std::string memory_as_text(const std::vector<JudgedMemory>& memory);

}  // namespace coppice
