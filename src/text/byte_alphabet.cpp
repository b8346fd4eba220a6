#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace coppice {
namespace {

constexpr int kAlphabetEnd = 0x144;  // 188 bytes stand for themselves, 68 for U+0100..U+0143

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// Byte of each alphabet character, -1 for other characters.
constexpr std::array<int, kAlphabetEnd> make_bytes() {
  std::array<int, kAlphabetEnd> bytes{};
  for (int& b : bytes) b = -1;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    if (stands_for_itself(b)) {
      bytes[static_cast<std::size_t>(b)] = b;
    } else {
      bytes[static_cast<std::size_t>(next++)] = b;
    }
  }
  return bytes;
}

constexpr std::array<int, kAlphabetEnd> kBytes = make_bytes();

}  // namespace

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    if (c.code_point >= kAlphabetEnd || kBytes[c.code_point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kBytes[c.code_point]));
    i += c.length;
  }
  return out;
}

std::optional<Merge> merge_of_pair(std::string_view left, std::string_view right,
                                   const TokenTable& table) {
  const std::optional<std::string> a = bytes_of_alphabet(left), b = bytes_of_alphabet(right);
  if (!a || !b) return std::nullopt;
  const Merge merge{table.find(*a), table.find(*b), table.find(*a + *b)};
  if (merge.left < 0 || merge.right < 0 || merge.result < 0) return std::nullopt;
  return merge;
}

std::optional<Merge> merge_of_line(std::string_view line, const TokenTable& table) {
  const std::size_t space = line.find(' ');
  if (space == line.npos || line.find(' ', space + 1) != line.npos) return std::nullopt;
  return merge_of_pair(line.substr(0, space), line.substr(space + 1), table);
}

}  // namespace coppice
