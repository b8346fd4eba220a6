// The generating endpoints over the shipped model.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <map>

#include "sampling/grammar.h"
#include "tests/server/support/api_client.h"
#include "tests/server/support/tiny_server.h"
#include "tests/support/sanitized.h"

namespace coppice {
namespace {

using testing::Answer;
using testing::ask;
using testing::dig;
using testing::text_at;

const std::string kWeatherTool =
    R"([{"type":"function","function":{"name":"get_weather","description":"Get the weather",)"
    R"("parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}])";

class ChatApiTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (testing::has_tiny_model()) server_ = testing::start_tiny(testing::tiny_options());
  }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    if (!server_) GTEST_SKIP() << "models/tiny-k2 is absent";
  }

  static Answer post(const std::string& path, const std::string& body) {
    return ask(server_->port(), "POST", path, body);
  }
  static Answer chat(const std::string& fields) {
    return post("/v1/chat/completions", with_temperature(fields));
  }
  static Answer complete(const std::string& fields) {
    return post("/v1/completions", with_temperature(fields));
  }
  static std::string with_temperature(const std::string& fields) {
    const bool has = fields.find("\"temperature\"") != std::string::npos;
    return (has ? "{" : "{\"temperature\":0,") + fields + "}";
  }
  static std::string user(const std::string& text) {
    return R"("messages":[{"role":"user","content":)" + write_json(Json(text)) + "}]";
  }

  static std::unique_ptr<Server> server_;
};
std::unique_ptr<Server> ChatApiTest::server_;

// What a client puts together from a stream, by choice.
struct Joined {
  std::string content, reasoning, finish_reason;
  std::map<std::int64_t, std::array<std::string, 3>> calls;  // id, name, arguments
  int roles = 0, finishes = 0;
};

std::map<std::int64_t, Joined> join(const std::vector<Json>& events) {
  std::map<std::int64_t, Joined> choices;
  for (const Json& event : events) {
    for (const Json& entry : event.find("choices")->as_array()) {
      Joined& choice = choices[entry.find("index")->as_int()];
      EXPECT_EQ(choice.finishes, 0) << "a chunk behind the finish reason";
      const Json& delta = dig(entry, "delta");
      if (dig(delta, "role").is_string()) {
        EXPECT_EQ(choice.roles++, 0);
        EXPECT_TRUE(choice.content.empty());
      }
      choice.content += text_at(dig(delta, "content"));
      choice.reasoning += text_at(dig(delta, "reasoning"));
      EXPECT_EQ(text_at(dig(delta, "reasoning")), text_at(dig(delta, "reasoning_content")));
      if (const Json* calls = delta.find("tool_calls"))
        for (const Json& call : calls->as_array()) {
          auto& joined = choice.calls[call.find("index")->as_int()];
          joined[0] += text_at(dig(call, "id"));
          joined[1] += text_at(dig(call, "function", "name"));
          joined[2] += text_at(dig(call, "function", "arguments"));
        }
      if (dig(entry, "finish_reason").is_string()) {
        ++choice.finishes;
        choice.finish_reason = text_at(dig(entry, "finish_reason"));
      }
    }
  }
  return choices;
}

TEST_F(ChatApiTest, StreamedEqualsWhole) {
  const std::vector<std::string> requests = {
      user("What is 12 + 30?"),
      user("Write a Python function that checks whether a number is prime."),
      user("What is the weather in Oslo?") + ",\"tools\":" + kWeatherTool,
      user("What is the capital of France?") + ",\"chat_template_kwargs\":{\"thinking\":false}",
      user("Sort 3, 1, 2.") + ",\"max_tokens\":9",
      user("Sort 3, 1, 2.") + ",\"stop\":[\"ort\",\"1, 2\"]",
      user("Count.") + ",\"n\":3,\"temperature\":1,\"seed\":5,\"max_tokens\":30",
  };
  for (const std::string& request : requests) {
    const Answer whole = chat(request);
    ASSERT_EQ(whole.status, 200) << whole.body;
    const Json body = whole.json();
    const Answer streamed =
        chat(request + R"(,"stream":true,"stream_options":{"include_usage":true})");
    ASSERT_EQ(streamed.status, 200) << streamed.body;
    EXPECT_TRUE(streamed.body.ends_with("data: [DONE]\n\n"));
    const std::vector<Json> events = streamed.events();
    const auto joined = join(events);
    ASSERT_EQ(joined.size(), body.find("choices")->size());
    for (const auto& [index, choice] : joined) {
      const Json& entry = dig(body, "choices", index);
      EXPECT_EQ(choice.content, text_at(dig(entry, "message", "content"))) << request;
      EXPECT_EQ(choice.reasoning, text_at(dig(entry, "message", "reasoning"))) << request;
      EXPECT_EQ(choice.finish_reason, text_at(dig(entry, "finish_reason"))) << request;
      EXPECT_EQ(choice.roles, 1);
      EXPECT_EQ(choice.finishes, 1);
      const Json& calls = dig(entry, "message", "tool_calls");
      ASSERT_EQ(choice.calls.size(), calls.size());
      for (const auto& [call, parts] : choice.calls) {
        EXPECT_EQ(parts[0], text_at(dig(calls, call, "id")));
        EXPECT_EQ(parts[1], text_at(dig(calls, call, "function", "name")));
        EXPECT_EQ(parts[2], text_at(dig(calls, call, "function", "arguments")));
      }
    }
    // One usage chunk, without choices, and last.
    EXPECT_EQ(events.back().find("choices")->size(), 0U);
    EXPECT_EQ(dig(events.back(), "usage", "completion_tokens"),
              dig(body, "usage", "completion_tokens"));
    for (std::size_t i = 0; i + 1 < events.size(); ++i) EXPECT_EQ(events[i].find("usage"), nullptr);
  }
}

TEST_F(ChatApiTest, ResponsesEchoTheirSettings) {
  const Answer answer =
      post("/v1/responses",
           R"({"input":"Hi","max_output_tokens":2,"temperature":0,"instructions":"Be brief.",
                           "metadata":{"a":"b"},"top_p":null,"store":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json body = answer.json();
  EXPECT_EQ(text_at(dig(body, "instructions")), "Be brief.");
  EXPECT_EQ(dig(body, "max_output_tokens"), Json(2));
  EXPECT_EQ(text_at(dig(body, "metadata", "a")), "b");
  EXPECT_EQ(dig(body, "store"), Json(false)) << "nothing is stored";
  EXPECT_TRUE(dig(body, "top_p").is_null());
  EXPECT_EQ(text_at(dig(body, "truncation")), "disabled");
}

TEST_F(ChatApiTest, FirstChunkHasTheFirstToken) {
  const Answer answer = chat(user("What is 2 + 2?") + ",\"stream\":true");
  const std::vector<Json> events = answer.events();
  ASSERT_FALSE(events.empty());
  const Json& delta = dig(events[0], "choices", 0, "delta");
  EXPECT_EQ(text_at(dig(delta, "role")), "assistant");
  EXPECT_NE(text_at(dig(delta, "reasoning")) + text_at(dig(delta, "content")), "");
}

TEST_F(ChatApiTest, CallsTools) {
  const Json body =
      chat(user("What is the weather in Oslo?") + ",\"tools\":" + kWeatherTool).json();
  const Json& call = dig(body, "choices", 0, "message", "tool_calls", 0);
  EXPECT_EQ(text_at(dig(call, "id")), "functions.get_weather:0");
  EXPECT_EQ(text_at(dig(call, "function", "name")), "get_weather");
  EXPECT_EQ(text_at(dig(call, "function", "arguments")), "{\"city\": \"Oslo\"}");
  EXPECT_EQ(text_at(dig(body, "choices", 0, "finish_reason")), "tool_calls");
  EXPECT_TRUE(dig(body, "choices", 0, "message", "content").is_null());
}

TEST_F(ChatApiTest, ForcedCallsKeepTheIdForm) {
  if (!has_grammars()) GTEST_SKIP() << "the build has no grammars";
  for (const std::string& choice :
       {std::string("\"required\""),
        std::string(R"({"type":"function","function":{"name":"get_weather"}})")}) {
    const Answer answer = chat(user("What is the weather in Oslo?") + ",\"tools\":" + kWeatherTool +
                               ",\"tool_choice\":" + choice);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json body = answer.json();
    EXPECT_EQ(text_at(dig(body, "choices", 0, "message", "tool_calls", 0, "id")),
              "functions.get_weather:0");
    EXPECT_EQ(text_at(dig(body, "choices", 0, "message", "tool_calls", 0, "function", "arguments")),
              "{\"city\": \"Oslo\"}");
  }
}

TEST_F(ChatApiTest, ThinkingOffInEverySpelling) {
  const std::string question = user("What is 2 + 2?");
  const std::string thinking =
      text_at(dig(chat(question).json(), "choices", 0, "message", "reasoning"));
  EXPECT_NE(thinking, "");
  for (const char* off :
       {R"("chat_template_kwargs":{"thinking":false})",
        R"("chat_template_kwargs":{"thinking":"false"})",
        R"("chat_template_kwargs":{"enable_thinking":false})", R"("enable_thinking":false)",
        R"("thinking":{"type":"disabled"})", R"("thinking":false)", R"("reasoning_effort":"none")",
        R"("reasoning":{"enabled":false})"}) {
    const Json body = chat(question + "," + off).json();
    EXPECT_EQ(dig(body, "choices", 0, "message").find("reasoning"), nullptr) << off;
    EXPECT_NE(text_at(dig(body, "choices", 0, "message", "content")), "") << off;
  }
  const Json hidden = chat(question + ",\"include_reasoning\":false").json();
  EXPECT_EQ(dig(hidden, "choices", 0, "message").find("reasoning"), nullptr);
}

TEST_F(ChatApiTest, ExactTokenCounts) {
  for (int count = 0; count < 9; ++count) {
    const Json body =
        complete(R"("prompt":"def f","ignore_eos":true,"max_tokens":)" + std::to_string(count))
            .json();
    EXPECT_EQ(dig(body, "usage", "completion_tokens"), Json(count));
    EXPECT_EQ(text_at(dig(body, "choices", 0, "finish_reason")), "length");
  }
}

TEST_F(ChatApiTest, CompletionsTakeTextIdsAndLists) {
  const Json by_text = complete(R"("prompt":"def fibonacci(n):","max_tokens":12)").json();
  const Json ids = post("/tokenize", R"({"prompt":"def fibonacci(n):"})").json();
  const std::string tokens = write_json(*ids.find("tokens"));
  const Json by_ids = complete("\"prompt\":" + tokens + ",\"max_tokens\":12").json();
  const std::string text = text_at(dig(by_text, "choices", 0, "text"));
  EXPECT_NE(text, "");
  EXPECT_EQ(text_at(dig(by_ids, "choices", 0, "text")), text);
  const Json lists = complete("\"prompt\":[" + tokens + "," + tokens +
                              "],\"max_tokens\":12,\"echo\":true,\"n\":2,\"seed\":1")
                         .json();
  ASSERT_EQ(lists.find("choices")->size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(dig(lists, "choices", i, "index"), Json(i));
    EXPECT_EQ(text_at(dig(lists, "choices", i, "text")), "def fibonacci(n):" + text);
  }
  EXPECT_EQ(text_at(dig(post("/detokenize", "{\"tokens\":" + tokens + "}").json(), "prompt")),
            "def fibonacci(n):");
}

TEST_F(ChatApiTest, LogprobsOfEveryToken) {
  const Json body = complete(R"("prompt":"import os","max_tokens":6,"logprobs":3)").json();
  const Json& logprobs = dig(body, "choices", 0, "logprobs");
  EXPECT_EQ(logprobs.find("tokens")->size(), 6U);
  std::string joined;
  for (int i = 0; i < 6; ++i) {
    joined += text_at(dig(logprobs, "tokens", i));
    EXPECT_LE(dig(logprobs, "token_logprobs", i).as_double(), 0);
    EXPECT_GE(dig(logprobs, "top_logprobs", i).size(), 3U);
  }
  EXPECT_EQ(joined, text_at(dig(body, "choices", 0, "text")));
  const Json answer =
      chat(user("Hi") + ",\"logprobs\":true,\"top_logprobs\":2,\"max_tokens\":4").json();
  const Json& content = dig(answer, "choices", 0, "logprobs", "content");
  ASSERT_EQ(content.size(), 4U);
  EXPECT_EQ(dig(content, 0, "top_logprobs").size(), 2U);
  EXPECT_EQ(dig(content, 0, "top_logprobs", 0, "logprob"), dig(content, 0, "logprob"));
}

constexpr std::size_t kStopStep = testing::kSanitized ? 13 : 3;  // 100 answers take minutes there

TEST_F(ChatApiTest, StopStringsNeverLeak) {
  const std::string plain = text_at(dig(
      complete(R"("prompt":"def fibonacci(n):","max_tokens":40)").json(), "choices", 0, "text"));
  ASSERT_GT(plain.size(), 40U);
  for (std::size_t at = 1; at < 40; at += kStopStep) {
    for (const std::size_t size : {1U, 2U, 5U, 11U}) {
      const std::string stop = plain.substr(at, size);
      const std::string fields =
          R"("prompt":"def fibonacci(n):","max_tokens":40,"stop":)" + write_json(Json(stop));
      const Json body = complete(fields).json();
      EXPECT_EQ(text_at(dig(body, "choices", 0, "text")), plain.substr(0, plain.find(stop)));
      EXPECT_EQ(text_at(dig(body, "choices", 0, "stop_reason")), stop);
      std::string streamed;
      for (const Json& event : complete(fields + ",\"stream\":true").events())
        streamed += text_at(dig(event, "choices", 0, "text"));
      EXPECT_EQ(streamed, text_at(dig(body, "choices", 0, "text")));
    }
  }
  // Text that only looked like a stop comes out in full.
  const std::string almost = plain.substr(0, 39) + "\x01";
  EXPECT_EQ(text_at(dig(complete(R"("prompt":"def fibonacci(n):","max_tokens":40,"stop":)" +
                                 write_json(Json(almost)))
                            .json(),
                        "choices", 0, "text")),
            plain);
}

// As vLLM has it: "auto" drops the beginning of what does not fit.
TEST_F(ChatApiTest, ResponsesTruncateWhereAsked) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += " a";
  const std::string body = R"({"max_output_tokens":4,"input":")" + words + '"';
  EXPECT_EQ(post("/v1/responses", body + "}").status, 400);
  EXPECT_EQ(post("/v1/responses", body + R"(,"truncation":"disabled"})").status, 400);
  const Answer cut = post("/v1/responses", body + R"(,"truncation":"auto"})");
  EXPECT_EQ(cut.status, 200) << cut.body;
  EXPECT_EQ(text_at(dig(cut.json(), "truncation")), "auto");
  EXPECT_EQ(post("/v1/responses",
                 R"({"input":"a","max_output_tokens":2,"include":["reasoning.encrypted_content"],)"
                 R"("top_logprobs":0,"truncation":null})")
                .status,
            200);
}

// 256 prompts of 1,000 tokens, 128 times each, would be 130 MB of copies.
TEST_F(ChatApiTest, MoreOutputsThanTheServerHoldsAreRefusedBeforeTheyAreMade) {
  std::string prompt = "[5", prompts = "[";
  for (int i = 1; i < 1000; ++i) prompt += ",5";
  for (int i = 0; i < 256; ++i) prompts += (i == 0 ? "" : ",") + prompt + "]";
  const auto peak_kb = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto ask_for = [&](const std::string& more) {
    return post("/v1/completions", "{\"prompt\":" + prompts + "]" + more + "}");
  };
  EXPECT_EQ(ask_for(",\"max_tokens\":0").status, 200);  // so much a request takes
  const long before = peak_kb();
  const Answer answer = ask_for(",\"max_tokens\":1,\"n\":128");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("32768 outputs at once"), std::string::npos) << answer.body;
  if (!testing::kSanitized) {
    EXPECT_LT(peak_kb() - before, 30'000);
  }
}

TEST_F(ChatApiTest, RefusesBadRequestsAndGoesOn) {
  struct Case {
    const char *path, *body, *field;
  };
  const std::vector<Case> cases = {
      {"/v1/completions", R"({"prompt":""})", "prompt"},
      {"/v1/completions", R"({"prompt":[]})", "prompt"},
      {"/v1/completions", R"({"prompt":[""]})", "prompt"},
      {"/v1/completions", R"({"prompt":[[]]})", "prompt"},
      {"/v1/completions", R"({"prompt":[-1]})", "prompt"},
      {"/v1/completions", R"({"prompt":[5376]})", "prompt"},
      {"/v1/completions", R"({"prompt":[2147483648]})", "prompt[0]"},
      {"/v1/completions", R"({})", "prompt"},
      {"/v1/completions", R"({"prompt":"a","suffix":"b"})", "suffix"},
      {"/v1/completions", R"({"prompt":"a","temperature":-1})", "temperature"},
      {"/v1/completions", R"({"prompt":"a","temperature":"hot"})", "temperature"},
      {"/v1/completions", R"({"prompt":"a","top_p":0})", "top_p"},
      {"/v1/completions", R"({"prompt":"a","n":0})", "n"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":-5})", "max_tokens"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":1024})", "max_tokens"},
      {"/v1/completions", R"({"prompt":"a","min_tokens":20})", "min_tokens"},
      {"/v1/completions", R"({"prompt":"a","logprobs":21})", "logprobs"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"-1":1}})", "logit_bias"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"5376":1}})", "logit_bias"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"abc":1}})", "logit_bias"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"1":1e9}})", "logit_bias"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"1":"NaN"}})", "logit_bias.1"},
      {"/v1/completions", R"({"prompt":"a","stop_token_ids":[99999]})", "stop_token_ids"},
      {"/v1/completions", R"({"prompt":"a","use_beam_search":true})", "use_beam_search"},
      {"/v1/completions", R"({"prompt":"a","priority":1})", "priority"},
      {"/v1/responses", R"({"input":"a","tools":true})", "tools"},
      {"/v1/responses", R"({"input":"a","truncation":"some"})", "truncation"},
      {"/v1/responses", R"({"input":"a","top_logprobs":2})", "top_logprobs"},
      {"/v1/responses", R"({"input":"a","include":["message.output_text.logprobs"]})", "include"},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{)"
       R"("name":"f","strict":"yes"}}]})",
       "tools[0].function.strict"},
      {"/v1/chat/completions", R"({"messages":[]})", "messages"},
      {"/v1/chat/completions", R"({})", "messages"},
      {"/v1/chat/completions", R"({"messages":[{"role":"king","content":"a"}]})",
       "messages[0].role"},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0]"},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})", "tool_choice"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":2})",
       "top_logprobs"},
  };
  for (const Case& bad : cases) {
    const Answer answer = post(bad.path, bad.body);
    EXPECT_EQ(answer.status, 400) << bad.body << "\n" << answer.body;
    EXPECT_EQ(text_at(dig(answer.json(), "error", "param")), bad.field) << answer.body;
    EXPECT_EQ(dig(answer.json(), "error", "code"), Json(400));
  }
  EXPECT_EQ(post("/v1/completions", "{").status, 400);
  EXPECT_EQ(post("/v1/completions", R"({"model":"other","prompt":"a"})").status, 404);
  if (!has_grammars()) {
    EXPECT_EQ(chat(user("a") + R"(,"response_format":{"type":"json_object"})").status, 501);
  }
  EXPECT_EQ(post("/v1/embeddings", "{}").status, 501);
  // A request that a stop string ended leaves the engine a moment after its answer.
  EXPECT_TRUE(testing::eventually([] { return server_->status().in_flight == 0; }));
  EXPECT_EQ(complete(R"("prompt":"a","max_tokens":2)").status, 200);
}

TEST_F(ChatApiTest, AcceptsWhatChangesNothing) {
  for (const char* content : {"\"\"", "null", "[]", R"([{"type":"text","text":""}])"}) {
    const Answer answer = chat(
        std::string() + R"("max_tokens":2,"messages":[{"role":"user","content":)" + content + "}]");
    EXPECT_EQ(answer.status, 200) << content << answer.body;
  }
  const Answer answer =
      chat(user("Hi") +
           R"(,"max_completion_tokens":2,"store":true,"metadata":{"a":"b"},"service_tier":"auto",)"
           R"("user":"u","parallel_tool_calls":true,"logit_bias":{"foo":0},"modalities":["text"],)"
           R"("response_format":{"type":"text"},"seed":-9007199254740991,"verbosity":"low",)"
           R"("prediction":{"type":"content","content":"x"},"unknown_field":1,"stop":null)");
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST_F(ChatApiTest, SameSeedSameTextAloneAndAmongOthers) {
  const std::string fields = R"("prompt":"The","max_tokens":24,"temperature":1,"seed":7)";
  const auto text = [&](const std::string& more) {
    return text_at(
        dig(post("/v1/completions", "{" + fields + more + "}").json(), "choices", 0, "text"));
  };
  const std::string alone = text("");
  std::vector<std::thread> others;
  for (int i = 0; i < 6; ++i)
    others.emplace_back([i] {
      post("/v1/completions", R"({"prompt":"A","max_tokens":40,"seed":)" + std::to_string(i) + "}");
    });
  EXPECT_EQ(text(""), alone);
  for (std::thread& other : others) other.join();
  EXPECT_EQ(text(R"(,"ddtree_budget":0)"), alone);
}

// The template's own marks hold the same letters as many an answer.
TEST_F(ChatApiTest, AContinuedMessageEndsBehindItsOwnText) {
  const auto rendered = [](const std::string& content, const std::string& more = "") {
    return post("/v1/chat/completions/render",
                R"({"continue_final_message":true,"messages":[{"role":"user","content":"hi"},)"
                R"({"role":"assistant","content":)" +
                    write_json(Json(content)) + more + "}]}");
  };
  for (const std::string content : {"end", "im", "|>", ">", "<", "e", "a b", "x\n", "hi"}) {
    const std::string prompt = text_at(dig(rendered(content).json(), "prompt"));
    EXPECT_TRUE(prompt.ends_with("</think>" + content)) << content << ": " << prompt;
  }
  const std::string call =
      R"(,"tool_calls":[{"id":"f:0","function":{"name":"f","arguments":"{\"a\":\"ab\"}"}}])";
  EXPECT_EQ(rendered("ab", call).status, 400);
}

// Anthropic's way to say so: the last message is the assistant's.
TEST_F(ChatApiTest, MessagesGoOnWithTheLastAnswer) {
  const std::string question = R"({"role":"user","content":"What is 2 + 3?"})";
  const auto count = [&](const std::string& more) {
    return dig(post("/v1/messages/count_tokens", R"({"messages":[)" + question + more + "]}")
                   .json(),
               "input_tokens")
        .as_int();
  };
  const std::string begun = R"(,{"role":"assistant","content":"2 + 3 ="})";
  const Json rendered =
      post("/v1/chat/completions/render",
           R"({"continue_final_message":true,"messages":[)" + question + begun + "]}")
          .json();
  EXPECT_EQ(count(begun), dig(rendered, "num_tokens").as_int());
  EXPECT_EQ(count(R"(,{"role":"assistant","content":[{"type":"text","text":"2 + 3 ="}]})"),
            count(begun));
}

// The fields of OpenAI's API before there were tools.
TEST_F(ChatApiTest, FunctionsAreToolsByAnOlderName) {
  const std::string functions =
      R"(,"functions":[{"name":"f","parameters":{"type":"object","properties":{}}}])";
  const auto prompt = [&](const std::string& fields) {
    return text_at(
        dig(post("/v1/chat/completions/render", "{" + user("hi") + fields + "}").json(), "prompt"));
  };
  EXPECT_NE(prompt(functions), prompt(""));
  EXPECT_EQ(prompt(functions + R"(,"function_call":"none")"), prompt(""));
  EXPECT_EQ(chat(user("hi") + functions + R"(,"function_call":{"name":"g"})").status, 400);
  const auto history = [](const std::string& call) {
    return text_at(dig(
        post("/v1/chat/completions/render", R"({"messages":[{"role":"assistant","content":null,)" +
                                                call + R"(},{"role":"user","content":"hi"}]})")
            .json(),
        "prompt"));
  };
  EXPECT_EQ(history(R"("function_call":{"name":"f","arguments":"{}"})"),
            history(R"("tool_calls":[{"function":{"name":"f","arguments":"{}"}}])"));
}

TEST_F(ChatApiTest, ATruncatedPromptIsEchoedAsItIs) {
  const Json answer =
      complete(R"("prompt":"a b c d e f","truncate_prompt_tokens":2,"echo":true,"logprobs":0,)"
               R"("max_tokens":1)")
          .json();
  const std::string text = text_at(dig(answer, "choices", 0, "text"));
  std::string tokens;
  for (const Json& token : dig(answer, "choices", 0, "logprobs", "tokens").as_array())
    tokens += token.as_string();
  EXPECT_EQ(text, tokens);
  EXPECT_TRUE(text.starts_with(" e f")) << text;
}

TEST_F(ChatApiTest, WhatCannotBeHonouredIsRefused) {
  for (const std::string fields :
       {R"("modalities":["text","audio"])", R"("web_search_options":{"a":1})", R"("best_of":2)",
        R"("n":2,"best_of":1)", R"("thinking":"disabled")", R"("enable_thinking":"false")",
        R"("max_tokens":9223372036854775807)", R"("max_tokens":16.5)"})
    EXPECT_EQ(chat(user("hi") + "," + fields).status, 400) << fields;
  EXPECT_EQ(chat(user("hi") + R"(,"modalities":["text"],"max_tokens":2.0,"seed":7.0)").status, 200);
  EXPECT_EQ(chat(user("hi") + R"(,"n":2,"best_of":2,"max_tokens":1)").status, 200);
  const Answer unknown = chat(user("hi") + R"(,"model":"a\u0000b\nc")");
  EXPECT_EQ(text_at(dig(unknown.json(), "error", "message")),
            "The model `a\\0b\\nc` does not exist.");
}

}  // namespace
}  // namespace coppice
