#include "server/http_server.h"

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "base/ascii.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "server/http_text.h"

namespace coppice {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::ip::tcp;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// Bytes on their way to one client. Filled from any thread, emptied by the connection's coroutine.
// May outlive connection and server: once the client is gone it holds nothing of theirs.
class Outbox final : public HttpResponder {
 public:
  // wake: there is something to send. cut: too much waits for the client.
  Outbox(asio::any_io_executor executor, std::function<void()> wake, std::function<void()> cut,
         bool head_only, bool keep_alive, bool chunked, std::size_t max_buffered)
      : executor_(std::move(executor)),
        wake_(std::move(wake)),
        cut_(std::move(cut)),
        head_only_(head_only),
        keep_alive_(keep_alive),
        chunked_(chunked),
        max_buffered_(max_buffered) {}

  void send(int status, std::string_view content_type, std::string body,
            const HttpHeaders& headers) override {
    if (stream_begun()) {
      write("data: " + body + "\n\n");
      return end();
    }
    std::string bytes = response_head(status, content_type, headers, keep_alive_,
                                      BodyFraming::kLength, body.size());
    if (!head_only_) bytes += body;
    push(bytes, true);
  }
  void begin_stream(int status, std::string_view content_type,
                    const HttpHeaders& headers) override {
    if (stream_begun()) return;
    push(stream_head(status, content_type, headers), head_only_);
  }
  void keep_alive_with(std::string_view content_type, const HttpHeaders& headers,
                       std::string comment) override {
    const std::lock_guard lock(mutex_);
    silent_head_ = stream_head(200, content_type, headers);
    comment_ = std::move(comment);
  }
  // The connection has been silent: what to send now goes to pending_.
  void on_silence() {
    const std::lock_guard lock(mutex_);
    if (comment_.empty() || complete_ || gone_) return;
    if (!std::exchange(started_, true)) {
      stream_begun_ = true;
      pending_ += silent_head_;
    }
    pending_ += chunked_ ? chunk(comment_) : comment_;
  }
  void write(std::string_view piece) override {
    if (!piece.empty()) push(chunked_ ? chunk(piece) : std::string(piece), false);
  }
  void end() override { push(chunked_ ? "0\r\n\r\n" : "", true); }

  void on_disconnect(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        on_disconnect_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  // Moves what waits into `out`; true when nothing more will come.
  bool take(std::string& out) {
    const std::lock_guard lock(mutex_);
    out.swap(pending_);
    pending_.clear();
    wake_pending_ = false;
    return complete_;
  }
  bool overflowed() const {
    const std::lock_guard lock(mutex_);
    return overflowed_;
  }
  void client_left() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      if (gone_) return;
      callback = std::move(on_disconnect_);
      let_go();
    }
    if (callback) callback();
  }
  // The response is out: nobody needs to hear of the client any more.
  void delivered() {
    const std::lock_guard lock(mutex_);
    let_go();
  }

 private:
  void let_go() {
    gone_ = true;
    on_disconnect_ = nullptr;
    wake_ = cut_ = nullptr;
    executor_ = {};
  }
  std::string stream_head(int status, std::string_view content_type,
                          const HttpHeaders& headers) const {
    return response_head(status, content_type, headers, keep_alive_ && chunked_,
                         chunked_ ? BodyFraming::kChunked : BodyFraming::kUntilClose, 0);
  }
  // By a keep-alive.
  bool stream_begun() const {
    const std::lock_guard lock(mutex_);
    return stream_begun_;
  }
  void push(std::string_view bytes, bool complete) {
    const std::lock_guard lock(mutex_);
    if (gone_ || complete_ || overflowed_) return;
    pending_ += bytes;
    complete_ = complete;
    overflowed_ = pending_.size() > max_buffered_ && started_;
    started_ = true;
    if (overflowed_) return asio::post(executor_, cut_);
    if (wake_pending_) return;
    wake_pending_ = true;
    asio::post(executor_, wake_);
  }

  asio::any_io_executor executor_;
  std::function<void()> wake_, cut_;
  const bool head_only_;  // HEAD: what GET would answer, without the body
  const bool keep_alive_;
  const bool chunked_;
  const std::size_t max_buffered_;
  mutable std::mutex mutex_;
  std::string pending_;
  std::string silent_head_, comment_;
  bool started_ = false;
  bool stream_begun_ = false;
  bool complete_ = false;
  bool wake_pending_ = false;
  bool overflowed_ = false;
  bool gone_ = false;
  std::function<void()> on_disconnect_;
};

// "http://host/path", as a client writes it to a proxy: the path, and the host into `authority`.
std::string without_authority(std::string target, std::string& authority) {
  const std::size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string::npos) return target;
  const std::size_t path = target.find_first_of("/?", scheme + 3);
  authority = target.substr(scheme + 3, path == std::string::npos ? path : path - scheme - 3);
  if (path == std::string::npos) return "/";
  return target[path] == '/' ? target.substr(path) : "/" + target.substr(path);
}

HttpRequest to_request(http::request<http::string_body>&& message, std::string remote) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  std::string authority;
  const std::string target = without_authority(std::string(message.target()), authority);
  const std::size_t question = target.find('?');
  request.path = percent_decode(std::string_view(target).substr(0, question));
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message.base()) {
    request.headers.insert_or_assign(lower_case(field.name_string()), std::string(field.value()));
  }
  if (!authority.empty()) request.headers["host"] = authority;
  request.body = std::move(message.body());
  request.remote_address = std::move(remote);
  return request;
}

}  // namespace

struct HttpServer::Impl {
  class Connection;

  Impl(HttpServerOptions server_options, Handler request_handler)
      : options(std::move(server_options)),
        handler(std::move(request_handler)),
        context(options.num_io_threads),
        acceptor(context) {}

  void listen();
  awaitable<void> accept_loop();
  void run_io();
  void stop();

  const HttpServerOptions options;
  const Handler handler;
  std::vector<std::thread> threads;
  std::atomic<bool> draining{false};
  std::mutex mutex;
  std::condition_variable connection_closed;
  std::set<Connection*> connections;  // alive while their coroutine runs
  // Owns the coroutines that have not ended, and with them the connections: it goes first.
  asio::io_context context;
  tcp::acceptor acceptor;
};

// One client. All members are touched on the connection's strand only.
class HttpServer::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl* server, tcp::socket socket)
      : server_(server), stream_(std::move(socket)), wake_(stream_.get_executor()) {
    const std::lock_guard lock(server_->mutex);
    server_->connections.insert(this);
  }
  ~Connection() {
    {
      const std::lock_guard lock(server_->mutex);
      server_->connections.erase(this);
    }
    server_->connection_closed.notify_all();
  }

  awaitable<void> run();
  // Closes the connection if no request is being answered.
  void close_if_idle() {
    asio::post(stream_.get_executor(), [self = weak_from_this()] {
      if (const auto connection = self.lock(); connection && !connection->busy_)
        connection->stream_.close();
    });
  }

 private:
  // Ends the write that the client does not take, too.
  void cut() {
    log_warning("http: a client that does not read its stream was cut off");
    stream_.close();
    wake_.cancel();
  }
  awaitable<bool> answer(http::request<http::string_body> message);
  awaitable<bool> send_all(std::shared_ptr<Outbox> outbox);
  awaitable<void> watch_for_end(std::shared_ptr<Outbox> outbox);
  awaitable<void> refuse(int status, std::string message);
  awaitable<void> refuse_malformed(beast::error_code error);
  awaitable<void> let_client_finish();

  Impl* const server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  asio::steady_timer wake_;
  bool busy_ = false;
};

awaitable<void> HttpServer::Impl::Connection::run() {
  const HttpServerOptions& limits = server_->options;
  bool first = true;
  while (!server_->draining) {
    http::request_parser<http::string_body> parser;
    parser.body_limit(limits.max_body_bytes);
    parser.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
    stream_.expires_after(first ? limits.read_timeout : limits.keep_alive_timeout);
    auto [header_error, header_bytes] =
        co_await http::async_read_header(stream_, buffer_, parser, kAwait);
    if (header_error == http::error::header_limit) {
      co_await refuse(431, "the request's headers are larger than " +
                               std::to_string(limits.max_header_bytes) + " bytes");
      co_return;
    }
    if (header_error) {
      co_await refuse_malformed(header_error);
      co_return;
    }
    busy_ = true;
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await asio::async_write(stream_, asio::buffer(kContinue), kAwait);
    }
    stream_.expires_after(limits.read_timeout);
    auto [body_error, body_bytes] = co_await http::async_read(stream_, buffer_, parser, kAwait);
    if (body_error) {
      co_await refuse_malformed(body_error);
      co_return;
    }
    if (!co_await answer(parser.release())) co_return;
    busy_ = false;
    first = false;
  }
}

awaitable<bool> HttpServer::Impl::Connection::answer(http::request<http::string_body> message) {
  const bool head_only = message.method() == http::verb::head;
  const bool keep_alive = message.keep_alive() && !server_->draining;
  const bool chunked = message.version() >= 11;
  beast::error_code ignored;
  const std::string remote = stream_.socket().remote_endpoint(ignored).address().to_string();
  const auto outbox = std::make_shared<Outbox>(
      stream_.get_executor(),
      [self = weak_from_this()] {
        if (const auto connection = self.lock()) connection->wake_.cancel();
      },
      [self = weak_from_this()] {
        if (const auto connection = self.lock()) connection->cut();
      },
      head_only, keep_alive, chunked, server_->options.max_buffered_bytes);
  // However this coroutine ends, by the server's destruction too.
  const std::shared_ptr<void> let_go(nullptr, [outbox](void*) { outbox->delivered(); });
  asio::co_spawn(stream_.get_executor(), watch_for_end(outbox), asio::detached);
  server_->handler(to_request(std::move(message), remote), outbox);
  const bool sent = co_await send_all(outbox);
  if (sent) {
    if (head_only) outbox->client_left();  // of a stream that has no more than its head
    outbox->delivered();
    stream_.socket().cancel(ignored);  // ends watch_for_end
  } else {
    outbox->client_left();
    stream_.close();
  }
  co_return sent&& keep_alive;
}

awaitable<bool> HttpServer::Impl::Connection::send_all(std::shared_ptr<Outbox> outbox) {
  std::string bytes;
  while (true) {
    const bool complete = outbox->take(bytes);
    if (outbox->overflowed()) co_return false;
    if (!bytes.empty()) {
      stream_.expires_after(server_->options.write_timeout);
      auto [error, written] = co_await asio::async_write(stream_, asio::buffer(bytes), kAwait);
      stream_.expires_never();
      if (error) co_return false;
      bytes.clear();
      if (complete) co_return true;
      continue;  // a wake-up that came during the write found nobody waiting
    }
    if (complete) co_return true;
    if (!stream_.socket().is_open()) co_return false;
    stream_.expires_never();
    wake_.expires_after(server_->options.silence);
    // take() cleared the mark before anything could be posted on this strand: no wake-up is lost.
    const auto [woken] = co_await wake_.async_wait(kAwait);
    if (!woken) outbox->on_silence();
  }
}

// Waits for the client's end of stream while a response is under way. Bytes of a next request end
// the watch.
awaitable<void> HttpServer::Impl::Connection::watch_for_end(std::shared_ptr<Outbox> outbox) {
  const auto self = shared_from_this();
  auto [error] = co_await stream_.socket().async_wait(tcp::socket::wait_read, kAwait);
  if (error == asio::error::operation_aborted) co_return;
  char byte = 0;
  const ssize_t count =
      error ? 0 : recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) co_return;
  outbox->client_left();
  stream_.close();
  wake_.cancel();
}

awaitable<void> HttpServer::Impl::Connection::refuse(int status, std::string message) {
  const std::string body = error_body(status, message);
  const std::string bytes =
      response_head(status, "application/json", {}, false, BodyFraming::kLength, body.size()) +
      body;
  stream_.expires_after(server_->options.write_timeout);
  co_await asio::async_write(stream_, asio::buffer(bytes), kAwait);
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  co_await let_client_finish();
}

// What cannot be read as a request; a client that left or was too slow gets no answer.
awaitable<void> HttpServer::Impl::Connection::refuse_malformed(beast::error_code error) {
  if (error == http::error::body_limit) {
    co_await refuse(413, "the request's body is larger than " +
                             std::to_string(server_->options.max_body_bytes) + " bytes");
  } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    co_await refuse(400, "malformed HTTP request: " + error.message());
  }
}

// Reads on for a while: a socket closed with bytes unread is reset, and a client that is still
// sending its body would lose the answer.
awaitable<void> HttpServer::Impl::Connection::let_client_finish() {
  busy_ = false;  // a server that drains need not wait for it
  constexpr std::chrono::seconds kPatience{5};
  std::array<char, 16384> bytes{};
  stream_.expires_after(kPatience);
  while (true) {
    const auto [error, count] = co_await stream_.async_read_some(asio::buffer(bytes), kAwait);
    if (error) co_return;
  }
}

void HttpServer::Impl::listen() {
  const std::string where = options.host + ":" + std::to_string(options.port);
  beast::error_code error;
  tcp::resolver resolver(context);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error) throw Error(ErrorKind::kUnavailable, "--host " + where + ": " + error.message());
  const tcp::endpoint endpoint = *found.begin();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(options.backlog, error);
  if (error)
    throw Error(ErrorKind::kUnavailable, "cannot listen on " + where + ": " + error.message());
}

awaitable<void> HttpServer::Impl::accept_loop() {
  while (true) {
    auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(context), kAwait);
    if (!acceptor.is_open()) co_return;
    if (error) {  // out of file descriptors, say: let running connections end first
      asio::steady_timer pause(context, std::chrono::milliseconds(20));
      co_await pause.async_wait(kAwait);
      continue;
    }
    beast::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const auto executor = socket.get_executor();
    const auto connection = std::make_shared<Connection>(this, std::move(socket));
    asio::co_spawn(
        executor, [connection]() -> awaitable<void> { co_await connection->run(); },
        asio::detached);
  }
}

void HttpServer::Impl::run_io() {
  asio::co_spawn(context, accept_loop(), asio::detached);
  for (int i = 0; i < options.num_io_threads; ++i)
    threads.emplace_back([this] {
      set_thread_name("http");
      context.run();
    });
}

void HttpServer::Impl::stop() {
  context.stop();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

HttpServer::HttpServer(HttpServerOptions options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {
  impl_->listen();
  impl_->run_io();
}

HttpServer::~HttpServer() {
  impl_->stop();
}

std::uint16_t HttpServer::port() const {
  return impl_->acceptor.local_endpoint().port();
}

std::size_t HttpServer::num_connections() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->connections.size();
}

bool HttpServer::drain(std::chrono::milliseconds timeout) {
  impl_->draining = true;
  asio::post(impl_->context, [impl = impl_.get()] {
    beast::error_code ignored;
    impl->acceptor.close(ignored);
  });
  std::unique_lock lock(impl_->mutex);
  for (Impl::Connection* connection : impl_->connections) connection->close_if_idle();
  return impl_->connection_closed.wait_for(lock, timeout,
                                           [&] { return impl_->connections.empty(); });
}

}  // namespace coppice
