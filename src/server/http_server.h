// An HTTP/1.1 server on one or two IO threads: keep-alive, chunked streaming with back-pressure,
// body and time limits, notice of clients that leave. It knows nothing of routes;
// server/http_router.h does. Boost.Beast stays inside the .cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice {

struct HttpRequest {
  std::string method;                                       // "GET"
  std::string path;                                         // decoded, without the query
  std::string query;                                        // raw, after '?'
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case
  std::string body;
  std::string remote_address;

  // The header's value, or "" when absent.
  std::string_view header(std::string_view lower_case_name) const;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The answer to one request. Thread-safe: any thread writes while the IO thread sends.
// Exactly one of send or begin_stream .. end is called; calls after the client left are ignored.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;

  // A whole response.
  virtual void send(int status, std::string_view content_type, std::string body,
                    const HttpHeaders& headers = {}) = 0;

  // A response in pieces; each piece reaches the client as soon as the socket takes it. A client
  // that does not read is cut off when more than max_buffered_bytes wait for it.
  virtual void begin_stream(int status, std::string_view content_type,
                            const HttpHeaders& headers = {}) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end() = 0;
  // A stream is to come: while nothing is sent for HttpServerOptions::silence, `comment` is, behind
  // a head made of these if the stream has not begun. A later send() then goes out as one piece of
  // the stream, "data: BODY" and an empty line.
  virtual void keep_alive_with(std::string_view content_type, const HttpHeaders& headers,
                               std::string comment) = 0;

  // Called once, on an IO thread, if the client leaves before the response is complete; at once if
  // it left already.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: any free port
  int num_io_threads = 1;
  int backlog = 4096;
  std::chrono::milliseconds silence{15'000};  // of a stream, before a keep-alive goes out
  std::size_t max_body_bytes = std::size_t{64} << 20;
  std::size_t max_header_bytes = std::size_t{32} << 10;
  std::size_t max_buffered_bytes = std::size_t{4} << 20;  // per connection
  std::chrono::seconds read_timeout{30};                  // for a request that has begun to arrive
  std::chrono::seconds keep_alive_timeout{60};            // between requests
  std::chrono::seconds write_timeout{30};                 // for a client that does not read
};

class HttpServer {
 public:
  // Runs on an IO thread: must not block. The responder may be kept and used from any thread.
  using Handler =
      std::function<void(HttpRequest request, std::shared_ptr<HttpResponder> responder)>;

  // Binds and starts to serve. Throws Error(kUnavailable) naming address and cause.
  HttpServer(HttpServerOptions options, Handler handler);
  ~HttpServer();  // stops at once
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  std::size_t num_connections() const;

  // Refuses new connections and closes idle ones; waits until running responses are complete or the
  // time is over. True if all were complete.
  bool drain(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The reason phrase of a status code.
std::string_view http_reason(int status);

}  // namespace coppice
