// The one table of op cases, for every backend. A case computes any list of rows: a row's inputs
// follow from its id alone, so that the same row can be computed alone, among others, and on
// another backend, and its results compared.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace coppice::testing {

// A padded row: inert, its inputs NaN.
inline constexpr std::int64_t kPadding = -1;

// Everything an op wrote for each row, as floats. Rows of padding stay empty.
using RowResults = std::vector<std::vector<float>>;

struct OpCase {
  std::string op;    // its name in backend.h
  std::string name;  // what is special about the case
  // Largest error against the fp32 reference, over the largest magnitude in the row's results:
  float fast_bound = 0;  // of a CPU path; 0: bit for bit
  float bf16_bound = 0;  // of a backend whose activations are bf16
  std::function<RowResults(Backend& backend, const std::vector<std::int64_t>& rows)> run;
};

std::vector<OpCase> op_cases();

// One family each (support/*.cpp), appended to the table.
void add_row_cases(std::vector<OpCase>& cases);
void add_linear_cases(std::vector<OpCase>& cases);
void add_moe_cases(std::vector<OpCase>& cases);
void add_attention_cases(std::vector<OpCase>& cases);
void add_sampling_cases(std::vector<OpCase>& cases);

// ---- Checks: each returns an empty string, or the first difference in one line.

// Row by row against the reference.
std::string compare_with_reference(const OpCase& op_case, Backend& reference, Backend& tested,
                                   const std::vector<std::int64_t>& rows);
// Rows 0 .. count - 1 computed alone; beyond 67 only some of them, the others stay empty.
RowResults rows_alone(const OpCase& op_case, Backend& backend, std::int64_t count);
// Bits of every row of `rows` against alone[its id], where that is known.
std::string check_row_independence(const OpCase& op_case, Backend& backend,
                                   const std::vector<std::int64_t>& rows, const RowResults& alone);

// Row counts of the sweep.
std::vector<std::int64_t> sweep_sizes();
// Of the CPU backends that must agree.
std::vector<int> thread_counts();
// Row ids 0 .. count - 1, every fifth row of padding when `padded`.
std::vector<std::int64_t> row_ids(std::int64_t count, bool padded);

}  // namespace coppice::testing
