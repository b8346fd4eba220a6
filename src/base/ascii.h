// Letters of protocols: ASCII alone, whatever the locale.
#pragma once

#include <string>
#include <string_view>

namespace coppice {

constexpr char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

// The text with A to Z as a to z; other bytes stay as they are.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = ascii_lower(c);
  return lower;
}

}  // namespace coppice
