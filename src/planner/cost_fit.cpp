#include "planner/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "base/check.h"

namespace coppice {
namespace {

constexpr std::size_t kTerms = 6;  // fixed, row, merge, stream, step, serial
using Vector = std::array<double, kTerms>;

// One measured call: its terms, and what the time exceeds the memory's floor by;
// all divided by the time, so that the fit is relative.
struct Row {
  Vector x;
  double excess;
};
using Rows = std::vector<Row>;

// Solves the normal equations of the columns in `subset` for sum c_i x_i = excess; the others are
// 0. Nothing where they are singular or a coefficient is negative.
std::optional<Vector> solve(const Rows& rows, unsigned subset) {
  const auto chosen = [&](std::size_t i) { return (subset >> i & 1u) != 0; };
  std::array<std::array<double, kTerms + 1>, kTerms> a{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (!chosen(i)) {
      a[i][i] = 1;
      continue;
    }
    for (const Row& row : rows) {
      for (std::size_t j = 0; j < kTerms; ++j)
        if (chosen(j)) a[i][j] += row.x[i] * row.x[j];
      a[i][kTerms] += row.x[i] * row.excess;
    }
  }
  for (std::size_t i = 0; i < kTerms; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < kTerms; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    std::swap(a[i], a[pivot]);
    if (std::abs(a[i][i]) < 1e-14) return std::nullopt;
    for (std::size_t r = 0; r < kTerms; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (std::size_t j = i; j <= kTerms; ++j) a[r][j] -= factor * a[i][j];
    }
  }
  Vector c{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    c[i] = a[i][kTerms] / a[i][i];
    if (c[i] < 0) return std::nullopt;
  }
  return c;
}

double squared_error(const Rows& rows, const Vector& c) {
  double sum = 0;
  for (const Row& row : rows) {
    double error = -row.excess;
    for (std::size_t i = 0; i < kTerms; ++i) error += c[i] * row.x[i];
    sum += error * error;
  }
  return sum;
}

// With so few columns, trying every subset is the whole of non-negative least squares.
Vector fit_not_negative(const Rows& rows) {
  Vector best{};
  double least = squared_error(rows, best);
  for (unsigned subset = 1; subset < 1u << kTerms; ++subset) {
    const std::optional<Vector> c = solve(rows, subset);
    if (!c) continue;
    const double error = squared_error(rows, *c);
    if (error >= least - 1e-12) continue;
    least = error;
    best = *c;
  }
  return best;
}

}  // namespace

double interpolate_log(const std::map<double, double>& points, double x) {
  const auto above = points.lower_bound(x);
  if (above == points.end()) return points.rbegin()->second;
  if (above == points.begin() || above->first == x) return above->second;
  const auto below = std::prev(above);
  const double weight =
      std::log((x + 1) / (below->first + 1)) / std::log((above->first + 1) / (below->first + 1));
  return below->second + weight * (above->second - below->second);
}

CostFeatures& CostFeatures::operator+=(const CostFeatures& other) {
  launches += other.launches;
  spread += other.spread;
  merges += other.merges;
  memory_us += other.memory_us;
  steps_us += other.steps_us;
  math_us += other.math_us;
  serial_us += other.serial_us;
  rows = std::max(rows, other.rows);
  context = std::max(context, other.context);
  form = std::max(form, other.form);
  return *this;
}

CostFit::CostFit(const std::vector<CostPoint>& points) {
  COPPICE_CHECK(!points.empty(), "no points");
  Rows rows;
  for (const CostPoint& point : points) {
    const CostFeatures& at = point.at;
    Row row{.x = {at.launches, at.spread, at.merges, at.memory_us, at.steps_us, at.serial_us},
            .excess = std::max(
                0.0, 1 - (kLeastStream * at.memory_us + at.math_us + at.serial_us) / point.us)};
    for (double& x : row.x) x /= point.us;
    rows.push_back(row);
  }
  // Where bytes grow with rows, a few points cannot tell one from the other: a stream is expected
  // near what kernels reach.
  constexpr double kExpected = 1.05, kSure = 0.05;
  rows.push_back({.x = {0, 0, 0, kSure, 0, 0}, .excess = kSure * (kExpected - kLeastStream)});
  const Vector c = fit_not_negative(rows);
  fixed_ = c[0], row_ = c[1], merge_ = c[2], stream_ = kLeastStream + c[3], step_ = c[4],
  serial_ = 1 + c[5];
  for (const CostPoint& point : points) {
    const double fitted = before_residual(point.at).us();
    residuals_.push_back(
        {point.at.rows, point.at.context, fitted > 0 ? point.us / fitted : 1.0, point.at.form});
  }
}

CostFit::Parts CostFit::before_residual(const CostFeatures& at) const {
  return {.fixed_us = fixed_ * at.launches + row_ * at.spread + merge_ * at.merges,
          .memory_us = stream_ * at.memory_us,
          .math_us = at.math_us + step_ * at.steps_us + serial_ * at.serial_us};
}

CostFit::Parts CostFit::predict(const CostFeatures& features, double launch_ratio) const {
  const double factor = residual(features);
  Parts parts = before_residual(features);
  parts.fixed_us *= launch_ratio * factor;
  parts.memory_us *= factor;
  parts.math_us *= factor;
  return parts;
}

// Along rows at each context, then along contexts, between points of the same form if there are
// any. Points at one place are averaged.
double CostFit::residual(const CostFeatures& features) const {
  const bool known =
      std::ranges::any_of(residuals_, [&](const Residual& at) { return at.form == features.form; });
  std::map<double, std::map<double, std::pair<double, double>>> grid;
  for (const Residual& at : residuals_) {
    if (known && at.form != features.form) continue;
    auto& [sum, count] = grid[at.context][at.rows];
    sum += at.factor;
    count += 1;
  }
  if (grid.empty()) return 1;
  std::map<double, double> across;
  for (const auto& [at, line] : grid) {
    std::map<double, double> along;
    for (const auto& [x, mean] : line) along.emplace(x, mean.first / mean.second);
    across.emplace(at, interpolate_log(along, features.rows));
  }
  return interpolate_log(across, features.context);
}

}  // namespace coppice
