#include "engine/runner_group.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace coppice {

// body(rank, runner) on every rank's own thread.
template <typename Body>
void RunnerGroup::on_all(const Body& body) {
  if (threads_ != nullptr)
    return threads_->run(
        [&](std::int64_t rank) { body(rank, *runners_[static_cast<std::size_t>(rank)]); });
  try {
    body(std::int64_t{0}, *runners_.front());
  } catch (...) {
    only_rank_failed_ = true;
    throw;
  }
}

bool RunnerGroup::has_failed() const {
  return threads_ != nullptr ? threads_->has_failed() : only_rank_failed_;
}

RunnerGroup::RunnerGroup(const EngineConfig& config, EngineParts parts, std::int64_t max_model_len)
    : threads_(parts.threads) {
  std::vector<EngineParts> all = std::exchange(parts.peers, {});
  all.insert(all.begin(), std::move(parts));
  runners_.resize(all.size());
  const auto make = [&](std::int64_t rank) {
    const auto i = static_cast<std::size_t>(rank);
    runners_[i] = std::make_unique<ModelRunner>(config, std::move(all[i]), max_model_len);
  };
  if (threads_ == nullptr) {
    make(0);
  } else {
    COPPICE_CHECK_EQ(threads_->size(), num_ranks());
    threads_->run(make, RankThreads::Patience::kEndless);
  }
}

// A rank that is stuck keeps what it works on.
RunnerGroup::~RunnerGroup() {
  for (std::int64_t rank = 1; rank < num_ranks(); ++rank)
    if (threads_->is_stuck(rank)) std::ignore = runners_[static_cast<std::size_t>(rank)].release();
}

void RunnerGroup::prefill(std::span<const PrefillChunk> chunks, Provenance provenance,
                          std::int64_t batch, const SampleOptions& options,
                          const PrefillMaskSource& fill_masks) {
  on_all([&](std::int64_t rank, ModelRunner& runner) {
    runner.prefill(chunks, provenance, batch, options, [&](std::span<std::int32_t> masks) {
      if (rank == 0) fill_masks(masks);
      share_masks(rank, masks);
    });
  });
  check_agreement();
}

std::int64_t RunnerGroup::launch(const RoundShape& shape, const RoundBudgets& budgets,
                                 const BudgetController& controller) {
  std::int64_t round = 0;
  on_all([&](std::int64_t rank, ModelRunner& runner) {
    RoundShape own = shape;
    own.fill_masks = [&](const RoundResults& results, std::span<std::int32_t> masks) {
      if (rank == 0) shape.fill_masks(results, masks);
      share_masks(rank, masks);
    };
    const std::int64_t number = runner.launch(own, budgets, controller);
    if (rank == 0) round = number;
  });
  return round;
}

void RunnerGroup::finish(std::int64_t round) {
  on_all([&](std::int64_t, ModelRunner& runner) { runner.finish(round); });
  check_agreement();
}

void RunnerGroup::capture(const RoundShape& shape) {
  on_all([&](std::int64_t, ModelRunner& runner) { runner.capture(shape); });
}

void RunnerGroup::synchronize() {
  on_all([](std::int64_t, ModelRunner& runner) { runner.backend().synchronize(); });
}

double RunnerGroup::catch_up() {
  if (first().num_behind() == 0) return 0;
  double milliseconds = 0;
  on_all([&](std::int64_t rank, ModelRunner& runner) {
    const double own = runner.catch_up();
    if (rank == 0) milliseconds = own;
  });
  return milliseconds;
}

void RunnerGroup::forget_behind() {
  for (const auto& runner : runners_) runner->forget_behind();
}

double RunnerGroup::measure_verify_ms(std::int64_t rows) {
  double milliseconds = 0;
  on_all([&](std::int64_t rank, ModelRunner& runner) {
    const double own = runner.measure_verify_ms(rows);
    if (rank == 0) milliseconds = own;
  });
  return milliseconds;
}

void RunnerGroup::set_speculative(const SpeculativeConfig& speculative) {
  on_all([&](std::int64_t, ModelRunner& runner) { runner.set_speculative(speculative); });
}

void RunnerGroup::sync_place(Sequence& sequence) {
  const std::int64_t num_blocks = std::ssize(sequence.table.blocks());
  if (!sequence.place_changed && sequence.num_uploaded_blocks == num_blocks) return;
  on_all([&](std::int64_t, ModelRunner& runner) {
    runner.places().sync_place(std::as_const(sequence));
  });
  sequence.place_changed = false;
  sequence.num_uploaded_blocks = num_blocks;
}

void RunnerGroup::vacate(std::int64_t place) {
  if (has_failed()) return;
  catch_up();
  on_all([&](std::int64_t, ModelRunner& runner) { runner.places().clear_place(place); });
}

void RunnerGroup::start_decoding(const Sequence& sequence) {
  on_all([&](std::int64_t, ModelRunner& runner) { runner.places().start_decoding(sequence); });
}

// Grammars and their states are the engine's: rank 0 fills the masks for all.
void RunnerGroup::share_masks(std::int64_t rank, std::span<std::int32_t> masks) {
  if (threads_ != nullptr) threads_->communicator(rank).broadcast(std::as_writable_bytes(masks), 0);
}

void RunnerGroup::check_agreement() {
  if (num_ranks() == 1 || !first().has_results()) return;
  const RoundResults& mine = first().results();
  const std::int64_t places = mine.num_emitted.shape(0);
  for (std::int64_t rank = 1; rank < num_ranks(); ++rank) {
    const RoundResults& other = runners_[static_cast<std::size_t>(rank)]->results();
    for (std::int64_t place = 0; place < places; ++place) {
      const std::int32_t count = mine.num_emitted.data<std::int32_t>()[place];
      const auto* tokens = mine.emitted.row<std::int32_t>(place);
      if (other.num_emitted.data<std::int32_t>()[place] == count &&
          std::equal(tokens, tokens + count, other.emitted.row<std::int32_t>(place)))
        continue;
      threads_->fail(Error(ErrorKind::kUnavailable,
                           "rank " + std::to_string(rank) +
                               " emitted other tokens than rank 0: a device or its link computes "
                               "wrongly"));
    }
  }
}

}  // namespace coppice
