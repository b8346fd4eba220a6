// The client against the real HTTP server with a handler of the test's own.
#include "client/load_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "client/batch_file.h"
#include "server/http_server.h"
#include "tests/support/eventually.h"

namespace coppice {
namespace {

HttpServerOptions any_port() {
  HttpServerOptions options;
  options.port = 0;
  return options;
}

HttpClient client_of(const HttpServer& server) {
  return HttpClient(Url{.host = "127.0.0.1", .port = server.port(), .prefix = "/p"});
}

std::vector<BenchPrompt> prompts(std::size_t count) {
  std::vector<BenchPrompt> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back({.text = std::to_string(i), .num_tokens = 1, .output_len = 3});
  return all;
}

constexpr const char* kChunk = "data: {\"choices\": [{\"text\": \"x\"}]}\n\n";
constexpr const char* kUsage =
    "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 3}}\n\ndata: [DONE]\n\n";

TEST(UrlTest, Parses) {
  EXPECT_EQ(parse_url("http://a:81/b/", "--x").prefix, "/b");
  EXPECT_EQ(parse_url("localhost:8000", "--x").port, 8000);
  EXPECT_EQ(parse_url("http://[::1]:9", "--x").host, "::1");
  for (const char* bad : {"https://a", "http://", "http://a:x", "http://a:70000"})
    EXPECT_THROW(parse_url(bad, "--x"), Error) << bad;
}

TEST(ArrivalTimesTest, HaveTheRate) {
  for (const double burstiness : {0.3, 1.0, 5.0}) {
    const auto times = arrival_times(500, 20, burstiness, 7);
    EXPECT_NEAR(times.back(), 25, 1e-9);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_EQ(times, arrival_times(500, 20, burstiness, 7));
    EXPECT_NE(times, arrival_times(500, 20, burstiness, 8));
  }
  EXPECT_EQ(arrival_times(3, std::numeric_limits<double>::infinity(), 1, 0),
            std::vector<double>(3, 0.0));
  EXPECT_THROW(arrival_times(3, 0, 1, 0), Error);
}

TEST(LoadGeneratorTest, MeasuresStreamsWithinTheLimit) {
  std::atomic<int> running{0}, most{0}, count{0};
  HttpServer server(any_port(), [&](const HttpRequest& request, auto responder) {
    EXPECT_EQ(request.path, "/p/v1/completions");
    EXPECT_NE(request.body.find("\"max_tokens\":3"), std::string::npos) << request.body;
    EXPECT_NE(request.body.find("\"top_k\":1"), std::string::npos) << request.body;
    most = std::max<int>(most, ++running);
    std::thread([&, responder, kind = count++ % 3] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      --running;
      if (kind == 1) return responder->send(429, "text/plain", "full");
      responder->begin_stream(200, "text/event-stream");
      responder->write(std::string(": ping\n\n") + kChunk);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      responder->write(kChunk);
      if (kind == 0) responder->write(kUsage);
      responder->end();
    }).detach();
  });
  HttpClient client = client_of(server);
  double seconds = 0;
  std::int64_t last_done = 0;
  const auto results = run_load(client, prompts(30),
                                {.max_concurrency = 4, .extra_body = Json::object({{"top_k", 1}})},
                                seconds, [&](std::int64_t done) { last_done = done; });
  EXPECT_LE(most, 4);
  EXPECT_EQ(last_done, 30);
  int good = 0, refused = 0, cut = 0;
  for (const LoadResult& result : results) {
    if (result.success) {
      ++good;
      EXPECT_EQ(result.output_len, 3);
      EXPECT_EQ(result.text, "xx");
      ASSERT_EQ(result.itl_s.size(), 1u);
      EXPECT_GT(result.ttft_s, 0);
      EXPECT_NEAR(result.latency_s, result.ttft_s + result.itl_s[0], 1e-9);
    }
    refused += result.error == "HTTP 429: full" ? 1 : 0;
    cut += result.error == "the stream ended without [DONE]" ? 1 : 0;
  }
  EXPECT_EQ(good, 10);
  EXPECT_EQ(refused, 10);
  EXPECT_EQ(cut, 10);
}

// Chunks of several tokens: the times are of them, not of a role in front nor of the end behind.
TEST(LoadGeneratorTest, OnlyChunksWithTokensAreTimed) {
  const auto delta = [](const std::string& content) {
    return "data: {\"choices\":[{\"delta\":{" + content + "}}]}\n\n";
  };
  HttpServer server(any_port(), [&](const HttpRequest&, auto responder) {
    std::thread([&, responder] {
      responder->begin_stream(200, "text/event-stream");
      responder->write(delta(R"("role":"assistant","content":"")"));
      for (int i = 0; i < 3; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        responder->write(delta(i == 1 ? R"("tool_calls":[{"index":0}])" : R"("content":"four")"));
      }
      responder->write(delta(R"("content":"")"));
      responder->write(kUsage);
      responder->end();
    }).detach();
  });
  HttpClient client = client_of(server);
  double seconds = 0;
  const auto results = run_load(client, prompts(1), {.chat = true}, seconds);
  ASSERT_TRUE(results[0].success) << results[0].error;
  EXPECT_GE(results[0].ttft_s, 0.03);
  EXPECT_EQ(results[0].itl_s.size(), 2u);
  EXPECT_EQ(results[0].text, "fourfour");
}

TEST(HttpClientTest, LeavesAndSaysWhatFailed) {
  std::mutex mutex;
  std::condition_variable changed;
  bool left = false;
  HttpServer server(any_port(), [&](const HttpRequest&, auto responder) {
    responder->on_disconnect([&] {
      const std::lock_guard lock(mutex);
      left = true;
      changed.notify_all();
    });
    responder->begin_stream(200, "text/plain");
    responder->write("piece");
  });
  HttpClient client = client_of(server);
  std::string seen;
  client.start(
      {.path = "/"}, [&](std::string_view piece) { return seen += piece, false; },
      [](const HttpReply& reply) { EXPECT_EQ(reply.error, ""); });
  client.run();
  EXPECT_EQ(seen, "piece");
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, testing::kPatience, [&] { return left; }));
  lock.unlock();

  // The answer never ends. A limit may be over before it begins: a longer one, then.
  HttpReply slow;
  for (std::chrono::milliseconds limit(30); limit < testing::kPatience; limit *= 2) {
    slow = client.fetch({.path = "/", .timeout = limit});
    if (slow.status != 0) break;
  }
  EXPECT_NE(slow.error.find("cut off"), std::string::npos) << slow.error;
  HttpClient nobody(Url{.host = "127.0.0.1", .port = 1, .prefix = ""});
  EXPECT_NE(nobody.fetch({}).error.find("cannot connect"), std::string::npos);
}

TEST(BatchFileTest, AnswersInOrderAndSendsRefusedOnesAgain) {
  std::atomic<int> count{0};
  HttpServer server(any_port(), [&](const HttpRequest& request, auto responder) {
    if (count++ == 0) return responder->send(429, "application/json", "{}", {{"Retry-After", "1"}});
    if (request.body.find("bad") != std::string::npos)
      return responder->send(400, "application/json", R"({"error": {"code": 400}})");
    responder->send(200, "application/json", R"({"echo": )" + request.body + "}");
  });
  const auto lines = read_batch(
      R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "1"}})"
      "\n\n"
      R"({"custom_id": "b", "url": "/v1/completions", "body": {"prompt": "bad"}})"
      "\n"
      R"({"custom_id": "c", "url": "/v1/chat/completions", "body": {"prompt": "3"}})",
      "in.jsonl");
  HttpClient client = client_of(server);
  std::vector<Json> answers;
  const BatchCounts counts = run_batch_lines(client, lines, 2, [&](const std::string& line) {
    answers.push_back(parse_json(line, "answer"));
  });
  EXPECT_EQ(counts.answered, 2);
  EXPECT_EQ(counts.failed, 1);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].find("custom_id")->as_string(), "a");
  EXPECT_EQ(answers[1].find("response")->find("status_code")->as_int(), 400);
  EXPECT_TRUE(answers[1].find("error")->is_object());
  EXPECT_TRUE(answers[2].find("error")->is_null());
  EXPECT_EQ(write_json(*answers[2].find("response")->find("body")), R"({"echo":{"prompt":"3"}})");
}

TEST(BatchFileTest, RefusesBadLinesNamingThem) {
  const std::string good =
      R"({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "1"}})";
  EXPECT_THROW(read_batch(good + "\n" + good, "x"), Error);  // one id twice
  for (const char* bad : {"{", R"({"custom_id": "a", "url": "http://x", "body": {}})",
                          R"({"custom_id": "a", "url": "/v1/x HTTP/1.1\r\nY: z", "body": {}})",
                          R"({"custom_id": "a", "url": "/v1/completions"})",
                          R"({"url": "/v1/completions", "body": {}})",
                          R"({"custom_id": "a", "method": "GET", "url": "/v1/x", "body": {}})",
                          R"({"custom_id": "a", "url": "/v1/x", "body": {}, "metod": "POST"})",
                          R"({"custom_id": "a", "url": "/v1/x", "body": {"stream": true}})"}) {
    try {
      read_batch("\n" + std::string(bad), "in.jsonl");
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("in.jsonl line 2"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace coppice
