// The whole server: clients that leave, overload, shutting down, keys, information routes.
#include "server/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

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

const std::string kLong =
    R"({"prompt":"def f","max_tokens":900,"ignore_eos":true,"temperature":0,"stream":true})";

std::string stream_of(int tokens) {
  return R"({"prompt":"def f","ignore_eos":true,"temperature":0,"stream":true,"max_tokens":)" +
         std::to_string(tokens) + "}";
}

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  }
};

TEST_F(ServerTest, ClientsThatLeaveFreeTheirCache) {
  ServerOptions options = testing::tiny_options();
  options.engine.enable_prefix_caching = false;
  const auto server = testing::start_tiny(options);
  for (int i = 0; i < 24; ++i) {
    OpenRequest request(server->port(), "POST", "/v1/completions", kLong);
    if (i % 4 != 0) {
      ASSERT_TRUE(request.wait_for("data: "));
    }
    if (i % 2 == 0) request.reset();
  }
  ASSERT_TRUE(eventually([&] { return server->status().in_flight == 0; }));
  EXPECT_TRUE(eventually([&] { return server->status().metrics.num_kv_blocks_used == 0; }));
  EXPECT_EQ(ask(server->port(), "POST", "/v1/completions", stream_of(3)).status, 200);
}

void expect_refusal(const Answer& answer) {
  EXPECT_NE(answer.head.find("Retry-After: 1"), std::string::npos);
  EXPECT_EQ(text_at(dig(answer.json(), "error", "type")), "RateLimitError");
}

TEST_F(ServerTest, OverloadIsRefusedWithRetryAfterAndLosesNone) {
  ServerOptions options = testing::tiny_options();
  options.engine.max_num_seqs = 2;
  options.loop.max_queued_requests = 4;
  const auto server = testing::start_tiny(options);
  // Six long answers fill it. Should they end before one more request comes: once more.
  ASSERT_TRUE(eventually([&] {
    if (server->status().in_flight > 0) return false;
    OpenRequest six(server->port(), "POST", "/v1/completions",
                    R"({"n":6,"ddtree_budget":0,)" + kLong.substr(1));
    EXPECT_TRUE(six.wait_for("data: "));
    const Answer answer = ask(server->port(), "POST", "/v1/completions", stream_of(1));
    if (answer.status != 429) return false;
    expect_refusal(answer);
    return true;
  }));
  ASSERT_TRUE(eventually([&] { return server->status().in_flight == 0; }));
  std::vector<std::future<Answer>> answers;
  for (int i = 0; i < 60; ++i)
    answers.push_back(std::async(std::launch::async, [port = server->port()] {
      return ask(port, "POST", "/v1/completions", stream_of(60));
    }));
  int served = 0;
  for (auto& pending : answers) {
    const Answer answer = pending.get();
    if (answer.status == 429) {
      expect_refusal(answer);
    } else {
      ++served;
      EXPECT_EQ(answer.status, 200);
      EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
    }
  }
  EXPECT_GE(served, 6);
}

TEST_F(ServerTest, DrainFinishesStreams) {
  const auto server = testing::start_tiny(testing::tiny_options());
  const std::uint16_t port = server->port();
  std::vector<std::unique_ptr<OpenRequest>> streams;
  for (int i = 0; i < 12; ++i)
    streams.push_back(
        std::make_unique<OpenRequest>(port, "POST", "/v1/completions", stream_of(150)));
  for (const auto& stream : streams) ASSERT_TRUE(stream->wait_for("data: "));
  auto drained = std::async(std::launch::async, [&] { return server->drain(testing::kPatience); });
  ASSERT_TRUE(eventually([&] { return server->status().state == EngineState::kDraining; }));
  // Until the last answer has ended; then the port closes.
  const auto refuses = [&](const std::string& method, const std::string& path,
                           const std::string& body) {
    int status = 0;
    try {
      status = ask(port, method, path, body).status;
    } catch (const std::runtime_error&) {  // nobody listens
    }
    return status == 503 || (status == 0 && server->status().in_flight == 0);
  };
  EXPECT_TRUE(refuses("GET", "/health", ""));
  EXPECT_TRUE(refuses("POST", "/v1/completions", stream_of(1)));
  for (const auto& stream : streams)
    EXPECT_TRUE(stream->finish().body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(drained.get());
}

TEST_F(ServerTest, DrainEndsLateStreamsWithAnError) {
  const auto server = testing::start_tiny(testing::tiny_options());
  // 100 choices: work for much longer than a millisecond, however late the drain begins.
  OpenRequest stream(server->port(), "POST", "/v1/completions", R"({"n":100,)" + kLong.substr(1));
  ASSERT_TRUE(stream.wait_for("data: "));
  EXPECT_FALSE(server->drain(std::chrono::milliseconds(1)));
  const Answer answer = stream.finish();
  EXPECT_NE(answer.body.find("the server is shutting down"), std::string::npos);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, InformationAndKeys) {
  ServerOptions options = testing::tiny_options();
  options.router.api_keys = {"secret"};
  options.model.names = {"first", "org/second"};
  const auto server = testing::start_tiny(options);
  const std::uint16_t port = server->port();
  const std::string key = "Authorization: Bearer secret\r\n";
  for (const char* path : {"/health", "/ping", "/health/live", "/health/ready", "/version"})
    EXPECT_EQ(ask(port, "GET", path).status, 200) << path;
  for (const char* path : {"/v1/models", "/metrics", "/server_info", "/tokenizer_info"}) {
    EXPECT_EQ(ask(port, "GET", path).status, 401) << path;
    EXPECT_EQ(ask(port, "GET", path, "", key).status, 200) << path;
  }
  const Json models = ask(port, "GET", "/v1/models", "", key).json();
  EXPECT_EQ(text_at(dig(models, "data", 1, "id")), "org/second");
  EXPECT_EQ(dig(models, "data", 0, "max_model_len"), Json(1024));
  EXPECT_EQ(ask(port, "GET", "/v1/models/org/second", "", key).status, 200);
  EXPECT_EQ(ask(port, "GET", "/v1/models/third", "", key).status, 404);
  ask(port, "POST", "/v1/completions", stream_of(20), key);
  // The last chunk leaves before its step ends, and gauges are taken behind the step.
  ASSERT_TRUE(eventually([&] { return server->status().metrics.num_finished == 1; }));
  const std::string metrics = ask(port, "GET", "/metrics", "", key).body;
  for (const char* line :
       {"vllm:num_requests_running{model_name=\"first\",engine=\"0\"} 0",
        "vllm:generation_tokens_total{model_name=\"first\",engine=\"0\"} 20",
        "vllm:request_success_total{model_name=\"first\",engine=\"0\",finished_reason=\"length\"} "
        "1",
        "vllm:time_to_first_token_seconds_count{model_name=\"first\",engine=\"0\"} 1",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"first\",engine=\"0\","
        "position=\"0\"}",
        "coppice:round_verb_seconds_total{model_name=\"first\",engine=\"0\",verb=\"verify\"}"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << "\n" << metrics;
}

// At once, after the tokenizer, in the middle of the weights, and just when all is there.
TEST_F(ServerTest, MayGoWhileItStillLoads) {
  for (const std::int64_t progress_calls : {0, 1, 5, 1'000'000}) {
    std::atomic<std::int64_t> calls{0};
    ServerOptions options = testing::tiny_options();
    options.on_progress = [&](std::int64_t, std::int64_t) { ++calls; };
    Server server(options);
    EXPECT_TRUE(eventually([&] {
      return calls >= progress_calls || server.wait_until_loaded(std::chrono::seconds(0));
    }));
  }
}

// The port is open at once; whoever comes while the weights are read hears how far that is.
TEST_F(ServerTest, SaysHowFarItIsWhileItLoads) {
  std::promise<void> go;
  ServerOptions options = testing::tiny_options();
  options.on_progress = [held = go.get_future().share()](std::int64_t, std::int64_t) {
    held.wait();
  };
  Server server(options);
  const bool loading = eventually([&] { return server.status().phase == "loading weights"; });
  EXPECT_EQ(ask(server.port(), "GET", "/health").status, 503);
  EXPECT_EQ(ask(server.port(), "GET", "/health/live").status, 200);
  const Answer answer = ask(server.port(), "POST", "/v1/completions", stream_of(1));
  go.set_value();
  ASSERT_TRUE(loading);
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("Loading model: loading weights, "), std::string::npos) << answer.body;
  while (!server.wait_until_loaded(testing::kPatience)) {
  }
  EXPECT_EQ(ask(server.port(), "POST", "/v1/completions", stream_of(1)).status, 200);
}

TEST(ServerLoadTest, SaysWhyTheModelCannotBeLoaded) {
  ServerOptions options = testing::tiny_options();
  options.engine.model = "no/such/folder";
  options.engine.speculative_model.clear();
  Server server(options);
  EXPECT_THROW(
      {
        while (!server.wait_until_loaded(std::chrono::seconds(10))) {
        }
      },
      Error);
  EXPECT_EQ(ask(server.port(), "GET", "/health").status, 503);
  EXPECT_EQ(ask(server.port(), "GET", "/health/live").status, 503);
  EXPECT_EQ(ask(server.port(), "POST", "/v1/completions", R"({"prompt":"a"})").status, 503);
}

}  // namespace
}  // namespace coppice
