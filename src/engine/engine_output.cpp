// Results of a step become tokens, traces and callbacks.
#include <algorithm>

#include "engine/engine_impl.h"

namespace coppice {
namespace {

EndReason to_end_reason(FinishReason reason) {
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

const char* name_of(EndReason reason) {
  switch (reason) {
    case EndReason::kNone:
      return "";
    case EndReason::kStop:
      return "stop";
    case EndReason::kLength:
      return "length";
    case EndReason::kError:
      return "error";
    case EndReason::kDeadEnd:
      return "dead_end";
  }
  return "?";
}

TokenLogprob Engine::Impl::read_logprob(const Sequence& sequence, std::int64_t i) const {
  const RoundResults& results = runner_.first().results();
  const std::int64_t row = sequence.place * runner_.first().max_path() + i;
  TokenLogprob logprob{.logprob = results.log_probs.data<float>()[row], .top = {}};
  for (std::int64_t rank = 0; rank < sequence.request.sampling.logprobs.value_or(0); ++rank)
    logprob.top.emplace_back(results.top_ids.row<std::int32_t>(row)[rank],
                             results.top_log_probs.row<float>(row)[rank]);
  return logprob;
}

// A resumed sequence computes rows again: what is there stays.
void Engine::Impl::take_prompt_score(Sequence& sequence, std::int64_t position,
                                     TokenLogprob score) {
  if (position != std::ssize(sequence.prompt_logprobs)) return;
  score.top.resize(static_cast<std::size_t>(*sequence.request.sampling.prompt_logprobs));
  sequence.prompt_logprobs.push_back(std::move(score));
}

// As the device found it; where no token was left to choose it found no finite logit either.
EndReason Engine::Impl::end_reason_of(const Sequence& sequence) const {
  const RoundResults& results = runner_.first().results();
  const auto reason =
      static_cast<FinishReason>(results.finish_reason.data<std::int32_t>()[sequence.place]);
  const bool none_left = reason == FinishReason::kNotFinite && sequence.constraint &&
                         sequence.constraint->is_dead_end();
  return none_left ? EndReason::kDeadEnd : to_end_reason(reason);
}

void Engine::Impl::count_end(EndReason reason) {
  if (reason == EndReason::kError) {
    ++metrics_.num_not_finite;
    ++metrics_.not_finite_in_a_row;
  } else if (reason != EndReason::kNone) {
    metrics_.not_finite_in_a_row = 0;
  }
}

// What the step emitted for one sequence becomes its own.
void Engine::Impl::take_tokens(Sequence& sequence, bool decoded) {
  const RoundResults& results = runner_.first().results();
  const std::int64_t place = sequence.place;
  const std::int32_t count = results.num_emitted.data<std::int32_t>()[place];
  const std::span<const std::int32_t> emitted(results.emitted.row<std::int32_t>(place),
                                              static_cast<std::size_t>(count));
  PendingOutput output;
  for (std::int64_t i = 0; sequence.request.sampling.logprobs && i < count; ++i)
    output.logprobs.push_back(read_logprob(sequence, i));
  sequence.tokens.insert(sequence.tokens.end(), emitted.begin(), emitted.end());
  // A dead end: what came after the last allowed token is no output.
  std::size_t num_allowed = emitted.size();
  for (std::size_t i = 0; sequence.constraint && i < num_allowed; ++i)
    if (!sequence.constraint->accept(emitted[i])) num_allowed = i;
  RequestStats& stats = sequence.stats;
  if (decoded) commit(sequence, emitted);
  stats.num_output_tokens = sequence.num_output();
  if (stats.first_token_ns == 0) stats.first_token_ns = clock_.now_ns();
  output.end_reason = num_allowed < emitted.size() ? EndReason::kDeadEnd : end_reason_of(sequence);
  count_end(output.end_reason);
  if (output.end_reason == EndReason::kStop) output.stop_token_id = emitted.back();
  if (output.end_reason != EndReason::kNone) {
    stats.end_ns = clock_.now_ns();
    ended_.push_back(sequence.id);
  }
  output.prompt_logprobs = std::exchange(sequence.prompt_logprobs, {});
  output.id = sequence.id;
  output.callback = sequence.callback;
  output.token_ids.assign(emitted.begin(),
                          emitted.begin() + static_cast<std::ptrdiff_t>(num_allowed));
  output.stats = stats;
  pending_.push_back(std::move(output));
}

// A round decided these tokens: the keys of those before the last one are in the cache.
void Engine::Impl::commit(Sequence& sequence, std::span<const std::int32_t> emitted) {
  const RoundResults& results = runner_.first().results();
  const std::int64_t place = sequence.place, position = sequence.num_computed;
  sequence.num_computed += std::ssize(emitted);
  if (commit_observer)
    trace_commit(sequence, position,
                 {results.accepted_rows.row<std::int32_t>(place), emitted.size()},
                 runner_.first().round().choices().logits);
  if (round_observer) trace_round(sequence, emitted);
  RequestStats& stats = sequence.stats;
  ++stats.num_rounds;
  stats.num_draft_tokens += results.trees.counts.data<std::int32_t>()[place];
  stats.num_accepted_tokens += std::max<std::int64_t>(std::ssize(emitted) - 1, 0);
}

void Engine::Impl::trace_commit(const Sequence& sequence, std::int64_t position,
                                std::span<const std::int32_t> rows, const Tensor& logits) {
  std::vector<std::int32_t> slots;
  for (std::int64_t i = 0; i < std::ssize(rows); ++i)
    slots.push_back(sequence.table.slot_of(position + i));
  commit_observer(
      {.id = sequence.id,
       .position = position,
       .token_ids =
           std::span(sequence.tokens).subspan(static_cast<std::size_t>(position), rows.size()),
       .slots = slots,
       .rows = rows,
       .logits = logits,
       .cache = &runner_.first().cache(),
       .backend = &runner_.first().backend()});
}

void Engine::Impl::trace_round(const Sequence& sequence,
                               std::span<const std::int32_t> emitted) const {
  RoundTrace trace{.id = sequence.id,
                   .position = sequence.num_computed - std::ssize(emitted),
                   .tree = read_tree(runner_.first().results().trees, sequence.place),
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
                     .prompt_logprobs = output.prompt_logprobs,
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

}  // namespace coppice
