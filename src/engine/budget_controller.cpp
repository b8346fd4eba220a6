#include "engine/budget_controller.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coppice {
namespace {

constexpr float kNoLimit = -std::numeric_limits<float>::infinity();

// The account, in plain rounds.
constexpr double kFirstCredit = 6;       // what finding out may cost
constexpr double kMaxCredit = 12;        // earnings beyond this are not kept for bad times
constexpr double kRetryCredit = 1;       // a paused drafter is tried again from here on
constexpr double kAllowance = 0.007;     // credit of every round: the share that trying may lose
constexpr std::int64_t kPlainFirst = 2;  // plain rounds before the first drafted one
// Plain rounds are measured again after so many drafted ones, sooner where both are about as fast:
// there knowing better matters and costs nothing.
constexpr double kPlainAgainMin = 16, kPlainAgainMax = 256, kPlainAgain = 320;

constexpr std::int64_t kLookEvery = 4;     // full rounds until more rows are tried
constexpr std::int64_t kWindow = 48;       // samples of a moving average
constexpr double kDecay = 0.995;           // of acceptance sums, per sequence and round
constexpr double kPrior = 8;               // rounds' worth of belief in the drafter's own numbers
constexpr double kTrustDecay = 0.99;       // the same for all depths together, which decides
constexpr double kTrustPrior = 2;          // about drafting: tokens' worth of belief
constexpr double kDefaultMsPerRow = 0.02;  // of a one-row step, until rounds were measured
// The device's cut decides exactly; growth stops a little below what could pay.
constexpr double kGrowthMargin = 0.5;

double rows_of(std::ptrdiff_t bucket) {
  return static_cast<double>(kRowBuckets[static_cast<std::size_t>(bucket)]);
}

// Of the buckets that hold a value, the nearest at or below and at or above one (-1 lies below
// all).
struct Neighbours {
  std::ptrdiff_t low, high;  // -1, kNumRowBuckets: none

  template <typename Has>
  Neighbours(std::ptrdiff_t at, const Has& has) : low(at), high(std::max<std::ptrdiff_t>(at, 0)) {
    while (low >= 0 && !has(low)) --low;
    while (high < end() && !has(high)) ++high;
  }
  static constexpr std::ptrdiff_t end() { return static_cast<std::ptrdiff_t>(kNumRowBuckets); }
  bool has_low() const { return low >= 0; }
  bool has_high() const { return high < end(); }
  // On the line through both; they exist.
  double between(std::ptrdiff_t at, double low_value, double high_value) const {
    if (low == high) return low_value;
    const double weight = (rows_of(at) - rows_of(low)) / (rows_of(high) - rows_of(low));
    return low_value + weight * (high_value - low_value);
  }
};

// A curve that never falls through the buckets that hold a value; 0 without any.
template <typename Has, typename Value>
double on_curve(std::ptrdiff_t at, const Has& has, const Value& value) {
  const Neighbours near(at, has);
  if (near.has_low() && near.has_high())
    return near.between(at, value(near.low), std::max(value(near.low), value(near.high)));
  if (near.has_high())
    return value(near.high) / (1 + kDefaultMsPerRow * (rows_of(near.high) - rows_of(at)));
  if (!near.has_low()) return 0;
  // Beyond what was measured: on along the line through the nearest two.
  const Neighbours before(near.low - 1, has);
  double slope = kDefaultMsPerRow * value(near.low);
  if (before.has_low())
    slope = std::max(0.0, value(near.low) - value(before.low)) /
            (rows_of(near.low) - rows_of(before.low));
  return value(near.low) + slope * (rows_of(at) - rows_of(near.low));
}

}  // namespace

void BudgetController::Average::add(double sample, std::int64_t window) {
  ++count;
  if (count == 2 && value > 2 * sample)
    value = sample;
  else
    value += (std::min(sample, count == 1 ? sample : 2 * value) - value) /
             static_cast<double>(std::min(count, window));
}

BudgetController::BudgetController(const SpeculativeConfig& config, std::int64_t max_depth,
                                   std::int64_t max_rows)
    : config_(config), max_depth_(max_depth), max_rows_(max_rows) {
  predicted_at_.assign(static_cast<std::size_t>(max_depth + 1), 0);
  accepted_at_ = predicted_at_;
}

std::size_t BudgetController::bucket_of(std::int64_t rows) const {
  const auto it = std::lower_bound(kRowBuckets.begin(), kRowBuckets.end(), rows);
  return static_cast<std::size_t>(
      std::min<std::ptrdiff_t>(it - kRowBuckets.begin(), std::ssize(kRowBuckets) - 1));
}

// One for each number of sequences; a new one begins with what its neighbour knows.
BudgetController::Account& BudgetController::account_of(std::int64_t num_sequences) {
  const auto known = accounts_.lower_bound(num_sequences);
  if (known != accounts_.end() && known->first == num_sequences) return known->second;
  Account account{.balance = kFirstCredit};
  if (!accounts_.empty()) {
    account = known == accounts_.end() ? accounts_.rbegin()->second : known->second;
    account.plain_ms = {};
  }
  return accounts_.emplace_hint(known, num_sequences, account)->second;
}

double BudgetController::plain_ms(const Account& account, std::int64_t num_sequences) const {
  return account.plain_ms.count > 0 ? account.plain_ms.value : verify_ms(num_sequences);
}

double BudgetController::plain_round_ms() const {
  const auto account = accounts_.find(num_sequences_);
  return account == accounts_.end() ? verify_ms(num_sequences_)
                                    : plain_ms(account->second, num_sequences_);
}

// Rounds take longer than the steps they were expected to be (sampling, commit, longer contexts),
// by much the same for neighbouring sizes: what was measured moves the expected curve.
double BudgetController::bucket_ms(std::size_t bucket) const {
  const auto at = static_cast<std::ptrdiff_t>(bucket);
  const auto step = [&](std::ptrdiff_t i) -> const Step& {
    return steps_[static_cast<std::size_t>(i)];
  };
  const auto is_measured = [&](std::ptrdiff_t i) { return step(i).measured.count > 0; };
  const auto is_expected = [&](std::ptrdiff_t i) { return step(i).expected_ms > 0; };
  const auto expected = [&](std::ptrdiff_t i) {
    return on_curve(i, is_expected, [&](std::ptrdiff_t j) { return step(j).expected_ms; });
  };
  const double before = expected(at);
  if (before <= 0)
    return on_curve(at, is_measured, [&](std::ptrdiff_t i) { return step(i).measured.value; });
  const auto surplus = [&](std::ptrdiff_t i) { return step(i).measured.value - expected(i); };
  const Neighbours near(at, is_measured);
  double shift = 0;
  if (near.has_low() && near.has_high())
    shift = near.between(at, surplus(near.low), surplus(near.high));
  else if (near.has_low() || near.has_high())
    shift = surplus(near.has_low() ? near.low : near.high);
  return std::max(before + shift, 0.1 * before);
}

double BudgetController::verify_ms(std::int64_t rows) const {
  const std::size_t bucket = bucket_of(rows);
  if (bucket == 0 || kRowBuckets[bucket] <= rows) return bucket_ms(bucket);
  const double low = bucket_ms(bucket - 1), high = bucket_ms(bucket);
  const auto below = static_cast<double>(kRowBuckets[bucket - 1]);
  return low + (high - low) * (static_cast<double>(rows) - below) /
                   (static_cast<double>(kRowBuckets[bucket]) - below);
}

std::vector<float> BudgetController::cost_ms() const {
  const auto account = accounts_.find(num_sequences_);
  const double draft_ms = account == accounts_.end() ? 0 : account->second.draft_ms.value;
  std::vector<float> costs;
  double highest = 0;
  for (const std::int32_t rows : kRowBuckets) {
    const double measured = verify_ms(rows);
    const double ms = measured > 0 ? measured : 1 + kDefaultMsPerRow * rows;
    highest = std::max(highest, ms);
    costs.push_back(static_cast<float>(highest + draft_ms));
  }
  return costs;
}

std::vector<float> BudgetController::calibration() const {
  std::vector<float> scale = {1.0f};
  for (std::size_t depth = 1; depth < predicted_at_.size(); ++depth) {
    const double ratio = (accepted_at_[depth] + kPrior * trust()) / (predicted_at_[depth] + kPrior);
    scale.push_back(static_cast<float>(std::clamp(ratio, 0.01, 2.0)));
  }
  return scale;
}

bool BudgetController::auto_drafts(Account& account, std::int64_t num_sequences,
                                   std::int64_t num_behind) const {
  const double plain = plain_ms(account, num_sequences);
  if (plain <= 0) return true;  // a clock that stands still: nothing can be judged
  if (account.drafting && account.balance <= 0) account.drafting = false;
  const double catch_up = static_cast<double>(num_behind) * behind_ms_ / plain;
  if (!account.drafting && account.balance >= kRetryCredit + catch_up) account.drafting = true;
  const double again =
      std::clamp(kPlainAgain * std::abs(account.speed.value - 1), kPlainAgainMin, kPlainAgainMax);
  return account.drafting && account.plain_ms.count >= kPlainFirst &&
         static_cast<double>(account.since_plain) < again;
}

// The score below which no node can pay, before calibration.
double BudgetController::growth_threshold(const Account& account,
                                          std::int64_t num_sequences) const {
  const double plain = std::max(plain_ms(account, num_sequences), 1e-9);
  // The cheapest way to more rows: costs may be concave, so every bucket is looked at.
  double per_row_ms = std::numeric_limits<double>::infinity();
  for (const std::int32_t bucket : kRowBuckets)
    if (bucket > num_sequences && bucket <= std::max(max_rows_, num_sequences + 1))
      per_row_ms =
          std::min(per_row_ms, std::max(0.0, verify_ms(bucket) - verify_ms(num_sequences)) /
                                   static_cast<double>(bucket - num_sequences));
  if (!std::isfinite(per_row_ms)) return 0;
  const double drafted_rate = account.tokens.value / (plain + account.draft_ms.value);
  return kGrowthMargin * per_row_ms * std::max(1 / plain, drafted_rate);
}

RoundBudgets BudgetController::plan(std::span<const BudgetDemand> demands, std::int64_t batch,
                                    std::int64_t num_behind) {
  RoundBudgets round;
  round.budgets.assign(static_cast<std::size_t>(batch), 0);
  round.min_scores.assign(static_cast<std::size_t>(batch), kNoLimit);
  const auto count = static_cast<std::int64_t>(demands.size());
  num_sequences_ = count;
  const bool can_draft = config_.method != SpeculativeMethod::kNone && max_depth_ > 0;
  bool any_auto = false;
  round.automatic = can_draft;
  for (const BudgetDemand& demand : demands) {
    any_auto |= demand.setting == kAutoBudget;
    round.automatic &= demand.setting == kAutoBudget;
  }
  const bool auto_allowed =
      can_draft && any_auto && auto_drafts(account_of(count), count, num_behind);
  const double threshold = auto_allowed ? growth_threshold(account_of(count), count) : 0;
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
  if (round.cut_by_cost && row_limit_ > 0) rows = std::min(rows, std::max(row_limit_, count));
  round.max_rows = std::min(bucket_at_least(rows), std::max(max_rows_, count));
  return round;
}

void BudgetController::expect_cost(std::int64_t rows, double verify_ms) {
  steps_[bucket_of(rows)].expected_ms = verify_ms;
}

void BudgetController::observe_round(const RoundCost& cost) {
  if (cost.verify_ms <= 0 || cost.num_sequences == 0) return;  // a standing clock teaches nothing
  Account& account = account_of(cost.num_sequences);
  const std::size_t bucket = bucket_of(cost.rows);
  Average& measured = steps_[bucket].measured;
  // The first round of a size may have done work that later ones need not.
  const double before_ms = verify_ms(cost.rows);
  // Rounds between two sizes are not what the larger one costs.
  const bool exact = kRowBuckets[bucket] == cost.rows;
  if (exact) measured.add(cost.verify_ms, kWindow);
  double earned = 0, rounds = 1;  // in plain rounds
  if (cost.drafted) {
    const double tokens =
        static_cast<double>(cost.num_tokens) / static_cast<double>(cost.num_sequences);
    account.draft_ms.add(cost.draft_ms, kWindow);
    account.tokens.add(tokens, kWindow);
    const double ms = account.draft_ms.value +
                      (measured.count == 1 && before_ms > 0 ? before_ms : verify_ms(cost.rows));
    rounds = ms / plain_ms(account, cost.num_sequences);
    // What the drafter claimed, corrected, varies less from round to round than what was accepted.
    const double claimed = claimed_ / static_cast<double>(cost.num_sequences);
    const double gained = 1 + claimed * trust();
    account.speed.add(gained / rounds, kWindow);
    if (account.speed.count > 1) earned = gained - rounds;
    ++account.since_plain;
  } else {
    account.plain_ms.add(cost.verify_ms, kWindow);
    account.since_plain = 0;
  }
  claimed_ = 0;
  if (!cost.automatic) return;
  account.balance =
      std::min(account.balance + earned + kAllowance * std::min(rounds, 8.0), kMaxCredit);
}

void BudgetController::observe_cut(std::int64_t kept_rows, std::int64_t limit) {
  recent_rows_[num_cuts_++ % recent_rows_.size()] = kept_rows;
  row_limit_ = bucket_at_least(*std::max_element(recent_rows_.begin(), recent_rows_.end()));
  const bool full = kept_rows >= limit;
  if (!full) times_full_ = 0;
  // A full round may want more; to look costs a round of the next bucket.
  if (full && times_full_++ % kLookEvery == 0)
    row_limit_ = std::max(row_limit_, bucket_at_least(limit + 1));
}

void BudgetController::observe_catch_up(std::int64_t num_tokens, double ms) {
  if (num_tokens <= 0 || ms <= 0) return;
  behind_ms_ = ms / static_cast<double>(num_tokens);
  Account& account = account_of(num_sequences_);
  const double plain = plain_ms(account, num_sequences_);
  if (plain > 0) account.balance -= ms / plain;
}

double BudgetController::trust() const {
  return (accepted_sum_ + kTrustPrior) / (claimed_sum_ + kTrustPrior);
}

void BudgetController::observe_outcome(const DepthOutcome& outcome) {
  double claimed = 0;
  for (std::size_t depth = 1; depth < outcome.predicted.size(); ++depth)
    claimed += static_cast<double>(outcome.predicted[depth]);
  claimed_ += claimed;
  claimed_sum_ = kTrustDecay * claimed_sum_ + claimed;
  accepted_sum_ = kTrustDecay * accepted_sum_ + static_cast<double>(outcome.accepted_depth);
  for (std::size_t depth = 1; depth < predicted_at_.size(); ++depth) {
    const double predicted =
        depth < outcome.predicted.size() ? static_cast<double>(outcome.predicted[depth]) : 0.0;
    if (predicted <= 0) continue;
    predicted_at_[depth] = kDecay * predicted_at_[depth] + predicted;
    accepted_at_[depth] = kDecay * accepted_at_[depth] +
                          (static_cast<std::int64_t>(depth) <= outcome.accepted_depth ? 1.0 : 0.0);
  }
}

}  // namespace coppice
