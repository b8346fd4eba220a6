// The inside of Engine: what all its parts share. engine.cpp adds and ends requests,
// engine_step.cpp launches and lands steps, engine_output.cpp turns results into tokens and
// callbacks.
#pragma once

#include <deque>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/request_limits.h"
#include "engine/runner_group.h"
#include "sampling/sampling_state.h"

namespace coppice {

// A callback waiting for the end of the step: nothing of it refers to the sequence.
struct PendingOutput {
  RequestId id = 0;
  OutputCallback callback;
  std::vector<std::int32_t> token_ids;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  EndReason end_reason = EndReason::kNone;
  std::optional<std::int32_t> stop_token_id;
  RequestStats stats;
};

class Engine::Impl {
 public:
  Impl(const EngineConfig& config, EngineParts parts)
      : config_((config.validate(), config)),
        clock_(*parts.clock),
        custom_drafter_(static_cast<bool>(parts.make_drafter)),
        max_model_len_(effective_model_len(config, parts.model->config())),
        runner_(config, std::move(parts), max_model_len_),
        allocator_(runner_.first().num_blocks()),
        index_(allocator_),
        scheduler_(limits(), allocator_, index_,
                   [this](std::int64_t place) { runner_.vacate(place); }) {
    metrics_.num_kv_blocks = runner_.first().num_blocks();
    prepare_rounds();
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
  void reset_prefix_cache() { index_.clear(); }
  const ModelConfig& model_config() const { return runner_.first().model().config(); }
  std::int64_t max_model_len() const { return max_model_len_; }
  std::int64_t max_request_len() const {
    return std::min(max_model_len_,
                    runner_.first().num_blocks() * kBlockSize - runner_.first().reserve());
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
            .reserve = runner_.first().reserve(),
            .prefix_caching = config_.enable_prefix_caching,
            .prefix_cache_exact = config_.prefix_cache_exact};
  }
  RequestLimits request_limits() const {
    return {.vocab_size = model_config().vocab_size,
            .max_model_len = max_model_len_,
            .num_blocks = runner_.first().num_blocks(),
            .reserve = runner_.first().reserve()};
  }
  void prepare_rounds();
  std::int64_t budget_setting(const Sequence& sequence) const;

  void prefill(const StepPlan& plan);
  // Rounds in flight: launched, results not read yet. `members` are who decoded in it; one that has
  // left its place since has nothing to do with it.
  struct Flight {
    struct Member {
      RequestId id = 0;
      std::int64_t num_places = 0;
    };
    std::int64_t round = 0;
    bool follows = false;    // directly behind the round before
    std::int64_t rows = 0;   // of its verify step, padding included
    bool automatic = false;  // as planned
    RoundShape shape;
    std::vector<Member> members;
  };
  std::int64_t rounds_ahead() const;
  bool may_launch() const;
  void launch(const StepPlan& plan);
  void land();
  void learn(std::span<Sequence* const> sequences, const Flight& flight);
  void learn_outcome(const Sequence& sequence, const RoundResults& results, bool drafted);
  static void take_prompt_score(Sequence& sequence, std::int64_t position, TokenLogprob score);
  void take_tokens(Sequence& sequence, bool decoded);
  EndReason end_reason_of(const Sequence& sequence) const;
  void count_end(EndReason reason);
  void commit(Sequence& sequence, std::span<const std::int32_t> emitted);
  TokenLogprob read_logprob(const Sequence& sequence, std::int64_t i) const;
  void trace_commit(const Sequence& sequence, std::int64_t position,
                    std::span<const std::int32_t> rows, const Tensor& logits);
  void trace_round(const Sequence& sequence, std::span<const std::int32_t> emitted) const;
  void deliver();
  static void join_options(SampleOptions& options, const Sequence& sequence) {
    const SamplingParams& sampling = sequence.request.sampling;
    options.greedy &= is_plain_greedy(sampling);
    options.log_probs |= sampling.logprobs.has_value();
    options.top_log_probs |= sampling.logprobs.value_or(0) > 0;
    options.masked |= sequence.constraint != nullptr;
  }

  EngineConfig config_;
  const Clock& clock_;
  bool custom_drafter_;
  std::int64_t max_model_len_;
  RunnerGroup runner_;
  BlockAllocator allocator_;
  PrefixIndex index_;
  Scheduler scheduler_;
  std::unique_ptr<BudgetController> controller_;
  EngineMetrics metrics_;
  std::unique_ptr<ThreadPool> mask_threads_;  // from the first round of several with masks
  RequestId next_id_ = 1;
  std::deque<Flight> flights_;  // oldest first
  bool last_was_round_ = false;
  std::int64_t last_round_end_ns_ = 0;  // by the device's clock
  std::vector<PendingOutput> pending_;
  std::vector<RequestId> ended_;  // leave at the end of the step
};

}  // namespace coppice
