#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "engine/model_runner.h"
#include "engine/request_limits.h"
#include "model/config_fields.h"
#include "sampling/sampling_state.h"

namespace coppice {
namespace {

// A callback waiting for the end of the step: nothing of it refers to the sequence.
struct PendingOutput {
  RequestId id = 0;
  OutputCallback callback;
  std::vector<std::int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  EndReason end_reason = EndReason::kNone;
  std::optional<std::int32_t> stop_token_id;
  RequestStats stats;
};

EndReason end_reason_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return EndReason::kNone;
    case FinishReason::kStop:
      return EndReason::kStop;
    case FinishReason::kLength:
      return EndReason::kLength;
    case FinishReason::kNotFinite:
      return EndReason::kError;
  }
  return EndReason::kError;
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineConfig& config, EngineParts parts)
      : config_((config.validate(), config)),
        clock_(*parts.clock),
        custom_drafter_(static_cast<bool>(parts.make_drafter)),
        max_model_len_(effective_model_len(config, parts.model->config())),
        runner_(config, std::move(parts), max_model_len_),
        allocator_(runner_.num_blocks()),
        index_(allocator_),
        scheduler_(limits(), allocator_, index_, [this](std::int64_t place) { vacate(place); }) {
    metrics_.num_kv_blocks = runner_.num_blocks();
    reset_controller();
  }

  ~Impl() {
    while (Sequence* sequence = scheduler_.first()) scheduler_.remove(*sequence);
  }

  RequestId add_request(Request request, OutputCallback callback);
  bool end(RequestId id, std::optional<std::int64_t> num_output_tokens);
  bool preempt(RequestId id);
  bool step();
  void set_speculative(const SpeculativeConfig& speculative);
  std::string describe() const;

  bool has_work() const { return scheduler_.has_work(); }
  const ModelConfig& model_config() const { return runner_.model().config(); }
  std::int64_t max_model_len() const { return max_model_len_; }
  std::int64_t max_request_len() const {
    return std::min(max_model_len_, runner_.num_blocks() * kBlockSize - runner_.reserve());
  }
  const EngineMetrics& metrics() {
    metrics_.num_preemptions = scheduler_.num_preemptions();
    metrics_.num_running = scheduler_.num_running();
    metrics_.num_waiting = scheduler_.num_waiting();
    metrics_.num_kv_blocks_used = allocator_.num_used();
    metrics_.num_prefix_queries = index_.stats().queries;
    metrics_.num_prefix_hits = index_.stats().hits;
    metrics_.num_cached_tokens = index_.stats().hit_tokens;
    return metrics_;
  }

  RoundObserver round_observer;
  CommitObserver commit_observer;

 private:
  SchedulerLimits limits() const {
    return {.max_num_seqs = config_.max_num_seqs,
            .max_num_batched_tokens = config_.max_num_batched_tokens,
            .reserve = runner_.reserve(),
            .prefix_caching = config_.enable_prefix_caching,
            .prefix_cache_exact = config_.prefix_cache_exact};
  }
  RequestLimits request_limits() const {
    return {.vocab_size = model_config().vocab_size,
            .max_model_len = max_model_len_,
            .num_blocks = runner_.num_blocks(),
            .reserve = runner_.reserve()};
  }
  void reset_controller();
  void vacate(std::int64_t place) {
    runner_.catch_up();
    runner_.places().clear_place(place);
  }
  std::int64_t budget_setting(const Sequence& sequence) const;

  void prefill(const StepPlan& plan);
  void decode(const StepPlan& plan);
  void learn(const StepPlan& plan, const RoundBudgets& budgets);
  void take_tokens(Sequence& sequence, bool decoded);
  TokenLogprob read_logprob(const Sequence& sequence, std::int64_t i) const;
  void trace_commit(const Sequence& sequence, std::int64_t position,
                    std::span<const std::int32_t> rows, const Tensor& logits) const;
  void trace_round(const Sequence& sequence, std::span<const std::int32_t> emitted) const;
  void deliver();
  static void join_options(SampleOptions& options, const Sequence& sequence) {
    const SamplingParams& sampling = sequence.request.sampling;
    options.greedy &= is_plain_greedy(sampling);
    options.log_probs |= sampling.logprobs.has_value();
    options.top_log_probs |= sampling.logprobs.value_or(0) > 0;
  }

  EngineConfig config_;
  const Clock& clock_;
  bool custom_drafter_;
  std::int64_t max_model_len_;
  ModelRunner runner_;
  BlockAllocator allocator_;
  PrefixIndex index_;
  Scheduler scheduler_;
  std::unique_ptr<BudgetController> controller_;
  EngineMetrics metrics_;
  RequestId next_id_ = 1;
  std::vector<PendingOutput> pending_;
  std::vector<RequestId> ended_;  // leave at the end of the step
};

RequestId Engine::Impl::add_request(Request request, OutputCallback callback) {
  check_request(request, request_limits());
  const RequestId id = next_id_++;
  auto sequence =
      std::make_unique<Sequence>(id, std::move(request), std::move(callback), allocator_);
  const SamplingParams& sampling = sequence->request.sampling;
  const PhiloxCounter derived =
      philox4x32({static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32), 0, 0},
                 static_cast<std::uint64_t>(config_.seed));
  sequence->seed = sampling.seed.value_or(
      static_cast<std::int64_t>((std::uint64_t{derived[0]} << 32 | derived[1]) >> 1));
  static_assert(kMaxEosTokenIds <= kMaxStopIds / 2);  // the other half is the request's
  sequence->stop_ids = sampling.stop_token_ids;
  if (!sampling.ignore_eos)
    for (const std::int64_t eos : model_config().eos_token_ids) sequence->stop_ids.push_back(eos);
  sequence->stats.arrival_ns = clock_.now_ns();
  ++metrics_.num_requests;
  scheduler_.add(std::move(sequence));
  return id;
}

bool Engine::Impl::end(RequestId id, std::optional<std::int64_t> num_output_tokens) {
  Sequence* sequence = scheduler_.find(id);
  if (sequence == nullptr) return false;
  const bool live = std::find(ended_.begin(), ended_.end(), id) == ended_.end();
  if (num_output_tokens) {
    const std::int64_t kept = sequence->prompt_len + *num_output_tokens;
    COPPICE_CHECK(*num_output_tokens >= 0 && kept <= std::ssize(sequence->tokens), id, " has ",
                  sequence->num_output(), " tokens, asked to keep ", *num_output_tokens);
    if (sequence->place >= 0) scheduler_.index_blocks(*sequence, kept);
  }
  if (!live) {
    sequence->num_computed = 0;  // nothing more is indexed when it leaves
    return false;
  }
  ++metrics_.num_finished;
  scheduler_.remove(*sequence);
  return true;
}

bool Engine::Impl::preempt(RequestId id) {
  Sequence* sequence = scheduler_.find(id);
  if (sequence == nullptr || sequence->place < 0) return false;
  scheduler_.preempt(*sequence);
  return true;
}

bool Engine::Impl::step() {
  if (!scheduler_.has_work()) return false;
  StepPlan plan = scheduler_.plan();
  // A plan is idle when every decoding sequence went back to the queue: then its blocks are free.
  if (plan.kind == StepPlan::Kind::kIdle) plan = scheduler_.plan();
  COPPICE_CHECK(plan.kind != StepPlan::Kind::kIdle, scheduler_.num_waiting(), " waiting, ",
                scheduler_.num_running(), " running, and no step");
  if (plan.kind == StepPlan::Kind::kPrefill)
    prefill(plan);
  else
    decode(plan);
  deliver();
  return true;
}

void Engine::Impl::prefill(const StepPlan& plan) {
  const std::int64_t start = clock_.now_ns();
  SampleOptions options{.greedy = true};
  for (const PrefillChunk& chunk : plan.chunks) {
    runner_.places().sync_place(*chunk.sequence);
    if (chunk.samples) join_options(options, *chunk.sequence);
    metrics_.num_prefill_tokens += chunk.count;
  }
  runner_.prefill(plan.chunks, plan.provenance, plan.batch, options);
  ++metrics_.num_prefill_steps;
  metrics_.prefill_ns += clock_.now_ns() - start;
  std::int32_t output = 0;
  for (const PrefillChunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    sequence.num_computed += chunk.count;
    if (commit_observer) {
      std::vector<std::int32_t> rows(static_cast<std::size_t>(chunk.count), -1);
      if (chunk.samples) rows.back() = output;
      trace_commit(sequence, chunk.begin, rows, runner_.prefill_choices().logits);
    }
    if (chunk.samples) {
      ++output;
      sequence.state = SequenceState::kDecode;
      take_tokens(sequence, false);
    } else if (sequence.num_computed == sequence.prefill_target()) {
      sequence.state = SequenceState::kDecode;
      runner_.places().start_decoding(sequence);
    }
    scheduler_.index_blocks(sequence, sequence.prompt_len);
  }
}

std::int64_t Engine::Impl::budget_setting(const Sequence& sequence) const {
  const bool tree = config_.speculative.method == SpeculativeMethod::kDdtree && !custom_drafter_;
  const std::int64_t asked_tokens = config_.speculative.num_speculative_tokens;
  const std::int64_t own = tree               ? config_.speculative.ddtree_budget
                           : asked_tokens > 0 ? std::min(asked_tokens, runner_.max_nodes())
                                              : runner_.max_nodes();
  const std::int64_t asked = sequence.request.ddtree_budget.value_or(own);
  return asked == kAutoBudget ? own : asked;
}

void Engine::Impl::decode(const StepPlan& plan) {
  const std::int64_t start = clock_.now_ns();
  std::vector<BudgetDemand> demands;
  RoundShape shape{.batch = plan.batch, .sample = {.greedy = true}};
  for (Sequence* sequence : plan.decoding) {
    runner_.places().sync_place(*sequence);
    demands.push_back(
        {.place = sequence->place,
         .setting = budget_setting(*sequence),
         .tokens_left = sequence->request.sampling.max_tokens - sequence->num_output()});
    join_options(shape.sample, *sequence);
  }
  const std::int64_t num_behind = runner_.num_behind();
  const RoundBudgets budgets = controller_->plan(demands, plan.batch, num_behind);
  if (budgets.drafting) controller_->observe_catch_up(num_behind, runner_.catch_up());
  shape.max_rows = budgets.max_rows;
  shape.drafting = budgets.drafting;
  shape.cut_by_cost = budgets.cut_by_cost;
  runner_.decode(shape, budgets, *controller_);
  metrics_.decode_ns += clock_.now_ns() - start;
  learn(plan, budgets);
  for (Sequence* sequence : plan.decoding) take_tokens(*sequence, true);
}

void Engine::Impl::learn(const StepPlan& plan, const RoundBudgets& budgets) {
  const RoundResults& results = runner_.results();
  std::array<double, kNumVerbs> ms{};
  for (std::size_t i = 0; i < kNumVerbs; ++i) {
    metrics_.verb_ns[i] += runner_.round().verb_ns()[i];
    ms[i] = static_cast<double>(runner_.round().verb_ns()[i]) / 1e6;
  }
  ++metrics_.num_rounds;
  std::int64_t tokens = 0;
  for (const Sequence* sequence : plan.decoding) {
    const std::int64_t place = sequence->place;
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
    tokens += emitted;
    if (budgets.drafting)
      controller_->observe_outcome({.predicted = predicted, .accepted_depth = accepted});
  }
  controller_->observe_round({.num_sequences = std::ssize(plan.decoding),
                              .num_tokens = tokens,
                              .rows = runner_.round().choices().logits.shape(0),
                              .drafted = budgets.drafting,
                              .automatic = budgets.automatic,
                              .draft_ms = ms[0] + ms[1],
                              .verify_ms = ms[2] + ms[3] + ms[4]});
}

TokenLogprob Engine::Impl::read_logprob(const Sequence& sequence, std::int64_t i) const {
  const RoundResults& results = runner_.results();
  const std::int64_t row = sequence.place * runner_.max_path() + i;
  TokenLogprob logprob{.logprob = results.log_probs.data<float>()[row], .top = {}};
  for (std::int64_t rank = 0; rank < sequence.request.sampling.logprobs.value_or(0); ++rank)
    logprob.top.emplace_back(results.top_ids.row<std::int32_t>(row)[rank],
                             results.top_log_probs.row<float>(row)[rank]);
  return logprob;
}

// What the step emitted for one sequence becomes its own.
void Engine::Impl::take_tokens(Sequence& sequence, bool decoded) {
  const RoundResults& results = runner_.results();
  const std::int64_t place = sequence.place;
  const std::int32_t count = results.num_emitted.data<std::int32_t>()[place];
  const std::span<const std::int32_t> emitted(results.emitted.row<std::int32_t>(place),
                                              static_cast<std::size_t>(count));
  PendingOutput output;
  for (std::int64_t i = 0; sequence.request.sampling.logprobs && i < count; ++i)
    output.logprobs.push_back(read_logprob(sequence, i));
  const std::int64_t position = sequence.num_computed;
  sequence.tokens.insert(sequence.tokens.end(), emitted.begin(), emitted.end());
  RequestStats& stats = sequence.stats;
  if (decoded) {
    sequence.num_computed += count;
    if (commit_observer)
      trace_commit(sequence, position,
                   {results.accepted_rows.row<std::int32_t>(place), emitted.size()},
                   runner_.round().choices().logits);
    if (round_observer) trace_round(sequence, emitted);
    ++stats.num_rounds;
    stats.num_draft_tokens += results.trees.counts.data<std::int32_t>()[place];
    stats.num_accepted_tokens += std::max(count - 1, 0);
  }
  stats.num_output_tokens = sequence.num_output();
  if (stats.first_token_ns == 0) stats.first_token_ns = clock_.now_ns();
  output.end_reason =
      end_reason_of(static_cast<FinishReason>(results.finish_reason.data<std::int32_t>()[place]));
  if (output.end_reason == EndReason::kStop) output.stop_token_id = emitted.back();
  if (output.end_reason == EndReason::kError) ++metrics_.num_not_finite;
  if (output.end_reason != EndReason::kNone) {
    stats.end_ns = clock_.now_ns();
    ended_.push_back(sequence.id);
  }
  output.id = sequence.id;
  output.callback = sequence.callback;
  output.token_ids.assign(emitted.begin(), emitted.end());
  output.stats = stats;
  pending_.push_back(std::move(output));
}

void Engine::Impl::trace_commit(const Sequence& sequence, std::int64_t position,
                                std::span<const std::int32_t> rows, const Tensor& logits) const {
  std::vector<std::int32_t> slots;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t at = position + static_cast<std::int64_t>(i);
    const std::int64_t block = sequence.table.blocks()[static_cast<std::size_t>(at / kBlockSize)];
    slots.push_back(static_cast<std::int32_t>(block * kBlockSize + at % kBlockSize));
  }
  commit_observer(
      {.id = sequence.id,
       .position = position,
       .token_ids =
           std::span(sequence.tokens).subspan(static_cast<std::size_t>(position), rows.size()),
       .slots = slots,
       .rows = rows,
       .logits = logits,
       .cache = &runner_.cache()});
}

void Engine::Impl::trace_round(const Sequence& sequence,
                               std::span<const std::int32_t> emitted) const {
  RoundTrace trace{.id = sequence.id,
                   .position = sequence.num_computed - std::ssize(emitted),
                   .tree = read_tree(runner_.results().trees, sequence.place),
                   .accepted = {},
                   .emitted = emitted};
  trace.accepted = trace.tree.path_of(emitted);
  round_observer(trace);
}

void Engine::Impl::deliver() {
  const std::vector<PendingOutput> outputs = std::exchange(pending_, {});
  for (const PendingOutput& output : outputs) {
    if (scheduler_.find(output.id) == nullptr) continue;  // cancelled by another's callback
    output.callback({.id = output.id,
                     .token_ids = output.token_ids,
                     .logprobs = output.logprobs,
                     .end_reason = output.end_reason,
                     .stop_token_id = output.stop_token_id,
                     .stats = &output.stats});
  }
  for (const RequestId id : std::exchange(ended_, {})) {
    Sequence* sequence = scheduler_.find(id);
    if (sequence == nullptr) continue;
    ++metrics_.num_finished;
    if (!config_.enable_prefix_caching && scheduler_.num_running() == 1) runner_.forget_behind();
    // Output is cached at the end only, when it is certain that no stop string cuts it.
    scheduler_.index_blocks(*sequence, sequence->num_computed);
    scheduler_.remove(*sequence);
  }
}

void Engine::Impl::reset_controller() {
  SpeculativeConfig speculative = config_.speculative;
  speculative.max_ddtree_budget = runner_.max_nodes();
  if (custom_drafter_) speculative.method = SpeculativeMethod::kDdtree;
  const std::int64_t max_depth = runner_.drafter().max_depth();
  controller_ =
      std::make_unique<BudgetController>(speculative, max_depth, runner_.max_verify_rows());
  metrics_.drafts_at_depth.assign(static_cast<std::size_t>(max_depth + 1), 0);
  metrics_.accepted_at_depth = metrics_.drafts_at_depth;
  const bool automatic = speculative.method == SpeculativeMethod::kDdtree && !custom_drafter_ &&
                         speculative.ddtree_budget == kAutoBudget;
  if (!automatic) return;
  // Steps that take this long are far from free: the line through the last two will do.
  constexpr double kLongStepMs = 50;
  double ms = 0;
  for (std::int64_t rows = 1; rows <= runner_.max_verify_rows() && ms < kLongStepMs; rows *= 2)
    controller_->expect_cost(rows, ms = runner_.measure_verify_ms(rows));
}

void Engine::Impl::set_speculative(const SpeculativeConfig& speculative) {
  COPPICE_CHECK(!scheduler_.has_work(), "set_speculative while requests run");
  EngineConfig changed = config_;
  changed.speculative = speculative;
  changed.validate();
  config_ = changed;
  runner_.set_speculative(speculative);
  scheduler_.set_reserve(runner_.reserve());
  reset_controller();
}

std::string Engine::Impl::describe() const {
  const SpeculativeConfig& speculative = config_.speculative;
  std::string text = runner_.backend().name() + ", speculation " + runner_.drafter().name();
  if (speculative.method == SpeculativeMethod::kDdtree)
    text += speculative.ddtree_budget == kAutoBudget
                ? " budget auto (at most " + std::to_string(runner_.max_nodes()) + ")"
                : " budget " + std::to_string(speculative.ddtree_budget);
  text += ", cache " + std::to_string(runner_.num_blocks() * kBlockSize) +
          " tokens, max_model_len " + std::to_string(max_model_len_) + ", max_num_seqs " +
          std::to_string(config_.max_num_seqs);
  return text;
}

Engine::Engine(const EngineConfig& config, EngineParts parts)
    : impl_(std::make_unique<Impl>(config, std::move(parts))) {}
Engine::~Engine() = default;

RequestId Engine::add_request(Request request, OutputCallback callback) {
  return impl_->add_request(std::move(request), std::move(callback));
}
bool Engine::cancel(RequestId id) {
  return impl_->end(id, std::nullopt);
}
bool Engine::finish(RequestId id, std::int64_t num_output_tokens) {
  return impl_->end(id, num_output_tokens);
}
bool Engine::preempt(RequestId id) {
  return impl_->preempt(id);
}
bool Engine::step() {
  return impl_->step();
}
bool Engine::has_work() const {
  return impl_->has_work();
}
void Engine::set_speculative(const SpeculativeConfig& speculative) {
  impl_->set_speculative(speculative);
}
void Engine::set_round_observer(RoundObserver observer) {
  impl_->round_observer = std::move(observer);
}
void Engine::set_commit_observer(CommitObserver observer) {
  impl_->commit_observer = std::move(observer);
}
const EngineMetrics& Engine::metrics() const {
  return impl_->metrics();
}
const ModelConfig& Engine::model_config() const {
  return impl_->model_config();
}
std::int64_t Engine::max_model_len() const {
  return impl_->max_model_len();
}
std::int64_t Engine::max_request_len() const {
  return impl_->max_request_len();
}
std::string Engine::describe() const {
  return impl_->describe();
}

}  // namespace coppice
