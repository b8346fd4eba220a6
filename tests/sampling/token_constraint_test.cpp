// Constraints of one sequence, alone and over a tree, with a grammar made for the test.
#include "sampling/token_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace coppice {
namespace {

constexpr std::int64_t kVocab = 70;  // three words of mask
constexpr std::int32_t kEos = 69, kThinkEnd = 68, kSection = 67;

// Accepts 1 2 3 1 2 3 ... and the end behind each 3.
class CountingMatcher final : public GrammarMatcher {
 public:
  void fill(std::span<std::int32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    for (std::int32_t id = 0; id < kVocab; ++id)
      if (may_come(id))
        mask[static_cast<std::size_t>(id / 32)] |= static_cast<std::int32_t>(1u << (id % 32));
  }
  bool accept(std::int32_t id) override {
    if (!may_come(id)) return false;
    ids_.push_back(id);
    return true;
  }
  void undo() override { ids_.pop_back(); }
  std::int32_t closing_id(std::span<const std::int32_t> mask) const override {
    for (std::int32_t id = kVocab - 1; id >= 0; --id)
      if (mask_has(mask, id)) return id;
    return -1;
  }

 private:
  bool may_come(std::int32_t id) const {
    if (!ids_.empty() && ids_.back() == kEos) return false;
    const auto count = static_cast<std::int32_t>(ids_.size());
    if (id == kEos) return count > 0 && count % 3 == 0;
    return id == count % 3 + 1;
  }
  std::vector<std::int32_t> ids_;
};

class CountingGrammar final : public Grammar {
 public:
  std::unique_ptr<GrammarMatcher> start() const override {
    return std::make_unique<CountingMatcher>();
  }
  std::int64_t num_bytes() const override { return 0; }
};

const std::vector<std::int64_t> kStops = {kEos};

std::set<std::int32_t> bits(std::span<const std::int32_t> mask) {
  std::set<std::int32_t> ids;
  for (std::int32_t id = 0; id < kVocab; ++id)
    if (mask_has(mask, id)) ids.insert(id);
  return ids;
}

std::set<std::int32_t> next(TokenConstraint& constraint) {
  std::vector<std::int32_t> mask(mask_words(kVocab), 0x5a5a5a5a);
  constraint.fill(mask);
  return bits(mask);
}

SamplingParams with_grammar(bool thinks) {
  SamplingParams params;
  params.max_tokens = 1000;
  params.structured.grammar = std::make_shared<CountingGrammar>();
  if (thinks) {
    params.structured.start_token_id = kThinkEnd;
    params.structured.banned_before_start = {kSection};
  }
  return params;
}

TEST(TokenConstraintTest, NothingToConstrainMakesNone) {
  EXPECT_EQ(TokenConstraint::make({}, kStops, kVocab), nullptr);
  EXPECT_NE(TokenConstraint::make(with_grammar(false), kStops, kVocab), nullptr);
}

TEST(TokenConstraintTest, GrammarFromTheFirstToken) {
  TokenConstraint constraint(with_grammar(false), kStops, kVocab);
  EXPECT_EQ(next(constraint), std::set<std::int32_t>{1});
  EXPECT_FALSE(constraint.accept(2));
  for (const std::int32_t id : {1, 2, 3}) ASSERT_TRUE(constraint.accept(id));
  EXPECT_EQ(next(constraint), (std::set<std::int32_t>{1, kEos}));
  constraint.undo();
  EXPECT_EQ(next(constraint), std::set<std::int32_t>{3});
}

TEST(TokenConstraintTest, GrammarBeginsBehindTheThought) {
  TokenConstraint constraint(with_grammar(true), kStops, kVocab);
  const std::set<std::int32_t> thinking = next(constraint);
  EXPECT_EQ(thinking.size(), static_cast<std::size_t>(kVocab - 2));
  EXPECT_FALSE(thinking.contains(kEos));
  EXPECT_FALSE(thinking.contains(kSection));
  ASSERT_TRUE(constraint.accept(50));
  EXPECT_FALSE(constraint.grammar_started());
  ASSERT_TRUE(constraint.accept(kThinkEnd));
  EXPECT_TRUE(constraint.grammar_started());
  EXPECT_EQ(next(constraint), std::set<std::int32_t>{1});
  ASSERT_TRUE(constraint.accept(1));
  constraint.undo();
  constraint.undo();
  EXPECT_FALSE(constraint.grammar_started());
  EXPECT_EQ(next(constraint), thinking);
}

// Root, a path that ends the thought and goes on, a sibling that goes on thinking.
TEST(TokenConstraintTest, EveryNodeHasTheMaskOfItsOwnPath) {
  TokenConstraint constraint(with_grammar(true), kStops, kVocab);
  ASSERT_TRUE(constraint.accept(40));
  const std::vector<std::int32_t> tokens = {40, kThinkEnd, 41, 1, 1, 2, 9};
  const std::vector<std::int32_t> parents = {-1, 0, 0, 1, 2, 3, 1};
  const std::size_t words = mask_words(kVocab);
  std::vector<std::int32_t> masks(tokens.size() * words, -1);
  fill_tree(constraint, tokens, parents, masks);
  const auto row = [&](std::size_t node) {
    return bits(std::span(masks).subspan(node * words, words));
  };
  EXPECT_TRUE(row(0).contains(kThinkEnd));
  EXPECT_EQ(row(1), std::set<std::int32_t>{1});
  EXPECT_TRUE(row(2).contains(kThinkEnd)) << "still thinking";
  EXPECT_EQ(row(3), std::set<std::int32_t>{2});
  EXPECT_TRUE(row(4).contains(60)) << "the same token on another path is no part of the grammar";
  EXPECT_EQ(row(5), std::set<std::int32_t>{3});
  EXPECT_TRUE(row(6).empty()) << "a node that the grammar does not take";
  EXPECT_FALSE(constraint.grammar_started()) << "the walk leaves the state as it was";
}

TEST(TokenConstraintTest, AllowedIdsAndBadWords) {
  SamplingParams params;
  params.allowed_token_ids = {3, 4, 33, kEos};
  params.bad_words_token_ids = {{4}, {3, 33}};
  TokenConstraint constraint(params, kStops, kVocab);
  EXPECT_EQ(next(constraint), (std::set<std::int32_t>{3, 33, kEos}));
  ASSERT_TRUE(constraint.accept(3));
  EXPECT_EQ(next(constraint), (std::set<std::int32_t>{3, kEos}));
  EXPECT_FALSE(constraint.accept(5));
}

TEST(TokenConstraintTest, MinTokensHoldsTheEndBackWhereAnythingElseMayCome) {
  SamplingParams params = with_grammar(false);
  params.min_tokens = 5;
  TokenConstraint constraint(params, kStops, kVocab);
  for (const std::int32_t id : {1, 2, 3}) ASSERT_TRUE(constraint.accept(id));
  EXPECT_EQ(next(constraint), std::set<std::int32_t>{1});
  params.allowed_token_ids = {2, 3, kEos};
  params.structured = {};
  params.bad_words_token_ids = {{2}, {3}};
  TokenConstraint only_end(params, kStops, kVocab);
  EXPECT_EQ(next(only_end), std::set<std::int32_t>{kEos});
}

TEST(TokenConstraintTest, AThoughtIsEndedWhileThereIsRoomForTheAnswer) {
  SamplingParams params = with_grammar(true);
  params.max_tokens = 24;
  TokenConstraint constraint(params, kStops, kVocab);
  std::vector<std::int32_t> output;
  while (output.empty() || output.back() != kEos) {
    const std::set<std::int32_t> ids = next(constraint);
    const std::int32_t id = ids.contains(40) ? 40 : *ids.rbegin();  // thinks as long as it may
    ASSERT_TRUE(constraint.accept(id));
    output.push_back(id);
    ASSERT_LE(output.size(), 24u);
  }
  EXPECT_GT(std::count(output.begin(), output.end(), 40), 12);
}

TEST(TokenConstraintTest, OutputIsLedToItsEndBeforeMaxTokens) {
  SamplingParams params = with_grammar(false);
  params.max_tokens = 16;  // a margin of two: the end is taken while it is near
  TokenConstraint constraint(params, kStops, kVocab);
  std::vector<std::int32_t> output;
  while (output.empty() || output.back() != kEos) {
    const std::set<std::int32_t> ids = next(constraint);
    ASSERT_FALSE(ids.empty());
    ASSERT_TRUE(constraint.accept(*ids.begin()));  // never the end of its own will
    output.push_back(*ids.begin());
    ASSERT_LE(output.size(), 16u);
  }
  EXPECT_EQ(output.size() % 3, 1u);
}

constexpr std::int32_t kThinkBegin = 66;

SamplingParams with_budget(std::int64_t num_tokens, std::optional<std::int64_t> open) {
  SamplingParams params;
  params.max_tokens = 1000;
  params.thinking_budget = ThinkingBudget{
      .num_tokens = num_tokens, .begin_id = kThinkBegin, .end_id = kThinkEnd, .open = open};
  return params;
}

TEST(TokenConstraintTest, ASpentThinkingBudgetLeavesOnlyTheEnd) {
  const auto make = [](const SamplingParams& params) {
    return TokenConstraint::make(params, kStops, kVocab);
  };
  const auto constraint = make(with_budget(2, 0));
  ASSERT_NE(constraint, nullptr);
  EXPECT_EQ(next(*constraint).size(), static_cast<std::size_t>(kVocab));
  ASSERT_TRUE(constraint->accept(5));
  EXPECT_EQ(next(*constraint).size(), static_cast<std::size_t>(kVocab));
  ASSERT_TRUE(constraint->accept(6));
  EXPECT_EQ(next(*constraint), std::set<std::int32_t>{kThinkEnd});
  EXPECT_FALSE(constraint->accept(7)) << "over budget";
  constraint->undo();
  EXPECT_EQ(next(*constraint).size(), static_cast<std::size_t>(kVocab)) << "one is left again";
  ASSERT_TRUE(constraint->accept(6));
  ASSERT_TRUE(constraint->accept(kThinkEnd));
  for (const std::int32_t id : {7, 8, 9, 10}) ASSERT_TRUE(constraint->accept(id));
  EXPECT_EQ(next(*constraint).size(), static_cast<std::size_t>(kVocab)) << "the answer is free";
  // A further thought has a budget of its own.
  for (const std::int32_t id : {kThinkBegin, 1, 2}) ASSERT_TRUE(constraint->accept(id));
  EXPECT_EQ(next(*constraint), std::set<std::int32_t>{kThinkEnd});

  EXPECT_EQ(next(*make(with_budget(0, 0))), std::set<std::int32_t>{kThinkEnd});
  EXPECT_EQ(next(*make(with_budget(5, 7))), std::set<std::int32_t>{kThinkEnd})
      << "what the prompt has of the thought counts";
  EXPECT_EQ(next(*make(with_budget(0, std::nullopt))).size(), static_cast<std::size_t>(kVocab));
  // Whatever else binds the output: the end of the thought comes, then the grammar.
  SamplingParams both = with_budget(1, 0);
  both.structured = with_grammar(true).structured;
  both.allowed_token_ids = {1, 2, 3, kEos};
  const auto bound = make(both);
  ASSERT_TRUE(bound->accept(3));
  EXPECT_EQ(next(*bound), std::set<std::int32_t>{kThinkEnd});
  ASSERT_TRUE(bound->accept(kThinkEnd));
  EXPECT_EQ(next(*bound), std::set<std::int32_t>{1});
}

// A path that spends the budget ends in the forced id; its sibling still thinks.
TEST(TokenConstraintTest, ABudgetIsCountedAlongEachPath) {
  const auto constraint = TokenConstraint::make(with_budget(3, 1), kStops, kVocab);
  ASSERT_TRUE(constraint->accept(4));  // the root: two of three
  const std::vector<std::int32_t> tokens = {4, 5, kThinkEnd, 6, kThinkEnd, 7};
  const std::vector<std::int32_t> parents = {-1, 0, 0, 1, 1, 2};
  const std::size_t words = mask_words(kVocab);
  std::vector<std::int32_t> masks(tokens.size() * words);
  fill_tree(*constraint, tokens, parents, masks);
  const auto row = [&](std::size_t i) {
    return bits(std::span(masks).subspan(i * words, words)).size();
  };
  EXPECT_EQ(row(0), static_cast<std::size_t>(kVocab));
  EXPECT_EQ(row(1), 1u) << "three of three: only the end";
  EXPECT_EQ(row(2), static_cast<std::size_t>(kVocab)) << "the thought is over";
  EXPECT_EQ(row(3), 0u) << "a node over the budget cannot come";
  EXPECT_EQ(row(4), static_cast<std::size_t>(kVocab));
  EXPECT_EQ(row(5), static_cast<std::size_t>(kVocab));
  EXPECT_EQ(next(*constraint).size(), static_cast<std::size_t>(kVocab)) << "nothing was kept";
}

}  // namespace
}  // namespace coppice
