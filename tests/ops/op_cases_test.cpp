// Every op case on every backend of this machine: against the reference, and row by row.
#include "tests/ops/op_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "backend/factory/make_backend.h"
#include "base/error.h"
#include "tests/support/source_dir.h"

namespace coppice::testing {
namespace {

// Null, with the test skipped, where the machine or the build has no such device.
std::unique_ptr<Backend> backend_or_skip(const std::string& device, int threads) {
  try {
    return make_backend({.device = device, .num_threads = threads});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return nullptr;
  }
}

// The table, or with COPPICE_OPS set only the cases whose "op name" it lists ("embed F32;silu_mul
// 576"), or if there is none those in whose "op name" it is.
std::vector<OpCase> chosen_cases() {
  std::vector<OpCase> cases = op_cases();
  const char* const part = std::getenv("COPPICE_OPS");
  if (part == nullptr) return cases;
  std::set<std::string> listed;
  std::istringstream text(part);
  for (std::string name; std::getline(text, name, ';');) listed.insert(name);
  const auto name = [](const OpCase& op_case) { return op_case.op + " " + op_case.name; };
  const auto is_listed = [&](const OpCase& op_case) { return listed.contains(name(op_case)); };
  const bool whole = std::any_of(cases.begin(), cases.end(), is_listed);
  std::erase_if(cases, [&](const OpCase& op_case) {
    return whole ? !is_listed(op_case) : name(op_case).find(part) == std::string::npos;
  });
  EXPECT_FALSE(cases.empty()) << "COPPICE_OPS names no case: " << part;
  return cases;
}

// Cases of shapes or formats that no GPU kernel takes: the backend must refuse them in one line.
const std::set<std::string> kRefusedByCuda = {
    "rms_norm 15",
    "add_rms_norm 15",
    "moe_experts bf16",
    "moe_experts bf16 odd",
    "moe_experts q4_0",
    "moe_experts q8_0",
    "gqa_attention head of 80",
    "mla_rope_and_write_kv small",
    "gqa_attention head of 24",
};

// True if the case is one that this device refuses, and it does.
bool is_refused(const OpCase& op_case, const std::string& device, Backend& backend) {
  if (device != "cuda" || !kRefusedByCuda.contains(op_case.op + " " + op_case.name)) return false;
  try {
    op_case.run(backend, {0});
    ADD_FAILURE() << op_case.op << " " << op_case.name << " was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
  }
  return true;
}

class OpCasesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OpCasesTest, AgreesWithReference) {
  if (GetParam() == "cpu-reference") GTEST_SKIP() << "is the reference";
  const auto tested = backend_or_skip(GetParam(), 2);
  if (tested == nullptr) GTEST_SKIP() << "no " << GetParam() << " here";
  const auto reference = make_backend({.device = "cpu-reference", .num_threads = 2});
  for (const OpCase& op_case : chosen_cases()) {
    std::printf("%s %s\n", op_case.op.c_str(), op_case.name.c_str());
    std::fflush(stdout);
    if (is_refused(op_case, GetParam(), *tested)) continue;
    for (const std::int64_t size : sweep_sizes()) {
      const std::string difference =
          compare_with_reference(op_case, *reference, *tested, row_ids(size, size % 2 == 1));
      EXPECT_EQ(difference, "");
      if (!difference.empty()) break;
    }
  }
}

TEST_P(OpCasesTest, RowsDoNotDependOnOtherRowsOrThreads) {
  if (backend_or_skip(GetParam(), 1) == nullptr) GTEST_SKIP() << "no " << GetParam() << " here";
  const std::int64_t largest = sweep_sizes().back();
  const auto one_thread = make_backend({.device = GetParam(), .num_threads = 1});
  std::vector<std::unique_ptr<Backend>> backends;
  const std::vector<int> counts = GetParam() == "cuda" ? std::vector<int>{1} : thread_counts();
  for (const int threads : counts)
    backends.push_back(make_backend({.device = GetParam(), .num_threads = threads}));
  for (const OpCase& op_case : chosen_cases()) {
    std::printf("%s %s\n", op_case.op.c_str(), op_case.name.c_str());
    std::fflush(stdout);
    if (is_refused(op_case, GetParam(), *one_thread)) continue;
    const RowResults alone = rows_alone(op_case, *one_thread, largest);
    for (std::size_t i = 0; i < sweep_sizes().size(); ++i) {
      Backend& backend = *backends[i % backends.size()];
      const std::int64_t size = sweep_sizes()[i];
      EXPECT_EQ(check_row_independence(op_case, backend, row_ids(size, i % 2 == 0), alone), "");
    }
    // The widest step on every number of threads.
    for (const auto& backend : backends)
      ASSERT_EQ(check_row_independence(op_case, *backend,
                                       row_ids(std::min<std::int64_t>(67, largest), true), alone),
                "");
  }
}

// As in a round that was launched before the last one's results were known.
TEST_P(OpCasesTest, RowsMayAllBePadded) {
  const auto tested = backend_or_skip(GetParam(), 2);
  if (tested == nullptr) GTEST_SKIP() << "no " << GetParam() << " here";
  for (const OpCase& op_case : chosen_cases()) {
    std::printf("%s %s\n", op_case.op.c_str(), op_case.name.c_str());
    std::fflush(stdout);
    if (is_refused(op_case, GetParam(), *tested)) continue;
    for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{67}})
      for (const std::vector<float>& values :
           op_case.run(*tested, std::vector<std::int64_t>(size, kPadding)))
        EXPECT_TRUE(values.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, OpCasesTest,
                         ::testing::Values("cpu-reference", "cpu-avx2", "cpu-avx512", "cuda"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Ops whose cases are of another kind than rows, and where those are.
const std::set<std::string> kTestedElsewhere = {
    "plan_mla_attention",                                                 // with mla_attention
    "compile_draft",      "build_tree", "ngram_propose", "compile_tree",  // tests/spec
    "accept_path",        "move_kv",                                      // tests/spec
};

TEST(OpTableTest, EveryOpHasACase) {
  std::set<std::string> covered = kTestedElsewhere;
  for (const OpCase& op_case : op_cases()) covered.insert(op_case.op);
  std::ifstream header(source_dir() + "/src/backend/backend.h");
  const std::string before = "virtual void ", after = "(const ", end = "Args& args)";
  std::string line;
  int ops = 0;
  while (std::getline(header, line)) {
    const std::size_t begin = line.find(before), stop = line.find(after);
    if (begin == std::string::npos || stop == std::string::npos ||
        line.find(end) == std::string::npos)
      continue;
    const std::string op = line.substr(begin + before.size(), stop - begin - before.size());
    ++ops;
    EXPECT_TRUE(covered.contains(op)) << op << " has no row in tests/ops/op_cases.h";
  }
  EXPECT_GE(ops, 20);
}

// What COPPICE_OPS may be; scripts/sanitize_cuda.py reads this list.
TEST(OpTableTest, NamesPickOneCase) {
  std::set<std::string> names;
  for (const OpCase& op_case : op_cases()) {
    const std::string name = op_case.op + " " + op_case.name;
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    std::printf("case %s\n", name.c_str());
  }
}

// ---- Planted faults: the checks above must see them.

OpCase rms_norm_case() {
  for (const OpCase& op_case : op_cases())
    if (op_case.op == "rms_norm") return op_case;
  ADD_FAILURE() << "no rms_norm case";
  return {};
}

TEST(OpCheckTest, ComparisonCatchesAWrongValueAndNan) {
  const auto reference = make_backend({.device = "cpu-reference", .num_threads = 1});
  const auto tested = make_backend({.device = "cpu-reference", .num_threads = 2});
  OpCase op_case = rms_norm_case();
  EXPECT_EQ(compare_with_reference(op_case, *reference, *tested, row_ids(9, true)), "");
  const auto honest = op_case.run;
  for (const float fault : {1e-4f, std::numeric_limits<float>::quiet_NaN()}) {
    op_case.run = [&](Backend& backend, const std::vector<std::int64_t>& rows) {
      RowResults results = honest(backend, rows);
      if (&backend == tested.get()) results[4][3] += fault;
      return results;
    };
    EXPECT_NE(compare_with_reference(op_case, *reference, *tested, row_ids(9, true)), "");
  }
}

TEST(OpCheckTest, IndependenceCatchesOneBitThatFollowsTheRowCount) {
  const auto backend = make_backend({.device = "cpu-reference", .num_threads = 1});
  OpCase op_case = rms_norm_case();
  const RowResults alone = rows_alone(op_case, *backend, 20);
  EXPECT_EQ(check_row_independence(op_case, *backend, row_ids(20, false), alone), "");
  const auto honest = op_case.run;
  op_case.run = [&](Backend& b, const std::vector<std::int64_t>& rows) {
    RowResults results = honest(b, rows);
    if (rows.size() > 16) results[5][0] = std::nextafter(results[5][0], 100.0f);
    return results;
  };
  EXPECT_EQ(check_row_independence(op_case, *backend, row_ids(16, false), alone), "");
  EXPECT_NE(check_row_independence(op_case, *backend, row_ids(17, false), alone), "");
}

TEST(OpCheckTest, IndependenceCatchesAPaddedRowThatLeaks) {
  const auto backend = make_backend({.device = "cpu-reference", .num_threads = 1});
  OpCase op_case = rms_norm_case();
  const RowResults alone = rows_alone(op_case, *backend, 8);
  const auto honest = op_case.run;
  op_case.run = [&](Backend& b, const std::vector<std::int64_t>& rows) {
    RowResults results = honest(b, rows);
    for (std::size_t i = 1; i < rows.size(); ++i)
      if (rows[i - 1] == kPadding) results[i][0] += 0 * std::numeric_limits<float>::quiet_NaN();
    return results;
  };
  EXPECT_EQ(check_row_independence(op_case, *backend, row_ids(8, false), alone), "");
  EXPECT_NE(check_row_independence(op_case, *backend, row_ids(8, true), alone), "");
}

}  // namespace
}  // namespace coppice::testing
