#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja_builtins.h"
#include "text/unicode.h"

namespace coppice {
namespace {

using Kind = JinjaValue::Kind;
using Arguments = JinjaArguments;

bool flag(const Arguments& arguments, std::size_t position, std::string_view name,
          bool otherwise = false) {
  const JinjaValue* value = arguments.find(position, name);
  return value == nullptr ? otherwise : value->truthy();
}

// "a.b.0" looked up step by step, as map(attribute=...) and selectattr do.
JinjaValue attribute_path(JinjaValue value, const JinjaValue& path) {
  if (!path.is_string()) return jinja_item(value, path);
  const std::string& text = path.as_text();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    std::int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && parsed.ptr == part.data() + part.size();
    value = number ? jinja_item(value, JinjaValue::integer(index))
                   : jinja_item(value, JinjaValue::string(part, true));
    begin = end + 1;
  }
  return value;
}

// The items of select and map, which take anything falsy for an empty list.
JinjaValue::List items_or_nothing(const JinjaValue& input) {
  return input.truthy() ? jinja_items(input) : JinjaValue::List();
}

// The arguments behind the first `count` positional ones.
Arguments rest(const Arguments& arguments, std::size_t count) {
  Arguments out = arguments;
  const std::size_t dropped = std::min(count, out.positional.size());
  out.positional.erase(out.positional.begin(),
                       out.positional.begin() + static_cast<std::ptrdiff_t>(dropped));
  return out;
}

JinjaValue to_json(const JinjaValue& input, const Arguments& arguments, JinjaBudget& budget) {
  JsonStyle style;
  style.spaces = true;
  style.ensure_ascii = flag(arguments, 0, "ensure_ascii");
  style.sort_keys = flag(arguments, 3, "sort_keys");
  if (const JinjaValue* indent = arguments.find(1, "indent");
      indent != nullptr && !indent->is(Kind::kNone)) {
    const std::int64_t spaces = indent->to_integer("indent");
    if (spaces < 0 || spaces > 64) jinja_fail("tojson: indent out of range");
    style.indent = static_cast<int>(spaces);
  }
  if (const JinjaValue* separators = arguments.find(2, "separators");
      separators != nullptr && !separators->is(Kind::kNone)) {
    if (!separators->is_sequence() || separators->as_list().size() != 2) {
      jinja_fail("tojson: separators must be two strings");
    }
    const std::string item = separators->as_list()[0].to_text().text();
    const std::string key = separators->as_list()[1].to_text().text();
    style.spaces = item == ", " && key == ": ";
    if (!style.spaces && (item != "," || key != ":")) {
      jinja_fail("tojson: separators other than (', ', ': ') and (',', ':') are not supported");
    }
  }
  if (input.is_undefined()) jinja_fail("tojson of an undefined value");
  std::string text = write_json(input.to_json(), style);
  budget.charge_bytes(text.size());
  return JinjaValue::string(std::move(text), false);
}

JinjaValue join(const JinjaValue& input, const Arguments& arguments, JinjaBudget& budget) {
  const JinjaValue* separator = arguments.find(0, "d");
  const JinjaValue* attribute = arguments.find(1, "attribute");
  MarkedText out;
  bool first = true;
  for (const JinjaValue& item : jinja_items(input)) {
    if (!first && separator != nullptr) out.append(separator->to_text());
    first = false;
    const MarkedText text =
        (attribute == nullptr ? item : attribute_path(item, *attribute)).to_text();
    budget.charge_bytes(text.size());
    budget.check_bytes(out.size() + text.size());
    out.append(text);
  }
  return JinjaValue::string(std::move(out));
}

JinjaValue indent(const JinjaValue& input, const Arguments& arguments) {
  const JinjaValue* width = arguments.find(0, "width");
  std::string step(4, ' ');
  if (width != nullptr && width->is_string()) {
    step = width->as_text();
  } else if (width != nullptr) {
    const std::int64_t spaces = width->to_integer("indent width");
    if (spaces < 0 || spaces > 1024) jinja_fail("indent: width out of range");
    step = std::string(static_cast<std::size_t>(spaces), ' ');
  }
  const bool first = flag(arguments, 1, "first"), blank = flag(arguments, 2, "blank");
  const MarkedText text = input.to_text();
  const std::string& bytes = text.text();
  MarkedText out;
  for (std::size_t begin = 0, line = 0; begin <= bytes.size(); ++line) {
    const std::size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const bool wanted = line == 0 ? first : blank || end > begin;
    if (wanted) out.append(step, false);
    const std::size_t next = std::min(end + 1, bytes.size());
    out.append(text.substring(begin, next));
    if (end == bytes.size()) break;
    begin = next;
  }
  return JinjaValue::string(std::move(out));
}

JinjaValue default_value(const JinjaValue& input, const Arguments& arguments) {
  const bool missing = input.is_undefined() || (flag(arguments, 1, "boolean") && !input.truthy());
  if (!missing) return input;
  const JinjaValue* value = arguments.find(0, "default_value");
  return value == nullptr ? JinjaValue::string(MarkedText()) : *value;
}

JinjaValue items(const JinjaValue& input, JinjaBudget& budget) {
  if (input.is_undefined()) return JinjaValue::list({});
  if (!input.is(Kind::kDict)) jinja_fail("items: only a dict has items");
  return jinja_call_method(input, "items", {}, budget);
}

std::string ordering_key(const std::string& text, bool case_sensitive) {
  return case_sensitive ? text : jinja_lower(text);
}

bool ordered_before(const JinjaValue& a, const JinjaValue& b, bool case_sensitive) {
  if (!a.is_string() || !b.is_string()) return jinja_less(a, b);
  return ordering_key(a.as_text(), case_sensitive) < ordering_key(b.as_text(), case_sensitive);
}

JinjaValue sort(const JinjaValue& input, const Arguments& arguments) {
  JinjaValue::List list = jinja_items(input);
  const bool reverse = flag(arguments, 0, "reverse"), exact = flag(arguments, 1, "case_sensitive");
  const JinjaValue* attribute = arguments.find(2, "attribute");
  const auto key = [&](const JinjaValue& item) {
    return attribute == nullptr ? item : attribute_path(item, *attribute);
  };
  std::stable_sort(list.begin(), list.end(), [&](const JinjaValue& a, const JinjaValue& b) {
    return reverse ? ordered_before(key(b), key(a), exact) : ordered_before(key(a), key(b), exact);
  });
  return JinjaValue::list(std::move(list));
}

JinjaValue dict_sort(const JinjaValue& input, const Arguments& arguments, JinjaBudget& budget) {
  JinjaValue::List list = items(input, budget).as_list();
  const bool exact = flag(arguments, 0, "case_sensitive"), reverse = flag(arguments, 2, "reverse");
  const JinjaValue* by = arguments.find(1, "by");
  const std::size_t index = by != nullptr && by->to_text().text() == "value" ? 1 : 0;
  std::stable_sort(list.begin(), list.end(), [&](const JinjaValue& a, const JinjaValue& b) {
    const JinjaValue &x = a.as_list()[index], &y = b.as_list()[index];
    return reverse ? ordered_before(y, x, exact) : ordered_before(x, y, exact);
  });
  return JinjaValue::list(std::move(list));
}

JinjaValue unique(const JinjaValue& input) {
  JinjaValue::List out;
  for (const JinjaValue& item : jinja_items(input)) {
    const bool seen = std::any_of(out.begin(), out.end(), [&](const JinjaValue& other) {
      return !ordered_before(item, other, false) && !ordered_before(other, item, false);
    });
    if (!seen) out.push_back(item);
  }
  return JinjaValue::list(std::move(out));
}

JinjaValue map(const JinjaValue& input, const Arguments& arguments, JinjaBudget& budget) {
  JinjaValue::List out;
  const JinjaValue* attribute =
      arguments.positional.empty() ? arguments.find(0, "attribute") : nullptr;
  const JinjaValue* otherwise = arguments.find(std::string::npos, "default");
  for (const JinjaValue& item : items_or_nothing(input)) {
    budget.charge(1);
    if (attribute == nullptr) {
      const std::string name = arguments.at(0, "filter").to_text().text();
      out.push_back(jinja_filter(name, item, rest(arguments, 1), budget));
    } else {
      JinjaValue value = attribute_path(item, *attribute);
      out.push_back(value.is_undefined() && otherwise != nullptr ? *otherwise : value);
    }
  }
  return JinjaValue::list(std::move(out));
}

// select, reject (by_attribute = false), selectattr, rejectattr.
JinjaValue select(const JinjaValue& input, const Arguments& arguments, bool by_attribute,
                  bool wanted, JinjaBudget& budget) {
  const std::size_t test_at = by_attribute ? 1 : 0;
  const JinjaValue* test = arguments.find(test_at, "test");
  JinjaValue::List out;
  for (const JinjaValue& item : items_or_nothing(input)) {
    budget.charge(1);
    const JinjaValue value =
        by_attribute ? attribute_path(item, arguments.at(0, "attribute")) : item;
    const bool passes =
        test == nullptr ? value.truthy()
                        : jinja_test(test->to_text().text(), value, rest(arguments, test_at + 1));
    if (passes == wanted) out.push_back(item);
  }
  return JinjaValue::list(std::move(out));
}

JinjaValue length(const JinjaValue& input) {
  if (input.is_undefined()) return JinjaValue::integer(0);
  if (input.is_string()) return JinjaValue::size(jinja_length(input.as_text()));
  if (input.is(Kind::kDict)) return JinjaValue::size(input.as_dict().size());
  if (input.is_sequence()) return JinjaValue::size(input.as_list().size());
  jinja_fail(std::string(input.type_name()) + " has no length");
}

JinjaValue reverse(const JinjaValue& input, JinjaBudget& budget) {
  const JinjaValue back = JinjaValue::integer(-1);
  return jinja_slice(input, nullptr, nullptr, &back, budget);
}

JinjaValue to_int(const JinjaValue& input, const Arguments& arguments) {
  if (input.is(Kind::kDouble)) {
    const double value = std::trunc(input.as_double());
    if (std::abs(value) < 9.2e18) return JinjaValue::integer(static_cast<std::int64_t>(value));
  } else if (input.is_number()) {
    return JinjaValue::integer(input.to_integer("int"));
  } else if (input.is_string()) {
    const std::string text = jinja_strip(input.as_marked(), "", true, true).text();
    std::int64_t value = 0;
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const auto parsed = std::from_chars(begin, text.data() + text.size(), value);
    if (!text.empty() && parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size()) {
      return JinjaValue::integer(value);
    }
  }
  const JinjaValue* otherwise = arguments.find(0, "default");
  return otherwise == nullptr ? JinjaValue::integer(0) : *otherwise;
}

JinjaValue to_float(const JinjaValue& input, const Arguments& arguments) {
  if (input.is_number()) return JinjaValue::number(input.as_double());
  if (input.is_string()) {
    const std::string& text = input.as_text();
    double value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (!text.empty() && parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size()) {
      return JinjaValue::number(value);
    }
  }
  const JinjaValue* otherwise = arguments.find(0, "default");
  return otherwise == nullptr ? JinjaValue::number(0) : *otherwise;
}

JinjaValue absolute(const JinjaValue& input) {
  if (!input.is(Kind::kInt) && !input.is(Kind::kBool)) {
    if (!input.is_number()) jinja_fail(std::string("abs of a ") + input.type_name());
    return JinjaValue::number(std::abs(input.as_double()));
  }
  const std::int64_t value = input.to_integer("abs");
  if (value == std::numeric_limits<std::int64_t>::min()) jinja_fail("integer overflow");
  return JinjaValue::integer(std::abs(value));
}

JinjaValue round_number(const JinjaValue& input, const Arguments& arguments) {
  if (!input.is_number()) jinja_fail(std::string("round of a ") + input.type_name());
  const JinjaValue* precision = arguments.find(0, "precision");
  const JinjaValue* method = arguments.find(1, "method");
  const double scale = std::pow(
      10.0, precision == nullptr ? 0.0 : static_cast<double>(precision->to_integer("precision")));
  const std::string how = method == nullptr ? "common" : method->to_text().text();
  const double scaled = input.as_double() * scale;
  const double rounded = how == "ceil"    ? std::ceil(scaled)
                         : how == "floor" ? std::floor(scaled)
                                          : std::nearbyint(scaled);  // ties to even, as Python
  return JinjaValue::number(rounded / scale);
}

JinjaValue extreme(const JinjaValue& input, const Arguments& arguments, bool largest) {
  const JinjaValue* attribute = arguments.find(1, "attribute");
  const auto key = [&](const JinjaValue& item) {
    return attribute == nullptr ? item : attribute_path(item, *attribute);
  };
  const bool exact = flag(arguments, 0, "case_sensitive");
  JinjaValue best;
  for (const JinjaValue& item : jinja_items(input)) {
    const bool better =
        best.is_undefined() || (largest ? ordered_before(key(best), key(item), exact)
                                        : ordered_before(key(item), key(best), exact));
    if (better) best = item;
  }
  return best;
}

JinjaValue sum(const JinjaValue& input, const Arguments& arguments, JinjaBudget& budget) {
  const JinjaValue* attribute = arguments.find(0, "attribute");
  const JinjaValue* start = arguments.find(1, "start");
  JinjaValue total = start == nullptr ? JinjaValue::integer(0) : *start;
  for (const JinjaValue& item : jinja_items(input)) {
    const JinjaValue value = attribute == nullptr ? item : attribute_path(item, *attribute);
    total = jinja_binary("+", total, value, budget);
  }
  return total;
}

JinjaValue escape_html(const JinjaValue& input) {
  std::string out;
  const MarkedText text = input.to_text();
  for (const char c : text.text()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return JinjaValue::string(std::move(out), false);
}

// Filters whose input is read as text.
bool text_filter(std::string_view name, const MarkedText& text, const Arguments& arguments,
                 JinjaBudget& budget, JinjaValue& out) {
  const bool trusted = text.all_trusted();
  if (name == "trim") {
    const JinjaValue* chars = arguments.find(0, "chars");
    const bool white = chars == nullptr || !chars->is_string();
    out = JinjaValue::string(jinja_strip(text, white ? "" : chars->as_text(), true, true));
  } else if (name == "upper") {
    out = JinjaValue::string(jinja_upper(text.text()), trusted);
  } else if (name == "lower") {
    out = JinjaValue::string(jinja_lower(text.text()), trusted);
  } else if (name == "capitalize") {
    out = JinjaValue::string(jinja_capitalize(text.text()), trusted);
  } else if (name == "title") {
    out = JinjaValue::string(jinja_title(text.text()), trusted);
  } else if (name == "string" || name == "safe") {
    out = JinjaValue::string(text);
  } else if (name == "replace") {
    out = jinja_call_method(JinjaValue::string(text), "replace", arguments, budget);
  } else if (name == "wordcount") {
    out = length(jinja_call_method(JinjaValue::string(text), "split", {}, budget));
  } else {
    return false;
  }
  budget.charge_bytes(text.size());
  return true;
}

bool number_filter(std::string_view name, const JinjaValue& input, const Arguments& arguments,
                   JinjaValue& out) {
  if (name == "int") {
    out = to_int(input, arguments);
  } else if (name == "float") {
    out = to_float(input, arguments);
  } else if (name == "abs") {
    out = absolute(input);
  } else if (name == "round") {
    out = round_number(input, arguments);
  } else if (name == "max" || name == "min") {
    out = extreme(input, arguments, name == "max");
  } else {
    return false;
  }
  return true;
}

bool list_filter(std::string_view name, const JinjaValue& input, const Arguments& arguments,
                 JinjaBudget& budget, JinjaValue& out) {
  if (name == "list") {
    out = JinjaValue::list(jinja_items(input));
  } else if (name == "first" || name == "last") {
    const JinjaValue::List list = jinja_items(input);
    out = list.empty() ? JinjaValue() : name == "first" ? list.front() : list.back();
  } else if (name == "join") {
    out = join(input, arguments, budget);
  } else if (name == "map") {
    out = map(input, arguments, budget);
  } else if (name == "select" || name == "reject") {
    out = select(input, arguments, false, name == "select", budget);
  } else if (name == "selectattr" || name == "rejectattr") {
    out = select(input, arguments, true, name == "selectattr", budget);
  } else if (name == "items") {
    out = items(input, budget);
  } else if (name == "dictsort") {
    out = dict_sort(input, arguments, budget);
  } else if (name == "sort") {
    out = sort(input, arguments);
  } else if (name == "unique") {
    out = unique(input);
  } else if (name == "reverse") {
    out = reverse(input, budget);
  } else if (name == "sum") {
    out = sum(input, arguments, budget);
  } else {
    return false;
  }
  return true;
}

}  // namespace

JinjaValue jinja_filter(std::string_view name, const JinjaValue& input,
                        const JinjaArguments& arguments, JinjaBudget& budget) {
  budget.charge(1 + (input.is_sequence() ? input.as_list().size() : 0));
  if (name == "tojson") return to_json(input, arguments, budget);
  if (name == "default" || name == "d") return default_value(input, arguments);
  if (name == "length" || name == "count") return length(input);
  if (name == "indent") return indent(input, arguments);
  if (name == "escape" || name == "e") return escape_html(input);
  if (name == "attr") return jinja_attribute(input, arguments.at(0, "name").to_text().text());
  JinjaValue out;
  if (list_filter(name, input, arguments, budget, out)) return out;
  if (number_filter(name, input, arguments, out)) return out;
  if (text_filter(name, input.to_text(), arguments, budget, out)) return out;
  jinja_fail("filter '" + std::string(name) + "' is not supported");
}

}  // namespace coppice
