#include "server/http_router.h"

#include <algorithm>
#include <optional>

#include "base/ascii.h"
#include "server/api_error.h"
#include "server/event_stream.h"
#include "server/http_text.h"

namespace coppice {
namespace {

constexpr std::string_view kJson = "application/json";

// Adds the router's headers to whatever a handler sends.
class HeaderResponder final : public HttpResponder {
 public:
  HeaderResponder(std::shared_ptr<HttpResponder> inner, HttpHeaders headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}

  void send(int status, std::string_view content_type, std::string body,
            const HttpHeaders& headers) override {
    inner_->send(status, content_type, std::move(body), merged(headers));
  }
  void begin_stream(int status, std::string_view content_type,
                    const HttpHeaders& headers) override {
    inner_->begin_stream(status, content_type, merged(headers));
  }
  void write(std::string_view piece) override { inner_->write(piece); }
  void end() override { inner_->end(); }
  void keep_alive_with(std::string_view content_type, const HttpHeaders& headers,
                       std::string comment) override {
    inner_->keep_alive_with(content_type, merged(headers), std::move(comment));
  }
  void on_disconnect(std::function<void()> callback) override {
    inner_->on_disconnect(std::move(callback));
  }

 private:
  HttpHeaders merged(HttpHeaders headers) const {
    headers.insert(headers.end(), headers_.begin(), headers_.end());
    return headers;
  }

  std::shared_ptr<HttpResponder> inner_;
  HttpHeaders headers_;
};

// What "/*" at the end of the pattern stands for; "" for an exact match; nothing when the path does
// not match.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("/*"))
    return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view prefix = pattern.substr(0, pattern.size() - 1);
  if (!path.starts_with(prefix) || path.size() == prefix.size()) return std::nullopt;
  return path.substr(prefix.size());
}

// Takes the same time wherever the first difference lies.
bool equal_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |=
        static_cast<unsigned char>(a[i]) ^
        static_cast<unsigned>(static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

// 127.x.x.x in digits: a name like 127.0.0.1.example.com resolves to whatever its owner wants.
bool is_loopback_address(std::string_view host) {
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos;
}

std::string_view presented_key(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = request.header("authorization");
  if (lower_case(authorization.substr(0, kBearer.size())) == kBearer)
    return authorization.substr(kBearer.size());
  return request.header("x-api-key");
}

// Every header that the page asks for: clients add their own (the OpenAI SDK's x-stainless-...).
std::string allowed_headers(const HttpRequest& request) {
  const std::string_view asked = request.header("access-control-request-headers");
  const auto fits_a_list = [](char c) {
    const char lower = ascii_lower(c);
    return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("-_, ").find(c) != std::string_view::npos;
  };
  if (asked.empty() || !std::all_of(asked.begin(), asked.end(), fits_a_list))
    return "authorization, content-type, x-api-key, x-request-id, traceparent, "
           "anthropic-version, anthropic-beta";
  return std::string(asked);
}

}  // namespace

int http_status(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return 400;
    case ErrorKind::kNotFound:
      return 404;
    case ErrorKind::kUnsupported:
      return 501;
    case ErrorKind::kUnavailable:
      return 503;
    case ErrorKind::kBadFile:
    case ErrorKind::kOutOfMemory:
      return 500;
  }
  return 500;
}

void HttpRouter::add(std::string method, std::string pattern, Access access, Handler handler) {
  routes_.push_back({std::move(method), std::move(pattern), access, std::move(handler)});
}

std::vector<std::string> HttpRouter::route_names() const {
  std::vector<std::string> names;
  for (const Route& route : routes_) names.push_back(route.method + " " + route.pattern);
  return names;
}

bool HttpRouter::authorized(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  const std::string_view presented = presented_key(request);
  bool found = false;
  for (const std::string& key : options_.api_keys)
    found = equal_constant_time(key, presented) || found;
  return found;
}

bool HttpRouter::host_allowed(const HttpRequest& request) const {
  if (!options_.check_loopback_host) return true;
  std::string_view host = request.header("host");
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1) == "[::1]";
  host = host.substr(0, host.find(':'));
  return host.empty() || lower_case(host) == "localhost" || is_loopback_address(host);
}

HttpHeaders HttpRouter::common_headers(const HttpRequest& request) const {
  HttpHeaders headers;
  const std::string_view origin = request.header("origin");
  const auto allows = [&](const std::string& allowed) {
    return allowed == "*" || allowed == origin;
  };
  if (!origin.empty() &&
      std::any_of(options_.allowed_origins.begin(), options_.allowed_origins.end(), allows)) {
    headers.emplace_back("Access-Control-Allow-Origin", origin);
    headers.emplace_back("Vary", "Origin");
  }
  // A header value with control characters would let a client write our response head.
  const auto pass_through = [&](std::string_view lower_case_name, const char* name) {
    const std::string_view value = request.header(lower_case_name);
    if (!value.empty() && value.size() <= 256 &&
        std::all_of(value.begin(), value.end(), [](char c) { return c >= 0x20 && c < 0x7f; }))
      headers.emplace_back(name, value);
  };
  pass_through("x-request-id", "X-Request-Id");
  pass_through("traceparent", "traceparent");
  return headers;
}

void HttpRouter::handle(const HttpRequest& request,
                        const std::shared_ptr<HttpResponder>& plain_responder) const {
  const auto responder =
      std::make_shared<HeaderResponder>(plain_responder, common_headers(request));
  const auto refuse = [&](int status, const std::string& message, const HttpHeaders& headers = {}) {
    responder->send(status, kJson, error_body(status, message), headers);
  };
  if (!host_allowed(request))
    return refuse(403, "the Host header names another machine; this server listens on loopback");
  if (request.method == "OPTIONS" && !request.header("origin").empty())
    return responder->send(204, "", "",
                           {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                            {"Access-Control-Allow-Headers", allowed_headers(request)},
                            {"Access-Control-Max-Age", "600"}});
  if (const std::string_view coding = request.header("content-encoding");
      !coding.empty() && lower_case(coding) != "identity")
    return refuse(415, "Content-Encoding: bodies are read as they are, without compression");
  std::string allowed_methods;
  for (const Route& route : routes_) {
    const std::optional<std::string_view> tail = match(route.pattern, request.path);
    if (!tail) continue;
    const bool head_of_get = request.method == "HEAD" && route.method == "GET";
    if (route.method != request.method && !head_of_get) {
      allowed_methods += (allowed_methods.empty() ? "" : ", ") + route.method;
      continue;
    }
    if (route.access == Access::kGuarded && !authorized(request))
      return refuse(401, "missing or wrong API key (Authorization: Bearer KEY, or x-api-key)",
                    {{"WWW-Authenticate", "Bearer"}});
    try {
      return route.handler(request, *tail, responder);
    } catch (const std::exception& error) {
      return send_error(*responder, to_api_error(error));
    }
  }
  if (!allowed_methods.empty())
    return refuse(405, request.method + " is not allowed for " + request.path,
                  {{"Allow", allowed_methods}});
  refuse(404, "no such endpoint: " + request.method + " " + request.path);
}

}  // namespace coppice
