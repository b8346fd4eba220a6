#include <algorithm>
#include <charconv>
#include <cmath>

#include "io/json.h"

namespace coppice {
namespace {

// Decodes one code point at `at` and advances; U+FFFD for a byte that starts no valid sequence.
std::uint32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint32_t lead = byte(at++);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xf0 && lead < 0xf5 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc2 ? 1 : 0;
  if (more == 0 || lead >= 0xf5 || at + static_cast<std::size_t>(more) > text.size()) return 0xfffd;
  std::uint32_t code = lead & (0x3fu >> more);
  for (int i = 0; i < more; ++i) {
    const std::uint32_t next = byte(at + static_cast<std::size_t>(i));
    if ((next & 0xc0u) != 0x80u) return 0xfffd;
    code = (code << 6) | (next & 0x3fu);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0xfffd;
  at += static_cast<std::size_t>(more);
  return code;
}

void append_escape(std::string& out, std::uint32_t unit) {
  constexpr char kHex[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[(unit >> shift) & 0xfu];
}

void append_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const std::uint32_t code = next_code_point(text, at);
    if (code == '"' || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code < 0x20) {
      constexpr char kNamed[] = "btn\0fr";  // \b is 8; 11 has no name
      const char named = code >= 8 && code <= 13 ? kNamed[code - 8] : '\0';
      if (named == '\0') {
        append_escape(out, code);
      } else {
        out += '\\';
        out += named;
      }
    } else if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (!ensure_ascii) {
      const bool replaced = code == 0xfffd;
      out += replaced ? std::string_view("\xef\xbf\xbd") : text.substr(start, at - start);
    } else if (code < 0x10000) {
      append_escape(out, code);
    } else {
      append_escape(out, 0xd800 + ((code - 0x10000) >> 10));
      append_escape(out, 0xdc00 + ((code - 0x10000) & 0x3ff));
    }
  }
  out += '"';
}

// Shortest digits that read back the same, laid out as Python's repr does: fixed from 1e-4 up to
// below 1e16, an exponent of at least two digits elsewhere, ".0" on whole numbers.
void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const double magnitude = std::abs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto format = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value, format);
  const std::string_view text(buffer, static_cast<std::size_t>(result.ptr - buffer));
  out += text;
  if (fixed && text.find('.') == std::string_view::npos) out += ".0";
}

class Writer {
 public:
  Writer(std::string& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Json& value) {
    switch (value.kind()) {
      case Json::Kind::kNull:
        out_ += "null";
        break;
      case Json::Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        break;
      case Json::Kind::kInt:
        out_ += std::to_string(value.as_int());
        break;
      case Json::Kind::kUint:
        out_ += std::to_string(value.as_uint());
        break;
      case Json::Kind::kDouble:
        append_double(out_, value.as_double());
        break;
      case Json::Kind::kString:
        append_string(out_, value.as_string(), style_.ensure_ascii);
        break;
      case Json::Kind::kArray:
        write_array(value.as_array());
        break;
      case Json::Kind::kObject:
        write_object(value.as_object());
        break;
    }
  }

 private:
  void write_array(const Json::Array& items) {
    out_ += '[';
    ++depth_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i);
      write(items[i]);
    }
    --depth_;
    if (!items.empty()) new_line();
    out_ += ']';
  }

  void write_object(const Json::Object& members) {
    std::vector<const Json::Member*> order;
    for (const Json::Member& member : members) order.push_back(&member);
    if (style_.sort_keys)
      std::stable_sort(order.begin(), order.end(),
                       [](const auto* a, const auto* b) { return a->first < b->first; });
    out_ += '{';
    ++depth_;
    for (std::size_t i = 0; i < order.size(); ++i) {
      separate(i);
      append_string(out_, order[i]->first, style_.ensure_ascii);
      out_ += style_.spaces || style_.indent >= 0 ? ": " : ":";
      write(order[i]->second);
    }
    --depth_;
    if (!order.empty()) new_line();
    out_ += '}';
  }

  void separate(std::size_t index) {
    if (index > 0) out_ += style_.spaces && style_.indent < 0 ? ", " : ",";
    new_line();
  }

  void new_line() {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(style_.indent) * static_cast<std::size_t>(depth_), ' ');
  }

  std::string& out_;
  const JsonStyle& style_;
  int depth_ = 0;
};

}  // namespace

std::string write_json(const Json& value, const JsonStyle& style) {
  std::string out;
  Writer(out, style).write(value);
  return out;
}

}  // namespace coppice
