#include "tests/ops/op_cases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "tests/support/sanitized.h"
#include "tests/support/small_tests.h"

namespace coppice::testing {

std::vector<OpCase> op_cases() {
  std::vector<OpCase> cases;
  add_row_cases(cases);
  add_linear_cases(cases);
  add_moe_cases(cases);
  add_attention_cases(cases);
  add_sampling_cases(cases);
  return cases;
}

std::string compare_with_reference(const OpCase& op_case, Backend& reference, Backend& tested,
                                   const std::vector<std::int64_t>& rows) {
  const float bound =
      tested.activation_dtype() == DType::kF32 ? op_case.fast_bound : op_case.bf16_bound;
  const RowResults expected = op_case.run(reference, rows), actual = op_case.run(tested, rows);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    float largest = 0;
    for (const float value : expected[row]) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < expected[row].size(); ++i) {
      const float error = std::abs(actual[row][i] - expected[row][i]);
      if (error <= bound * largest) continue;  // false for NaN
      std::ostringstream message;
      message << op_case.op << '/' << op_case.name << ", " << rows.size() << " rows: row " << row
              << " value " << i << " is " << actual[row][i] << ", reference " << expected[row][i]
              << " (largest " << largest << ", bound " << bound << ')';
      return message.str();
    }
  }
  return "";
}

RowResults rows_alone(const OpCase& op_case, Backend& backend, std::int64_t count) {
  RowResults alone(static_cast<std::size_t>(count));
  for (std::int64_t id = 0; id < count; ++id) {
    const bool wanted = id < 67 || id % 16 < 2 || id + 2 >= count;
    if (wanted) alone[static_cast<std::size_t>(id)] = op_case.run(backend, {id})[0];
  }
  return alone;
}

std::string check_row_independence(const OpCase& op_case, Backend& backend,
                                   const std::vector<std::int64_t>& rows, const RowResults& alone) {
  const RowResults together = op_case.run(backend, rows);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] == kPadding) continue;
    const std::vector<float>& expected = alone[static_cast<std::size_t>(rows[row])];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const float actual = i < together[row].size() ? together[row][i] : 0.0f;
      if (std::bit_cast<std::uint32_t>(expected[i]) == std::bit_cast<std::uint32_t>(actual))
        continue;
      std::ostringstream message;
      message.precision(9);
      message << op_case.op << '/' << op_case.name << ": row " << row << " of " << rows.size()
              << " value " << i << " is " << actual << ", alone " << expected[i];
      return message.str();
    }
  }
  return "";
}

std::vector<std::int64_t> sweep_sizes() {
  if (const char* const chosen = std::getenv("COPPICE_ROWS")) {  // "1,17"
    std::vector<std::int64_t> rows;
    std::istringstream text(chosen);
    for (std::string size; std::getline(text, size, ',');) rows.push_back(std::stoll(size));
    return rows;
  }
  if (small_tests()) return {1, 7, 17, 33, 129};  // one of each form of the kernels
  // Every loop and its remainder; the full sweep takes too long there.
  if (kSanitized) return {0, 1, 2, 7, 17};
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 0; size <= 17; ++size) sizes.push_back(size);
  for (const std::int64_t middle : {32, 64, 128, 256})
    for (std::int64_t size = middle - 1; size <= middle + 1; ++size) sizes.push_back(size);
  return sizes;
}

std::vector<int> thread_counts() {
  if (kThreadSanitized) return {1, 3};  // threads that wait for a core cost minutes there
  return {1, 2, 3, 7};
}

std::vector<std::int64_t> row_ids(std::int64_t count, bool padded) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) rows.push_back(padded && i % 5 == 3 ? kPadding : i);
  return rows;
}

}  // namespace coppice::testing
