#include "server/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "server/http_text.h"
#include "tests/support/eventually.h"

namespace coppice {
namespace {

using testing::eventually;

// A plain socket client, so that the test sees the bytes themselves.
class Client {
 public:
  explicit Client(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{.tv_sec = std::chrono::seconds(testing::kPatience).count(), .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& text) { ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Reads until `end` has been seen (or the stream ends) and returns everything up to it.
  std::string read_until(const std::string& end) {
    std::array<char, 4096> bytes{};
    while (received_.find(end) == std::string::npos) {
      const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
      if (count <= 0) break;
      received_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    const std::size_t at = received_.find(end);
    const std::size_t cut = at == std::string::npos ? received_.size() : at + end.size();
    std::string text = received_.substr(0, cut);
    received_.erase(0, cut);
    return text;
  }
  std::string read_to_end() { return read_until("\x01never\x01"); }

 private:
  int fd_;
  std::string received_;
};

HttpServerOptions any_port() {
  HttpServerOptions options;
  options.port = 0;
  options.max_body_bytes = 1000;
  return options;
}

TEST(HttpServerTest, AnswersAndKeepsTheConnection) {
  HttpServer server(any_port(), [](const HttpRequest& request, const auto& responder) {
    responder->send(200, "text/plain",
                    request.method + " " + request.path + " " + request.query + " " +
                        std::string(request.header("x-test")) + " " + request.body);
  });
  Client client(server.port());
  for (int round = 0; round < 3; ++round) {
    client.send(
        "POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nX-Test: 7\r\nContent-Length: 4\r\n\r\nbody");
    EXPECT_NE(client.read_until("body").find("POST /a b c=d 7 body"), std::string::npos);
  }
}

// A piece that comes while the one before is being written must not wait for a third one.
TEST(HttpServerTest, LastPieceNeverWaits) {
  std::vector<std::thread> writers;
  HttpServer server(any_port(), [&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    writers.emplace_back([responder] {
      responder->begin_stream(200, "text/event-stream");
      responder->write("a");
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
      while (std::chrono::steady_clock::now() < until) {
      }
      responder->end();
    });
  });
  for (int i = 0; i < 300; ++i) {
    Client client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(client.read_until("0\r\n\r\n").ends_with("0\r\n\r\n")) << i;
  }
  for (std::thread& writer : writers) writer.join();
}

TEST(HttpServerTest, StreamsPiecesFromAnotherThread) {
  std::vector<std::thread> writers;
  HttpServer server(any_port(), [&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    writers.emplace_back([responder] {
      responder->begin_stream(200, "text/event-stream");
      for (int i = 0; i < 100; ++i) responder->write("data: " + std::to_string(i) + "\n\n");
      responder->end();
    });
  });
  Client client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string text = client.read_until("0\r\n\r\n");
  EXPECT_NE(text.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(text.find("data: 99"), std::string::npos);
  for (std::thread& writer : writers) writer.join();
}

TEST(HttpServerTest, TellsWhenTheClientLeaves) {
  std::atomic<bool> left{false};
  std::shared_ptr<HttpResponder> kept;
  std::atomic<bool> started{false};
  HttpServer server(any_port(), [&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    responder->begin_stream(200, "text/event-stream");
    responder->write("data: 1\n\n");
    responder->on_disconnect([&] { left = true; });
    kept = responder;
    started = true;
  });
  {
    Client client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    client.read_until("data: 1");
    EXPECT_TRUE(started);
    EXPECT_FALSE(left);
  }
  EXPECT_TRUE(eventually([&] { return left.load(); }));
  kept->write("ignored");
  kept->end();
}

// Whoever answers may do so after the server is gone: nothing happens.
TEST(HttpServerTest, AResponderMayOutliveItsServer) {
  std::shared_ptr<HttpResponder> kept;
  std::atomic<bool> started{false};
  {
    HttpServer server(any_port(),
                      [&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
                        responder->begin_stream(200, "text/event-stream");
                        kept = std::move(responder);
                        started = true;
                      });
    Client client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(eventually([&] { return started.load(); }));
  }
  kept->write("data: late\n\n");
  kept->end();
}

// Connections in every state hold the server's memory, never the other way round.
TEST(HttpServerTest, StopsWithOpenConnectionsAndKeepsNothing) {
  const auto token = std::make_shared<int>(0);  // held by the server through its handler
  std::shared_ptr<HttpResponder> kept;
  std::atomic<bool> started{false};
  std::optional<HttpServer> server;
  server.emplace(any_port(),
                 [&, token](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
                   responder->begin_stream(200, "text/event-stream");
                   kept = std::move(responder);
                   started = true;
                 });
  Client silent(server->port()), half(server->port()), streaming(server->port());
  half.send("GET / HT");
  streaming.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return started && server->num_connections() == 3; }));
  server.reset();
  EXPECT_EQ(token.use_count(), 1);
  kept->write("data: late\n\n");
}

TEST(HttpServerTest, RefusesBadInputWithOneLine) {
  HttpServer server(any_port(), [](const HttpRequest&, const auto& responder) {
    responder->send(200, "text/plain", "ok");
  });
  Client garbage(server.port());
  garbage.send("this is not http\r\n\r\n");
  EXPECT_NE(garbage.read_to_end().find("400 Bad Request"), std::string::npos);
  Client large(server.port());
  large.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_NE(large.read_to_end().find("413 Payload Too Large"), std::string::npos);
  Client headers(server.port());
  headers.send("GET / HTTP/1.1\r\nX: " + std::string(40000, 'a') + "\r\n\r\n");
  EXPECT_NE(headers.read_to_end().find("431"), std::string::npos);
}

TEST(HttpServerTest, HeadHasNoBodyAndLeavesTheConnectionInOrder) {
  std::atomic<bool> left{false};
  HttpServer server(any_port(), [&](const HttpRequest& request, const auto& responder) {
    if (request.path == "/stream") {
      responder->begin_stream(200, "text/event-stream");
      responder->on_disconnect([&] { left = true; });
      return;
    }
    responder->send(200, "text/plain", "twelve bytes");
  });
  Client client(server.port());
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.read_until("\r\n\r\n").find("Content-Length: 12\r\n"), std::string::npos);
  EXPECT_TRUE(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
  EXPECT_EQ(client.read_until("bytes"), "twelve bytes");
  // A stream ends with its head, and whoever would write to it hears of that.
  client.send("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
  client.read_until("\r\n\r\n");
  EXPECT_TRUE(client.read_until("bytes").ends_with("twelve bytes"));
  EXPECT_TRUE(left);
}

TEST(HttpServerTest, BrokenAndTooLargeBodiesAreAnswered) {
  HttpServer server(any_port(), [](const HttpRequest&, const auto& responder) {
    responder->send(200, "text/plain", "ok");
  });
  Client chunks(server.port());
  chunks.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
  EXPECT_NE(chunks.read_until("}").find("400 Bad Request"), std::string::npos);
  // The whole body is under way before the client reads: nothing of the answer may be lost.
  Client large(server.port());
  large.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n");
  for (int i = 0; i < 80; ++i) large.send(std::string(100'000, 'a'));
  const std::string answer = large.read_until("}");
  EXPECT_NE(answer.find("413 Payload Too Large"), std::string::npos);
  EXPECT_NE(answer.find("larger than 1000 bytes"), std::string::npos);
}

TEST(HttpServerTest, TakesTheFormOfAProxysRequest) {
  HttpServer server(any_port(), [](const HttpRequest& request, const auto& responder) {
    responder->send(200, "text/plain",
                    request.path + " " + request.query + " " + std::string(request.header("host")));
  });
  Client client(server.port());
  client.send("GET http://a.b:80/c?d=e HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(client.read_until("a.b:80").ends_with("/c d=e a.b:80"));
  client.send("GET http://a.b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(client.read_until("a.b").ends_with("/  a.b"));
}

TEST(HttpServerTest, DrainsRunningResponsesAndRefusesNewOnes) {
  std::shared_ptr<HttpResponder> running;
  HttpServer server(any_port(), [&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    responder->begin_stream(200, "text/plain");
    responder->write("first");
    running = responder;
  });
  Client idle(server.port());
  Client client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  client.read_until("first");
  EXPECT_FALSE(server.drain(std::chrono::milliseconds(50)));
  running->write("last");
  running->end();
  EXPECT_TRUE(server.drain(testing::kPatience));
  EXPECT_NE(client.read_to_end().find("last"), std::string::npos);
}

// At once, not when the write that the client does not take has lasted too long.
TEST(HttpServerTest, CutsOffAClientThatDoesNotRead) {
  HttpServerOptions options = any_port();
  options.max_buffered_bytes = 1 << 16;
  options.write_timeout = std::chrono::hours(1);
  // A fast writer is ahead of the socket; a slow one finds it full, in the middle of a write.
  for (const int pause_us : {0, 500}) {
    std::atomic<bool> left{false};
    std::thread writer;
    HttpServer server(options, [&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
      responder->on_disconnect([&] { left = true; });
      writer = std::thread([&left, responder, pause_us] {
        responder->begin_stream(200, "text/plain");
        for (int i = 0; i < 5000 && !left; ++i) {
          responder->write(std::string(1 << 14, 'x'));
          if (pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
        }
      });
    });
    Client client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(eventually([&] { return left.load(); }));
    writer.join();
  }
}

// A client that asked for a stream hears comments while its answer is waited for; the stream goes
// on behind them, and an error that comes late is an event of it.
TEST(HttpServerTest, SilentStreamsAreKeptAlive) {
  HttpServerOptions options = any_port();
  options.silence = std::chrono::milliseconds(20);
  for (const bool fails : {false, true}) {
    std::shared_ptr<HttpResponder> pending;
    HttpServer server(options, [&](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
      responder->keep_alive_with("text/event-stream", {{"X-A", "b"}}, ": ping\n\n");
      pending = responder;
    });
    Client client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    const std::string begin = client.read_until(": ping");
    if (fails) {
      pending->send(500, "application/json", "{}");
    } else {
      pending->begin_stream(200, "text/event-stream", {{"X-A", "b"}});
      pending->write("data: 1\n\n");
      pending->end();
    }
    const std::string all = begin + client.read_to_end();
    EXPECT_EQ(all.find("HTTP/1.1 200"), 0u);
    EXPECT_EQ(all.find("HTTP/1.1", 1), std::string::npos) << "one head only";
    EXPECT_NE(all.find("X-A: b"), std::string::npos);
    EXPECT_NE(all.find(fails ? "data: {}\n\n" : "data: 1\n\n"), std::string::npos);
  }
}

TEST(HttpServerTest, AddressInUseIsOneLine) {
  HttpServer first(any_port(), [](const HttpRequest&, const auto&) {});
  HttpServerOptions options = any_port();
  options.port = first.port();
  try {
    HttpServer second(options, [](const HttpRequest&, const auto&) {});
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot listen on 127.0.0.1:"), std::string::npos);
  }
}

TEST(HttpTextTest, ErrorBodyIsTheShapeOfTheOpenAiApi) {
  EXPECT_EQ(
      error_body(400, "a \"b\"", "messages"),
      R"({"error":{"message":"a \"b\"","type":"BadRequestError","param":"messages","code":400}})");
}

}  // namespace
}  // namespace coppice
