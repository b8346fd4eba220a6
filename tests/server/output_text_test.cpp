// Tokens to text: stop strings over every cut, marks apart, nothing lost.
#include "server/output_text.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/model_text.h"
#include "server/chat_output.h"
#include "tests/server/support/tiny_server.h"
#include "text/unicode.h"

namespace coppice {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer instance = load_tokenizer("models/tiny-k2");
  return instance;
}

struct Collected {
  std::string text;
  std::vector<std::string> marks;
  std::int64_t num_tokens = 0;
  Json stop_reason;
  EndReason end_reason = EndReason::kNone;
};

// Feeds ids in steps of the given sizes, in turn.
Collected feed(const std::vector<std::int32_t>& ids, OutputTextOptions options,
               const std::vector<std::size_t>& sizes, EndReason end = EndReason::kLength) {
  OutputText output(tokenizer(), std::move(options));
  Collected collected;
  std::size_t at = 0;
  for (std::size_t i = 0; at < ids.size(); ++i) {
    const std::size_t count = std::min(sizes[i % sizes.size()], ids.size() - at);
    const bool last = at + count == ids.size();
    RequestOutput given{.token_ids = std::span(ids).subspan(at, count),
                        .end_reason = last ? end : EndReason::kNone};
    if (last && end == EndReason::kStop) given.stop_token_id = ids.back();
    const OutputStep step = output.add(given);
    for (const OutputPiece& piece : step.pieces) {
      collected.text += piece.text;
      if (piece.is_mark) collected.marks.push_back(piece.text);
    }
    collected.end_reason = step.end_reason;
    collected.stop_reason = step.stop_reason;
    collected.num_tokens = output.num_tokens();
    if (step.keep) break;
    at += count;
  }
  return collected;
}

class OutputTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  }
};

TEST_F(OutputTextTest, StopsAreTheSameHoweverTokensCome) {
  const std::string text =
      "Gr\xC3\xBC\xC3\x9F"
      "e \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7, then END and ENDING";
  const std::vector<std::int32_t> ids = tokenizer().encode(text);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::size_t begin = random() % text.size(), size = 1 + random() % 20;
    const std::string stop = text.substr(begin, size);
    if (tokenizer().decode(tokenizer().encode(stop)) != stop) continue;
    const std::vector<std::size_t> sizes = {1 + random() % 7, 1 + random() % 3};
    const Collected got = feed(ids, {.stop = {stop}}, sizes);
    // A stop inside of a character is not text and cannot match.
    const bool whole =
        (static_cast<unsigned char>(stop[0]) & 0xc0) != 0x80 && incomplete_utf8_suffix(stop) == 0;
    if (!whole) continue;
    EXPECT_EQ(got.text, text.substr(0, text.find(stop))) << stop;
    EXPECT_EQ(got.stop_reason, Json(stop));
    EXPECT_EQ(got.end_reason, EndReason::kStop);
    const Collected with = feed(ids, {.stop = {stop}, .include_stop = true}, sizes);
    EXPECT_EQ(with.text, text.substr(0, text.find(stop) + stop.size()));
  }
  EXPECT_EQ(feed(ids, {.stop = {"ENDED"}}, {3}).text, text);
}

TEST_F(OutputTextTest, MinTokensDelaysStopStrings) {
  const std::vector<std::int32_t> ids = tokenizer().encode("a a a a a a");
  const Collected got = feed(ids, {.stop = {"a"}, .min_tokens = 4}, {1});
  EXPECT_EQ(got.num_tokens, 4);
  EXPECT_EQ(feed(ids, {.stop = {"a"}}, {1}).num_tokens, 1);
}

TEST_F(OutputTextTest, StopTokensAreNotText) {
  std::vector<std::int32_t> ids = tokenizer().encode("one two");
  const std::int32_t last = ids.back();
  const std::string shown = tokenizer().decode(std::span(ids).first(ids.size() - 1));
  const Collected plain = feed(ids, {}, {2}, EndReason::kStop);
  EXPECT_EQ(plain.text, shown);
  EXPECT_TRUE(plain.stop_reason.is_null());
  const Collected asked = feed(ids, {.stop_token_ids = {last}}, {2}, EndReason::kStop);
  EXPECT_EQ(asked.stop_reason, Json(last));
  EXPECT_EQ(feed(ids, {.include_stop = true}, {2}, EndReason::kStop).text, "one two");
}

TEST_F(OutputTextTest, MarksStayMarksBehindHeldText) {
  std::vector<std::int32_t> ids = tokenizer().encode("thought E");
  ids.push_back(*tokenizer().added_token_id("</think>"));
  for (const std::int32_t id : tokenizer().encode("answer")) ids.push_back(id);
  for (const std::size_t size : {1U, 2U, 100U}) {
    const Collected got = feed(ids, {.stop = {"END"}}, {size});
    EXPECT_EQ(got.text, "thought E</think>answer");
    EXPECT_EQ(got.marks, std::vector<std::string>{"</think>"});
  }
  // A stop string may be a mark.
  EXPECT_EQ(feed(ids, {.stop = {"</think>"}}, {1}).text, "thought E");
}

// One answer with a thought, text and two calls, in steps of every size: the same parts, no mark.
TEST_F(OutputTextTest, ChatPartsDoNotDependOnTheSteps) {
  const std::string answer =
      "I think.</think>Let me see. <|tool_calls_section_begin|><|tool_call_begin|>functions.a-b:0"
      "<|tool_call_argument_begin|>{\"x\": "
      "\"<b>\"}<|tool_call_end|><|tool_call_begin|>functions.c:1"
      "<|tool_call_argument_begin|> <|tool_call_end|><|tool_calls_section_end|>";
  const std::vector<std::int32_t> ids = tokenizer().encode(answer, true);
  for (std::size_t size = 1; size < ids.size(); ++size) {
    OutputText text(tokenizer(), {});
    ChatOutput chat(
        {.parse_reasoning = true, .in_reasoning = true, .tools = {.format = ToolFormat::kKimi}});
    std::string reasoning, content;
    std::vector<std::array<std::string, 3>> calls;
    for (std::size_t at = 0; at < ids.size(); at += size) {
      const std::size_t count = std::min(size, ids.size() - at);
      const bool last = at + count == ids.size();
      const OutputStep step =
          text.add({.token_ids = std::span(ids).subspan(at, count),
                    .end_reason = last ? EndReason::kLength : EndReason::kNone});
      for (const ChatPart& part : chat.add(step)) {
        if (part.kind == ChatPart::Kind::kReasoning) reasoning += part.text;
        if (part.kind == ChatPart::Kind::kContent) content += part.text;
        if (part.kind == ChatPart::Kind::kCallBegin) calls.push_back({part.id, part.name, ""});
        if (part.kind == ChatPart::Kind::kArguments) calls.at(part.call)[2] += part.text;
      }
    }
    EXPECT_EQ(reasoning, "I think.");
    EXPECT_EQ(content, "Let me see. ") << size;
    ASSERT_EQ(calls.size(), 2U);
    EXPECT_EQ(calls[0], (std::array<std::string, 3>{"functions.a-b:0", "a-b", "{\"x\": \"<b>\"}"}));
    EXPECT_EQ(calls[1], (std::array<std::string, 3>{"functions.c:1", "c", "{}"}));
  }
}

}  // namespace
}  // namespace coppice
