// The scheduler alone, in random lives of requests: integers only, so ten thousand steps take
// milliseconds. A shadow of the device checks that no step reads or writes what is not its own.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

namespace coppice {
namespace {

constexpr std::int64_t kReserve = 40;
constexpr std::int64_t kChunk = 48;
constexpr std::int64_t kPlaces = 4;
constexpr std::int64_t kBlocks = 30;

// Mistakes that the checks must find.
enum class Fault { kNone, kForgetVacate, kSkipRow, kMixProvenance, kLoseSequence };

class Life {
 public:
  Life(std::uint32_t seed, bool caching, Fault fault)
      : rng_(seed),
        allocator_(kBlocks),
        index_(allocator_),
        fault_(fault),
        scheduler_({.max_num_seqs = kPlaces,
                    .max_num_batched_tokens = kChunk,
                    .reserve = kReserve,
                    .prefix_caching = caching,
                    .prefix_cache_exact = false},
                   allocator_, index_, [this](std::int64_t place) {
                     if (fault_ != Fault::kForgetVacate) owner_.erase(place);
                   }) {}

  std::optional<std::string> run(int steps) {
    for (int i = 0; i < steps && !breach_; ++i) {
      if (below(3) == 0 && alive_ < 10) add();
      if (below(40) == 0) act([&](Sequence& sequence) { end(sequence); });
      if (below(25) == 0)
        act([&](Sequence& sequence) {
          if (sequence.place >= 0) scheduler_.preempt(sequence);
        });
      step();
    }
    for (int i = 0; !breach_ && scheduler_.has_work(); ++i) {
      if (i > 5000) breach_ = "requests never end";
      step();
    }
    if (!breach_ && finished_ != added_) breach_ = "a request was lost";
    if (!breach_ && allocator_.num_used() != 0) breach_ = "blocks are used at the end";
    while (Sequence* sequence = scheduler_.first()) scheduler_.remove(*sequence);
    return breach_;
  }
  std::int64_t num_preemptions() const { return scheduler_.num_preemptions(); }
  std::int64_t cached_tokens() const { return index_.stats().hit_tokens; }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(rng_() % n); }

  void add() {
    Request request;
    const std::int32_t kind = static_cast<std::int32_t>(below(3));
    const std::uint32_t count = 1 + below(400);
    for (std::uint32_t i = 0; i < count; ++i)
      request.prompt_token_ids.push_back(kind * 10 + static_cast<std::int32_t>(i % 9));
    request.sampling.max_tokens = 1 + below(200);
    scheduler_.add(
        std::make_unique<Sequence>(next_id_++, std::move(request), OutputCallback(), allocator_));
    ++added_;
    ++alive_;
  }

  void act(const std::function<void(Sequence&)>& action) {
    if (Sequence* sequence = scheduler_.find(1 + below(static_cast<std::uint32_t>(next_id_))))
      action(*sequence);
  }

  void end(Sequence& sequence) {
    scheduler_.remove(sequence);
    ++finished_;
    --alive_;
  }

  void fail_unless(bool holds, const char* what) {
    if (!holds && !breach_) breach_ = what;
  }

  void step() {
    if (!scheduler_.has_work()) return;
    StepPlan plan = scheduler_.plan();
    if (plan.kind == StepPlan::Kind::kIdle) plan = scheduler_.plan();
    fail_unless(plan.kind != StepPlan::Kind::kIdle, "work but no step");
    fail_unless(plan.batch <= kPlaces, "more places than there are");
    if (plan.kind == StepPlan::Kind::kPrefill)
      prefill(plan);
    else
      decode(plan);
  }

  void occupy(const Sequence& sequence, std::int64_t batch) {
    fail_unless(sequence.place >= 0 && sequence.place < batch, "a place outside the batch");
    const auto [it, is_new] = owner_.emplace(sequence.place, sequence.id);
    fail_unless(it->second == sequence.id, "a place has two owners");
  }

  // Computing position p needs positions 0 .. p - 1 in place, and a slot of its own.
  void compute(Sequence& sequence, std::int64_t begin, std::int64_t count) {
    fail_unless(begin == sequence.num_computed, "a row was skipped or done twice");
    fail_unless(begin + count <= sequence.table.num_positions(), "a row without a slot");
    for (std::int64_t p = begin; p < begin + count; ++p) {
      const std::int32_t block = sequence.table.blocks()[static_cast<std::size_t>(p / kBlockSize)];
      fail_unless(allocator_.ref_count(block) == 1, "a shared block is written");
    }
    sequence.num_computed += fault_ == Fault::kSkipRow && below(50) == 0 ? count - 1 : count;
  }

  void prefill(const StepPlan& plan) {
    std::int64_t rows = 0;
    for (const PrefillChunk& chunk : plan.chunks) {
      Sequence& sequence = *chunk.sequence;
      occupy(sequence, plan.batch);
      rows += chunk.count;
      const bool prompt = plan.provenance == Provenance::kPrompt;
      const std::int64_t end = chunk.begin + chunk.count;
      const bool wrong = fault_ == Fault::kMixProvenance && below(20) == 0;
      fail_unless(
          !wrong && (prompt ? end <= sequence.prompt_len : chunk.begin >= sequence.prompt_len),
          "a chunk mixes provenances");
      compute(sequence, chunk.begin, chunk.count);
      fail_unless(chunk.samples == (end == sequence.prompt_len && sequence.num_output() == 0),
                  "the first token is sampled at the end of the prompt, once");
      if (sequence.num_computed == sequence.prefill_target())
        sequence.state = SequenceState::kDecode;
      scheduler_.index_blocks(sequence, sequence.prompt_len);
      if (chunk.samples) emit(sequence, 1);
    }
    fail_unless(rows > 0 && rows <= kChunk, "rows of a prefill step");
  }

  void decode(const StepPlan& plan) {
    fail_unless(!plan.decoding.empty(), "an empty round");
    for (Sequence* sequence : plan.decoding) {
      occupy(*sequence, plan.batch);
      fail_unless(sequence->num_computed == std::ssize(sequence->tokens) - 1,
                  "decoding before the context is complete");
      fail_unless(sequence->table.num_positions() >= sequence->num_computed + kReserve,
                  "no room for two rounds");
      const std::int64_t count = std::min<std::int64_t>(
          1 + below(6), sequence->request.sampling.max_tokens - sequence->num_output());
      compute(*sequence, sequence->num_computed, count);
      emit(*sequence, count);
    }
  }

  void emit(Sequence& sequence, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      sequence.tokens.push_back(static_cast<std::int32_t>(sequence.tokens.size() % 9));
    if (sequence.num_output() < sequence.request.sampling.max_tokens) return;
    scheduler_.index_blocks(sequence, sequence.num_computed);
    if (fault_ == Fault::kLoseSequence && below(10) == 0) --finished_;
    end(sequence);
  }

  std::mt19937 rng_;
  BlockAllocator allocator_;
  PrefixIndex index_;
  Fault fault_;
  std::map<std::int64_t, RequestId> owner_;
  Scheduler scheduler_;
  RequestId next_id_ = 1;
  std::int64_t added_ = 0, finished_ = 0, alive_ = 0;
  std::optional<std::string> breach_;
};

TEST(SchedulerTest, RandomLivesKeepEveryPromise) {
  std::int64_t preemptions = 0, cached = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    Life life(seed, seed % 2 == 0, Fault::kNone);
    EXPECT_EQ(life.run(1500), std::nullopt) << "seed " << seed;
    preemptions += life.num_preemptions();
    cached += life.cached_tokens();
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(cached, 5000);
}

TEST(SchedulerTest, PlantedFaultsAreFound) {
  for (const Fault fault :
       {Fault::kForgetVacate, Fault::kSkipRow, Fault::kMixProvenance, Fault::kLoseSequence})
    EXPECT_NE(Life(3, true, fault).run(1500), std::nullopt) << static_cast<int>(fault);
}

}  // namespace
}  // namespace coppice
