// Grammars over the shipped model's vocabulary. Skips visibly in builds without.
#include "sampling/grammar.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "sampling/token_constraint.h"

namespace coppice {
namespace {

class GrammarTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "the build has no grammars";
    if (!std::filesystem::exists("models/tiny-k2/config.json"))
      GTEST_SKIP() << "models/tiny-k2 is absent";
    tokenizer_.emplace(Tokenizer::from_folder("models/tiny-k2"));
    compiler_ = make_grammar_compiler(*tokenizer_, tokenizer_->vocab_size(), {kEos});
  }
  // Whether a whole text may be the output, token by token, and end there.
  bool accepts(const GrammarSpec& spec, const std::string& text) {
    const auto matcher = compiler_->compile(spec)->start();
    for (const std::int32_t id : tokenizer_->encode(text, true))
      if (!matcher->accept(id)) return false;
    return matcher->accept(kEos);
  }
  std::string error_of(const GrammarSpec& spec) {
    try {
      compiler_->compile(spec);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "";
  }

  static constexpr std::int32_t kEos = 5122;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

using Kind = GrammarSpec::Kind;

TEST_F(GrammarTest, Schemas) {
  const GrammarSpec spec{
      Kind::kJsonSchema,
      R"({"type":"object","properties":{"city":{"type":"string"},"n":{"type":"integer"}},)"
      R"("required":["city"],"additionalProperties":false})"};
  EXPECT_TRUE(accepts(spec, R"({"city": "Oslo", "n": 3})"));
  EXPECT_TRUE(accepts(spec, "{\n  \"city\": \"日本 \\u00e9\"\n}"));
  EXPECT_FALSE(accepts(spec, R"({"n": 3})"));
  EXPECT_FALSE(accepts(spec, R"({"city": "Oslo", "x": 3})"));
  EXPECT_FALSE(accepts(spec, R"({"city": "Os<|im_end|>lo"})")) << "a control token in a string";
  EXPECT_FALSE(accepts(spec, R"({"city": "Oslo"} )" + std::string(40, '\n')))
      << "endless white space";
}

TEST_F(GrammarTest, RegexGrammarsAndTags) {
  EXPECT_TRUE(accepts({Kind::kRegex, "[a-c]+\\d{2}"}, "abc12"));
  EXPECT_FALSE(accepts({Kind::kRegex, "[a-c]+\\d{2}"}, "abd12"));
  EXPECT_TRUE(accepts({Kind::kEbnf, "root ::= \"yes\" | \"no\""}, "no"));
  EXPECT_TRUE(accepts({Kind::kLark, "start: \"a\" \"b\"+"}, "abbb"));
  EXPECT_TRUE(accepts({Kind::kJson, ""}, "[1, null, {\"a\": []}]"));
  const std::int32_t mark = *tokenizer_->added_token_id("<|tool_call_end|>");
  const GrammarSpec tag{Kind::kStructuralTag,
                        R"({"type":"structural_tag","format":{"type":"sequence","elements":[)"
                        R"({"type":"const_string","value":"x"},{"type":"token","token":)" +
                            std::to_string(mark) + "}]}}"};
  EXPECT_TRUE(accepts(tag, "x<|tool_call_end|>"));
  EXPECT_FALSE(accepts(tag, "x"));
}

TEST_F(GrammarTest, UndoAndMasksAgreeWithAccept) {
  const auto matcher = compiler_->compile({Kind::kJson, ""})->start();
  std::vector<std::int32_t> mask(mask_words(tokenizer_->vocab_size()));
  for (const std::int32_t id : tokenizer_->encode(R"({"a": [1, "b"])")) {
    matcher->fill(mask);
    EXPECT_TRUE(mask_has(mask, id));
    for (std::int32_t other = 0; other < tokenizer_->vocab_size(); other += 97) {
      const bool set = mask_has(mask, other);
      ASSERT_EQ(matcher->accept(other), set) << other;
      if (set) matcher->undo();
    }
    ASSERT_TRUE(matcher->accept(id));
  }
}

// From inside of a key, a string, a number, an array, an object with members still to come.
TEST_F(GrammarTest, EveryBeginningIsLedToItsEnd) {
  const GrammarSpec spec{
      Kind::kJsonSchema,
      R"({"type":"object","properties":{"a":{"type":"string","minLength":4},"b":{"type":"array","items":{"type":)"
      R"("object","properties":{"x":{"type":"number"},"y":{"enum":["one",true]}},"required":["x","y"]},"minItems":2},)"
      R"("c":{"type":"object","additionalProperties":{"type":"string"}}},"required":["a","b"]})"};
  const std::string whole =
      R"({"a": "x}],y", "b": [{"x": -1.5e3, "y": "one"}, {"x": 2, "y": true}], "c": {"k": "v\"w"}})";
  const std::vector<std::int32_t> ids = tokenizer_->encode(whole);
  const std::shared_ptr<const Grammar> grammar = compiler_->compile(spec);
  for (std::size_t length = 0; length <= ids.size(); ++length) {
    SamplingParams params;
    params.max_tokens = static_cast<std::int64_t>(length) + 60;
    params.structured.grammar = grammar;
    const std::vector<std::int64_t> stops = {kEos};
    TokenConstraint constraint(params, stops, tokenizer_->vocab_size());
    for (std::size_t i = 0; i < length; ++i) ASSERT_TRUE(constraint.accept(ids[i]));
    const std::vector<std::int32_t> way = constraint.way_to_end(60);
    ASSERT_FALSE(way.empty()) << whole.substr(
        0, tokenizer_->decode(std::span(ids).first(length)).size());
    EXPECT_EQ(way.back(), kEos);
  }
}

TEST_F(GrammarTest, WhatCannotBeUsedIsAnError) {
  EXPECT_NE(error_of({Kind::kJsonSchema, R"({"type": 5})"}), "");
  EXPECT_NE(error_of({Kind::kJsonSchema, R"({"$ref": "#/$defs/none"})"}), "");
  EXPECT_NE(error_of({Kind::kJsonSchema, "{"}), "");
  EXPECT_NE(error_of({Kind::kRegex, "("}), "");
  EXPECT_NE(error_of({Kind::kEbnf, "root ::= other"}), "");
  EXPECT_NE(error_of({Kind::kStructuralTag, "{}"}), "");
  const GrammarSpec lookahead{Kind::kJsonSchema, R"({"type":"string","pattern":"^(?=a)[a-z]+$"})"};
  EXPECT_NE(error_of(lookahead), "") << "left out in silence";
  EXPECT_EQ(error_of({lookahead.kind, lookahead.text, true}), "") << "a lenient request";
}

}  // namespace
}  // namespace coppice
