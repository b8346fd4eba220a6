// Runs a parsed chat template. Nothing but the given variables can be reached from a template.
#pragma once

#include <ctime>
#include <string_view>

#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"
#include "text/jinja_scope.h"

namespace coppice {

// `now` is what strftime_now sees. Throws Error(kInvalidArgument) "SOURCE: line N: cause" for
// everything that goes wrong, raise_exception included.
MarkedText run_jinja(const JinjaBody& body, JinjaVariables variables, const std::tm& now,
                     const JinjaLimits& limits, std::string_view source);

}  // namespace coppice
