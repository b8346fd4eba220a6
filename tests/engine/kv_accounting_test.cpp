// The cache's books over 100,000 requests: they arrive at random times of a clock that only the
// simulation moves, share beginnings, are cancelled, cut by stop strings and preempted, and after
// every step each block's users, state and contents are counted anew from the sequences alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include "base/clock.h"
#include "engine/scheduler.h"

namespace coppice {
namespace {

constexpr std::int64_t kReserve = 40;
constexpr std::int64_t kChunk = 256;
constexpr std::int64_t kPlaces = 8;
constexpr std::int64_t kBlocks = 48;

// Mistakes that the books must show.
enum class Fault {
  kNone,
  kLeak,          // a block is taken by nobody
  kDoubleFree,    // a block is given back twice
  kWrongCount,    // a block has a user too many
  kStaleContent,  // a block that the index still names is written again
  kMissedFree,    // a sequence leaves without giving its last block back
};

class Simulation {
 public:
  Simulation(std::uint32_t seed, std::int64_t num_requests, Fault fault)
      : rng_(seed),
        left_(num_requests),
        fault_(fault),
        allocator_(kBlocks),
        index_(allocator_),
        scheduler_({.max_num_seqs = kPlaces,
                    .max_num_batched_tokens = kChunk,
                    .reserve = kReserve,
                    .prefix_caching = true,
                    .prefix_cache_exact = seed % 2 == 1},
                   allocator_, index_, [](std::int64_t) {}),
        content_(static_cast<std::size_t>(kBlocks * kBlockSize), 0) {}

  // The first breach, or nothing when all requests ended and no block is used.
  std::optional<std::string> run() {
    while (!breach_ && (left_ > 0 || scheduler_.has_work())) {
      while (left_ > 0 && next_arrival_ns_ <= now_ns_) arrive();
      if (!scheduler_.has_work()) {
        now_ns_ = next_arrival_ns_;
        continue;
      }
      disturb();
      if (scheduler_.has_work() && !breach_) step();
      balance();
    }
    if (!breach_ && allocator_.num_used() != 0) breach_ = "blocks are used at the end";
    if (!breach_ && num_ended_ != num_arrived_) breach_ = "a request was lost";
    undo_fault();
    while (Sequence* sequence = scheduler_.first()) scheduler_.remove(*sequence);
    return breach_;
  }

  std::int64_t num_ended() const { return num_ended_; }
  std::int64_t num_cancelled() const { return num_cancelled_; }
  std::int64_t num_cut() const { return num_cut_; }
  std::int64_t num_preemptions() const { return scheduler_.num_preemptions(); }
  const PrefixStats& prefixes() const { return index_.stats(); }
  std::int64_t seconds() const { return now_ns_ / 1'000'000'000; }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(rng_() % n); }
  void fail_unless(bool holds, const char* what) {
    if (!holds && !breach_) breach_ = what;
  }

  // Prompts of one family begin alike; so do the answers, which makes decided blocks worth sharing.
  void arrive() {
    Request request;
    const auto family = static_cast<std::int32_t>(below(12));
    const std::uint32_t shared = 64 * below(5), own = 1 + below(150);
    for (std::uint32_t i = 0; i < shared; ++i)
      request.prompt_token_ids.push_back(family * 100 + static_cast<std::int32_t>(i % 50));
    const auto salt_of_own = static_cast<std::int32_t>(1000 + below(40));
    for (std::uint32_t i = 0; i < own; ++i)
      request.prompt_token_ids.push_back(salt_of_own + static_cast<std::int32_t>(i % 7));
    request.sampling.max_tokens = 1 + below(below(10) == 0 ? 600 : 60);
    request.cache_salt = below(4) == 0 ? "tenant" : "";
    scheduler_.add(
        std::make_unique<Sequence>(next_id_++, std::move(request), OutputCallback(), allocator_));
    alive_.push_back(next_id_ - 1);
    ++num_arrived_;
    --left_;
    // Bursts and quiet times.
    std::exponential_distribution<double> gap(below(200) == 0 ? 2.0 : 160.0);
    next_arrival_ns_ += static_cast<std::int64_t>(gap(rng_) * 1e9);
  }

  Sequence* anyone() {
    return alive_.empty()
               ? nullptr
               : scheduler_.find(alive_[below(static_cast<std::uint32_t>(alive_.size()))]);
  }

  // Clients that leave, an operator that preempts or empties the cache, and the planted fault.
  void disturb() {
    if (below(60) == 0)
      if (Sequence* sequence = anyone()) {
        ++num_cancelled_;
        leave(*sequence);
      }
    if (below(80) == 0)
      if (Sequence* sequence = anyone(); sequence != nullptr && sequence->place >= 0)
        scheduler_.preempt(*sequence);
    if (below(5000) == 0) index_.clear();
    if (fault_ != Fault::kNone && num_arrived_ > 300 && !fault_block_) {
      plant();
      balance();
    }
  }

  void plant() {
    Sequence* sequence = anyone();
    if (sequence == nullptr || sequence->table.blocks().empty()) return;
    const std::int32_t block = sequence->table.blocks().back();
    if (fault_ == Fault::kLeak) fault_block_ = allocator_.allocate();
    if (fault_ == Fault::kDoubleFree) {
      if (allocator_.is_cached(block)) return;
      fault_block_ = block;
      allocator_.release(block);
    }
    if (fault_ == Fault::kWrongCount) {
      fault_block_ = block;
      allocator_.retain(block);
    }
    if (fault_ == Fault::kStaleContent) {
      const std::int32_t first = sequence->table.blocks().front();
      if (!allocator_.is_cached(first)) return;
      fault_block_ = first;
      content_[static_cast<std::size_t>(first * kBlockSize + kBlockSize - 1)] ^= 1;
    }
    if (fault_ == Fault::kMissedFree) {
      fault_block_ = block;
      allocator_.retain(block);  // what its own release will now only take back
      leave(*sequence);
    }
  }

  // So that the simulation can be taken down.
  void undo_fault() {
    if (!fault_block_) return;
    if (fault_ == Fault::kDoubleFree)
      fail_unless(allocator_.allocate() == fault_block_, "the fault could not be undone");
    else if (fault_ != Fault::kStaleContent)
      allocator_.release(*fault_block_);
  }

  void leave(Sequence& sequence) {
    std::erase(alive_, sequence.id);
    scheduler_.remove(sequence);
    ++num_ended_;
  }

  void step() {
    StepPlan plan = scheduler_.plan();
    if (plan.kind == StepPlan::Kind::kIdle) plan = scheduler_.plan();
    fail_unless(plan.kind != StepPlan::Kind::kIdle, "work but no step");
    std::int64_t rows = 0;
    for (const PrefillChunk& chunk : plan.chunks) rows += prefill(chunk);
    for (Sequence* sequence : plan.decoding) rows += decode(*sequence);
    now_ns_ += 1'000'000 + 20'000 * rows;
  }

  std::int64_t prefill(const PrefillChunk& chunk) {
    Sequence& sequence = *chunk.sequence;
    read(sequence);
    write(sequence, chunk.count);
    if (sequence.num_computed == sequence.prefill_target()) sequence.state = SequenceState::kDecode;
    scheduler_.index_blocks(sequence, sequence.prompt_len);
    if (chunk.samples) emit(sequence, 1);
    return chunk.count;
  }

  std::int64_t decode(Sequence& sequence) {
    read(sequence);
    const std::int64_t count = std::min<std::int64_t>(
        1 + below(8), sequence.request.sampling.max_tokens - sequence.num_output());
    write(sequence, count);
    emit(sequence, count);
    return count;
  }

  void emit(Sequence& sequence, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      sequence.tokens.push_back(static_cast<std::int32_t>(sequence.tokens.size() % 5));
    const bool cut = below(400) == 0;
    if (!cut && sequence.num_output() < sequence.request.sampling.max_tokens) return;
    num_cut_ += cut ? 1 : 0;
    // As Engine::finish does: what follows a stop string is never named.
    const std::int64_t kept =
        cut ? sequence.prompt_len + below(static_cast<std::uint32_t>(sequence.num_output() + 1))
            : sequence.num_computed;
    scheduler_.index_blocks(sequence, kept);
    leave(sequence);
  }

  // The contents of a position: everything that its keys depend on.
  static std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ (value + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
    return hash ^ (hash >> 31);
  }
  std::uint64_t& cell(const Sequence& sequence, std::int64_t position) {
    const std::int32_t block =
        sequence.table.blocks()[static_cast<std::size_t>(position / kBlockSize)];
    return content_[static_cast<std::size_t>(block * kBlockSize + position % kBlockSize)];
  }

  // Every position before the computed ones holds this very text, in this tenant's cache.
  void read(Sequence& sequence) {
    std::uint64_t hash = std::hash<std::string>()(sequence.request.cache_salt);
    for (std::int64_t p = 0; p < sequence.num_computed; ++p) {
      hash = mix(hash, static_cast<std::uint64_t>(sequence.tokens[static_cast<std::size_t>(p)]));
      if (cell(sequence, p) != hash) return fail_unless(false, "a position holds another's keys");
    }
    hash_ = hash;
  }

  void write(Sequence& sequence, std::int64_t count) {
    fail_unless(sequence.num_computed + count <= sequence.table.num_positions(),
                "a row without a slot");
    if (breach_) return;
    // A round's tokens are decided while it runs; emit() appends the same ones.
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t p = sequence.num_computed + i;
      const std::int64_t size = std::ssize(sequence.tokens);
      const std::int32_t token = p < size ? sequence.tokens[static_cast<std::size_t>(p)]
                                          : static_cast<std::int32_t>(p % 5);
      const std::int32_t block = sequence.table.blocks()[static_cast<std::size_t>(p / kBlockSize)];
      fail_unless(allocator_.ref_count(block) == 1, "a shared block is written");
      hash_ = mix(hash_, static_cast<std::uint64_t>(token));
      cell(sequence, p) = hash_;
    }
    sequence.num_computed += count;
  }

  // The books, from the sequences alone.
  void balance() {
    std::array<std::int64_t, kBlocks> users{};
    for (const RequestId id : alive_) {
      const Sequence* sequence = scheduler_.find(id);
      if (sequence == nullptr) return fail_unless(false, "a living request is not known");
      fail_unless(sequence->place >= 0 || sequence->table.blocks().empty(),
                  "a waiting request holds blocks");
      for (const std::int32_t block : sequence->table.blocks())
        ++users[static_cast<std::size_t>(block)];
    }
    std::int64_t used = 0, idle = 0, free = 0, cached = 0;
    for (std::int32_t block = 0; block < kBlocks; ++block) {
      const std::int64_t count = users[static_cast<std::size_t>(block)];
      fail_unless(allocator_.ref_count(block) == count, "a block's users are miscounted");
      cached += allocator_.is_cached(block) ? 1 : 0;
      ++(count > 0 ? used : allocator_.is_cached(block) ? idle : free);
    }
    fail_unless(allocator_.num_used() == used, "used blocks are miscounted");
    fail_unless(allocator_.num_idle() == idle, "idle blocks are miscounted");
    fail_unless(allocator_.num_free() == free, "free blocks are miscounted");
    fail_unless(index_.num_blocks() == cached, "the index names blocks that are not marked");
  }

  std::mt19937 rng_;
  std::int64_t left_;
  Fault fault_;
  BlockAllocator allocator_;
  PrefixIndex index_;
  Scheduler scheduler_;
  std::vector<std::uint64_t> content_;  // [kBlocks * kBlockSize]
  std::uint64_t hash_ = 0;              // of the text that read() has walked
  std::vector<RequestId> alive_;
  std::int64_t now_ns_ = 0, next_arrival_ns_ = 0;
  std::int64_t num_arrived_ = 0, num_ended_ = 0, num_cancelled_ = 0, num_cut_ = 0;
  RequestId next_id_ = 1;
  std::optional<std::int32_t> fault_block_;
  std::optional<std::string> breach_;
};

TEST(KvAccountingTest, HundredThousandRandomRequests) {
  std::int64_t ended = 0, preemptions = 0, cancelled = 0, cut = 0, hits = 0, evictions = 0;
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    Simulation simulation(seed, 10'000, Fault::kNone);
    ASSERT_EQ(simulation.run(), std::nullopt) << "seed " << seed;
    ended += simulation.num_ended();
    preemptions += simulation.num_preemptions();
    cancelled += simulation.num_cancelled();
    cut += simulation.num_cut();
    hits += simulation.prefixes().hits;
    evictions += simulation.prefixes().evictions;
  }
  std::printf(
      "%lld requests: %lld preemptions, %lld cancelled, %lld cut by a stop string, "
      "%lld prefix hits, %lld evictions\n",
      static_cast<long long>(ended), static_cast<long long>(preemptions),
      static_cast<long long>(cancelled), static_cast<long long>(cut), static_cast<long long>(hits),
      static_cast<long long>(evictions));
  EXPECT_EQ(ended, 100'000);
  EXPECT_GT(preemptions, 1000);
  EXPECT_GT(cancelled, 1000);
  EXPECT_GT(cut, 1000);
  EXPECT_GT(hits, 10'000);
  EXPECT_GT(evictions, 10'000);
}

TEST(KvAccountingTest, PlantedFaultsAreFound) {
  const std::pair<Fault, const char*> faults[] = {
      {Fault::kLeak, "a block's users are miscounted"},
      {Fault::kDoubleFree, "a block's users are miscounted"},
      {Fault::kWrongCount, "a block's users are miscounted"},
      {Fault::kStaleContent, "a position holds another's keys"},
      {Fault::kMissedFree, "a block's users are miscounted"}};
  for (const auto& [fault, found] : faults) {
    Simulation simulation(1, 10'000, fault);
    EXPECT_EQ(simulation.run(), found) << static_cast<int>(fault);
    EXPECT_LT(simulation.num_ended(), 2000) << "found late";
  }
}

}  // namespace
}  // namespace coppice
