// usage: check [--quick] [GOLDEN_FOLDER]. Exit code 1 on any difference from the host.
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/kernels/support/tree_checks.h"

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bool quick = false;
  std::string golden;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      golden = argv[i];
    }
  }
  int failures =
      coppice::kernels::checks::check_top_k(quick) + coppice::kernels::checks::check_tree(quick) +
      coppice::kernels::checks::check_commit(quick) + coppice::kernels::checks::check_sample(quick);
  if (!golden.empty()) failures += coppice::kernels::checks::check_golden(golden);
  std::printf("%s: %d failures\n", failures == 0 ? "PASS" : "FAIL", failures);
  return failures == 0 ? 0 : 1;
}
