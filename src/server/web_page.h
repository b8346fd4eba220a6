// The page at /: a chat and the live round. Its files (src/server/web/) are part of the binary.
#pragma once

#include <span>
#include <string_view>

#include "server/http_router.h"

namespace coppice {

struct WebFile {
  std::string_view path;  // "/" or "/web/NAME"
  std::string_view content_type;
  std::string_view text;
};
std::span<const WebFile> web_files();  // made by cmake/embed_files.cmake

// One open route a file: they hold nothing secret, and a browser has no key before the page asks
// for one. What the page fetches is guarded like everything else.
void add_web_routes(HttpRouter& router);

}  // namespace coppice
