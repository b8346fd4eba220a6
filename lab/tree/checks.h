#pragma once

#include <string>

namespace lab {

// Each prints a line per case and returns the number of failures. quick: small shapes, for
// compute-sanitizer.
int check_top_k(bool quick);
int check_tree(bool quick);
int check_golden(const std::string& folder);
int check_sample(bool quick);
int check_commit(bool quick);

}  // namespace lab
