#include "server/http_router.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

// Keeps what a handler sends.
struct Recorder final : HttpResponder {
  int status = 0;
  std::string body;
  HttpHeaders headers;

  void send(int code, std::string_view, std::string text, const HttpHeaders& fields) override {
    status = code;
    body = std::move(text);
    headers = fields;
  }
  void begin_stream(int code, std::string_view, const HttpHeaders& fields) override {
    status = code;
    headers = fields;
  }
  void write(std::string_view piece) override { body += piece; }
  void end() override {}
  void keep_alive_with(std::string_view, const HttpHeaders&, std::string) override {}
  void on_disconnect(std::function<void()>) override {}

  std::string header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
};

HttpRouter test_router(RouterOptions options = {}) {
  HttpRouter router(std::move(options));
  router.add("GET", "/health", HttpRouter::Access::kOpen,
             [](const auto&, auto, const auto& responder) { responder->send(200, "", "ok"); });
  router.add("GET", "/v1/models/*", HttpRouter::Access::kGuarded,
             [](const auto&, std::string_view tail, const auto& responder) {
               responder->send(200, "", std::string(tail));
             });
  router.add("POST", "/v1/fail", HttpRouter::Access::kGuarded, [](const auto&, auto, const auto&) {
    throw Error(ErrorKind::kUnsupported, "field 'x': not here");
  });
  return router;
}

std::shared_ptr<Recorder> ask(const HttpRouter& router, std::string method, std::string path,
                              std::map<std::string, std::string, std::less<>> headers = {}) {
  HttpRequest request;
  request.method = std::move(method);
  request.path = std::move(path);
  request.headers = std::move(headers);
  const auto recorder = std::make_shared<Recorder>();
  router.handle(request, recorder);
  return recorder;
}

TEST(HttpRouterTest, FindsRoutesTailsAndMissingOnes) {
  const HttpRouter router = test_router();
  EXPECT_EQ(ask(router, "GET", "/health")->body, "ok");
  EXPECT_EQ(ask(router, "GET", "/v1/models/org/name")->body, "org/name");
  EXPECT_EQ(ask(router, "GET", "/v1/models/")->status, 404);
  EXPECT_EQ(ask(router, "GET", "/nowhere")->status, 404);
  const auto wrong_method = ask(router, "DELETE", "/health");
  EXPECT_EQ(wrong_method->status, 405);
  EXPECT_EQ(wrong_method->header("Allow"), "GET");
}

TEST(HttpRouterTest, ErrorsBecomeResponses) {
  const auto answer = ask(test_router(), "POST", "/v1/fail");
  EXPECT_EQ(answer->status, 501);
  EXPECT_NE(answer->body.find("field 'x': not here"), std::string::npos);
}

TEST(HttpRouterTest, GuardedRoutesWantAKey) {
  RouterOptions options;
  options.api_keys = {"secret", "second"};
  const HttpRouter router = test_router(options);
  EXPECT_EQ(ask(router, "GET", "/health")->status, 200);
  EXPECT_EQ(ask(router, "GET", "/v1/models/a")->status, 401);
  EXPECT_EQ(ask(router, "GET", "/v1/models/a", {{"authorization", "Bearer secre"}})->status, 401);
  EXPECT_EQ(ask(router, "GET", "/v1/models/a", {{"authorization", "Bearer secretsecret"}})->status,
            401);
  EXPECT_EQ(ask(router, "GET", "/v1/models/a", {{"authorization", "Bearer second"}})->status, 200);
  EXPECT_EQ(ask(router, "GET", "/v1/models/a", {{"authorization", "bearer second"}})->status, 200);
  EXPECT_EQ(ask(router, "GET", "/v1/models/a", {{"authorization", "Basic second"}})->status, 401);
  EXPECT_EQ(ask(router, "GET", "/v1/models/a", {{"x-api-key", "secret"}})->status, 200);
}

TEST(HttpRouterTest, CorsRequestIdsAndLoopbackHosts) {
  RouterOptions options;
  options.check_loopback_host = true;
  const HttpRouter router = test_router(options);
  const auto answer =
      ask(router, "GET", "/health", {{"origin", "http://a"}, {"x-request-id", "7"}});
  EXPECT_EQ(answer->header("Access-Control-Allow-Origin"), "http://a");
  EXPECT_EQ(answer->header("X-Request-Id"), "7");
  EXPECT_EQ(
      ask(router, "GET", "/health", {{"x-request-id", "7\r\nEvil: 1"}})->header("X-Request-Id"),
      "");
  EXPECT_EQ(ask(router, "OPTIONS", "/v1/fail", {{"origin", "http://a"}})->status, 204);
  EXPECT_EQ(ask(router, "GET", "/health", {{"host", "127.0.0.1:8000"}})->status, 200);
  EXPECT_EQ(ask(router, "GET", "/health", {{"host", "LocalHost:8000"}})->status, 200);
  EXPECT_EQ(ask(router, "GET", "/health", {{"host", "[::1]:8000"}})->status, 200);
  for (const char* other :
       {"evil.example", "127.0.0.1.evil.example", "127.evil.example:8000", "[::11]"})
    EXPECT_EQ(ask(router, "GET", "/health", {{"host", other}})->status, 403) << other;
}

TEST(HttpRouterTest, APageMaySendTheHeadersOfItsClient) {
  const HttpRouter router = test_router();
  const auto allowed = [&](const std::string& asked) {
    return ask(router, "OPTIONS", "/v1/fail",
               {{"origin", "http://a"}, {"access-control-request-headers", asked}})
        ->header("Access-Control-Allow-Headers");
  };
  EXPECT_EQ(allowed("authorization, x-stainless-os"), "authorization, x-stainless-os");
  EXPECT_EQ(allowed("a\r\nEvil: 1").find("Evil"), std::string::npos);
  EXPECT_NE(allowed("").find("authorization"), std::string::npos);
}

TEST(HttpRouterTest, CompressedBodiesAreRefusedByName) {
  const HttpRouter router = test_router();
  EXPECT_EQ(ask(router, "POST", "/v1/fail", {{"content-encoding", "gzip"}})->status, 415);
  EXPECT_EQ(ask(router, "POST", "/v1/fail", {{"content-encoding", "Identity"}})->status, 501);
}

}  // namespace
}  // namespace coppice
