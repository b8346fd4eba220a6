// top_k_log_probs: the one tree op that works row by row.
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

}  // namespace

void add_sampling_cases(std::vector<OpCase>& cases) {
  using Rows = std::vector<std::int64_t>;
  cases.push_back({"top_k_log_probs", "distinct", 0, 1e-6f,
                   [](Backend& b, const Rows& r) { return run_top_k(b, r, false); }});
  cases.push_back({"top_k_log_probs", "ties", 0, 1e-6f,
                   [](Backend& b, const Rows& r) { return run_top_k(b, r, true); }});
}

}  // namespace coppice::testing
