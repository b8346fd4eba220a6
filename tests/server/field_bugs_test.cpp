// Faults that servers of this kind had in the field, tried on this one.
#include <gtest/gtest.h>

#include <random>

#include "tests/server/support/api_client.h"
#include "tests/server/support/tiny_server.h"

namespace coppice {
namespace {

using testing::Answer;
using testing::ask;
using testing::dig;
using testing::eventually;
using testing::OpenRequest;
using testing::text_at;

class FieldBugsTest : public ::testing::Test {
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
  static bool idle() {
    return eventually([] {
      return server_->status().in_flight == 0 && server_->status().metrics.num_running == 0;
    });
  }
  static std::string ids(int count) {
    std::string list;
    for (int i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + std::to_string(200 + i % 500);
    return "[" + list + "]";
  }

  static std::unique_ptr<Server> server_;
};
std::unique_ptr<Server> FieldBugsTest::server_;

// A3: temperatures that are almost zero, in one batch with others: the greedy text, never NaN.
TEST_F(FieldBugsTest, TinyTemperaturesAreGreedy) {
  const auto body = [](const std::string& temperature) {
    return R"({"prompt":"def fib(n):","max_tokens":24,"seed":3)" +
           (temperature.empty() ? "" : ",\"temperature\":" + temperature) + "}";
  };
  const std::vector<std::string> greedy = {"0", "-0.0", "1e-9", "1e-6", "1e-3", "1e-40", "1e-300"};
  const std::vector<std::string> sampled = {"1", "null", ""};
  std::vector<std::unique_ptr<OpenRequest>> requests;
  for (const auto* list : {&greedy, &sampled})
    for (const std::string& temperature : *list)
      requests.push_back(std::make_unique<OpenRequest>(server_->port(), "POST", "/v1/completions",
                                                       body(temperature)));
  std::vector<std::string> texts;
  for (const auto& request : requests) {
    const Answer answer = request->finish();
    EXPECT_EQ(answer.status, 200) << answer.body;
    texts.push_back(text_at(dig(answer.json(), "choices", 0, "text")));
    EXPECT_EQ(texts.back(), texts[texts.size() <= greedy.size() ? 0 : greedy.size()]);
  }
  EXPECT_NE(texts.front(), texts.back());
  EXPECT_EQ(server_->status().metrics.num_not_finite, 0);
}

// F12: the limit is the same by text and ids, streamed or not, and nothing is cut in silence.
TEST_F(FieldBugsTest, PromptsAroundTheLimit) {
  const int limit = static_cast<int>(server_->model()->max_request_len);
  for (const int length : {limit - 1, limit, limit + 1, 10 * limit}) {
    const bool fits = length == limit - 1;
    for (const char* stream : {"false", "true"}) {
      const Answer answer =
          post("/v1/completions",
               "{\"prompt\":" + ids(length) + ",\"max_tokens\":1,\"stream\":" + stream + "}");
      EXPECT_EQ(answer.status, fits ? 200 : 400) << length << answer.body.substr(0, 300);
      if (fits) continue;
      EXPECT_NE(answer.body.find(std::to_string(limit)), std::string::npos);
      EXPECT_NE(answer.body.find(std::to_string(length)), std::string::npos);
    }
  }
  std::string words;
  for (int i = 0; i < 10 * limit; ++i) words += " a";
  EXPECT_EQ(
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + words + "\"}]}")
          .status,
      400);
  const Json cut = post("/v1/completions", "{\"prompt\":" + ids(2 * limit) +
                                               R"(,"max_tokens":1,"truncate_prompt_tokens":-1})")
                       .json();
  EXPECT_EQ(dig(cut, "usage", "prompt_tokens"), Json(limit - 1)) << "cut where it was asked for";
}

// F6, F3, F4: each choice of a stream ends once, in its own time, and the usage is their sum.
TEST_F(FieldBugsTest, EveryChoiceOfAStreamEndsOnce) {
  const std::string fields =
      R"({"prompt":"def f","n":4,"temperature":1,"seed":3,"max_tokens":40,"stop":["\n","("])";
  const Json whole = post("/v1/completions", fields + "}").json();
  const Answer answer = post("/v1/completions",
                             fields + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  std::array<std::string, 4> texts;
  std::array<int, 4> ends{};
  int usages = 0;
  for (const Json& event : answer.events()) {
    if (dig(event, "usage").is_object()) {
      ++usages;
      EXPECT_EQ(event.find("choices")->size(), 0u);
      EXPECT_EQ(dig(event, "usage", "completion_tokens"), dig(whole, "usage", "completion_tokens"));
    }
    for (const Json& entry : event.find("choices")->as_array()) {
      const auto index = static_cast<std::size_t>(entry.find("index")->as_int());
      EXPECT_EQ(ends.at(index), 0) << "text behind the end";
      texts.at(index) += text_at(dig(entry, "text"));
      ends.at(index) += dig(entry, "finish_reason").is_string() ? 1 : 0;
    }
  }
  EXPECT_EQ(usages, 1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(ends.at(static_cast<std::size_t>(i)), 1);
    EXPECT_EQ(texts.at(static_cast<std::size_t>(i)), text_at(dig(whole, "choices", i, "text")));
  }
}

// F9: speculation does not show in log-probabilities.
TEST_F(FieldBugsTest, LogprobsWithAndWithoutSpeculation) {
  const std::string fields =
      R"({"prompt":"def fibonacci(n):","temperature":0,"max_tokens":30,"logprobs":5,"ddtree_budget":)";
  const Json tree = post("/v1/completions", fields + "12}").json();
  const Json plain = post("/v1/completions", fields + "0}").json();
  EXPECT_EQ(dig(tree, "choices", 0), dig(plain, "choices", 0));
  double lowest = 0;
  for (const Json& value : dig(tree, "choices", 0, "logprobs", "token_logprobs").as_array())
    lowest = std::min(lowest, value.as_double());
  EXPECT_LT(lowest, -0.001) << "not all zero";
}

// G2: a turn that was cut off leaves nothing behind: the same turn again equals a cold one.
TEST_F(FieldBugsTest, ATurnAfterACutOneEqualsAColdOne) {
  const std::string turn =
      R"({"temperature":0,"max_tokens":60,"messages":[{"role":"user","content":"Count to ten."},{"role":"assistant","content":"1 2 3"},)"
      R"({"role":"user","content":"Go on, and tell me what a prefix cache of a language model is good for."}])";
  const auto ask_turn = [&](const std::string& more) {
    return write_json(dig(post("/v1/chat/completions", turn + more + "}").json(), "choices"));
  };
  const std::string cold = ask_turn(",\"cache_salt\":\"cold\"");
  ASSERT_NE(cold, "null");
  for (int i = 0; i < 6; ++i) {
    OpenRequest request(server_->port(), "POST", "/v1/chat/completions",
                        turn + ",\"stream\":true}");
    if (i % 2 == 0) {
      ASSERT_TRUE(request.wait_for("data: "));
    }
    request.reset();
  }
  ASSERT_TRUE(idle());
  EXPECT_EQ(ask_turn(""), cold);
}

// G11: refused requests leave nothing behind, however many and of whatever kind.
TEST_F(FieldBugsTest, RefusedRequestsLeaveNothingBehind) {
  const std::vector<std::string> bad = {R"({"prompt":""})",
                                        R"({"prompt":"a","temperature":-1})",
                                        R"({"prompt":"a","n":0})",
                                        R"({"prompt":[9999999]})",
                                        R"({"prompt":"a","max_tokens":5000})",
                                        R"({"prompt":"a","logit_bias":{"x":1}})",
                                        R"({"prompt":)" + ids(3000) + "}",
                                        R"({"prompt":"a","guided_regex":"("})"};
  const std::string good = R"({"prompt":"def f","temperature":0,"max_tokens":4})";
  const std::string expected =
      text_at(dig(post("/v1/completions", good).json(), "choices", 0, "text"));
  for (int round = 0; round < 20; ++round) {
    for (const std::string& body : bad) {
      const int status = post("/v1/completions", body).status;
      EXPECT_TRUE(status == 400 || status == 501) << body.substr(0, 60);
    }
    EXPECT_EQ(text_at(dig(post("/v1/completions", good).json(), "choices", 0, "text")), expected);
  }
  ASSERT_TRUE(idle());
  EXPECT_EQ(server_->status().metrics.num_waiting, 0);
}

// G12: resets at any moment: behind the head, within a stream, before an error is read.
TEST_F(FieldBugsTest, ResetsAtAnyMoment) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const bool fails = i % 3 == 0;
    OpenRequest request(
        server_->port(), "POST", "/v1/completions",
        fails ? "{" : R"({"prompt":"def f","max_tokens":200,"ignore_eos":true,"stream":true})");
    if (!fails && i % 2 == 0) request.wait_for("data: ");
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    request.reset();
  }
  ASSERT_TRUE(idle());
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","max_tokens":2})").status, 200);
}

// G5: clients that send their heads byte by byte hold nobody up.
TEST_F(FieldBugsTest, SlowHeadsHoldNobodyUp) {
  std::vector<std::unique_ptr<OpenRequest>> slow;
  for (int i = 0; i < 200; ++i)
    slow.push_back(std::make_unique<OpenRequest>(
        server_->port(), "POST",
        "/v1/completions HTTP/1.1\r\nX: y\r\nContent-Length: 9999\r\nZ:", ""));
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","max_tokens":2})").status, 200);
}

}  // namespace
}  // namespace coppice
