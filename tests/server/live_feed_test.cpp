// GET /v1/rounds and the page's files.
#include "server/live_feed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "server/web_page.h"
#include "tests/server/support/api_client.h"
#include "tests/server/support/tiny_server.h"
#include "tests/support/sanitized.h"

namespace coppice {
namespace {

using testing::Answer;
using testing::ask;
using testing::dig;
using testing::OpenRequest;
using testing::text_at;

constexpr const char* kListen = "Accept: text/event-stream\r\n";

RoundTrace trace_of(RequestId id, std::span<const std::int32_t> emitted, bool drafted = false) {
  if (drafted)
    return {.id = id,
            .position = 3,
            .tree = {.tokens = {7, 1}, .parents = {-1, 0}, .depths = {0, 1}, .scores = {0, -1}},
            .accepted = {0, 1},
            .emitted = emitted};
  return {.id = id,
          .position = 3,
          .tree = {.tokens = {7}, .parents = {-1}, .depths = {0}, .scores = {0}},
          .accepted = {0},
          .emitted = emitted};
}

TEST(RoundWatchTest, FollowsTheNewestRequest) {
  RoundWatch watch;
  EXPECT_FALSE(watch.take().round);
  const std::vector<std::int32_t> two = {1, 2}, three = {1, 2, 3};
  watch.see(trace_of(4, two));
  watch.see(trace_of(5, three));
  watch.see(trace_of(4, two));
  watch.see(trace_of(5, two));
  const RoundWatch::Seen seen = watch.take();
  ASSERT_TRUE(seen.round);
  EXPECT_EQ(seen.round->id, 5u);
  EXPECT_EQ(seen.round->emitted, two);
  EXPECT_EQ(seen.round_tokens, (std::vector<std::int32_t>{3, 2}));
  watch.see(trace_of(4, two));
  EXPECT_EQ(watch.take().round->id, 4u) << "5 has ended";
}

TEST(RoundWatchTest, PrefersRoundsWithDrafts) {
  RoundWatch watch;
  const std::vector<std::int32_t> one = {1}, two = {1, 2};
  watch.see(trace_of(4, one));
  watch.see(trace_of(4, two, true));
  watch.see(trace_of(4, one));
  RoundWatch::Seen seen = watch.take();
  ASSERT_TRUE(seen.round);
  EXPECT_EQ(seen.round->tree.num_nodes(), 1);
  EXPECT_EQ(seen.round_tokens, (std::vector<std::int32_t>{1, 2, 1}));
  watch.see(trace_of(4, two, true));
  watch.see(trace_of(5, one));
  seen = watch.take();
  ASSERT_TRUE(seen.round);
  EXPECT_EQ(seen.round->id, 5u);
  EXPECT_EQ(seen.round->tree.num_nodes(), 0);
}

class LiveFeedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  }
};

// A legal tree whose accepted nodes spell what was emitted but its last token.
void expect_round(const Json& round) {
  const Json::Array& nodes = dig(round, "nodes").as_array();
  ASSERT_FALSE(nodes.empty());
  std::string accepted;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::int64_t parent = dig(nodes[i], "parent").as_int();
    EXPECT_EQ(parent < 0, i == 0);
    EXPECT_LT(parent, static_cast<std::int64_t>(i));
    EXPECT_LE(dig(nodes[i], "log_prob").as_double(), 0);
    if (i == 0) continue;
    const Json& above = nodes[static_cast<std::size_t>(parent)];
    EXPECT_EQ(dig(nodes[i], "depth").as_int(), dig(above, "depth").as_int() + 1);
    if (!dig(nodes[i], "accepted").as_bool()) continue;
    EXPECT_TRUE(dig(above, "accepted").as_bool());
    accepted += text_at(dig(nodes[i], "text"));
  }
  std::string emitted;
  const Json::Array& tokens = dig(round, "emitted").as_array();
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) emitted += text_at(tokens[i]);
  EXPECT_EQ(accepted, emitted);
}

constexpr int kAnswerTokens = testing::kSanitized ? 40 : 300;

TEST_F(LiveFeedTest, StreamsRoundsWhileSomebodyListensAndEndsWithTheServer) {
  const auto server = testing::start_tiny(testing::tiny_options());
  OpenRequest listener(server->port(), "GET", "/v1/rounds", "", kListen);
  // The first event is of now, the second of the first tick: from there on rounds are watched.
  ASSERT_TRUE(listener.wait_for("data: ", 2));
  OpenRequest answers(server->port(), "POST", "/v1/completions",
                      R"({"prompt":"def f","n":2,"ignore_eos":true,"max_tokens":)" +
                          std::to_string(kAnswerTokens) + "}");
  EXPECT_TRUE(listener.wait_for("\"nodes\":["));
  EXPECT_EQ(answers.finish().status, 200);
  EXPECT_TRUE(listener.wait_for("\"finished\":2"));
  EXPECT_TRUE(server->drain(testing::kPatience)) << "the listener held up the shutdown";
  const Answer answer = listener.finish();
  EXPECT_NE(answer.head.find("text/event-stream"), std::string::npos);
  std::size_t num_rounds = 0;
  std::int64_t highest = 0;
  for (const Json& event : answer.events()) {
    EXPECT_GE(dig(event, "totals", "tokens").as_int(), highest);
    highest = dig(event, "totals", "tokens").as_int();
    if (dig(event, "round").is_null()) continue;
    ++num_rounds;
    expect_round(dig(event, "round"));
    EXPECT_GT(dig(event, "round_tokens").size(), 0u);
  }
  EXPECT_GT(num_rounds, 0u);
  EXPECT_GT(highest, 0);
}

TEST_F(LiveFeedTest, ShowsOneStateToWhoDoesNotStreamAndIsGuarded) {
  ServerOptions options = testing::tiny_options();
  options.router.api_keys = {"secret"};
  const auto server = testing::start_tiny(options);
  EXPECT_EQ(ask(server->port(), "GET", "/v1/rounds").status, 401);
  EXPECT_EQ(ask(server->port(), "GET", "/v1/rounds", "", kListen).status, 401);
  const Answer answer = ask(server->port(), "GET", "/v1/rounds", "", "x-api-key: secret\r\n");
  EXPECT_EQ(answer.status, 200);
  const Json live = answer.json();
  EXPECT_EQ(text_at(dig(live, "state")), "running");
  EXPECT_GT(dig(live, "kv", "blocks").as_int(), 0);
  EXPECT_EQ(dig(live, "totals", "verb_ms").size(), kNumVerbs);
  EXPECT_TRUE(dig(live, "round").is_null());

  const Answer page = ask(server->port(), "GET", "/");
  EXPECT_EQ(page.status, 200) << "a browser has no key yet";
  EXPECT_NE(page.head.find("Content-Security-Policy: default-src 'none'"), std::string::npos);
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
}

TEST(WebFilesTest, AreWholeAndComeFromNowhereElse) {
  ASSERT_GT(web_files().size(), 3u);
  EXPECT_EQ(std::count_if(web_files().begin(), web_files().end(),
                          [](const WebFile& file) { return file.path == "/"; }),
            1);
  for (const WebFile& file : web_files()) {
    EXPECT_FALSE(file.content_type.empty()) << file.path;
    EXPECT_TRUE(file.text.ends_with("\n")) << file.path;
    EXPECT_EQ(file.text.find("https://"), std::string_view::npos) << file.path;
    // Every file that a file names is there.
    for (std::size_t at = file.text.find("/web/"); at != std::string_view::npos;
         at = file.text.find("/web/", at + 1)) {
      const std::string_view named = file.text.substr(at, file.text.find_first_of("\"'", at) - at);
      EXPECT_TRUE(std::any_of(web_files().begin(), web_files().end(),
                              [&](const WebFile& other) { return other.path == named; }))
          << file.path << " names " << named;
    }
  }
}

}  // namespace
}  // namespace coppice
