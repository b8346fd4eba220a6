// A plain HTTP client over a socket, for tests of the server: one connection per request.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/json.h"
#include "tests/support/eventually.h"

namespace coppice::testing {

struct Answer {
  int status = 0;
  std::string head, body;  // body without chunk framing

  Json json() const { return parse_json(body, "answer"); }
  // The JSON of every "data:" line but [DONE].
  std::vector<Json> events() const {
    std::vector<Json> events;
    for (std::size_t at = body.find("data: "); at != std::string::npos;
         at = body.find("data: ", at + 1)) {
      const std::string line = body.substr(at + 6, body.find("\n\n", at) - at - 6);
      if (line != "[DONE]") events.push_back(parse_json(line, "event"));
    }
    return events;
  }
};

// A request on its way; closing it early is what a client does that leaves.
class OpenRequest {
 public:
  OpenRequest(std::uint16_t port, const std::string& method, const std::string& path,
              const std::string& body, const std::string& headers = {})
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      close(fd_);
      throw std::runtime_error("cannot connect");
    }
    const timeval limit{.tv_sec = std::chrono::seconds(kPatience).count(), .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
                             "Connection: close\r\nContent-Length: " + std::to_string(body.size()) +
                             "\r\n\r\n" + body;
    send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  ~OpenRequest() { close(fd_); }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

  // Reads until `text` has come so many times, or the end; false at the end.
  bool wait_for(const std::string& text, int times = 1) {
    for (std::size_t at = 0; times > 0; --times, at += text.size()) {
      std::size_t found = 0;
      while ((found = received_.find(text, at)) == std::string::npos)
        if (!read_some()) return false;
      at = found;
    }
    return true;
  }
  Answer finish() {
    while (read_some()) {
    }
    Answer answer;
    const std::size_t end = received_.find("\r\n\r\n");
    if (end == std::string::npos) return answer;
    answer.head = received_.substr(0, end);
    answer.status = std::atoi(answer.head.c_str() + 9);
    answer.body = received_.substr(end + 4);
    if (answer.head.find("chunked") != std::string::npos) answer.body = joined(answer.body);
    return answer;
  }
  // Closes with a reset instead of an orderly end.
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  }

 private:
  bool read_some() {
    std::array<char, 8192> bytes{};
    const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
    if (count <= 0) return false;
    received_.append(bytes.data(), static_cast<std::size_t>(count));
    return true;
  }
  static std::string joined(const std::string& chunked) {
    std::string text;
    for (std::size_t at = 0; at < chunked.size();) {
      const std::size_t line = chunked.find("\r\n", at);
      const std::size_t size = std::strtoul(chunked.c_str() + at, nullptr, 16);
      if (line == std::string::npos || size == 0) break;
      text += chunked.substr(line + 2, size);
      at = line + 2 + size + 2;
    }
    return text;
  }

  int fd_;
  std::string received_;
};

inline Answer ask(std::uint16_t port, const std::string& method, const std::string& path,
                  const std::string& body = {}, const std::string& headers = {}) {
  return OpenRequest(port, method, path, body, headers).finish();
}

// The value at a path of keys and indices, or null.
template <typename... Steps>
const Json& dig(const Json& json, Steps... steps) {
  static const Json kNull;
  const Json* at = &json;
  const auto go = [&](auto step) {
    if constexpr (std::is_integral_v<decltype(step)>) {
      at = at->is_array() && static_cast<std::size_t>(step) < at->size()
               ? &at->as_array()[static_cast<std::size_t>(step)]
               : &kNull;
    } else {
      const Json* found = at->find(step);
      at = found != nullptr ? found : &kNull;
    }
  };
  (go(steps), ...);
  return *at;
}

inline std::string text_at(const Json& json) {
  return json.is_string() ? json.as_string() : std::string();
}

}  // namespace coppice::testing
