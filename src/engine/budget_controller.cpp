#include "engine/budget_controller.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coppice {
namespace {

constexpr float kNoLimit = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kProbeEvery = 64;   // rounds between probes while drafting is paused
constexpr double kDecay = 0.995;           // of acceptance sums, per sequence and round
constexpr double kPrior = 8;               // rounds' worth of belief in the drafter's own numbers
constexpr double kDefaultMsPerRow = 0.02;  // of a one-row step, until rounds were measured
// The device's cut decides exactly; growth stops a little below what could pay.
constexpr double kGrowthMargin = 0.5;

}  // namespace

void BudgetController::Average::add(double sample) {
  ++count;
  // A mean at first, then a moving one.
  value += (sample - value) / static_cast<double>(std::min<std::int64_t>(count, 16));
}

BudgetController::BudgetController(const SpeculativeConfig& config, std::int64_t max_depth,
                                   std::int64_t max_rows)
    : config_(config), max_depth_(max_depth), max_rows_(max_rows) {
  // 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: at most half more rows than asked for.
  for (std::int32_t rows = 1; std::ssize(bucket_rows_) < kNumBuckets; rows *= 2) {
    bucket_rows_.push_back(rows);
    if (rows > 1) bucket_rows_.push_back(rows / 2 * 3);
  }
  bucket_rows_.resize(kNumBuckets);
  bucket_ms_.resize(bucket_rows_.size());
  predicted_at_.assign(static_cast<std::size_t>(max_depth + 1), 0);
  accepted_at_ = predicted_at_;
}

std::size_t BudgetController::bucket_of(std::int64_t rows) const {
  const auto it = std::lower_bound(bucket_rows_.begin(), bucket_rows_.end(), rows);
  return static_cast<std::size_t>(
      std::min<std::ptrdiff_t>(it - bucket_rows_.begin(), std::ssize(bucket_rows_) - 1));
}

double BudgetController::verify_ms(std::int64_t rows) const {
  // The nearest measured buckets at or below and at or above, joined by a line that never falls.
  const std::size_t at = bucket_of(rows);
  std::ptrdiff_t below = static_cast<std::ptrdiff_t>(at);
  while (below >= 0 && bucket_ms_[static_cast<std::size_t>(below)].count == 0) --below;
  std::size_t above = at;
  while (above < bucket_ms_.size() && bucket_ms_[above].count == 0) ++above;
  const bool has_below = below >= 0, has_above = above < bucket_ms_.size();
  if (!has_below && !has_above) return 0;
  const auto row_count = [&](std::size_t i) { return static_cast<double>(bucket_rows_[i]); };
  const auto r = static_cast<double>(bucket_rows_[at]);
  if (has_below && has_above) {
    const auto low = static_cast<std::size_t>(below);
    if (low == above) return bucket_ms_[low].value;
    const double weight = (r - row_count(low)) / (row_count(above) - row_count(low));
    return bucket_ms_[low].value +
           weight * std::max(0.0, bucket_ms_[above].value - bucket_ms_[low].value);
  }
  if (has_below) {
    const auto low = static_cast<std::size_t>(below);
    return bucket_ms_[low].value * (1 + kDefaultMsPerRow * (r - row_count(low)));
  }
  return bucket_ms_[above].value / (1 + kDefaultMsPerRow * (row_count(above) - r));
}

std::vector<float> BudgetController::cost_ms() const {
  std::vector<float> costs;
  double highest = 0;
  for (const std::int32_t rows : bucket_rows_) {
    const double measured = verify_ms(rows);
    const double ms = measured > 0 ? measured : 1 + kDefaultMsPerRow * rows;
    highest = std::max(highest, ms);
    costs.push_back(static_cast<float>(highest + draft_ms_.value));
  }
  return costs;
}

std::vector<float> BudgetController::calibration() const {
  std::vector<float> scale = {1.0f};
  for (std::size_t depth = 1; depth < predicted_at_.size(); ++depth) {
    const double ratio = (accepted_at_[depth] + kPrior) / (predicted_at_[depth] + kPrior);
    scale.push_back(static_cast<float>(std::clamp(ratio, 0.1, 2.0)));
  }
  return scale;
}

bool BudgetController::speculation_pays(std::int64_t num_sequences) const {
  const double plain_ms = verify_ms(num_sequences);
  if (plain_ms <= 0 || tokens_per_round_.count < 4 || drafted_round_ms_.value <= 0) return true;
  return tokens_per_round_.value / drafted_round_ms_.value > 1.02 / plain_ms;
}

RoundBudgets BudgetController::plan(std::span<const BudgetDemand> demands, std::int64_t batch) {
  RoundBudgets round;
  round.budgets.assign(static_cast<std::size_t>(batch), 0);
  round.min_scores.assign(static_cast<std::size_t>(batch), kNoLimit);
  const auto count = static_cast<std::int64_t>(demands.size());
  const bool can_draft = config_.method != SpeculativeMethod::kNone && max_depth_ > 0;
  bool wants_auto = false;
  for (const BudgetDemand& demand : demands) wants_auto |= demand.setting == kAutoBudget;
  bool auto_allowed = can_draft;
  if (can_draft && wants_auto && !speculation_pays(count))
    auto_allowed = ++paused_rounds_ % kProbeEvery == 0;
  const double plain_ms = std::max(verify_ms(count), 1e-9);
  const double per_row_ms = std::max(0.0, verify_ms(count + 16) - verify_ms(count)) / 16;
  const double threshold =
      kGrowthMargin * per_row_ms * std::max(1.0, tokens_per_round_.value) / plain_ms;
  std::int64_t rows = count;
  for (const BudgetDemand& demand : demands) {
    const auto place = static_cast<std::size_t>(demand.place);
    const bool is_auto = demand.setting == kAutoBudget;
    std::int64_t budget = is_auto ? (auto_allowed ? config_.max_ddtree_budget : 0)
                                  : std::min(demand.setting, config_.max_ddtree_budget);
    if (!can_draft || demand.tokens_left <= 1) budget = 0;  // nothing past the bonus can be used
    if (is_auto && budget > 0 && threshold > 0) {
      round.min_scores[place] = static_cast<float>(std::log(threshold));
      round.cut_by_cost = true;
    }
    round.budgets[place] = static_cast<std::int32_t>(budget);
    rows += budget;
  }
  round.drafting = rows > count;
  round.max_rows = std::min(rows, max_rows_);
  return round;
}

void BudgetController::observe_cost(std::int64_t rows, bool drafted, double draft_ms,
                                    double verify_ms) {
  if (verify_ms <= 0) return;  // a clock that stands still teaches nothing
  bucket_ms_[bucket_of(rows)].add(verify_ms);
  if (!drafted) return;
  draft_ms_.add(draft_ms);
  drafted_round_ms_.add(draft_ms + verify_ms);
}

void BudgetController::observe_outcome(const DepthOutcome& outcome) {
  for (std::size_t depth = 1; depth < predicted_at_.size(); ++depth) {
    const double predicted =
        depth < outcome.predicted.size() ? static_cast<double>(outcome.predicted[depth]) : 0.0;
    if (predicted <= 0) continue;
    predicted_at_[depth] = kDecay * predicted_at_[depth] + predicted;
    accepted_at_[depth] = kDecay * accepted_at_[depth] +
                          (static_cast<std::int64_t>(depth) <= outcome.accepted_depth ? 1.0 : 0.0);
  }
}

void BudgetController::observe_tokens(std::int64_t num_sequences, std::int64_t num_tokens,
                                      bool drafted) {
  if (drafted && num_sequences > 0)
    tokens_per_round_.add(static_cast<double>(num_tokens) / static_cast<double>(num_sequences));
}

}  // namespace coppice
