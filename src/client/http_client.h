// An HTTP/1.1 client for many requests at once on the calling thread. One connection a request;
// names are resolved once. Boost.Beast stays inside the .cpp. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice {

// http://HOST[:PORT][/PREFIX]. Other schemes are refused: put a proxy in front for TLS.
struct Url {
  std::string host;
  std::uint16_t port = 80;
  std::string prefix;  // path without a trailing slash
};

// "localhost:8000" counts as http://localhost:8000. Throws Error(kInvalidArgument) naming `flag`.
Url parse_url(const std::string& text, const std::string& flag);

struct HttpCall {
  std::string method = "GET";
  std::string path = "/";  // behind the prefix of the URL
  std::string body = {};   // sent as application/json when not empty
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::chrono::milliseconds timeout{std::chrono::hours(6)};  // of the whole exchange
};

struct HttpReply {
  int status = 0;                                           // 0: no answer, `error` says why
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case
  std::string body;                                         // empty when pieces were asked for
  std::string error;  // cause when the exchange did not come to its end
  bool ok() const { return error.empty() && status >= 200 && status < 300; }
};

class HttpClient {
 public:
  // Throws Error(kUnavailable) when the host has no address.
  explicit HttpClient(Url url, std::vector<std::pair<std::string, std::string>> headers = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // A piece of a successful answer's body. Returning false leaves: the connection closes at once.
  using OnPiece = std::function<bool(std::string_view piece)>;
  using OnEnd = std::function<void(const HttpReply& reply)>;

  // Both may start further calls. With on_piece empty the body is collected.
  void start(HttpCall call, OnPiece on_piece, OnEnd on_end);
  void after(std::chrono::nanoseconds delay, std::function<void()> callback);
  // Runs callbacks until no call and no timer is left.
  void run();

  // One call, waited for; only while nothing else is running.
  HttpReply fetch(HttpCall call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice
