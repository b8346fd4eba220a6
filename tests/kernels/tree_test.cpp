// Top-k, tree build, cut and compile, sampling, accept and KV move on a GPU against plain host code
// (support/tree_reference.h), and the golden trees of tiny-k2. Skipped without a device.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/kernels/support/tree_checks.h"
#include "tests/support/small_tests.h"
#include "tests/support/source_dir.h"

namespace coppice::kernels {
namespace checks {

void PrintTo(const SmallCase& small, std::ostream* out) {
  *out << small.name;
}

}  // namespace checks

namespace {

class TreeKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(TreeKernels, TopKAndGreedyEqualTheHost) {
  EXPECT_EQ(checks::check_top_k(testing::small_tests()), 0);
}
TEST_F(TreeKernels, TreesAndRowsEqualTheHost) {
  EXPECT_EQ(checks::check_tree(), 0);
}
TEST_F(TreeKernels, AcceptAndMoveEqualTheHost) {
  EXPECT_EQ(checks::check_commit(testing::small_tests()), 0);
}
TEST_F(TreeKernels, SampledTokensEqualTheHost) {
  EXPECT_EQ(checks::check_sample(), 0);
}
TEST_F(TreeKernels, GoldenTrees) {
  EXPECT_EQ(checks::check_golden(testing::source_dir() + "/tests/golden/tiny-k2"), 0);
}

class SmallTrees : public TreeKernels, public ::testing::WithParamInterface<checks::SmallCase> {};

TEST_P(SmallTrees, EqualTheHost) {
  EXPECT_EQ(GetParam().check(), 0);
}
std::string name_of(const ::testing::TestParamInfo<checks::SmallCase>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Tree, SmallTrees, ::testing::ValuesIn(checks::small_tree_cases()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Sample, SmallTrees, ::testing::ValuesIn(checks::small_sample_cases()),
                         name_of);

// The checks can fail: trees with a node less are not the expected ones.
TEST_F(TreeKernels, ChecksCatchAPlantedFault) {
  EXPECT_GT(checks::check_planted_fault(), 0);
}

}  // namespace
}  // namespace coppice::kernels
