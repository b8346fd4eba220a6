#include "server/http_text.h"

#include <array>
#include <cstdio>

#include "base/ascii.h"
#include "io/json.h"

namespace coppice {

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::string response_head(int status, std::string_view content_type, const HttpHeaders& headers,
                          bool keep_alive, BodyFraming framing, std::size_t body_size) {
  std::string head = "HTTP/1.1 " + std::to_string(status) + " ";
  head += http_reason(status);
  if (!content_type.empty()) {
    head += "\r\nContent-Type: ";
    head += content_type;
  }
  for (const auto& [name, value] : headers) head += "\r\n" + name + ": " + value;
  if (framing == BodyFraming::kLength && status != 204)  // 204 has no body to count
    head += "\r\nContent-Length: " + std::to_string(body_size);
  if (framing == BodyFraming::kChunked) head += "\r\nTransfer-Encoding: chunked";
  head += keep_alive ? "\r\nConnection: keep-alive" : "\r\nConnection: close";
  return head + "\r\n\r\n";
}

std::string chunk(std::string_view piece) {
  std::array<char, 20> size{};
  const int length = std::snprintf(size.data(), size.size(), "%zx\r\n", piece.size());
  std::string framed;
  framed.reserve(static_cast<std::size_t>(length) + piece.size() + 2);
  framed.append(size.data(), static_cast<std::size_t>(length)).append(piece).append("\r\n");
  return framed;
}

namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = ascii_lower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string_view error_type(int status) {
  if (status == 401 || status == 403) return "AuthenticationError";
  if (status == 404) return "NotFoundError";
  if (status == 429) return "RateLimitError";
  if (status == 501) return "NotImplementedError";
  if (status == 503) return "ServiceUnavailableError";
  return status >= 500 ? "InternalServerError" : "BadRequestError";
}

}  // namespace

std::string percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 &&
        hex_value(text[i + 2]) >= 0) {
      decoded += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::string error_body(int status, std::string_view message, std::string_view param) {
  Json error = Json::object({{"message", message}, {"type", error_type(status)}});
  error["param"] = param.empty() ? Json() : Json(param);
  error["code"] = status;
  return write_json(Json::object({{"error", std::move(error)}}));
}

}  // namespace coppice
