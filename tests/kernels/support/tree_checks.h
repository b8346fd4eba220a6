#pragma once

#include <string>
#include <vector>

namespace coppice::kernels::checks {

// Each prints a line per case and returns the number of failures. quick: small shapes, for
// compute-sanitizer.
int check_top_k(bool quick);
int check_tree();
int check_golden(const std::string& folder);
int check_sample();
int check_commit(bool quick);
// Trees built with one node less than the host's: must not be 0.
int check_planted_fault();

// For compute-sanitizer, under which a launch of these kernels takes a fifth of a second: few
// launches a case, all cases together launch every instance of the kernels.
struct SmallCase {
  std::string name;
  int (*check)();  // the number of failures
};
std::vector<SmallCase> small_tree_cases();
std::vector<SmallCase> small_sample_cases();

}  // namespace coppice::kernels::checks
