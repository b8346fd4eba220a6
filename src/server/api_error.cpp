#include "server/api_error.h"

#include <string_view>

#include "server/http_router.h"

namespace coppice {
namespace {

std::string named_field(std::string_view message) {
  constexpr std::string_view kField = "field '";
  if (const std::size_t at = message.find(kField); at != std::string_view::npos) {
    const std::size_t begin = at + kField.size();
    return std::string(message.substr(begin, message.find('\'', begin) - begin));
  }
  const std::size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  if (end == std::string_view::npos || end == 0) return {};
  const std::string_view rest = message.substr(end);
  const bool names = rest.starts_with(" is ") || rest.starts_with(" holds ");
  return names ? std::string(message.substr(0, end)) : std::string();
}

}  // namespace

std::string ApiError::one_line(std::string message) {
  constexpr std::string_view kEnds{"\n\r\0", 3};
  for (std::size_t at = 0; (at = message.find_first_of(kEnds, at)) != std::string::npos; at += 2)
    message.replace(at, 1, message[at] == '\n' ? "\\n" : message[at] == '\r' ? "\\r" : "\\0");
  return message;
}

ApiError to_api_error(const std::exception& error) {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) return *api;
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    const int status = http_status(known->kind());
    return {status, error.what(), named_field(error.what()), status == 503 ? 1 : 0};
  }
  return {500, std::string("internal fault: ") + error.what()};
}

}  // namespace coppice
