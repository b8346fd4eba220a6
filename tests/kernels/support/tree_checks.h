#pragma once

#include <string>

namespace coppice::kernels::checks {

// Each prints a line per case and returns the number of failures. quick: small shapes, for
// compute-sanitizer.
int check_top_k(bool quick);
int check_tree(bool quick);
int check_golden(const std::string& folder);
int check_sample(bool quick);
int check_commit(bool quick);
// Trees built with one node less than the host's: must not be 0.
int check_planted_fault();

}  // namespace coppice::kernels::checks
