// Regular expressions for the inside of a JSON string, where a quote, a backslash and control
// characters have to be escaped.
#pragma once

#include <string>
#include <string_view>

namespace coppice {

// Whether a pattern asks for a character that JSON escapes: by itself, or in a class of nothing
// else. Classes that hold such a character among others are no matter: the grammar leaves it out.
bool needs_json_escapes(std::string_view pattern);

// The same pattern with everything beyond ASCII as \u{...}.
std::string ascii_pattern(std::string_view pattern);

}  // namespace coppice
