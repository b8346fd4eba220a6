#include "server/web_page.h"

namespace coppice {
namespace {

// Nothing from elsewhere, no inline script, and no page may frame this one.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace

void add_web_routes(HttpRouter& router) {
  for (const WebFile& file : web_files())
    router.add("GET", std::string(file.path), HttpRouter::Access::kOpen,
               [&file](const HttpRequest&, std::string_view, const auto& responder) {
                 responder->send(200, file.content_type, std::string(file.text),
                                 {{"Cache-Control", "no-cache"},
                                  {"Content-Security-Policy", kPolicy},
                                  {"Referrer-Policy", "no-referrer"},
                                  {"X-Content-Type-Options", "nosniff"}});
               });
}

}  // namespace coppice
