// Tool calls that are JSON objects: in tags (Hermes, Qwen) and as the whole answer (Llama 3).
#include <gtest/gtest.h>

#include "io/json.h"
#include "tests/text/support/seen_answer.h"

namespace coppice {
namespace {

using testing::Call;
using testing::Client;
using testing::is_prefix;
using testing::Random;
using testing::Seen;

constexpr ToolSyntax kTags{.format = ToolFormat::kHermes, .tags_are_tokens = false};
constexpr ToolSyntax kTokens{.format = ToolFormat::kHermes, .tags_are_tokens = true};
constexpr ToolSyntax kBare{.format = ToolFormat::kJson};

Seen parse(const ToolSyntax& syntax, const std::string& text, std::size_t first_index = 0) {
  Client client(syntax, true, first_index);
  client.add_text(text);
  return client.finish();
}

std::string tagged(const std::string& object) {
  return "<tool_call>\n" + object + "\n</tool_call>";
}

TEST(JsonToolParser, CallsInTags) {
  const Seen seen = parse(kTags,
                          "why</think>Let me look.\n" +
                              tagged(R"({"name": "f", "arguments": {"a": [1, {"b": "}"}]}})") +
                              "\n" + tagged(R"({"arguments": {}, "name": "g"})"),
                          3);
  EXPECT_EQ(seen.reasoning, "why");
  EXPECT_EQ(seen.content, "Let me look.\n");
  EXPECT_EQ(seen.order, "tcc");
  EXPECT_EQ(seen.calls, (std::vector<Call>{{"call_3", "f", R"({"a": [1, {"b": "}"}]})", true, true},
                                           {"call_4", "g", "{}", true, true}}));
  EXPECT_EQ(parse(kTags, "</think>" + tagged(R"({"name": "f"})")).calls.at(0).arguments, "{}");
  EXPECT_EQ(parse(kTags, "</think> \n" + tagged(R"({"name":"f","arguments":{}})") + "\n").content,
            "");
  const Seen escaped = parse(
      kTags, "</think>" + tagged(R"({"name": "\u0066\"", "x": [1, "]"], "arguments": "a\"}"})"));
  EXPECT_EQ(escaped.calls.at(0).name, "f\"");
  EXPECT_EQ(escaped.calls.at(0).arguments, R"("a\"}")");
}

TEST(JsonToolParser, WhatIsNoCallIsContentAsItStands) {
  for (const std::string text :
       {"<tool_call>\nget weather\n</tool_call>", "<tool_call>\n{\"name\": 1}\n</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>", "<tool_call>[1]</tool_call>", "a <tool_cal b",
        "a < b", "<tool_call>\n{\"name\": \"f\"", "<tool_call>", "</think"})
    for (const std::string& end : {std::string(), std::string(" tail")}) {
      const Seen seen = parse(kTags, "</think>" + text + end);
      EXPECT_EQ(seen.content, text + end);
      EXPECT_EQ(seen.calls.size(), 0u) << text;
    }
}

TEST(JsonToolParser, CutAndUnclosedCalls) {
  const Seen cut = parse(kTags, "</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x");
  EXPECT_EQ(cut.calls.at(0).arguments, "{\"a\": \"x");
  EXPECT_FALSE(cut.calls[0].complete);
  const Seen open =
      parse(kTags, "</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>end");
  EXPECT_EQ(open.calls.at(0).arguments, "{\"a\": 1}");
  EXPECT_TRUE(open.calls[0].complete);
  const Seen again = parse(kTags, "</think><tool_call>{\"name\": \"f\", \"arguments\": {}} junk" +
                                      tagged(R"({"name": "g", "arguments": {}})"));
  EXPECT_EQ(again.calls.size(), 2u);
  EXPECT_EQ(again.content, "");
}

// A tag inside of a string is text when tags are text, and a tag when they are tokens.
TEST(JsonToolParser, TagsWithinArguments) {
  const std::string object = R"({"name": "f", "arguments": {"a": "</tool_call><tool_call>"}})";
  EXPECT_EQ(parse(kTags, "</think>" + tagged(object)).calls.at(0).arguments,
            R"({"a": "</tool_call><tool_call>"})");
  Client client(kTokens);
  client.add({"</think>", true});
  client.add({"write <tool_call> so", false});
  client.add({"<tool_call>", true});
  client.add({"\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"", false});
  client.add({"</tool_call>", true});
  client.finish();
  EXPECT_EQ(client.seen().content, "write <tool_call> so");
  EXPECT_EQ(client.seen().calls.at(0).arguments, R"({"a": "</tool_call>")");
}

TEST(JsonToolParser, BareObjects) {
  const auto calls = [](const std::string& text) { return parse(kBare, "</think>" + text).calls; };
  EXPECT_EQ(calls(R"({"name": "f", "parameters": {"a": 1}})").at(0).arguments, R"({"a": 1})");
  EXPECT_EQ(calls(R"( <|python_tag|>{"name": "f", "parameters": {}})").size(), 1u);
  EXPECT_EQ(calls(R"({"name":"f","parameters":{}}; {"name":"g","arguments":{}})").size(), 2u);
  EXPECT_EQ(calls(R"([{"name":"f","parameters":{}}, {"name":"g","parameters":{}}])").size(), 2u);
  EXPECT_EQ(calls(R"({"type":"function","name":"f","parameters":{"x":null}})").at(0).arguments,
            R"({"x":null})");
  // An answer that is JSON, or names no arguments, is an answer.
  for (const std::string text :
       {R"({"name": "Bob", "age": 3})", R"([1, 2])", R"([[]])", "{}", "[", R"({"name": "f"})",
        "Hello {\"name\": \"f\", \"parameters\": {}}"}) {
    EXPECT_EQ(parse(kBare, "</think>" + text).content, text);
    EXPECT_EQ(calls(text).size(), 0u) << text;
  }
  EXPECT_EQ(parse(kBare, R"(</think>{"name":"f","parameters":{}} done)").content, "done");
}

std::string random_output(Random& random) {
  const std::vector<std::string> parts = {"<think>",
                                          "</think>",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "{\"name\": \"f\"",
                                          ", ",
                                          "}",
                                          "\"arguments\": {\"a\": \"</tool_call>\"}",
                                          "\"parameters\": [1, {}]",
                                          "{\"name\":",
                                          "\"g\"",
                                          "\"",
                                          "\\",
                                          " ",
                                          "\n",
                                          "text",
                                          "<",
                                          "<tool",
                                          "世",
                                          "[",
                                          "]",
                                          ";",
                                          "<|python_tag|>",
                                          "null",
                                          tagged(R"({"name": "h", "arguments": {"x": [1, 2]}})"),
                                          tagged(R"({"arguments": {"y": "é\n"}, "name": "k"})"),
                                          R"({"name": "m", "parameters": {"z": {}}})"};
  std::string text = random.below(2) == 0 ? "</think>" : "";
  for (std::size_t n = random.below(12); n > 0; --n) text += parts[random.below(parts.size())];
  return text;
}

TEST(JsonToolParser, CutsChangeNothingAndNothingIsTakenBack) {
  Random random(7);
  std::size_t calls = 0;
  for (int round = 0; round < 12000; ++round) {
    const std::string text = random_output(random);
    const ToolSyntax syntax = round % 2 == 0 ? kTags : kBare;
    const Seen whole = parse(syntax, text);
    Client by_bytes(syntax), by_cuts(syntax);
    Seen before;
    for (const char c : text) {
      by_bytes.add_text({&c, 1});
      ASSERT_TRUE(is_prefix(before, by_bytes.seen())) << text;
      before = by_bytes.seen();
    }
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = std::min(1 + random.below(9), text.size() - i);
      by_cuts.add_text(std::string_view(text).substr(i, length));
      i += length;
    }
    ASSERT_EQ(by_bytes.finish(), whole) << text;
    ASSERT_EQ(by_cuts.finish(), whole) << text;
    calls += whole.calls.size();
  }
  EXPECT_GT(calls, 1000u);
}

// All prefixes of a good answer: each ends, and what is complete stays.
TEST(JsonToolParser, EveryPrefixEnds) {
  const std::string text = "th</think>Hi " +
                           tagged(R"({"name": "a", "arguments": {"q": "世", "n": -1.5e3}})") +
                           "\n" + tagged(R"({"name": "b"})") + " bye";
  for (std::size_t length = 0; length <= text.size(); ++length) {
    Client client(kTags);
    client.add_text(std::string_view(text).substr(0, length));
    const Seen before = client.seen();
    ASSERT_TRUE(is_prefix(before, client.finish())) << text.substr(0, length);
    ASSERT_EQ(before.content.find("<tool"), std::string::npos);
  }
  EXPECT_EQ(parse(kTags, text).calls.size(), 2u);
  EXPECT_EQ(parse(kTags, text).content, "Hi  bye");
}

TEST(JsonToolParser, Names) {
  EXPECT_EQ(tool_format_of("hermes"), ToolFormat::kHermes);
  EXPECT_EQ(tool_format_of("llama3_json"), ToolFormat::kJson);
  EXPECT_EQ(tool_format_of("kimi_k2"), ToolFormat::kKimi);
  EXPECT_EQ(tool_format_of("pythonic"), std::nullopt);
}

}  // namespace
}  // namespace coppice
