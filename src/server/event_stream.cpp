#include "server/event_stream.h"

#include "server/http_text.h"

namespace coppice {
namespace {

constexpr std::string_view kContentType = "text/event-stream; charset=utf-8";

HttpHeaders stream_headers() {
  return {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
}

}  // namespace

void expect_events(HttpResponder& responder) {
  responder.keep_alive_with(kContentType, stream_headers(), ": ping\n\n");
}

void begin_events(HttpResponder& responder) {
  responder.begin_stream(200, kContentType, stream_headers());
}

void send_event(HttpResponder& responder, const Json& data, std::string_view event) {
  std::string text;
  if (!event.empty()) text = "event: " + std::string(event) + "\n";
  text += "data: " + write_json(data) + "\n\n";
  responder.write(text);
}

void end_events(HttpResponder& responder) {
  responder.write("data: [DONE]\n\n");
  responder.end();
}

void send_json(HttpResponder& responder, const Json& body, int status) {
  responder.send(status, "application/json", write_json(body));
}

void send_error(HttpResponder& responder, const ApiError& error) {
  responder.send(error.status(), "application/json",
                 error_body(error.status(), error.what(), error.param()), retry_headers(error));
}

HttpHeaders retry_headers(const ApiError& error) {
  if (error.retry_after_s() == 0) return {};
  return {{"Retry-After", std::to_string(error.retry_after_s())}};
}

Json error_json(const ApiError& error) {
  return parse_json(error_body(error.status(), error.what(), error.param()), "error");
}

}  // namespace coppice
