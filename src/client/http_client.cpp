#include "client/http_client.h"

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <cstddef>
#include <limits>

#include "base/ascii.h"
#include "base/error.h"

namespace coppice {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

}  // namespace

Url parse_url(const std::string& text, const std::string& flag) {
  const auto fail = [&](const std::string& cause) {
    throw Error(ErrorKind::kInvalidArgument, flag + " " + text + ": " + cause);
  };
  std::string_view rest = text;
  if (const std::size_t scheme = rest.find("://"); scheme != std::string_view::npos) {
    if (rest.substr(0, scheme) != "http") fail("only http:// is spoken");
    rest.remove_prefix(scheme + 3);
  }
  Url url;
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  url.prefix = rest.substr(slash);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  const std::size_t bracket = authority.rfind(']');  // [::1]:8000
  const std::size_t colon = authority.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    const std::string_view digits = authority.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), url.port);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("bad port");
    authority = authority.substr(0, colon);
  }
  if (authority.starts_with('[') && authority.ends_with(']'))
    authority = authority.substr(1, authority.size() - 2);
  if (authority.empty()) fail("no host");
  url.host = authority;
  return url;
}

struct HttpClient::Impl {
  Impl(Url server, std::vector<std::pair<std::string, std::string>> fields)
      : url(std::move(server)), headers(std::move(fields)) {
    beast::error_code error;
    tcp::resolver resolver(context);
    endpoints = resolver.resolve(url.host, std::to_string(url.port), error);
    if (error) throw Error(ErrorKind::kUnavailable, url.host + ": no address: " + error.message());
  }

  http::request<http::string_body> make_request(HttpCall& call) const;
  asio::awaitable<void> exchange(HttpCall call, OnPiece on_piece, OnEnd on_end);
  asio::awaitable<std::string> talk(HttpCall& call, const OnPiece& on_piece, HttpReply& reply);

  const Url url;
  const std::vector<std::pair<std::string, std::string>> headers;
  asio::io_context context{1};
  tcp::resolver::results_type endpoints;
};

http::request<http::string_body> HttpClient::Impl::make_request(HttpCall& call) const {
  http::request<http::string_body> request(http::string_to_verb(call.method),
                                           url.prefix + call.path, 11);
  const bool v6 = url.host.find(':') != std::string::npos;
  request.set(http::field::host,
              (v6 ? "[" + url.host + "]" : url.host) + ":" + std::to_string(url.port));
  request.set(http::field::user_agent, "coppice");
  request.set(http::field::connection, "close");
  if (!call.body.empty()) request.set(http::field::content_type, "application/json");
  for (const auto& [name, value] : headers) request.set(name, value);
  for (const auto& [name, value] : call.headers) request.set(name, value);
  request.body() = std::move(call.body);
  request.prepare_payload();
  return request;
}

// Returns the cause of a failure, "" when the answer is complete.
asio::awaitable<std::string> HttpClient::Impl::talk(HttpCall& call, const OnPiece& on_piece,
                                                    HttpReply& reply) {
  beast::tcp_stream stream(context);
  stream.expires_after(call.timeout);
  auto [connect_error, endpoint] = co_await stream.async_connect(endpoints, kAwait);
  if (connect_error)
    co_return "cannot connect to " + url.host + ":" + std::to_string(url.port) + ": " +
        connect_error.message();
  beast::error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);
  const http::request<http::string_body> request = make_request(call);
  auto [write_error, written] = co_await http::async_write(stream, request, kAwait);
  // A server that refuses may answer before it has read everything.
  http::response_parser<http::string_body> parser;
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());
  beast::flat_buffer buffer;
  auto [head_error, head_bytes] = co_await http::async_read_header(stream, buffer, parser, kAwait);
  if (head_error)
    co_return write_error ? "cannot send: " + write_error.message()
                          : "no answer: " + head_error.message();
  reply.status = static_cast<int>(parser.get().result_int());
  for (const auto& field : parser.get().base())
    reply.headers.insert_or_assign(lower_case(field.name_string()), std::string(field.value()));
  const bool pieces = on_piece && reply.ok();
  std::string& body = parser.get().body();
  while (true) {
    if (pieces && !body.empty()) {
      if (!on_piece(body)) co_return "";  // the stream's destructor closes the connection
      body.clear();
    }
    if (parser.is_done()) break;
    auto [error, bytes] = co_await http::async_read_some(stream, buffer, parser, kAwait);
    if (error) co_return "answer cut off: " + error.message();
  }
  reply.body = std::move(body);
  co_return "";
}

asio::awaitable<void> HttpClient::Impl::exchange(HttpCall call, OnPiece on_piece, OnEnd on_end) {
  HttpReply reply;
  reply.error = co_await talk(call, on_piece, reply);
  on_end(reply);
}

HttpClient::HttpClient(Url url, std::vector<std::pair<std::string, std::string>> headers)
    : impl_(std::make_unique<Impl>(std::move(url), std::move(headers))) {}

HttpClient::~HttpClient() = default;

void HttpClient::start(HttpCall call, OnPiece on_piece, OnEnd on_end) {
  asio::co_spawn(impl_->context,
                 impl_->exchange(std::move(call), std::move(on_piece), std::move(on_end)),
                 [](const std::exception_ptr& error) {
                   if (error) std::rethrow_exception(error);
                 });
}

void HttpClient::after(std::chrono::nanoseconds delay, std::function<void()> callback) {
  const auto timer = std::make_shared<asio::steady_timer>(impl_->context, delay);
  timer->async_wait([timer, callback = std::move(callback)](beast::error_code error) {
    if (!error) callback();
  });
}

void HttpClient::run() {
  impl_->context.restart();
  impl_->context.run();
}

HttpReply HttpClient::fetch(HttpCall call) {
  HttpReply result;
  start(std::move(call), {}, [&](const HttpReply& reply) { result = reply; });
  run();
  return result;
}

}  // namespace coppice
