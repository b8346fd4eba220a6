// Routes of the HTTP API: method and path to handler, API keys, CORS, request ids, and the error
// shape for everything else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/http_server.h"

namespace coppice {

// 400, 404, 501, 503 ... as the kinds in base/error.h say.
int http_status(ErrorKind kind);

struct RouterOptions {
  std::vector<std::string> api_keys;  // any of them opens guarded routes; none: all routes are open
  std::vector<std::string> allowed_origins = {"*"};
  // On a loopback address: refuses requests whose Host header names another machine (DNS
  // rebinding).
  bool check_loopback_host = false;
};

class HttpRouter {
 public:
  // `path_tail` is what a trailing "*" of the route's pattern stood for. Thrown Errors become error
  // responses.
  using Handler = std::function<void(const HttpRequest& request, std::string_view path_tail,
                                     const std::shared_ptr<HttpResponder>& responder)>;
  enum class Access { kOpen, kGuarded };

  explicit HttpRouter(RouterOptions options) : options_(std::move(options)) {}

  // pattern: a path, or a path ending in "/*". Register everything before the server starts.
  void add(std::string method, std::string pattern, Access access, Handler handler);

  // Answers one request, or has a handler do it. Thread-safe once all routes are registered.
  void handle(const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) const;

  // "GET /v1/models", one per route, in the order of registration.
  std::vector<std::string> route_names() const;

 private:
  struct Route {
    std::string method;
    std::string pattern;
    Access access;
    Handler handler;
  };

  bool authorized(const HttpRequest& request) const;
  bool host_allowed(const HttpRequest& request) const;
  HttpHeaders common_headers(const HttpRequest& request) const;

  RouterOptions options_;
  std::vector<Route> routes_;
};

}  // namespace coppice
