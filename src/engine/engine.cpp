#include "engine/engine.h"

#include <algorithm>

#include "base/rng.h"
#include "engine/engine_impl.h"
#include "engine/graph_capture.h"
#include "model/config_fields.h"
#include "sampling/token_constraint.h"

namespace coppice {

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
  // An output with a grammar ends with a stop id and in no other way.
  if (!sampling.ignore_eos || sampling.structured.grammar)
    for (const std::int64_t eos : model_config().eos_token_ids) sequence->stop_ids.push_back(eos);
  sequence->constraint =
      TokenConstraint::make(sampling, sequence->stop_ids, model_config().vocab_size);
  if (sequence->constraint) {
    if (sequence->constraint->is_dead_end())
      throw Error(ErrorKind::kInvalidArgument,
                  "no token may come first: " + names_of_constraints(sampling) + " leave none");
    sequence->request.sampling.min_tokens = 0;  // the constraint's now
  }
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
    metrics_.not_finite_in_a_row = 0;
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

// What follows from how rounds draft: the controller, counts by depth, captured graphs, measured
// costs.
void Engine::Impl::prepare_rounds() {
  SpeculativeConfig speculative = config_.speculative;
  speculative.max_ddtree_budget = runner_.first().max_nodes();
  if (custom_drafter_) speculative.method = SpeculativeMethod::kDdtree;
  const std::int64_t max_depth = runner_.first().drafter().max_depth();
  controller_ =
      std::make_unique<BudgetController>(speculative, max_depth, runner_.first().max_verify_rows());
  metrics_.drafts_at_depth.assign(static_cast<std::size_t>(max_depth + 1), 0);
  metrics_.accepted_at_depth = metrics_.drafts_at_depth;
  const bool automatic = speculative.is_automatic() && !custom_drafter_;
  const bool captures =
      runner_.first().backend().device() != Device::kCpu && !config_.enforce_eager;
  if (captures && config_.capture_at_start)
    capture_rounds(runner_, shapes_to_capture(runner_.first(), config_, custom_drafter_), clock_);
  if (!automatic) return;
  // Steps that take this long are far from free: the line through the last two will do.
  constexpr double kLongStepMs = 50;
  double ms = 0;
  for (std::int64_t rows = 1; rows <= runner_.first().max_verify_rows() && ms < kLongStepMs;
       rows *= 2)
    controller_->expect_cost(rows, ms = runner_.measure_verify_ms(rows));
}

void Engine::Impl::set_speculative(const SpeculativeConfig& speculative) {
  COPPICE_CHECK(!scheduler_.has_work(), "set_speculative while requests run");
  EngineConfig changed = config_;
  changed.speculative = speculative;
  changed.validate();
  config_ = changed;
  flights_.clear();
  runner_.set_speculative(speculative);
  scheduler_.set_reserve(runner_.first().reserve());
  prepare_rounds();
}

std::string Engine::Impl::describe() const {
  const SpeculativeConfig& speculative = config_.speculative;
  std::string text = runner_.first().backend().name();
  if (runner_.num_ranks() > 1) text += ", tensor parallel " + std::to_string(runner_.num_ranks());
  text += std::string(", speculation ") + runner_.first().drafter().name();
  if (speculative.method == SpeculativeMethod::kDdtree)
    text += speculative.ddtree_budget == kAutoBudget
                ? " budget auto (at most " + std::to_string(runner_.first().max_nodes()) + ")"
                : " budget " + std::to_string(speculative.ddtree_budget);
  text += ", cache " + std::to_string(runner_.first().num_blocks() * kBlockSize) +
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
void Engine::reset_prefix_cache() {
  impl_->reset_prefix_cache();
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
