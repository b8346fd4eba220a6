#include "server/string_pattern.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "text/unicode.h"

namespace coppice {
namespace {

// One character of a pattern, escaped or not.
struct Atom {
  std::int64_t character = -1;  // -1: a class such as \s or \d
  bool is_class = false;
  std::size_t size = 1;  // bytes of the pattern
};

std::int64_t hex_value(std::string_view digits) {
  if (digits.empty() || digits.size() > 8) return -1;
  std::int64_t value = 0;
  for (const char c : digits) {
    const std::size_t digit =
        std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
    if (digit == std::string_view::npos) return -1;
    value = value * 16 + static_cast<std::int64_t>(digit);
  }
  return value;
}

// The escape at the start of `rest`, which begins with a backslash.
Atom read_escape(std::string_view rest) {
  if (rest.size() < 2) return {};
  constexpr std::string_view kNames = "nrtfv0";
  constexpr std::string_view kValues{"\n\r\t\f\v\0", 6};
  const char name = rest[1];
  if (const std::size_t at = kNames.find(name); at != std::string_view::npos)
    return {.character = kValues[at], .size = 2};
  if (name == 'x') return {.character = hex_value(rest.substr(2, 2)), .size = 4};
  if (name == 'c') return {.character = 1, .size = 3};
  if (name == 'u' && rest.size() > 2 && rest[2] == '{') {
    const std::size_t end = std::min(rest.find('}'), rest.size() - 1);
    return {.character = hex_value(rest.substr(3, end - 3)), .size = end + 1};
  }
  if (name == 'u') return {.character = hex_value(rest.substr(2, 4)), .size = 6};
  const bool is_class = std::string_view("dDwWsSbBpP").find(name) != std::string_view::npos;
  return {.character = is_class ? -1 : name, .is_class = is_class, .size = 2};
}

Atom read_atom(std::string_view rest) {
  return rest[0] == '\\' ? read_escape(rest)
                         : Atom{.character = static_cast<unsigned char>(rest[0])};
}

bool is_escaped_in_json(const Atom& atom) {
  return !atom.is_class && (atom.character == '"' || atom.character == '\\' ||
                            (atom.character >= 0 && atom.character < 0x20));
}

// The class that begins at `at` with '[': moves behind it. True if it holds escaped characters
// alone; ranges count by their ends.
bool is_class_of_escapes(std::string_view pattern, std::size_t& at) {
  ++at;
  bool only_escapes = at < pattern.size() && pattern[at] != '^';
  while (at < pattern.size() && pattern[at] != ']') {
    const Atom atom = read_atom(pattern.substr(at));
    if (!is_escaped_in_json(atom)) only_escapes = false;
    at += atom.size;
  }
  ++at;
  return only_escapes;
}

}  // namespace

bool needs_json_escapes(std::string_view pattern) {
  for (std::size_t at = 0; at < pattern.size();) {
    if (pattern[at] == '[') {
      if (is_class_of_escapes(pattern, at)) return true;
      continue;
    }
    const Atom atom = read_atom(pattern.substr(at));
    if (is_escaped_in_json(atom)) return true;
    at += atom.size;
  }
  return false;
}

std::string ascii_pattern(std::string_view pattern) {
  std::string ascii;
  for (std::size_t at = 0; at < pattern.size();) {
    if (static_cast<unsigned char>(pattern[at]) < 0x80) {
      const bool escapes = pattern[at] == '\\' && at + 1 < pattern.size();
      const bool ascii_next = escapes && static_cast<unsigned char>(pattern[at + 1]) < 0x80;
      if (!escapes || ascii_next) ascii += pattern[at];  // else the backslash changes nothing
      if (ascii_next) ascii += pattern[at + 1];
      at += ascii_next ? 2 : 1;
      continue;
    }
    const DecodedChar decoded = decode_utf8(pattern, at);
    char text[16];
    std::snprintf(text, sizeof text, "\\u{%x}", static_cast<unsigned>(decoded.code_point));
    ascii += text;
    at += decoded.length;
  }
  return ascii;
}

}  // namespace coppice
