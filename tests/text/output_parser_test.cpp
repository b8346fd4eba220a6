// Reasoning and tool-call parsers together, as the server chains them.
#include <gtest/gtest.h>

#include "io/json.h"
#include "tests/text/support/seen_answer.h"

namespace coppice {
namespace {

using testing::Call;
using testing::is_prefix;
using testing::Random;
using testing::Seen;

constexpr ToolSyntax kKimi{.format = ToolFormat::kKimi};

class Client : public testing::Client {
 public:
  explicit Client(bool thinking = true, std::size_t first_index = 0)
      : testing::Client(kKimi, thinking, first_index) {}
};

Seen parse(const std::string& text, bool thinking = true, std::size_t first_index = 0) {
  Client client(thinking, first_index);
  client.add_text(text);
  return client.finish();
}

std::string section(const std::string& calls) {
  return "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
}
std::string call(const std::string& id, const std::string& arguments) {
  return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments +
         "<|tool_call_end|>";
}

TEST(OutputParser, Reasoning) {
  EXPECT_EQ(parse("abc</think>def").reasoning, "abc");
  EXPECT_EQ(parse("abc</think>def").content, "def");
  EXPECT_EQ(parse("abc \n </think>def").reasoning, "abc");
  EXPECT_EQ(parse("a\n\nb").reasoning, "a\n\nb");
  EXPECT_EQ(parse("a</think></think>b").content, "b");
  EXPECT_EQ(parse("a<think>b</think>c").reasoning, "ab");
  EXPECT_EQ(parse("a</think>b<think>c").content, "bc");
  EXPECT_EQ(parse("plain", false).content, "plain");
  EXPECT_EQ(parse("a</think>b", false).content, "ab");
  EXPECT_EQ(parse("\n<think>r</think>c", false).reasoning, "r");
  EXPECT_EQ(parse("c<think>r", false).content, "cr");
  EXPECT_EQ(parse("cut").content, "");
}

TEST(OutputParser, PromptDecidesTheStart) {
  EXPECT_TRUE(ReasoningParser::prompt_opens_reasoning("x</think>y<|im_middle|><think>"));
  EXPECT_FALSE(ReasoningParser::prompt_opens_reasoning("<think></think>"));
  EXPECT_FALSE(ReasoningParser::prompt_opens_reasoning("no marks"));
  EXPECT_FALSE(ReasoningParser::prompt_opens_reasoning("<think>a<|tool_calls_section_begin|>"));
}

TEST(OutputParser, ToolSectionWithoutThinkEnd) {
  const Seen seen = parse("look it up " + section(call("functions.f:0", "{\"a\":1}")));
  EXPECT_EQ(seen.reasoning, "look it up");
  EXPECT_EQ(seen.content, "");
  EXPECT_EQ(seen.calls, (std::vector<Call>{{"functions.f:0", "f", "{\"a\":1}", true, true}}));
  // A section inside of a thought is a real one; what follows is the answer.
  const Seen late = parse("t" + section(call("functions.f:0", "{}")) + "u</think>v");
  EXPECT_EQ(late.calls.size(), 1u);
  EXPECT_EQ(late.content, "uv");
}

TEST(OutputParser, ContentAroundCallsKeepsItsOrder) {
  const std::string one = section(call("functions.f:0", "{}"));
  const std::string two = section(call("functions.g:1", "{}"));
  EXPECT_EQ(parse("</think>text" + one).order, "tc");
  EXPECT_EQ(parse("</think>" + one + "text").order, "ct");
  const Seen seen = parse("</think>a" + one + "b" + two);
  EXPECT_EQ(seen.order, "tctc");
  EXPECT_EQ(seen.content, "ab");
  EXPECT_EQ(parse("</think> \n" + one + "\n ").content, "");
  EXPECT_EQ(parse("</think> \n").content, " \n");
}

TEST(OutputParser, NamesAndIds) {
  const auto first = [](const std::string& id, std::size_t first_index = 0) {
    const Seen seen = parse("</think>" + section(call(id, "{}")), true, first_index);
    return seen.calls.size() == 1 ? seen.calls[0] : Call{"none", "none", "", false, false};
  };
  for (const char* name : {"a-b", "a.b", "mcp__x-y", "functions.f", "größe", "a:b"}) {
    EXPECT_EQ(first(std::string("functions.") + name + ":7").name, name);
    EXPECT_EQ(first(std::string("functions.") + name + ":7").id,
              std::string("functions.") + name + ":7");
  }
  EXPECT_EQ(first("search:2").name, "search");
  EXPECT_EQ(first("search:2", 4).id, "functions.search:4");
  EXPECT_EQ(first(" functions.search:2\n").id, "functions.search:2");
  EXPECT_EQ(first("search").id, "functions.search:0");
  EXPECT_EQ(first("call_x").name, "call_x");
  EXPECT_EQ(first("functions.f:").name, "f");
  EXPECT_EQ(first("functions.f:x").name, "f:x");
  EXPECT_EQ(first("").name, "none");
  EXPECT_EQ(parse("</think>" + section(call(":0", "{\"x\"}"))).content, "{\"x\"}");
  const Seen twice = parse("</think>" + section(call("functions.f:0", "{}") +
                                                call("functions.f:0", "{}") + call("f", "{}")),
                           true, 0);
  EXPECT_EQ(twice.calls[0].id, "functions.f:0");
  EXPECT_EQ(twice.calls[1].id, "functions.f:1");
  EXPECT_EQ(twice.calls[2].id, "functions.f:2");
}

TEST(OutputParser, Arguments) {
  const auto arguments = [](const std::string& text) {
    return parse("</think>" + section(call("functions.f:0", text))).calls.at(0).arguments;
  };
  for (const char* empty : {"", " ", "\n\t", "{}", " {} \n"}) EXPECT_EQ(arguments(empty), "{}");
  EXPECT_EQ(arguments(" {\"a\": \"x  y \"} "), "{\"a\": \"x  y \"}");
  EXPECT_EQ(arguments("{\"code\": \"<think></think><|x|>\"}"),
            "{\"code\": \"<think></think><|x|>\"}");
}

TEST(OutputParser, MissingMarks) {
  const std::string begin = "</think><|tool_calls_section_begin|><|tool_call_begin|>";
  EXPECT_EQ(parse(begin + "functions.f:0{\"a\":1}<|tool_call_end|>").calls.at(0).arguments,
            "{\"a\":1}");
  const Seen next =
      parse(begin + "functions.f:0<|tool_call_argument_begin|>{}" + call("functions.g:1", "{}"));
  EXPECT_EQ(next.calls.size(), 2u);
  EXPECT_TRUE(next.calls[0].complete);
  const Seen cut = parse(begin + "functions.f:0<|tool_call_argument_begin|>{\"a");
  EXPECT_EQ(cut.calls.at(0).arguments, "{\"a");
  EXPECT_FALSE(cut.calls[0].complete);
  EXPECT_EQ(parse(begin + "functions.f").calls.size(), 0u);
  EXPECT_EQ(parse("</think>" + call("functions.f:0", "{}")).calls.size(), 1u);
  // The singular spelling of the section marks.
  EXPECT_EQ(parse("<|tool_call_section_begin|>" + call("functions.f:0", "{}") +
                  "<|tool_call_section_end|>x")
                .calls.size(),
            1u);
}

// With ids at hand, text that looks like a mark stays text, and stray control tokens vanish.
TEST(OutputParser, MarksAreTokensNotText) {
  Client client;
  client.add({"why", false});
  client.add({"</think>", true});
  client.add({"write <|tool_call_begin|> and </think>", false});
  client.add({"<|im_user|>", true});
  client.add({"!", false});
  EXPECT_EQ(client.finish().content, "write <|tool_call_begin|> and </think>!");
  EXPECT_EQ(client.seen().calls.size(), 0u);
}

TEST(OutputParser, ArgumentsStream) {
  std::string value;
  for (int i = 0; i < 20; ++i) value += "0123456789";
  const std::string text = "</think>" + section(call("functions.f:0", "{\"v\":\"" + value + "\"}"));
  Client client;
  for (std::size_t i = 0; i < text.size(); i += 4)
    client.add_text(std::string_view(text).substr(i, 4));
  EXPECT_EQ(client.finish().calls.at(0).arguments, "{\"v\":\"" + value + "\"}");
  EXPECT_GE(client.argument_events, 40);
  // Long ones come back exactly, whatever their length.
  for (const std::size_t size : {1024u, 8191u, 8192u, 8193u, 65536u, 1048576u}) {
    const std::string long_value = "{\"v\":\"" + std::string(size, 'x') + "\"}";
    const std::string long_text = "</think>" + section(call("functions.f:0", long_value));
    Client long_client;
    for (std::size_t i = 0; i < long_text.size(); i += 5) {
      long_client.add_text(std::string_view(long_text).substr(i, 5));
    }
    EXPECT_TRUE(long_client.finish().calls.at(0).arguments == long_value) << size;
  }
}

// Fuzz.

std::string random_output(Random& random) {
  const std::vector<std::string> parts = {"<think>",
                                          "</think>",
                                          "<|tool_calls_section_begin|>",
                                          "<|tool_calls_section_end|>",
                                          "<|tool_call_section_begin|>",
                                          "<|tool_call_begin|>",
                                          "<|tool_call_argument_begin|>",
                                          "<|tool_call_end|>",
                                          "functions.f:0",
                                          "g",
                                          "{\"a\": 1}",
                                          " ",
                                          "\n",
                                          "text",
                                          "<",
                                          "<|",
                                          "</",
                                          "世",
                                          "<|tool_call",
                                          "{",
                                          "}",
                                          ":",
                                          section(call("functions.h:3", "{\"x\": [1, 2]}")),
                                          call("functions.k:1", " {} ")};
  std::string text;
  for (std::size_t n = random.below(12); n > 0; --n) text += parts[random.below(parts.size())];
  return text;
}

TEST(OutputParser, CutsChangeNothing) {
  Random random(1);
  for (int round = 0; round < 4000; ++round) {
    const std::string text = random_output(random);
    const bool thinking = random.below(2) == 0;
    const Seen whole = parse(text, thinking);
    Client by_bytes(thinking), by_cuts(thinking);
    for (const char c : text) by_bytes.add_text({&c, 1});
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = std::min(1 + random.below(9), text.size() - i);
      by_cuts.add_text(std::string_view(text).substr(i, length));
      i += length;
    }
    ASSERT_EQ(by_bytes.finish(), whole) << text;
    ASSERT_EQ(by_cuts.finish(), whole) << text;
  }
}

TEST(OutputParser, NothingIsTakenBack) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random_output(random);
    Client client(random.below(2) == 0);
    Seen before;
    for (const char c : text) {
      client.add_text({&c, 1});
      ASSERT_TRUE(is_prefix(before, client.seen())) << text;
      before = client.seen();
    }
    ASSERT_TRUE(is_prefix(before, client.finish())) << text;
  }
}

// Every prefix of an answer ends in a defined state without mark text in what a client reads.
TEST(OutputParser, NoMarkLeaks) {
  const std::string text =
      "think 世</think>Hi \n" +
      section(call("functions.a:0", "{\"q\": \"世\"}") + "\n" + call("b", "")) + " bye";
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const Seen seen = [&] {
      Client client;
      client.add_text(std::string_view(text).substr(0, length));
      return client.seen();
    }();
    for (const std::string* shown : {&seen.reasoning, &seen.content}) {
      ASSERT_EQ(shown->find("<|"), std::string::npos) << *shown;
      ASSERT_EQ(shown->find("</"), std::string::npos) << *shown;
    }
    parse(text.substr(0, length));
  }
  const Seen all = parse(text);
  EXPECT_EQ(all.content, "Hi \n bye");
  EXPECT_EQ(all.calls.size(), 2u);
  EXPECT_EQ(all.calls[1].id, "functions.b:1");
}

}  // namespace
}  // namespace coppice
