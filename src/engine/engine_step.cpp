// Steps: what is computed next, and the rounds in flight.
#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/step_masks.h"

namespace coppice {
namespace {

constexpr int kMaxMaskThreads = 8;
constexpr std::int64_t kDefaultRoundsAhead = 1;  // hides the host's work behind the round

}  // namespace

bool Engine::Impl::step() {
  if (!scheduler_.has_work()) {
    flights_.clear();  // rounds without a live sequence
    last_was_round_ = false;
    return false;
  }
  const bool launches = flights_.empty() || may_launch();
  if (launches) {
    StepPlan plan = scheduler_.plan();
    // A plan is idle when every decoding sequence went back to the queue: then its blocks are free.
    if (plan.kind == StepPlan::Kind::kIdle) plan = scheduler_.plan();
    COPPICE_CHECK(plan.kind != StepPlan::Kind::kIdle, scheduler_.num_waiting(), " waiting, ",
                  scheduler_.num_running(), " running, and no step");
    if (plan.kind == StepPlan::Kind::kPrefill)
      prefill(plan);
    else
      launch(plan);
  }
  if (!flights_.empty() && (!launches || std::ssize(flights_) > rounds_ahead())) land();
  deliver();
  return true;
}

std::int64_t Engine::Impl::rounds_ahead() const {
  if (commit_observer) return 0;  // the next round overwrites the logits
  if (config_.max_rounds_ahead >= 0) return config_.max_rounds_ahead;
  return runner_.first().backend().device() == Device::kCpu ? 0 : kDefaultRoundsAhead;
}

// A further round needs no result of those in flight, and will probably still add to somebody's
// output.
bool Engine::Impl::may_launch() const {
  if (std::ssize(flights_) > rounds_ahead() || !scheduler_.is_steady()) return false;
  // Masks follow from the tokens before them.
  if (flights_.back().shape.sample.masked) return false;
  const double on_their_way =
      static_cast<double>(flights_.size()) * std::max(1.0, metrics_.tokens_per_round());
  const auto goes_on = [&](const Flight::Member& member) {
    const Sequence* sequence = scheduler_.find(member.id);
    return sequence != nullptr && static_cast<double>(sequence->num_output()) + on_their_way <
                                      static_cast<double>(sequence->request.sampling.max_tokens);
  };
  return std::any_of(flights_.back().members.begin(), flights_.back().members.end(), goes_on);
}

void Engine::Impl::prefill(const StepPlan& plan) {
  const std::int64_t start = clock_.now_ns();
  SampleOptions options{.greedy = true};
  for (const PrefillChunk& chunk : plan.chunks) {
    if (chunk.sequence->stats.start_ns == 0) chunk.sequence->stats.start_ns = start;
    runner_.sync_place(*chunk.sequence);
    if (chunk.samples) join_options(options, *chunk.sequence);
    metrics_.num_prefill_tokens += chunk.count;
  }
  last_was_round_ = false;
  runner_.prefill(plan.chunks, plan.provenance, plan.batch, options,
                  [&](std::span<std::int32_t> masks) { fill_prefill_masks(plan, masks); });
  ++metrics_.num_prefill_steps;
  metrics_.prefill_ns += clock_.now_ns() - start;
  std::int32_t output = 0;
  std::size_t scored = 0;
  for (const PrefillChunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    for (std::int64_t i = 0; i < chunk.num_scored; ++i)
      take_prompt_score(sequence, chunk.begin + i, runner_.first().prompt_scores()[scored++]);
    sequence.num_computed += chunk.count;
    if (commit_observer) {
      std::vector<std::int32_t> rows(static_cast<std::size_t>(chunk.count), -1);
      if (chunk.samples) rows.back() = output;
      trace_commit(sequence, chunk.begin, rows, runner_.first().prefill_choices().logits);
    }
    if (chunk.samples) {
      ++output;
      sequence.state = SequenceState::kDecode;
      take_tokens(sequence, false);
    } else if (sequence.num_computed == sequence.prefill_target()) {
      sequence.state = SequenceState::kDecode;
      runner_.start_decoding(sequence);
    }
    scheduler_.index_blocks(sequence, sequence.prompt_len);
  }
}

std::int64_t Engine::Impl::budget_setting(const Sequence& sequence) const {
  const bool tree = config_.speculative.method == SpeculativeMethod::kDdtree && !custom_drafter_;
  const std::int64_t asked_tokens = config_.speculative.num_speculative_tokens;
  const std::int64_t own = tree               ? config_.speculative.ddtree_budget
                           : asked_tokens > 0 ? std::min(asked_tokens, runner_.first().max_nodes())
                                              : runner_.first().max_nodes();
  const std::int64_t asked = sequence.request.ddtree_budget.value_or(own);
  return asked == kAutoBudget ? own : asked;
}

void Engine::Impl::launch(const StepPlan& plan) {
  const std::int64_t start = clock_.now_ns();
  Flight flight;
  std::vector<BudgetDemand> demands;
  RoundShape& shape = flight.shape;
  shape = {.batch = runner_.first().batch_bucket(plan.batch),
           .eager = config_.enforce_eager,
           .sample = {.greedy = true}};
  for (Sequence* sequence : plan.decoding) {
    runner_.sync_place(*sequence);
    flight.members.push_back({.id = sequence->id, .num_places = sequence->num_places});
    demands.push_back(
        {.place = sequence->place,
         .setting = budget_setting(*sequence),
         .tokens_left = sequence->request.sampling.max_tokens - sequence->num_output()});
    join_options(shape.sample, *sequence);
  }
  const std::int64_t num_behind = runner_.first().num_behind();
  const RoundBudgets budgets = controller_->plan(demands, shape.batch, num_behind);
  if (budgets.drafting) controller_->observe_catch_up(num_behind, runner_.catch_up());
  shape.max_rows = budgets.max_rows;
  shape.drafting = budgets.drafting;
  shape.cut_by_cost = budgets.cut_by_cost;
  shape.fill_masks = [&](const RoundResults& results, std::span<std::int32_t> masks) {
    const std::int64_t begin = clock_.now_ns();
    if (!mask_threads_ && std::ssize(plan.decoding) > 1)
      mask_threads_ = std::make_unique<ThreadPool>(std::min(kMaxMaskThreads, available_cpus()));
    fill_round_masks(plan, results, masks, mask_words(model_config().vocab_size),
                     mask_threads_.get());
    metrics_.mask_ns += clock_.now_ns() - begin;
  };
  flight.round = runner_.launch(shape, budgets, *controller_);
  shape.fill_masks = nullptr;
  flight.rows = runner_.first().round().choices().logits.shape(0);
  flight.automatic = budgets.automatic;
  flight.follows = std::exchange(last_was_round_, true);
  flights_.push_back(std::move(flight));
  metrics_.decode_ns += clock_.now_ns() - start;
}

// The oldest round's results become tokens.
void Engine::Impl::land() {
  const std::int64_t start = clock_.now_ns();
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  runner_.finish(flight.round);
  metrics_.decode_ns += clock_.now_ns() - start;
  const auto* times = runner_.first().results().times.data<std::int64_t>();
  if (flight.follows && last_round_end_ns_ > 0) {
    metrics_.idle_ns += times[0] - last_round_end_ns_;
    ++metrics_.num_idle;
  }
  last_round_end_ns_ = times[kNumVerbs];
  std::vector<Sequence*> sequences;
  for (const Flight::Member& member : flight.members) {
    Sequence* sequence = scheduler_.find(member.id);
    if (sequence != nullptr && sequence->num_places == member.num_places)
      sequences.push_back(sequence);
  }
  learn(sequences, flight);
  for (Sequence* sequence : sequences) take_tokens(*sequence, true);
}

void Engine::Impl::learn(std::span<Sequence* const> sequences, const Flight& flight) {
  if (sequences.empty()) return;
  const RoundResults& results = runner_.first().results();
  const std::array<std::int64_t, kNumVerbs> ns = verb_ns(results);
  std::array<double, kNumVerbs> ms{};
  for (std::size_t i = 0; i < kNumVerbs; ++i) {
    metrics_.verb_ns[i] += ns[i];
    ms[i] = static_cast<double>(ns[i]) / 1e6;
  }
  ++metrics_.num_rounds;
  const RoundShape& shape = flight.shape;
  std::int64_t tokens = 0;
  for (const Sequence* sequence : sequences) {
    tokens += results.num_emitted.data<std::int32_t>()[sequence->place];
    learn_outcome(*sequence, results, shape.drafting);
  }
  controller_->observe_round({.num_sequences = std::ssize(sequences),
                              .num_tokens = tokens,
                              .rows = flight.rows,
                              .drafted = shape.drafting,
                              .automatic = flight.automatic,
                              .draft_ms = ms[0] + ms[1],
                              .verify_ms = ms[2] + ms[3] + ms[4]});
  metrics_.plain_round_ms = controller_->plain_round_ms();
  // A captured round has the rows it was launched with, whatever its cut kept.
  const std::int64_t kept = results.row_offsets.data<std::int32_t>()[shape.batch];
  if (shape.cut_by_cost && runner_.first().backend().device() != Device::kCpu)
    controller_->observe_cut(kept, shape.max_rows);
}

// What a round predicted for one sequence, and what came of it.
void Engine::Impl::learn_outcome(const Sequence& sequence, const RoundResults& results,
                                 bool drafted) {
  const std::int64_t place = sequence.place;
  const std::int64_t emitted = results.num_emitted.data<std::int32_t>()[place];
  const std::int64_t nodes = results.trees.counts.data<std::int32_t>()[place];
  std::vector<float> predicted(metrics_.drafts_at_depth.size(), 0.0f);
  for (std::int64_t node = 1; node <= nodes; ++node)
    predicted[static_cast<std::size_t>(results.trees.depths.row<std::int32_t>(place)[node])] +=
        std::exp(results.trees.scores.row<float>(place)[node]);
  const std::int64_t accepted = std::max<std::int64_t>(emitted - 1, 0);
  for (std::size_t depth = 1; depth < predicted.size(); ++depth) {
    metrics_.drafts_at_depth[depth] += predicted[depth] > 0 ? 1 : 0;
    metrics_.accepted_at_depth[depth] += static_cast<std::int64_t>(depth) <= accepted ? 1 : 0;
  }
  ++metrics_.num_sequence_rounds;
  metrics_.num_decode_tokens += emitted;
  metrics_.num_draft_tokens += nodes;
  metrics_.num_accepted_tokens += accepted;
  if (sequence.constraint && sequence.constraint->grammar_started()) {
    ++metrics_.num_grammar_rounds;
    metrics_.num_grammar_draft_tokens += nodes;
    metrics_.num_grammar_accepted_tokens += accepted;
  }
  if (drafted) controller_->observe_outcome({.predicted = predicted, .accepted_depth = accepted});
}

}  // namespace coppice
