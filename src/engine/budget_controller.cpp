#include "engine/budget_controller.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coppice {
namespace {

constexpr float kNoLimit = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kProbeEvery = 128;  // while drafting is paused: this often ...
constexpr std::int64_t kProbeRounds = 2;   // ... so many rounds draft
constexpr std::int64_t kMinRounds = 4;     // drafting is not judged before so many
constexpr std::int64_t kSureRounds = 32;   // until then it keeps the benefit of the doubt
constexpr std::int64_t kRateWindow = 48;   // the same, for the rate that decides about drafting
constexpr std::int64_t kWindow = 16;       // samples of a moving average
constexpr double kDecay = 0.995;           // of acceptance sums, per sequence and round
constexpr double kPrior = 8;               // rounds' worth of belief in the drafter's own numbers
constexpr double kDefaultMsPerRow = 0.02;  // of a one-row step, until rounds were measured
// The device's cut decides exactly; growth stops a little below what could pay.
constexpr double kGrowthMargin = 0.5;

}  // namespace

void BudgetController::Average::add(double sample, std::int64_t window) {
  ++count;
  // A mean at first, then a moving one.
  value += (sample - value) / static_cast<double>(std::min(count, window));
}

BudgetController::BudgetController(const SpeculativeConfig& config, std::int64_t max_depth,
                                   std::int64_t max_rows)
    : config_(config), max_depth_(max_depth), max_rows_(max_rows) {
  bucket_ms_.resize(kNumRowBuckets);
  predicted_at_.assign(static_cast<std::size_t>(max_depth + 1), 0);
  accepted_at_ = predicted_at_;
}

std::size_t BudgetController::bucket_of(std::int64_t rows) const {
  const auto it = std::lower_bound(kRowBuckets.begin(), kRowBuckets.end(), rows);
  return static_cast<std::size_t>(
      std::min<std::ptrdiff_t>(it - kRowBuckets.begin(), std::ssize(kRowBuckets) - 1));
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
  const auto row_count = [&](std::size_t i) { return static_cast<double>(kRowBuckets[i]); };
  const auto r = static_cast<double>(kRowBuckets[at]);
  if (has_below && has_above) {
    const auto low = static_cast<std::size_t>(below);
    if (low == above) return bucket_ms_[low].value;
    const double weight = (r - row_count(low)) / (row_count(above) - row_count(low));
    return bucket_ms_[low].value +
           weight * std::max(0.0, bucket_ms_[above].value - bucket_ms_[low].value);
  }
  // Beyond what was measured: on along the line through the nearest two.
  if (has_below) {
    const auto low = static_cast<std::size_t>(below);
    std::ptrdiff_t before = below - 1;
    while (before >= 0 && bucket_ms_[static_cast<std::size_t>(before)].count == 0) --before;
    double slope = kDefaultMsPerRow * bucket_ms_[low].value;
    if (before >= 0) {
      const auto other = static_cast<std::size_t>(before);
      slope = std::max(0.0, bucket_ms_[low].value - bucket_ms_[other].value) /
              (row_count(low) - row_count(other));
    }
    return bucket_ms_[low].value + slope * (r - row_count(low));
  }
  return bucket_ms_[above].value / (1 + kDefaultMsPerRow * (row_count(above) - r));
}

std::vector<float> BudgetController::cost_ms() const {
  std::vector<float> costs;
  double highest = 0;
  for (const std::int32_t rows : kRowBuckets) {
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
    scale.push_back(static_cast<float>(std::clamp(ratio, 0.01, 2.0)));
  }
  return scale;
}

bool BudgetController::drafting_pays(std::int64_t num_sequences) const {
  const double plain_ms = verify_ms(num_sequences);
  if (plain_ms <= 0 || drafted_round_ms_.value <= 0) return true;
  const auto count = static_cast<double>(tokens_per_round_.count);
  const double doubt = tokens_per_round_.count < kSureRounds ? 0.8 / std::sqrt(count) : 0.0;
  return (1 + doubt) * tokens_per_round_.value / drafted_round_ms_.value > 1.01 / plain_ms;
}

// Pauses when drafting has lost against plain rounds, and judges every probe by itself.
bool BudgetController::auto_drafts(std::int64_t num_sequences) {
  const auto forget = [&] { tokens_per_round_ = drafted_round_ms_ = {}; };
  if (!paused_) {
    if (tokens_per_round_.count < kMinRounds || drafting_pays(num_sequences)) return true;
    paused_ = true;
    paused_rounds_ = 0;
    forget();
  }
  if (paused_rounds_ == kProbeEvery) {
    paused_rounds_ = 0;
    paused_ = !drafting_pays(num_sequences);
    if (!paused_) return true;
    forget();
  }
  return ++paused_rounds_ > kProbeEvery - kProbeRounds;
}

RoundBudgets BudgetController::plan(std::span<const BudgetDemand> demands, std::int64_t batch) {
  RoundBudgets round;
  round.budgets.assign(static_cast<std::size_t>(batch), 0);
  round.min_scores.assign(static_cast<std::size_t>(batch), kNoLimit);
  const auto count = static_cast<std::int64_t>(demands.size());
  const bool can_draft = config_.method != SpeculativeMethod::kNone && max_depth_ > 0;
  bool wants_auto = false;
  for (const BudgetDemand& demand : demands) wants_auto |= demand.setting == kAutoBudget;
  const bool auto_allowed = can_draft && wants_auto && auto_drafts(count);
  const double plain_ms = std::max(verify_ms(count), 1e-9);
  // The cheapest way to more rows: costs may be concave, so every bucket is looked at.
  double per_row_ms = std::numeric_limits<double>::infinity();
  for (const std::int32_t bucket : kRowBuckets)
    if (bucket > count && bucket <= std::max(max_rows_, count + 1))
      per_row_ms = std::min(per_row_ms, std::max(0.0, verify_ms(bucket) - verify_ms(count)) /
                                            static_cast<double>(bucket - count));
  if (!std::isfinite(per_row_ms)) per_row_ms = 0;
  const double threshold =
      kGrowthMargin * per_row_ms * std::max(1.0, tokens_per_round_.value) / plain_ms;
  std::int64_t rows = count;
  for (const BudgetDemand& demand : demands) {
    const auto place = static_cast<std::size_t>(demand.place);
    const bool is_auto = demand.setting == kAutoBudget;
    std::int64_t budget = is_auto ? (auto_allowed ? config_.max_ddtree_budget : 0)
                                  : std::min(demand.setting, config_.max_ddtree_budget);
    if (!can_draft || demand.tokens_left <= 1) budget = 0;  // nothing past the bonus can be used
    if (is_auto && budget > 0 && verify_ms(count) > 0) {
      round.cut_by_cost = true;
      if (threshold > 0) round.min_scores[place] = static_cast<float>(std::log(threshold));
    }
    round.budgets[place] = static_cast<std::int32_t>(budget);
    rows += budget;
  }
  round.drafting = rows > count;
  round.max_rows = std::min(bucket_at_least(rows), std::max(max_rows_, count));
  return round;
}

void BudgetController::observe_cost(std::int64_t rows, bool drafted, double draft_ms,
                                    double verify_ms) {
  if (verify_ms <= 0) return;  // a clock that stands still teaches nothing
  bucket_ms_[bucket_of(rows)].add(verify_ms, kWindow);
  if (!drafted) return;
  draft_ms_.add(draft_ms, kWindow);
  drafted_round_ms_.add(draft_ms + verify_ms, kRateWindow);
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
    tokens_per_round_.add(static_cast<double>(num_tokens) / static_cast<double>(num_sequences),
                          kRateWindow);
}

}  // namespace coppice
