// 2,000 answers in steps cut at random places: what a client puts together is the same, every piece
// of it is whole characters, nothing is taken back.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "engine/model_text.h"
#include "io/json.h"
#include "server/chat_output.h"
#include "tests/server/support/tiny_server.h"
#include "text/unicode.h"

namespace coppice {
namespace {

constexpr int kAnswers = 2000, kCuts = 5;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = load_tokenizer("models/tiny-k2");
  return instance;
}

struct Seen {
  std::string reasoning, content;
  std::vector<std::array<std::string, 3>> calls;
  Json stop_reason;
  EndReason end_reason = EndReason::kNone;
  std::int64_t num_tokens = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};

struct Answer {
  std::vector<std::int32_t> ids;
  OutputTextOptions text;
  ChatOutputOptions chat;
  EndReason end = EndReason::kLength;
};

// None, and what there is: Hermes's tags are text to this tokenizer.
constexpr std::array<ToolSyntax, 5> kSyntaxes = {{{},
                                                  {.format = ToolFormat::kKimi},
                                                  {.format = ToolFormat::kKimi},
                                                  {.format = ToolFormat::kHermes},
                                                  {.format = ToolFormat::kJson}}};

// Text of many scripts, marks in and out of place, half characters, control tokens, stop strings.
Answer random_answer(std::mt19937& random) {
  static const std::vector<std::string> kParts = {
      "Hello ",
      "Grüße, ",
      "今天是 ",
      "สวัสดี",
      "👩‍👧 🇫🇷 ",
      "\n\n",
      " ",
      "x = {\"a\": [1, 2]}\n",
      "<think>",
      "</think>",
      "<|tool_calls_section_begin|>",
      "<|tool_calls_section_end|>",
      "<|tool_call_begin|>",
      "<|tool_call_argument_begin|>",
      "<|tool_call_end|>",
      "functions.get_weather:0",
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"世\"}}\n</tool_call>",
      "<tool_call>",
      "</tool_call>",
      "{\"name\": \"g\", \"parameters\": {}}; ",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{"
      "\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
      "{\"city\": \"Zürich 🌧\"}",
      "<|im_user|>",
      "END",
      "EN",
      "<|",
      "</"};
  Answer answer;
  for (std::size_t n = 1 + random() % 14; n > 0; --n) {
    if (random() % 6 == 0) {
      answer.ids.push_back(static_cast<std::int32_t>(random() % 5120));  // any bytes
      continue;
    }
    for (const std::int32_t id :
         tokenizer().encode(kParts[random() % kParts.size()], random() % 8 != 0))
      answer.ids.push_back(id);
  }
  if (random() % 3 == 0) answer.text.stop = {"END", "\n\nx", "🌧"};
  answer.text.include_stop = random() % 4 == 0;
  answer.text.skip_special_tokens = random() % 2 == 0;
  answer.chat = {.parse_reasoning = random() % 4 != 0,
                 .in_reasoning = random() % 2 == 0,
                 .tools = kSyntaxes[random() % kSyntaxes.size()]};
  if (random() % 2 == 0) {
    answer.ids.push_back(5122);
    answer.end = EndReason::kStop;
  }
  return answer;
}

void take(const ChatPart& part, Seen& seen) {
  ASSERT_EQ(incomplete_utf8_suffix(part.text), 0u) << "half a character";
  ASSERT_EQ(parse_json(write_json(Json(part.text)), "delta").as_string(), part.text);
  if (part.kind == ChatPart::Kind::kReasoning) seen.reasoning += part.text;
  if (part.kind == ChatPart::Kind::kContent) seen.content += part.text;
  if (part.kind == ChatPart::Kind::kCallBegin) seen.calls.push_back({part.id, part.name, ""});
  if (part.kind == ChatPart::Kind::kArguments) seen.calls.at(part.call)[2] += part.text;
}

Seen read(const Answer& answer, const std::function<std::size_t()>& next_size) {
  OutputText text(tokenizer(), answer.text);
  ChatOutput chat(answer.chat);
  Seen seen;
  for (std::size_t at = 0; at < answer.ids.size();) {
    const std::size_t count = std::min(next_size(), answer.ids.size() - at);
    const bool last = at + count == answer.ids.size();
    RequestOutput given{.token_ids = std::span(answer.ids).subspan(at, count),
                        .end_reason = last ? answer.end : EndReason::kNone};
    if (last && answer.end == EndReason::kStop) given.stop_token_id = answer.ids.back();
    const OutputStep step = text.add(given);
    for (const ChatPart& part : chat.add(step)) take(part, seen);
    seen.end_reason = step.end_reason;
    seen.stop_reason = step.stop_reason;
    at += count;
    if (step.keep) break;
  }
  seen.num_tokens = text.num_tokens();
  return seen;
}

TEST(StreamCutsTest, StreamedTextEqualsWholeText) {
  if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  std::mt19937 random(7);
  int stopped = 0, with_calls = 0;
  for (int i = 0; i < kAnswers; ++i) {
    const Answer answer = random_answer(random);
    const Seen whole = read(answer, [&] { return answer.ids.size(); });
    ASSERT_EQ(read(answer, [] { return std::size_t{1}; }), whole) << "answer " << i;
    for (int cut = 0; cut < kCuts; ++cut)
      ASSERT_EQ(read(answer, [&] { return 1 + random() % 6; }), whole) << "answer " << i;
    stopped += whole.stop_reason.is_string() ? 1 : 0;
    with_calls += whole.calls.empty() ? 0 : 1;
  }
  EXPECT_GT(stopped, 50) << "the answers must show what they are for";
  EXPECT_GT(with_calls, 200);
}

Json random_value(std::mt19937& random, int depth) {
  switch (random() % (depth > 0 ? 7 : 5)) {
    case 0:
      return static_cast<std::int64_t>(random()) - 2'000'000'000;
    case 1:
      return random() % 2 == 0;
    case 2:
      return Json();
    case 3:
      return 0.5 * static_cast<double>(random() % 1000);
    case 5: {
      Json list = Json::array();
      for (std::size_t n = random() % 4; n > 0; --n)
        list.push_back(random_value(random, depth - 1));
      return list;
    }
    case 6: {
      Json object = Json::object();
      for (std::size_t n = random() % 4; n > 0; --n)
        object["k\"" + std::to_string(n)] = random_value(random, depth - 1);
      return object;
    }
    default: {
      static const std::vector<std::string> kTexts = {
          "", "a\"b\\", "\n\t\x01", "größe 世界 👩‍👧", "</think>", "{}[]"};
      return kTexts[random() % kTexts.size()] + kTexts[random() % kTexts.size()];
    }
  }
}

TEST(StreamCutsTest, RandomArgumentsComeBackExactly) {
  if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  std::mt19937 random(11);
  const auto mark = [](const char* text) { return *tokenizer().added_token_id(text); };
  for (int i = 0; i < 500; ++i) {
    const Json value = Json::object({{"value", random_value(random, 3)}});
    const std::string text = write_json(value, random() % 2 == 0 ? kCompactJson : kPythonJson);
    Answer answer;
    answer.chat = {.parse_reasoning = true, .tools = {.format = ToolFormat::kKimi}};
    answer.ids = {mark("<|tool_calls_section_begin|>"), mark("<|tool_call_begin|>")};
    const auto append = [&](const std::string& part) {
      const std::vector<std::int32_t> ids = tokenizer().encode(part);
      answer.ids.insert(answer.ids.end(), ids.begin(), ids.end());
    };
    append("functions.f:0");
    answer.ids.push_back(mark("<|tool_call_argument_begin|>"));
    append(text);
    answer.ids.push_back(mark("<|tool_call_end|>"));
    answer.ids.push_back(mark("<|tool_calls_section_end|>"));
    const Seen seen = read(answer, [&] { return 1 + random() % 5; });
    ASSERT_EQ(seen.calls.size(), 1u);
    EXPECT_EQ(seen.calls[0][2], text);
    EXPECT_EQ(parse_json(seen.calls[0][2], "arguments"), value);
  }
}

// The marks are the parsers' whether special tokens are shown or not.
TEST(StreamCutsTest, SkippedSpecialTokensReachTheParsers) {
  if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  Answer answer;
  answer.ids = tokenizer().encode("a</think>b<|im_user|>c", true);
  answer.chat = {.parse_reasoning = true, .in_reasoning = true};
  for (const bool skip : {true, false}) {
    answer.text.skip_special_tokens = skip;
    const Seen seen = read(answer, [] { return std::size_t{2}; });
    EXPECT_EQ(seen.reasoning, "a");
    EXPECT_EQ(seen.content, skip ? "bc" : "b<|im_user|>c");
  }
  // Where a vocabulary calls its thought mark special, hiding it hides it from the text alone.
  ChatOutput chat({.parse_reasoning = true, .in_reasoning = true});
  OutputStep step;
  step.pieces = {{"a", false}, {"</think>", true, /*hidden=*/true}, {"b", false}};
  const std::vector<ChatPart> parts = chat.add(step);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].text, "a");
  EXPECT_EQ(parts[1].text, "b");
}

}  // namespace
}  // namespace coppice
