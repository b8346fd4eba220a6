// Grammars, bans and prompt log-probabilities through the API, over the shipped model.
#include <gtest/gtest.h>

#include <cmath>

#include "sampling/grammar.h"
#include "tests/server/support/api_client.h"
#include "tests/server/support/tiny_server.h"

namespace coppice {
namespace {

using testing::Answer;
using testing::ask;
using testing::dig;
using testing::text_at;

class StructuredOutputTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (testing::has_tiny_model()) server_ = testing::start_tiny(testing::tiny_options());
  }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    if (!server_) GTEST_SKIP() << "models/tiny-k2 is absent";
  }
  static void need_grammars() {
    if (!has_grammars()) GTEST_SKIP() << "the build has no grammars";
  }

  static Answer post(const std::string& path, const std::string& body) {
    return ask(server_->port(), "POST", path, body);
  }
  static Answer complete(const std::string& fields) {
    return post("/v1/completions", R"({"temperature":0,"prompt":"The answer is ",)" + fields + "}");
  }
  static Answer chat(const std::string& fields) {
    return post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"What is the weather in Oslo?"}],)" +
                    fields + "}");
  }
  static std::string completed(const std::string& fields) {
    return text_at(dig(complete(fields).json(), "choices", 0, "text"));
  }
  static std::string content(const Answer& answer) {
    return text_at(dig(answer.json(), "choices", 0, "message", "content"));
  }

  static std::unique_ptr<Server> server_;
};
std::unique_ptr<Server> StructuredOutputTest::server_;

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":)"
    R"({"city":{"type":"string"},"unit":{"enum":["c","f"]}},"required":["city","unit"],)"
    R"("additionalProperties":false}STRICT}},{"type":"function","function":{"name":"other"}}])";

std::string tools(bool strict) {
  std::string text = kTools;
  return text.replace(text.find("STRICT"), 6, strict ? R"(,"strict":true)" : "");
}

TEST_F(StructuredOutputTest, EverySpelling) {
  need_grammars();
  if (IsSkipped()) return;
  for (const char* field :
       {R"("guided_choice":["red","green"])", R"("structured_outputs":{"choice":["red","green"]})",
        R"("guided_regex":"red|green")", R"("regex":"red|green")",
        R"("guided_grammar":"root ::= \"red\" | \"green\"")",
        R"("ebnf":"root ::= \"red\" | \"green\"")", R"("grammar":"start: \"red\" | \"green\"")"}) {
    const std::string text = completed(field);
    EXPECT_TRUE(text == "red" || text == "green") << field << " gave " << text;
  }
  const std::string schema =
      R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})";
  for (const std::string& field :
       {"\"guided_json\":" + schema, "\"guided_json\":" + write_json(Json(schema)),
        "\"structured_outputs\":{\"json\":" + schema + "}",
        "\"json_schema\":" + write_json(Json(schema)),
        R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":)" + schema +
            "}}"}) {
    const std::string text = completed(field + ",\"max_tokens\":60");
    EXPECT_TRUE(dig(parse_json(text, "answer"), "n").is_integer()) << field << " gave " << text;
  }
  EXPECT_TRUE(
      parse_json(completed(R"("response_format":{"type":"json_object"},"max_tokens":40)"), "answer")
          .is_object());
}

// Where the thought ends and which tokens a tree proposes does not show.
TEST_F(StructuredOutputTest, SameTextWithoutSpeculation) {
  need_grammars();
  if (IsSkipped()) return;
  for (const char* mode : {R"("temperature":0)", R"("temperature":1,"seed":5)"}) {
    for (const char* choice :
         {R"("required")", R"({"type":"function","function":{"name":"get_weather"}})"}) {
      const std::string fields =
          tools(true) + R"(,"max_tokens":300,"tool_choice":)" + choice + "," + mode;
      const Json tree = chat(fields).json();
      const Json plain = chat(fields + R"(,"ddtree_budget":0)").json();
      const Json& message = dig(tree, "choices", 0, "message");
      EXPECT_EQ(message, dig(plain, "choices", 0, "message"));
      EXPECT_NE(text_at(dig(message, "reasoning")), "") << "the model thinks before it calls";
      const std::string name = text_at(dig(message, "tool_calls", 0, "function", "name"));
      EXPECT_TRUE(name == "get_weather" || name == "other");
      EXPECT_EQ(text_at(dig(message, "tool_calls", 0, "id")), "functions." + name + ":0");
      EXPECT_EQ(text_at(dig(tree, "choices", 0, "finish_reason")), "tool_calls");
      const Json arguments =
          parse_json(text_at(dig(message, "tool_calls", 0, "function", "arguments")), "arguments");
      if (name == "get_weather") {
        EXPECT_TRUE(dig(arguments, "city").is_string());
        EXPECT_TRUE(text_at(dig(arguments, "unit")) == "c" ||
                    text_at(dig(arguments, "unit")) == "f");
      }
    }
  }
}

TEST_F(StructuredOutputTest, StrictToolsBindCallsThatTheModelChooses) {
  need_grammars();
  if (IsSkipped()) return;
  const Json called = chat(tools(true) + R"(,"temperature":0,"max_tokens":200)").json();
  const std::string arguments =
      text_at(dig(called, "choices", 0, "message", "tool_calls", 0, "function", "arguments"));
  EXPECT_NE(text_at(dig(parse_json(arguments, "arguments"), "unit")), "") << arguments;
  // Tools and a format: the answer is a call or matches the format.
  const Json either =
      chat(tools(false) +
           R"(,"temperature":0,"max_tokens":200,"response_format":{"type":"json_object"})")
          .json();
  const Json& message = dig(either, "choices", 0, "message");
  if (message.find("tool_calls") == nullptr) {
    EXPECT_TRUE(parse_json(text_at(dig(message, "content")), "content").is_object());
  }
  const Answer subset = chat(
      tools(false) + R"(,"temperature":0,"max_tokens":200,"tool_choice":{"type":"allowed_tools",)"
                     R"("allowed_tools":{"mode":"required","tools":[{"type":"function",)"
                     R"("function":{"name":"other"}}]}})");
  EXPECT_EQ(
      text_at(dig(subset.json(), "choices", 0, "message", "tool_calls", 0, "function", "name")),
      "other")
      << subset.body;
}

// A model that was not trained on a format still writes it under the grammar, with any trees, and
// streamed or not it reads the same.
TEST_F(StructuredOutputTest, OtherToolFormatsCanBeForced) {
  need_grammars();
  if (IsSkipped()) return;
  for (const char* parser : {"hermes", "llama3_json"}) {
    ServerOptions options = testing::tiny_options();
    options.model.tool_call_parser = parser;
    const auto server = testing::start_tiny(options);
    for (const std::string mode : {R"("temperature":0)", R"("temperature":1,"seed":5)"}) {
      const std::string body =
          R"({"messages":[{"role":"user","content":"What is the weather in Oslo?"}],)" +
          tools(true) +
          R"(,"thinking":false,"max_tokens":300,"parallel_tool_calls":false,"tool_choice":"required",)" +
          mode;
      const auto post_to = [&](const std::string& more) {
        return ask(server->port(), "POST", "/v1/chat/completions", body + more + "}");
      };
      const Json tree = post_to("").json();
      const Json& message = dig(tree, "choices", 0, "message");
      EXPECT_EQ(message, dig(post_to(R"(,"ddtree_budget":0)").json(), "choices", 0, "message"));
      ASSERT_EQ(dig(message, "tool_calls").size(), 1u) << write_json(tree);
      EXPECT_TRUE(dig(message, "content").is_null()) << write_json(message);
      EXPECT_EQ(text_at(dig(tree, "choices", 0, "finish_reason")), "tool_calls");
      const std::string name = text_at(dig(message, "tool_calls", 0, "function", "name"));
      const std::string arguments = text_at(dig(message, "tool_calls", 0, "function", "arguments"));
      EXPECT_TRUE(name == "get_weather" || name == "other") << name;
      EXPECT_TRUE(parse_json(arguments, "arguments").is_object()) << arguments;
      std::string streamed_name, streamed_arguments;
      for (const Json& event : post_to(R"(,"stream":true)").events()) {
        const Json* calls = dig(event, "choices", 0, "delta").find("tool_calls");
        if (calls == nullptr) continue;
        for (const Json& call : calls->as_array()) {
          const Json* function = call.find("function");
          if (const Json* text = function->find("name")) streamed_name += text->as_string();
          if (const Json* text = function->find("arguments"))
            streamed_arguments += text->as_string();
        }
      }
      EXPECT_EQ(streamed_name, name);
      EXPECT_EQ(streamed_arguments, arguments);
    }
  }
}

TEST_F(StructuredOutputTest, WhatCannotBeUsedIsRefusedByName) {
  need_grammars();
  if (IsSkipped()) return;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("guided_regex":"(")", "guided_regex"},
      {R"("guided_grammar":"root ::= other")", "guided_grammar"},
      {R"("guided_json":{"type":5})", "guided_json"},
      {R"("guided_json":{"not":{}})", "guided_json.not"},
      {R"("guided_json":{"properties":{"a":{"uniqueItems":true}}})",
       "guided_json.properties.a.uniqueItems"},
      {R"("guided_json":{"pattern":"(?=a)b","type":"string"})", "guided_json"},
      {R"("guided_json":{"$ref":"#/$defs/a"})", "guided_json"},
      {R"("guided_json":{"type":"array","minItems":100000000})", "guided_json.minItems"},
      {R"("guided_choice":[])", "guided_choice"},
      {R"("guided_regex":"a","guided_choice":["b"])", "guided_choice"},
      {R"("structured_outputs":{"regex":"a","json_object":true})", "structured_outputs"},
      {R"("structured_outputs":{"jsn":{"type":"object"}})", "structured_outputs.jsn"},
      {R"("response_format":{"type":"yaml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a","shema":{}}})",
       "response_format.json_schema.shema"},
      {R"("guided_regex":")" + std::string(1 << 20, 'a') + '"', "guided_regex"},
      {R"("bad_words":[" "])", "bad_words"},
      {R"("allowed_token_ids":[])", "allowed_token_ids"},
      {R"("allowed_token_ids":[99999])", "allowed_token_ids"},
      {R"("prompt_logprobs":21)", "prompt_logprobs"},
  };
  for (const auto& [fields, param] : cases) {
    const Answer answer = complete(fields + R"(,"max_tokens":4)");
    EXPECT_EQ(answer.status, 400) << fields.substr(0, 80) << answer.body;
    EXPECT_EQ(text_at(dig(answer.json(), "error", "param")), param) << answer.body;
  }
  // Deep nesting, references to itself and long enumerations end, one way or the other.
  std::string deep = R"({"type":"string"})", words;
  for (int i = 0; i < 1000; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  for (int i = 0; i < 2000; ++i) words += (i == 0 ? "\"w" : "\",\"w") + std::to_string(i);
  EXPECT_EQ(complete("\"guided_json\":" + deep).status, 400);
  for (const std::string& schema :
       {std::string(R"({"$ref":"#"})"),
        std::string(R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})"),
        "{\"enum\":[" + words + "\"]}"}) {
    const int status = complete("\"max_tokens\":8,\"guided_json\":" + schema).status;
    EXPECT_TRUE(status == 200 || status == 400) << schema.substr(0, 60) << ' ' << status;
  }
  EXPECT_EQ(complete(R"("max_tokens":2)").status, 200);
  EXPECT_TRUE(testing::eventually([] { return server_->status().in_flight == 0; }));
}

// A request that contradicts itself is refused, at the start where that shows then, and ends alone.
TEST_F(StructuredOutputTest, ContradictionsEndTheirOwnRequest) {
  need_grammars();
  if (IsSkipped()) return;
  const auto id_of = [](const char* text) {
    const Answer answer =
        post("/tokenize", R"({"add_special_tokens":false,"prompt":")" + std::string(text) + "\"}");
    return write_json(dig(answer.json(), "tokens", 0));
  };
  const auto error_of = [](const Json& json) { return text_at(dig(json, "error", "message")); };
  const std::string red = R"("max_tokens":9,"guided_choice":["red"])", r = id_of("r");
  const std::string free = completed(R"("max_tokens":40)");
  testing::OpenRequest other(server_->port(), "POST", "/v1/completions",
                             R"({"temperature":0,"prompt":"The answer is ","max_tokens":40})");
  const Answer first = complete(red + ",\"allowed_token_ids\":[" + id_of("b") + "]");
  EXPECT_EQ(first.status, 400) << first.body;
  EXPECT_NE(error_of(first.json()).find("first: the grammar, allowed_token_ids leave none"),
            std::string::npos)
      << first.body;
  for (const char* more : {R"(,"stream":true)", R"(,"n":2)", R"(,"ddtree_budget":0)",
                           R"(,"min_tokens":5)", R"(,"logprobs":2)"}) {
    const Answer later = complete(red + more + ",\"allowed_token_ids\":[" + r + "]");
    const bool streamed = std::string(more).find("stream") != std::string::npos;
    EXPECT_EQ(later.status, streamed ? 200 : 400) << later.body;
    const Json error = streamed ? later.events().back() : later.json();
    EXPECT_EQ(dig(error, "error", "code").as_int(), 400);
    EXPECT_NE(error_of(error).find("follow the 1 tokens of output"), std::string::npos) << more;
  }
  const Answer banned = complete(R"("allowed_token_ids":[)" + r + R"(],"bad_words":["r"])");
  EXPECT_EQ(banned.status, 400) << banned.body;
  // Behind the thought, where the grammar begins.
  EXPECT_EQ(chat(R"("temperature":0,"max_tokens":300,"bad_words":["w","x"],"guided_choice":["x"],)"
                 R"("thinking_token_budget":3)")
                .status,
            400);
  // A bias makes tokens unlikely, not impossible.
  EXPECT_EQ(
      completed(red + R"(,"logit_bias":{")" + r + R"(":-100,")" + id_of("red") + R"(":-100})"),
      "red");
  EXPECT_EQ(text_at(dig(other.finish().json(), "choices", 0, "text")), free);
  EXPECT_EQ(completed(R"("max_tokens":40)"), free);
  const std::string metrics = ask(server_->port(), "GET", "/metrics").body;
  EXPECT_NE(metrics.find("coppice:not_finite_total"), std::string::npos);
  EXPECT_NE(metrics.find("finished_reason=\"dead_end\"} "), std::string::npos);
}

// vLLM's thinking_token_budget, Anthropic's budget_tokens: the thought is a beginning of the free
// one, then the answer comes; trees change nothing.
TEST_F(StructuredOutputTest, ThinkingBudget) {
  const auto reasoning_tokens = [](const Json& json) {
    return dig(json, "usage", "completion_tokens_details", "reasoning_tokens").as_int();
  };
  const std::string common = R"("temperature":0,"max_tokens":200)";
  const Json open = chat(common).json();
  const std::string thought = text_at(dig(open, "choices", 0, "message", "reasoning"));
  const std::int64_t free = reasoning_tokens(open);
  ASSERT_GT(free, 8) << "the model thinks";
  for (const std::int64_t budget : {0, 1, 4, 7}) {
    for (const char* mode : {R"("temperature":0)", R"("temperature":1,"seed":5)"}) {
      const std::string fields = std::string(mode) +
                                 R"(,"max_tokens":200,"thinking_token_budget":)" +
                                 std::to_string(budget);
      const Json tree = chat(fields).json();
      const Json& message = dig(tree, "choices", 0, "message");
      EXPECT_EQ(message,
                dig(chat(fields + R"(,"ddtree_budget":0)").json(), "choices", 0, "message"));
      EXPECT_LE(reasoning_tokens(tree), budget + 8) << "more than the step that ends the thought";
      EXPECT_NE(text_at(dig(message, "content")), "") << "an answer comes behind " << budget;
      if (std::string(mode).find(":0") == std::string::npos) continue;
      const Json* cut = message.find("reasoning");
      if (budget == 0) {
        EXPECT_EQ(cut, nullptr);
      } else {
        ASSERT_NE(cut, nullptr);
        EXPECT_TRUE(thought.starts_with(cut->as_string())) << cut->as_string();
        EXPECT_LT(cut->as_string().size(), thought.size());
      }
    }
  }
  // Enough, or none: as without.
  for (const char* budget : {"1000", "-1"}) {
    const Json same = chat(common + R"(,"thinking_token_budget":)" + budget).json();
    EXPECT_EQ(dig(same, "choices", 0, "message"), dig(open, "choices", 0, "message"));
  }
  EXPECT_EQ(chat(common + R"(,"thinking_token_budget":-2)").status, 400);
  const Answer anthropic =
      post("/v1/messages",
           R"({"max_tokens":200,"temperature":0,"thinking":{"type":"enabled","budget_tokens":4},)"
           R"("messages":[{"role":"user","content":"What is the weather in Oslo?"}]})");
  const std::string short_thought = text_at(dig(anthropic.json(), "content", 0, "thinking"));
  EXPECT_TRUE(thought.starts_with(short_thought) && short_thought.size() < thought.size())
      << anthropic.body;
}

TEST_F(StructuredOutputTest, BadWordsAndAllowedIds) {
  const std::string plain = completed(R"("max_tokens":12,"ignore_eos":true)");
  const Json first = post("/tokenize", "{\"prompt\":" + write_json(Json(plain)) + "}").json();
  const std::string word = text_at(dig(
      post("/detokenize", "{\"tokens\":[" + std::to_string(dig(first, "tokens", 1).as_int()) + "]}")
          .json(),
      "text"));
  ASSERT_NE(plain.find(word), std::string::npos);
  for (const char* budget : {"0", "12"}) {
    const std::string fields =
        std::string(R"("max_tokens":12,"ignore_eos":true,"ddtree_budget":)") + budget;
    const std::string without =
        completed(fields + ",\"bad_words\":[" + write_json(Json(word)) + "]");
    EXPECT_NE(without, plain);
    const Json ids =
        complete(fields + R"(,"return_token_ids":true,"allowed_token_ids":[10,11,12])").json();
    for (const Json& id : dig(ids, "choices", 0, "token_ids").as_array())
      EXPECT_TRUE(id.as_int() >= 10 && id.as_int() <= 12);
  }
}

// The prompt's log-probabilities equal those of the same tokens when they are generated, and do not
// depend on chunks or on what the cache holds.
TEST_F(StructuredOutputTest, PromptLogprobs) {
  std::string prompt =
      R"("prompt":"def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n)";
  for (int i = 0; i < 12; ++i) prompt += "    print(a, b, n)\\n";
  const auto ask_prompt = [&](const std::string& more) {
    return post("/v1/completions", "{\"temperature\":0," + prompt + "\"," + more + "}").json();
  };
  const Json generated = ask_prompt(R"("max_tokens":8,"logprobs":2,"ignore_eos":true)");
  const std::string text = text_at(dig(generated, "choices", 0, "text"));
  const std::string tail = write_json(Json(text));
  prompt += tail.substr(1, tail.size() - 2);
  for (int round = 0; round < 2; ++round) {
    const Json echoed =
        ask_prompt(R"("max_tokens":1,"echo":true,"logprobs":2,"prompt_logprobs":1)");
    const Json& logprobs = dig(echoed, "choices", 0, "logprobs");
    const std::size_t count = dig(logprobs, "tokens").size();
    ASSERT_GT(count, 64u) << "more than one chunk of scored rows";
    EXPECT_TRUE(dig(logprobs, "token_logprobs", 0).is_null());
    EXPECT_TRUE(dig(logprobs, "top_logprobs", 0).is_null());
    EXPECT_EQ(dig(echoed, "choices", 0, "prompt_logprobs").size(), count - 1);
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t at = count - 1 - 8 + i;
      EXPECT_EQ(dig(logprobs, "tokens", static_cast<int>(at)),
                dig(generated, "choices", 0, "logprobs", "tokens", static_cast<int>(i)));
      EXPECT_NEAR(dig(logprobs, "token_logprobs", static_cast<int>(at)).as_double(),
                  dig(generated, "choices", 0, "logprobs", "token_logprobs", static_cast<int>(i))
                      .as_double(),
                  0.02);
    }
    std::string joined;
    for (const Json& token : dig(logprobs, "tokens").as_array()) joined += token.as_string();
    EXPECT_EQ(joined, text_at(dig(echoed, "choices", 0, "text")));
  }
  const Json none = ask_prompt(R"("max_tokens":0,"echo":true,"logprobs":0)");
  EXPECT_EQ(dig(none, "usage", "completion_tokens"), Json(0));
  EXPECT_LT(dig(none, "choices", 0, "logprobs", "token_logprobs", 5).as_double(), 0);
  const Json in_chat = chat(R"("max_tokens":2,"prompt_logprobs":0)").json();
  EXPECT_EQ(Json(static_cast<std::int64_t>(in_chat.find("prompt_logprobs")->size())),
            dig(in_chat, "usage", "prompt_tokens"));
}

TEST_F(StructuredOutputTest, ThePrefixCacheCanBeReset) {
  const std::string fields = R"("max_tokens":2,"prompt":[)" + [] {
    std::string ids;
    for (int i = 0; i < 200; ++i) ids += (i == 0 ? "" : ",") + std::to_string(100 + i);
    return ids;
  }() + "]";
  const auto cached = [&] {
    return dig(post("/v1/completions", "{" + fields + "}").json(), "usage", "prompt_tokens_details",
               "cached_tokens")
        .as_int();
  };
  cached();
  EXPECT_GT(cached(), 0);
  EXPECT_EQ(post("/reset_prefix_cache", "").status, 200);
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 0);
}

// A pattern with letters beyond ASCII, and a model that wants to write quotes where any character
// may come.
TEST_F(StructuredOutputTest, PatternsLeaveTheJsonStringWhole) {
  need_grammars();
  if (IsSkipped()) return;
  const Json tokens = post("/tokenize", R"({"prompt":"\""})").json();
  const std::string quote = std::to_string(dig(tokens, "tokens", 0).as_int());
  const std::string text = completed(R"("guided_json":{"type":"string","pattern":"^é.{3}$"},)"
                                     R"("max_tokens":40,"logit_bias":{")" +
                                     quote + R"(":100})");
  EXPECT_NO_THROW(EXPECT_TRUE(parse_json(text, "answer").as_string().starts_with("é"))) << text;
  EXPECT_EQ(complete(R"("guided_json":{"type":"string","pattern":"^\"x\"$"})").status, 400);
  EXPECT_EQ(complete(R"("guided_json":{"type":"object","required":["z"]})").status, 400);
}

}  // namespace
}  // namespace coppice
