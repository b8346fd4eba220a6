// Tests ("value is name") and text functions shared by filters and methods.
#include <array>
#include <cstdio>
#include <optional>

#include "text/jinja_builtins.h"
#include "text/unicode.h"

namespace coppice {
namespace {

using Kind = JinjaValue::Kind;

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
char upper_char(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
}
char lower_char(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

// Tests that look at the value's kind alone; nothing for other names.
std::optional<bool> kind_test(std::string_view name, const JinjaValue& value) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is(Kind::kNone);
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is(Kind::kDict);
  if (name == "boolean") return value.is(Kind::kBool);
  if (name == "true") return value.is(Kind::kBool) && value.as_bool();
  if (name == "false") return value.is(Kind::kBool) && !value.as_bool();
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_integer() && !value.is(Kind::kBool);
  if (name == "float") return value.is(Kind::kDouble);
  if (name == "callable") return value.is(Kind::kFunction);
  const bool container = value.is_string() || value.is_sequence() || value.is(Kind::kDict);
  if (name == "sequence") return container || value.is_undefined();
  if (name == "iterable") return container || value.is_undefined();
  return std::nullopt;
}

// Tests that compare with one argument; nothing for other names.
std::optional<bool> comparison_test(std::string_view name, const JinjaValue& value,
                                    const JinjaArguments& arguments) {
  const auto other = [&]() -> const JinjaValue& { return arguments.at(0, "other"); };
  if (name == "equalto" || name == "eq" || name == "==") return jinja_equal(value, other());
  if (name == "ne" || name == "!=") return !jinja_equal(value, other());
  if (name == "lt" || name == "lessthan" || name == "<") return jinja_less(value, other());
  if (name == "gt" || name == "greaterthan" || name == ">") return jinja_less(other(), value);
  if (name == "le" || name == "<=") return !jinja_less(other(), value);
  if (name == "ge" || name == ">=") return !jinja_less(value, other());
  if (name == "in") return jinja_contains(other(), value);
  if (name == "sameas") return value.kind() == other().kind() && jinja_equal(value, other());
  return std::nullopt;
}

std::optional<bool> value_test(std::string_view name, const JinjaValue& value,
                               const JinjaArguments& arguments) {
  if (name == "lower" || name == "upper") {
    const std::string text = value.to_text().text();
    bool letters = false;
    for (const char c : text) letters = letters || is_ascii_letter(c);
    return letters && (name == "lower" ? jinja_lower(text) : jinja_upper(text)) == text;
  }
  if (name != "odd" && name != "even" && name != "divisibleby") return std::nullopt;
  const std::int64_t by = name == "divisibleby" ? arguments.at(0, "num").to_integer("divisor") : 2;
  if (by == 0) jinja_fail("division by zero");
  const bool divides = by == -1 || value.to_integer("tested value") % by == 0;
  return divides != (name == "odd");
}

// One value by a format's letter and the flags in front of it.
std::string format_value(const JinjaValue& value, char letter, const std::string& flags) {
  std::array<char, 512> buffer{};
  switch (letter) {
    case 's':
      return value.to_text().text();
    case 'r':
      return value.repr();
    case 'd':
    case 'i':
      std::snprintf(buffer.data(), buffer.size(), ("%" + flags + "lld").c_str(),
                    static_cast<long long>(value.to_integer("formatted value")));
      return buffer.data();
    case 'f':
      if (!value.is_number()) jinja_fail("a number is needed for %f");
      std::snprintf(buffer.data(), buffer.size(), ("%" + flags + "f").c_str(), value.as_double());
      return buffer.data();
    default:
      jinja_fail("format letter '" + std::string(1, letter) + "' is not supported");
  }
}

}  // namespace

bool jinja_test(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments) {
  if (const auto result = kind_test(name, value)) return *result;
  if (const auto result = comparison_test(name, value, arguments)) return *result;
  if (const auto result = value_test(name, value, arguments)) return *result;
  jinja_fail("test '" + std::string(name) + "' is not supported");
}

// Case mapping is ASCII's: published templates map role and type names only.
std::string jinja_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower_char(c);
  return out;
}

std::string jinja_upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = upper_char(c);
  return out;
}

std::string jinja_capitalize(std::string_view text) {
  std::string out = jinja_lower(text);
  if (!out.empty()) out[0] = upper_char(out[0]);
  return out;
}

std::string jinja_title(std::string_view text) {
  std::string out = jinja_lower(text);
  bool inside = false;
  for (char& c : out) {
    if (!inside) c = upper_char(c);
    inside = is_ascii_letter(c) || static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9');
  }
  return out;
}

std::string jinja_percent_format(std::string_view format, const JinjaValue& values) {
  const JinjaValue::List list =
      values.is(Kind::kTuple) ? values.as_list() : JinjaValue::List{values};
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const std::size_t letter = format.find_first_not_of("0123456789.-+ ", i + 1);
    if (letter == format.npos) jinja_fail("incomplete format");
    const std::string flags(format.substr(i + 1, letter - i - 1));
    i = letter;
    if (format[letter] == '%') {
      out += '%';
      continue;
    }
    if (next == list.size()) jinja_fail("not enough values for a format");
    if (flags.size() > 8) jinja_fail("format is too wide");
    out += format_value(list[next++], format[letter], flags);
  }
  if (next != list.size()) jinja_fail("too many values for a format");
  return out;
}

}  // namespace coppice
