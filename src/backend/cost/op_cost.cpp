#include "backend/cost/op_cost.h"

#include <algorithm>
#include <cmath>

namespace coppice {

double distinct_experts(std::int64_t num_experts, std::int64_t top_k, double rows, double overlap) {
  if (rows <= 0) return 0;
  const auto experts = static_cast<double>(num_experts), k = static_cast<double>(top_k);
  const double uniform = experts * (1 - std::pow(1 - k / experts, rows));
  return k + (uniform - k) * (1 - overlap);
}

namespace {

// Experts among which `rows` independent choices of k reach `distinct`: fewer than there are where
// rows choose alike.
double experts_in_use(double experts, double k, double rows, double distinct) {
  double low = k, high = experts;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (middle * (1 - std::pow(1 - k / middle, rows)) < distinct ? low : high) = middle;
  }
  return high;
}

}  // namespace

std::vector<double> expert_loads(std::int64_t num_experts, std::int64_t top_k, std::int64_t rows,
                                 double overlap) {
  constexpr std::int64_t kBin = 8;
  if (rows <= 0) return {};
  const auto all_rows = static_cast<double>(rows), k = static_cast<double>(top_k);
  const double distinct = distinct_experts(num_experts, top_k, all_rows, overlap);
  const double used = experts_in_use(static_cast<double>(num_experts), k, all_rows, distinct);
  std::vector<double> loads(static_cast<std::size_t>((rows + kBin - 1) / kBin));
  const double p = k / used;
  if (p > 1 - 1e-9) {  // every row chooses the same experts
    loads.back() = used;
    return loads;
  }
  // Binomial, where it is not negligible.
  const double mean = all_rows * p, width = 9 * std::sqrt(mean * (1 - p)) + 9;
  const auto first = std::max<std::int64_t>(1, static_cast<std::int64_t>(mean - width));
  const auto last = std::min(rows, static_cast<std::int64_t>(mean + width));
  const auto n = static_cast<double>(first);
  double chance =
      std::exp(std::lgamma(all_rows + 1) - std::lgamma(n + 1) - std::lgamma(all_rows - n + 1) +
               n * std::log(p) + (all_rows - n) * std::log1p(-p));
  for (std::int64_t i = first; i <= last; ++i) {
    loads[static_cast<std::size_t>((i - 1) / kBin)] += used * chance;
    chance *= static_cast<double>(rows - i) / static_cast<double>(i + 1) * p / (1 - p);
  }
  while (loads.size() > 1 && loads.back() < 1e-9) loads.pop_back();
  return loads;
}

}  // namespace coppice
