// Chat template text to syntax tree.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace coppice {

// Throws Error(kBadFile) "SOURCE: line N: cause" for a template that jinja2 would not take either
// and Error(kUnsupported) for what no published chat template uses (inheritance, includes, *args).
JinjaBody parse_jinja(std::string_view template_text, std::string_view source);

}  // namespace coppice
