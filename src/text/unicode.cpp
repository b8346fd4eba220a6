#include "text/unicode.h"

#include <limits>

#include "base/check.h"
#include "text/unicode_data.h"

namespace coppice {
namespace {

std::vector<std::uint8_t> expand_classes() {
  const auto runs = unicode_data::class_runs();
  std::vector<std::uint8_t> table(0x110000);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::uint32_t first = runs[i] & 0xffffff;
    const std::uint32_t end = i + 1 < runs.size() ? runs[i + 1] & 0xffffff : 0x110000;
    for (std::uint32_t c = first; c < end; ++c) table[c] = static_cast<std::uint8_t>(runs[i] >> 24);
  }
  return table;
}

const std::uint8_t* class_table() {
  static const std::vector<std::uint8_t> table = expand_classes();
  return table.data();
}

bool is_continuation(unsigned char byte) {
  return (byte & 0xc0) == 0x80;
}

// Length announced by a lead byte, 0 for a byte that starts no character.
std::uint32_t announced_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) return 3;
  return lead < 0xf5 ? 4 : 0;
}

// The second byte has a narrower range after E0 (overlong), ED (surrogates), F0 and F4.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  if (!is_continuation(second)) return false;
  if (lead == 0xe0) return second >= 0xa0;
  if (lead == 0xed) return second < 0xa0;
  if (lead == 0xf0) return second >= 0x90;
  if (lead == 0xf4) return second < 0x90;
  return true;
}

}  // namespace

std::uint8_t char_class(char32_t code_point) {
  return code_point < kInvalidByte ? class_table()[code_point] : 0;
}

DecodedChar decode_utf8(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const DecodedChar invalid{kInvalidByte + lead, 1};
  const std::uint32_t length = announced_length(lead);
  if (length == 0 || text.size() - position < length) return invalid;
  if (!second_byte_fits(lead, byte(1))) return invalid;
  char32_t code_point = lead & (0x7fu >> length);
  for (std::uint32_t i = 1; i < length; ++i) {
    if (!is_continuation(byte(i))) return invalid;
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  return {code_point, length};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto push = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point >= kInvalidByte) {
    push(code_point - kInvalidByte);
  } else if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | code_point >> 6);
    push(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    push(0xe0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3f));
    push(0x80 | (code_point & 0x3f));
  } else {
    push(0xf0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3f));
    push(0x80 | (code_point >> 6 & 0x3f));
    push(0x80 | (code_point & 0x3f));
  }
}

std::size_t incomplete_utf8_suffix(std::string_view text) {
  const std::size_t most = text.size() < 3 ? text.size() : 3;
  for (std::size_t back = 1; back <= most; ++back) {
    const auto lead = static_cast<unsigned char>(text[text.size() - back]);
    if (is_continuation(lead)) continue;
    const std::uint32_t length = announced_length(lead);
    if (length <= back) return 0;
    if (back > 1 &&
        !second_byte_fits(lead, static_cast<unsigned char>(text[text.size() - back + 1]))) {
      return 0;
    }
    return back;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    append_utf8(out, c.code_point < kInvalidByte ? c.code_point : U'\uFFFD');
    i += c.length;
  }
  return out;
}

Characters to_characters(std::string_view text) {
  COPPICE_CHECK_LT(text.size(), std::numeric_limits<std::uint32_t>::max());
  const std::uint8_t* table = class_table();
  Characters out;
  out.code_points.reserve(text.size());
  out.classes.reserve(text.size());
  out.offsets.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    out.code_points.push_back(c.code_point);
    out.classes.push_back(c.code_point < kInvalidByte ? table[c.code_point] : std::uint8_t{0});
    out.offsets.push_back(static_cast<std::uint32_t>(i));
    i += c.length;
  }
  out.offsets.push_back(static_cast<std::uint32_t>(text.size()));
  return out;
}

}  // namespace coppice
