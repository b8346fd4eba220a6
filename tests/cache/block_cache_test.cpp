// Random sequences over a small pool, checked after every step against a shadow model that knows
// who holds what and what every block contains.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "cache/block_allocator.h"
#include "cache/block_table.h"
#include "cache/prefix_index.h"

namespace coppice {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Sequence {
  BlockTable table;
  Tokens tokens;               // what its blocks hold, block by block
  std::int64_t prompt_blocks;  // blocks from prompt tokens; the rest were decided
  std::string salt;
};

// `fault` plants a mistake that the checks must find.
enum class Fault { kNone, kLeak, kDoubleRelease, kIgnoreSalt, kWriteShared };

class Simulation {
 public:
  Simulation(std::uint32_t seed, int hash_bits, Fault fault)
      : rng_(seed), index_(allocator_, hash_bits), fault_(fault) {}

  // The first breach, or nothing.
  std::optional<std::string> run(int steps) {
    for (int step = 0; step < steps && !breach_; ++step) {
      const std::uint32_t action = below(10);
      if (action < 4)
        start();
      else if (action < 7)
        grow();
      else
        finish();
      check();
    }
    while (!breach_ && !running_.empty()) finish();
    if (!breach_ && allocator_.num_used() != 0) breach_ = "blocks are used at the end";
    for (auto& [id, sequence] : running_) sequence.table.release();
    return breach_;
  }
  std::int64_t hits() const { return index_.stats().hits; }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(rng_() % n); }

  // Few distinct blocks, so that beginnings repeat.
  void append_block(Tokens& tokens) {
    const auto kind = static_cast<std::int32_t>(below(3));
    for (std::int32_t i = 0; i < kBlockSize; ++i) tokens.push_back(kind * 1000 + i % 7);
  }

  void start() {
    Sequence sequence{BlockTable(allocator_), {}, 0, below(2) == 0 ? "a" : "b"};
    const std::uint32_t count = 1 + below(4);
    Tokens prompt;
    for (std::uint32_t i = 0; i < count; ++i) append_block(prompt);
    const bool prompt_only = below(2) == 0;
    const std::string& asked = fault_ == Fault::kIgnoreSalt ? kSharedSalt : sequence.salt;
    std::vector<std::int32_t> found =
        index_.match(prompt, std::ssize(prompt) - 1, asked, prompt_only);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Content& content = contents_.at(found[i]);
      const Tokens expected(prompt.begin() + static_cast<std::ptrdiff_t>(i) * kBlockSize,
                            prompt.begin() + static_cast<std::ptrdiff_t>(i + 1) * kBlockSize);
      if (content.tokens != expected) breach_ = "a hit holds other tokens";
      if (content.salt != sequence.salt) breach_ = "a hit crosses salts";
      if (prompt_only && content.decided) breach_ = "a decided block was shared";
    }
    const std::size_t shared = found.size();
    sequence.table.adopt(std::move(found));
    if (!sequence.table.reserve(std::ssize(prompt))) {
      sequence.table.release();
      return;
    }
    sequence.tokens = prompt;
    sequence.prompt_blocks = count;
    write(sequence, shared);
    running_.emplace(next_id_++, std::move(sequence));
    insert(running_.at(next_id_ - 1));
  }

  void grow() {
    if (running_.empty()) return;
    Sequence& sequence = pick()->second;
    const auto old = sequence.table.blocks().size();
    if (!sequence.table.reserve(sequence.table.num_positions() + kBlockSize)) return;
    append_block(sequence.tokens);
    write(sequence, fault_ == Fault::kWriteShared ? 0 : old);
    insert(sequence);
  }

  void finish() {
    if (running_.empty()) return;
    const auto it = pick();
    if (fault_ == Fault::kLeak && below(5) == 0)
      allocator_.retain(it->second.table.blocks().front());
    if (fault_ == Fault::kDoubleRelease && allocator_.ref_count(it->second.table.blocks()[0]) > 1) {
      allocator_.release(it->second.table.blocks()[0]);
      check();
      allocator_.retain(it->second.table.blocks()[0]);
    }
    it->second.table.release();
    running_.erase(it);
  }

  // The sequence computes its blocks from `first` on; a block with a second reader must not change.
  void write(const Sequence& sequence, std::size_t first) {
    const auto blocks = sequence.table.blocks();
    for (std::size_t i = first; i < blocks.size(); ++i) {
      if (allocator_.ref_count(blocks[i]) > 1 || allocator_.is_cached(blocks[i]))
        breach_ = "a shared block was written";
      contents_[blocks[i]] = {
          Tokens(sequence.tokens.begin() + static_cast<std::ptrdiff_t>(i) * kBlockSize,
                 sequence.tokens.begin() + static_cast<std::ptrdiff_t>(i + 1) * kBlockSize),
          sequence.salt, static_cast<std::int64_t>(i) >= sequence.prompt_blocks};
    }
  }

  void insert(const Sequence& sequence) {
    std::vector<Provenance> provenance;
    for (std::size_t i = 0; i < sequence.table.blocks().size(); ++i)
      provenance.push_back(static_cast<std::int64_t>(i) < sequence.prompt_blocks
                               ? Provenance::kPrompt
                               : Provenance::kDecided);
    index_.insert(sequence.tokens, sequence.table.blocks(), provenance,
                  fault_ == Fault::kIgnoreSalt ? kSharedSalt : sequence.salt);
  }

  void check() {
    std::map<std::int32_t, std::int64_t> users;
    for (const auto& [id, sequence] : running_)
      for (const std::int32_t block : sequence.table.blocks()) ++users[block];
    for (std::int32_t block = 0; block < allocator_.num_blocks(); ++block)
      if (allocator_.ref_count(block) != users[block]) breach_ = "references do not match users";
    if (allocator_.num_free() + allocator_.num_idle() + allocator_.num_used() !=
        allocator_.num_blocks())
      breach_ = "blocks do not add up";
  }

  std::map<int, Sequence>::iterator pick() {
    return std::next(running_.begin(), below(static_cast<std::uint32_t>(running_.size())));
  }

  struct Content {
    Tokens tokens;
    std::string salt;
    bool decided = false;
  };
  const std::string kSharedSalt = "same";

  std::mt19937 rng_;
  BlockAllocator allocator_{24};
  PrefixIndex index_;
  Fault fault_;
  std::map<int, Sequence> running_;
  int next_id_ = 0;
  std::map<std::int32_t, Content> contents_;
  std::optional<std::string> breach_;
};

TEST(BlockCacheTest, RandomRequestsNeverBreakTheAccount) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Simulation simulation(seed, 64, Fault::kNone);
    EXPECT_EQ(simulation.run(1500), std::nullopt) << "seed " << seed;
    EXPECT_GT(simulation.hits(), 50);
  }
}

TEST(BlockCacheTest, HashCollisionsNeverMatchWrongTokens) {
  Simulation simulation(5, 1, Fault::kNone);
  EXPECT_EQ(simulation.run(5000), std::nullopt);
  EXPECT_GT(simulation.hits(), 100);
}

TEST(BlockCacheTest, PlantedFaultsAreFound) {
  for (const Fault fault :
       {Fault::kLeak, Fault::kDoubleRelease, Fault::kIgnoreSalt, Fault::kWriteShared})
    EXPECT_NE(Simulation(1, 64, fault).run(1500), std::nullopt) << static_cast<int>(fault);
}

TEST(BlockCacheDeathTest, ATableDroppedWithBlocksIsFound) {
  BlockAllocator allocator(4);
  EXPECT_DEATH(
      {
        BlockTable table(allocator);
        table.reserve(65);
      },
      "dropped with 2 blocks");
}

TEST(BlockCacheTest, ReserveIsAllOrNothingAndEvictsOldestFirst) {
  BlockAllocator allocator(3);
  PrefixIndex index(allocator);
  const Tokens tokens(3 * kBlockSize, 1);
  const std::vector<Provenance> prompt(3, Provenance::kPrompt);
  BlockTable first(allocator);
  ASSERT_TRUE(first.reserve(2 * kBlockSize));
  index.insert(tokens, first.blocks(), std::span(prompt).first(2), "");
  first.release();
  EXPECT_EQ(allocator.num_idle(), 2);
  BlockTable second(allocator);
  EXPECT_FALSE(second.reserve(4 * kBlockSize));
  ASSERT_TRUE(second.reserve(2 * kBlockSize));  // evicts the deeper of the two
  const std::vector<std::int32_t> found = index.match(tokens, 192, "", false);
  EXPECT_EQ(found.size(), 1u);
  for (const std::int32_t block : found) allocator.release(block);
  second.release();
}

}  // namespace
}  // namespace coppice
