// UTF-8 and the character classes that the published pre-tokenisation patterns name. The classes
// are those of the reference tokenizers' regex engines (see unicode_data.cpp for the version).
// Thread-safe: everything is constant after first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

// Bits of a character's class byte. Letters are kUpper | kLower | kOtherLetter.
enum CharClass : std::uint8_t {
  kUpper = 1,         // \p{Lu}, \p{Lt}
  kLower = 2,         // \p{Ll}
  kOtherLetter = 4,   // \p{Lm}, \p{Lo}
  kMark = 8,          // \p{M}
  kNumber = 16,       // \p{N}
  kSpace = 32,        // \s, the White_Space property
  kHan = 64,          // \p{Han}
  kDigitsStep = 128,  // what the "Digits" step of tokenizers isolates (a newer Unicode than \p{N})
};
constexpr std::uint8_t kLetter = kUpper | kLower | kOtherLetter;

// Malformed input is read as one-byte characters from here on: they belong to no class.
constexpr char32_t kInvalidByte = 0x110000;

std::uint8_t char_class(char32_t code_point);
// Python's str.isspace().
inline bool is_python_space(char32_t c) {
  return (char_class(c) & kSpace) != 0 || (c >= 0x1c && c <= 0x1f);
}

struct DecodedChar {
  char32_t code_point;
  std::uint32_t length;  // bytes read, at least 1
};

// The character that starts at text[position]; position < text.size(). Overlong forms, surrogates
// and truncated sequences are malformed: the first byte alone is read as kInvalidByte + byte.
DecodedChar decode_utf8(std::string_view text, std::size_t position);

// Appends the UTF-8 form; kInvalidByte + byte appends that byte again.
void append_utf8(std::string& out, char32_t code_point);

// Number of bytes at the end of `text` that begin a character whose rest is still to come (0..3).
std::size_t incomplete_utf8_suffix(std::string_view text);

// `text` with every malformed byte replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// A text as arrays of characters. offsets has one more entry: the byte length.
struct Characters {
  std::vector<char32_t> code_points;   // [n]
  std::vector<std::uint8_t> classes;   // [n]
  std::vector<std::uint32_t> offsets;  // [n + 1] byte offset of each character
  std::size_t size() const { return code_points.size(); }
};

// text.size() must be below 2^32.
Characters to_characters(std::string_view text);

}  // namespace coppice
