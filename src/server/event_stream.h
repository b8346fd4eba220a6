// Server-sent events: the framing of streamed answers.
#pragma once

#include <string>
#include <string_view>

#include "io/json.h"
#include "server/api_error.h"
#include "server/http_server.h"

namespace coppice {

// Before anything is sent: comments keep the connection open while the answer is waited for.
void expect_events(HttpResponder& responder);
// Starts the stream with the headers that proxies need to pass pieces on at once.
void begin_events(HttpResponder& responder);
// "data: JSON" and an empty line; with a name, "event: NAME" in front.
void send_event(HttpResponder& responder, const Json& data, std::string_view event = {});
// "data: [DONE]" and the end of the response.
void end_events(HttpResponder& responder);

// A whole answer.
void send_json(HttpResponder& responder, const Json& body, int status = 200);
void send_error(HttpResponder& responder, const ApiError& error);
Json error_json(const ApiError& error);
// Retry-After, where the error says when to come again.
HttpHeaders retry_headers(const ApiError& error);

}  // namespace coppice
