// top_k_log_probs, and greedy sample_rows: the ops behind the logits that work row by row.
#include <limits>
#include "tests/ops/support/staging.h"

namespace coppice::testing {
namespace {

RowResults run_top_k(Backend& backend, const std::vector<std::int64_t>& rows, bool ties) {
  constexpr std::int64_t kVocab = 1000, kTop = 9;
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> logits;
  for (const std::int64_t id : rows)
    for (std::int64_t i = 0; i < kVocab; ++i)
      logits.push_back(id == kPadding ? std::numeric_limits<float>::quiet_NaN()
                       : ties         ? static_cast<float>((id + 7 * i) % 11)
                                      : 9 * noise(1, id, i));
  const Tensor ids = s.int_out(count, {kTop}), log_probs = s.f32_out(count, {kTop});
  backend.top_k_log_probs(
      {.logits = s.f32({count, kVocab}, logits), .ids = ids, .log_probs = log_probs});
  RowResults results;
  s.collect(ids, rows, results);
  s.collect(log_probs, rows, results);
  return results;
}

// The greedy choice and its log-probability, which need nothing of the sequences.
RowResults run_greedy(Backend& backend, const std::vector<std::int64_t>& rows, bool ties) {
  constexpr std::int64_t kVocab = 1000;
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> logits;
  std::vector<std::int32_t> seq_of_row;
  for (const std::int64_t id : rows) {
    seq_of_row.push_back(id == kPadding ? -1 : 0);
    for (std::int64_t i = 0; i < kVocab; ++i)
      logits.push_back(id == kPadding ? std::numeric_limits<float>::quiet_NaN()
                       : ties         ? static_cast<float>((id + 7 * i) % 11)
                                      : 9 * noise(1, id, i));
  }
  const Tensor choices = s.int_out(count, {}), finite = s.int_out(count, {});
  const Tensor log_probs = s.f32_out(count, {});
  backend.sample_rows({.logits = s.f32({count, kVocab}, logits),
                       .seq_of_row = s.ints({count}, seq_of_row),
                       .greedy = true,
                       .choices = choices,
                       .finite = finite,
                       .log_probs = log_probs});
  // A padded row has no choice, and its NaN is not held against it.
  const std::vector<float> chosen = s.read(choices), fine = s.read(finite);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    COPPICE_CHECK_EQ(fine[i], 1.0f);
    if (rows[i] == kPadding) COPPICE_CHECK_EQ(chosen[i], -1.0f);
  }
  RowResults results;
  s.collect(choices, rows, results);
  for (std::vector<float>& row : results)  // errors count against the row's largest value
    for (float& choice : row) choice /= kVocab;
  s.collect(log_probs, rows, results);
  return results;
}

}  // namespace

void add_sampling_cases(std::vector<OpCase>& cases) {
  using Rows = std::vector<std::int64_t>;
  cases.push_back({"top_k_log_probs", "distinct", 0, 1e-6f,
                   [](Backend& b, const Rows& r) { return run_top_k(b, r, false); }});
  cases.push_back({"top_k_log_probs", "ties", 0, 1e-6f,
                   [](Backend& b, const Rows& r) { return run_top_k(b, r, true); }});
  cases.push_back({"sample_rows", "greedy distinct", 0, 5e-6f,
                   [](Backend& b, const Rows& r) { return run_greedy(b, r, false); }});
  cases.push_back({"sample_rows", "greedy ties", 0, 5e-6f,
                   [](Backend& b, const Rows& r) { return run_greedy(b, r, true); }});
}

}  // namespace coppice::testing
