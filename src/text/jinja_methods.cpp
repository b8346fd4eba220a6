// Methods of strings and dicts that published templates call.
#include <algorithm>
#include <array>
#include <cstdio>

#include "text/jinja_builtins.h"
#include "text/unicode.h"

namespace coppice {
namespace {

using Kind = JinjaValue::Kind;

constexpr std::array<std::string_view, 24> kStringMethods = {
    "strip",      "lstrip",       "rstrip",       "split",      "rsplit",  "splitlines",
    "startswith", "lower",        "upper",        "capitalize", "title",   "replace",
    "endswith",   "find",         "rfind",        "count",      "join",    "isdigit",
    "isalpha",    "removeprefix", "removesuffix", "format",     "isspace", "isupper"};
constexpr std::array<std::string_view, 6> kDictMethods = {"get",    "items", "keys",
                                                          "values", "pop",   "update"};
constexpr std::array<std::string_view, 7> kListMethods = {"append", "extend", "pop",  "insert",
                                                          "remove", "index",  "count"};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const std::string& text_argument(const JinjaArguments& arguments, std::size_t position,
                                 std::string_view name) {
  const JinjaValue& value = arguments.at(position, name);
  if (!value.is_string()) {
    jinja_fail("argument '" + std::string(name) + "' must be a str, not " + value.type_name());
  }
  return value.as_text();
}

// Pieces between runs of white space, none of them empty.
JinjaValue::List split_spaces(const MarkedText& text, std::int64_t limit) {
  JinjaValue::List pieces;
  const std::string& bytes = text.text();
  std::size_t begin = 0;
  const auto skip = [&](std::size_t i, bool space) {
    while (i < bytes.size() && is_python_space(decode_utf8(bytes, i).code_point) == space) {
      i += decode_utf8(bytes, i).length;
    }
    return i;
  };
  while ((begin = skip(begin, true)) < bytes.size()) {
    const bool last = limit >= 0 && static_cast<std::int64_t>(pieces.size()) == limit;
    const std::size_t end = last ? bytes.size() : skip(begin, false);
    const MarkedText piece = text.substring(begin, end);
    pieces.push_back(JinjaValue::string(last ? jinja_strip(piece, "", false, true) : piece));
    begin = end;
  }
  return pieces;
}

JinjaValue split(const MarkedText& text, const JinjaArguments& arguments, bool from_right) {
  const JinjaValue* separator = arguments.find(0, "sep");
  const JinjaValue* limit_value = arguments.find(1, "maxsplit");
  std::int64_t limit = limit_value == nullptr ? -1 : limit_value->to_integer("maxsplit");
  if (separator == nullptr || separator->is(Kind::kNone)) {
    if (from_right && limit >= 0) jinja_fail("rsplit by white space with maxsplit");
    return JinjaValue::list(split_spaces(text, limit));
  }
  const std::string& wanted = text_argument(arguments, 0, "sep");
  if (wanted.empty()) jinja_fail("empty separator");
  JinjaValue::List pieces;
  if (from_right) {
    std::size_t end = text.size();
    while (limit-- != 0 && end >= wanted.size()) {
      const std::size_t found = text.text().rfind(wanted, end - wanted.size());
      if (found == std::string::npos) break;
      pieces.push_back(JinjaValue::string(text.substring(found + wanted.size(), end)));
      end = found;
    }
    pieces.push_back(JinjaValue::string(text.substring(0, end)));
    std::reverse(pieces.begin(), pieces.end());
    return JinjaValue::list(std::move(pieces));
  }
  std::size_t begin = 0;
  while (limit-- != 0) {
    const std::size_t found = text.text().find(wanted, begin);
    if (found == std::string::npos) break;
    pieces.push_back(JinjaValue::string(text.substring(begin, found)));
    begin = found + wanted.size();
  }
  pieces.push_back(JinjaValue::string(text.substring(begin, text.size())));
  return JinjaValue::list(std::move(pieces));
}

// At \n, \r and \r\n; Python knows a few rarer line ends.
JinjaValue split_lines(const MarkedText& text, const JinjaArguments& arguments) {
  const JinjaValue* keep_value = arguments.find(0, "keepends");
  const bool keep = keep_value != nullptr && keep_value->truthy();
  JinjaValue::List lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.text().find_first_of("\r\n", begin), text.size());
    std::size_t next = std::min(end + 1, text.size());
    if (text.text().compare(end, 2, "\r\n") == 0) next = end + 2;
    lines.push_back(JinjaValue::string(text.substring(begin, keep ? next : end)));
    begin = next;
  }
  return JinjaValue::list(std::move(lines));
}

// startswith / endswith with a string or a tuple of strings.
bool has_affix(const std::string& text, const JinjaValue& affix, bool front) {
  if (affix.is(Kind::kTuple)) {
    return std::any_of(affix.as_list().begin(), affix.as_list().end(),
                       [&](const JinjaValue& one) { return has_affix(text, one, front); });
  }
  if (!affix.is_string()) jinja_fail("startswith and endswith take a str or a tuple of str");
  return front ? text.starts_with(affix.as_text()) : text.ends_with(affix.as_text());
}

JinjaValue find_text(const std::string& text, const std::string& wanted, bool from_right) {
  const std::size_t found = from_right ? text.rfind(wanted) : text.find(wanted);
  if (found == std::string::npos) return JinjaValue::integer(-1);
  return JinjaValue::size(jinja_length(std::string_view(text).substr(0, found)));
}

JinjaValue count_text(const std::string& text, const std::string& wanted) {
  if (wanted.empty()) return JinjaValue::size(jinja_length(text) + 1);
  std::size_t count = 0;
  for (std::size_t i = text.find(wanted); i != std::string::npos;
       i = text.find(wanted, i + wanted.size())) {
    ++count;
  }
  return JinjaValue::size(count);
}

JinjaValue join(const MarkedText& separator, const JinjaValue& items, JinjaBudget& budget) {
  MarkedText out;
  bool first = true;
  for (const JinjaValue& item : jinja_items(items)) {
    if (!item.is_string()) jinja_fail(std::string("join of a ") + item.type_name());
    if (!first) out.append(separator);
    first = false;
    budget.charge_bytes(item.as_text().size());
    budget.check_bytes(out.size() + item.as_text().size());
    out.append(item.as_marked());
  }
  return JinjaValue::string(std::move(out));
}

// isdigit and friends: not empty, every character of the class.
bool all_of_class(const std::string& text, std::uint8_t wanted) {
  for (std::size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    if ((char_class(c.code_point) & wanted) == 0) return false;
    i += c.length;
  }
  return !text.empty();
}

JinjaValue remove_affix(const MarkedText& text, const std::string& affix, bool front) {
  const bool present = front ? text.text().starts_with(affix) : text.text().ends_with(affix);
  if (!present) return JinjaValue::string(text);
  return JinjaValue::string(front ? text.substring(affix.size(), text.size())
                                  : text.substring(0, text.size() - affix.size()));
}

JinjaValue replace(const MarkedText& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  const JinjaValue* count = arguments.find(2, "count");
  text_argument(arguments, 1, "new");
  MarkedText out =
      jinja_replace(text, text_argument(arguments, 0, "old"), arguments.at(1, "new").as_marked(),
                    count == nullptr ? -1 : count->to_integer("count"));
  budget.charge_bytes(out.size());
  return JinjaValue::string(std::move(out));
}

JinjaValue string_method(const MarkedText& text, std::string_view name,
                         const JinjaArguments& arguments, JinjaBudget& budget) {
  const std::string& bytes = text.text();
  const bool trusted = text.all_trusted();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const JinjaValue* chars = arguments.find(0, "chars");
    const bool white = chars == nullptr || chars->is(Kind::kNone);
    return JinjaValue::string(jinja_strip(text, white ? "" : text_argument(arguments, 0, "chars"),
                                          name != "rstrip", name != "lstrip"));
  }
  if (name == "split" || name == "rsplit") return split(text, arguments, name == "rsplit");
  if (name == "splitlines") return split_lines(text, arguments);
  if (name == "startswith" || name == "endswith") {
    return JinjaValue::boolean(has_affix(bytes, arguments.at(0, "prefix"), name == "startswith"));
  }
  if (name == "lower") return JinjaValue::string(jinja_lower(bytes), trusted);
  if (name == "upper") return JinjaValue::string(jinja_upper(bytes), trusted);
  if (name == "capitalize") return JinjaValue::string(jinja_capitalize(bytes), trusted);
  if (name == "title") return JinjaValue::string(jinja_title(bytes), trusted);
  if (name == "replace") return replace(text, arguments, budget);
  if (name == "find" || name == "rfind") {
    return find_text(bytes, text_argument(arguments, 0, "sub"), name == "rfind");
  }
  if (name == "count") return count_text(bytes, text_argument(arguments, 0, "sub"));
  if (name == "join") return join(text, arguments.at(0, "iterable"), budget);
  if (name == "isdigit") return JinjaValue::boolean(all_of_class(bytes, kNumber));
  if (name == "isalpha") return JinjaValue::boolean(all_of_class(bytes, kLetter));
  if (name == "isspace") return JinjaValue::boolean(all_of_class(bytes, kSpace));
  if (name == "removeprefix" || name == "removesuffix") {
    return remove_affix(text, text_argument(arguments, 0, "affix"), name == "removeprefix");
  }
  jinja_fail("str method '" + std::string(name) + "' is not supported");
}

JinjaValue dict_method(const JinjaValue& dict, std::string_view name,
                       const JinjaArguments& arguments, JinjaBudget& budget) {
  budget.charge(dict.as_dict().size() / 16);
  if (name == "get") {
    const JinjaValue& key = arguments.at(0, "key");
    for (const auto& [other, value] : dict.as_dict()) {
      if (jinja_equal(other, key)) return value;
    }
    const JinjaValue* otherwise = arguments.find(1, "default");
    return otherwise == nullptr ? JinjaValue::none() : *otherwise;
  }
  budget.charge(dict.as_dict().size());
  JinjaValue::List items;
  for (const auto& [key, value] : dict.as_dict()) {
    if (name == "items") items.push_back(JinjaValue::tuple({key, value}));
    if (name == "keys") items.push_back(key);
    if (name == "values") items.push_back(value);
  }
  return JinjaValue::list(std::move(items));
}

}  // namespace

bool jinja_has_method(const JinjaValue& object, std::string_view name) {
  if (object.is_string()) return contains(kStringMethods, name);
  if (object.is(Kind::kDict)) return contains(kDictMethods, name);
  return object.is_sequence() && contains(kListMethods, name);
}

JinjaValue jinja_call_method(const JinjaValue& object, std::string_view name,
                             const JinjaArguments& arguments, JinjaBudget& budget) {
  if (object.is_string()) {
    budget.charge_bytes(object.as_text().size());
    return string_method(object.as_marked(), name, arguments, budget);
  }
  // transformers renders in an immutable sandbox: nothing may change a list or a dict.
  if (object.is(Kind::kDict) && name != "pop" && name != "update") {
    return dict_method(object, name, arguments, budget);
  }
  jinja_fail(std::string(object.type_name()) + " method '" + std::string(name) +
             "' is not allowed in a chat template");
}

MarkedText jinja_strip(const MarkedText& text, std::string_view chars, bool left, bool right) {
  const std::string& bytes = text.text();
  const auto strips = [&](std::size_t at) {
    const DecodedChar c = decode_utf8(bytes, at);
    if (chars.empty()) return is_python_space(c.code_point);
    for (std::size_t i = 0; i < chars.size(); i += decode_utf8(chars, i).length) {
      if (decode_utf8(chars, i).code_point == c.code_point) return true;
    }
    return false;
  };
  std::size_t begin = 0;
  while (left && begin < bytes.size() && strips(begin)) begin += decode_utf8(bytes, begin).length;
  std::size_t end = begin;
  for (std::size_t i = begin; i < bytes.size();) {
    const bool kept = !right || !strips(i);
    i += decode_utf8(bytes, i).length;
    if (kept) end = i;
  }
  return text.substring(begin, end);
}

MarkedText jinja_replace(const MarkedText& text, std::string_view from, const MarkedText& to,
                         std::int64_t count) {
  MarkedText out;
  std::size_t begin = 0, search = 0;
  while (count-- != 0) {
    const std::size_t found = text.text().find(from, search);
    if (found == std::string::npos) break;
    out.append(text.substring(begin, found));
    out.append(to);
    begin = found + from.size();
    search = begin;
    if (from.empty()) {
      // Between all characters, as Python does.
      if (found == text.size()) break;
      search = found + decode_utf8(text.text(), found).length;
    }
  }
  out.append(text.substring(begin, text.size()));
  return out;
}

std::size_t jinja_length(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); i += decode_utf8(text, i).length) ++count;
  return count;
}

}  // namespace coppice
