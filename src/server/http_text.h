// Text of HTTP/1.1 messages: heads, chunks, percent coding, the error body of the OpenAI API.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/http_server.h"

namespace coppice {

enum class BodyFraming { kLength, kChunked, kUntilClose };

// Status line and headers up to the empty line.
std::string response_head(int status, std::string_view content_type, const HttpHeaders& headers,
                          bool keep_alive, BodyFraming framing, std::size_t body_size);

// One piece of a chunked body.
std::string chunk(std::string_view piece);

// "%41%20" -> "A "; malformed escapes stay as they are.
std::string percent_decode(std::string_view text);

// {"error": {"message", "type", "param", "code"}} as vLLM and the OpenAI SDKs have it; param is
// null when empty.
std::string error_body(int status, std::string_view message, std::string_view param = {});

}  // namespace coppice
