#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja_builtins.h"
#include "text/unicode.h"

namespace coppice {
namespace {

using Kind = JinjaValue::Kind;

constexpr std::size_t kMaxItems = 1'000'000;  // of a list built by a template

[[noreturn]] void bad_operands(std::string_view op, const JinjaValue& a, const JinjaValue& b) {
  for (const JinjaValue* value : {&a, &b}) {
    if (value->is_undefined()) jinja_fail(value->repr() + " value in '" + std::string(op) + "'");
  }
  jinja_fail("unsupported operand types for " + std::string(op) + ": " + a.type_name() + " and " +
             b.type_name());
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (std::int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) jinja_fail("integer overflow");
    if (i > 64 && (result == 0 || result == 1)) break;
  }
  return result;
}

JinjaValue integer_binary(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0) return JinjaValue::number(std::pow(static_cast<double>(a), static_cast<double>(b)));
    result = integer_power(a, b);
  } else {
    if (b == 0) jinja_fail("division by zero");
    if (op == "/") return JinjaValue::number(static_cast<double>(a) / static_cast<double>(b));
    overflow = a == std::numeric_limits<std::int64_t>::min() && b == -1;
    if (!overflow) result = op == "//" ? floor_divide(a, b) : a - floor_divide(a, b) * b;
  }
  if (overflow) jinja_fail("integer overflow");
  return JinjaValue::integer(result);
}

JinjaValue real_binary(std::string_view op, double a, double b) {
  if (op == "+") return JinjaValue::number(a + b);
  if (op == "-") return JinjaValue::number(a - b);
  if (op == "*") return JinjaValue::number(a * b);
  if (op == "**") return JinjaValue::number(std::pow(a, b));
  if (b == 0) jinja_fail("division by zero");
  if (op == "/") return JinjaValue::number(a / b);
  const double quotient = std::floor(a / b);
  return JinjaValue::number(op == "//" ? quotient : a - quotient * b);
}

JinjaValue repeated(const JinjaValue& value, std::int64_t times, JinjaBudget& budget) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  if (value.is_string()) {
    const MarkedText& unit = value.as_marked();
    if (count != 0 && unit.size() > std::numeric_limits<std::size_t>::max() / count) {
      jinja_fail("repeated text is too long");
    }
    budget.charge_bytes(unit.size() * count);
    MarkedText out;
    for (std::size_t i = 0; i < count && !unit.empty(); ++i) out.append(unit);
    return JinjaValue::string(std::move(out));
  }
  const JinjaValue::List& unit = value.as_list();
  if (!unit.empty() && count > kMaxItems / unit.size()) jinja_fail("repeated list is too long");
  budget.charge(unit.size() * count);
  JinjaValue::List out;
  for (std::size_t i = 0; i < count; ++i) out.insert(out.end(), unit.begin(), unit.end());
  return value.is(Kind::kTuple) ? JinjaValue::tuple(std::move(out))
                                : JinjaValue::list(std::move(out));
}

JinjaValue joined_lists(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget) {
  JinjaValue::List out = a.as_list();
  out.insert(out.end(), b.as_list().begin(), b.as_list().end());
  budget.charge(out.size());
  if (out.size() > kMaxItems) jinja_fail("list is too long");
  return a.is(Kind::kTuple) ? JinjaValue::tuple(std::move(out)) : JinjaValue::list(std::move(out));
}

struct SliceBounds {
  std::int64_t begin, end, step;
};

// Python's slice.indices(length).
SliceBounds slice_bounds(const JinjaValue* begin, const JinjaValue* end, const JinjaValue* step,
                         std::int64_t length) {
  const auto given = [](const JinjaValue* part) {
    return part != nullptr && !part->is(Kind::kNone);
  };
  SliceBounds bounds{};
  bounds.step = given(step) ? step->to_integer("slice step") : 1;
  if (bounds.step == 0) jinja_fail("slice step cannot be zero");
  // Larger steps take the same items, and indices cannot overflow.
  bounds.step = std::clamp(bounds.step, -length - 1, length + 1);
  const std::int64_t lowest = bounds.step < 0 ? -1 : 0;
  const std::int64_t highest = bounds.step < 0 ? length - 1 : length;
  const auto place = [&](const JinjaValue* part, std::int64_t otherwise) {
    if (!given(part)) return otherwise;
    const std::int64_t index = part->to_integer("slice index");
    if (index >= 0) return std::min(index, highest);
    return index < -length ? lowest : std::max(index + length, lowest);
  };
  bounds.begin = place(begin, bounds.step < 0 ? highest : lowest);
  bounds.end = place(end, bounds.step < 0 ? lowest : highest);
  return bounds;
}

// Byte offset of every code point, and the end.
std::vector<std::size_t> character_offsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  for (std::size_t i = 0; i < text.size(); i += decode_utf8(text, i).length) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

JinjaValue sliced_text(const MarkedText& text, const JinjaValue* begin, const JinjaValue* end,
                       const JinjaValue* step) {
  const std::vector<std::size_t> offsets = character_offsets(text.text());
  const auto length = static_cast<std::int64_t>(offsets.size()) - 1;
  const SliceBounds bounds = slice_bounds(begin, end, step, length);
  const auto offset = [&](std::int64_t i) { return offsets[static_cast<std::size_t>(i)]; };
  if (bounds.step == 1) {
    if (bounds.begin >= bounds.end) return JinjaValue::string(MarkedText());
    return JinjaValue::string(text.substring(offset(bounds.begin), offset(bounds.end)));
  }
  MarkedText out;
  for (std::int64_t i = bounds.begin; bounds.step > 0 ? i < bounds.end : i > bounds.end;
       i += bounds.step) {
    out.append(text.substring(offset(i), offset(i + 1)));
  }
  return JinjaValue::string(std::move(out));
}

// The character of a string at a Python index, or undefined.
JinjaValue character_at(const MarkedText& text, std::int64_t index) {
  const auto length = static_cast<std::int64_t>(jinja_length(text.text()));
  if (index < 0) index += length;
  if (index < 0 || index >= length) return {};
  std::size_t at = 0;
  while (index-- > 0) at += decode_utf8(text.text(), at).length;
  return JinjaValue::string(text.substring(at, at + decode_utf8(text.text(), at).length));
}

JinjaValue method_value(std::string_view name) {
  return JinjaValue::function([name = std::string(name)](const JinjaArguments&) -> JinjaValue {
    jinja_fail("method '" + name + "' can only be called where it is named");
  });
}

}  // namespace

void JinjaBudget::charge(std::size_t steps) {
  const auto limit = static_cast<std::size_t>(std::max<std::int64_t>(steps_left_, 0));
  if (steps > limit) jinja_fail("the template takes too many steps");
  steps_left_ -= static_cast<std::int64_t>(steps);
}

void JinjaBudget::check_bytes(std::size_t bytes) const {
  if (bytes > max_bytes_) {
    jinja_fail("the text grows beyond " + std::to_string(max_bytes_) + " bytes");
  }
}

void JinjaBudget::charge_bytes(std::size_t bytes) {
  check_bytes(bytes);
  charge(bytes / 64);
}

JinjaValue jinja_binary(std::string_view op, const JinjaValue& a, const JinjaValue& b,
                        JinjaBudget& budget) {
  if (op == "%" && a.is_string()) {
    const bool trusted = a.as_marked().all_trusted() && b.is_number();
    return JinjaValue::string(jinja_percent_format(a.as_text(), b), trusted);
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    budget.charge_bytes(a.as_text().size() + b.as_text().size());
    MarkedText out = a.as_marked();
    out.append(b.as_marked());
    return JinjaValue::string(std::move(out));
  }
  if (op == "+" && a.is_sequence() && a.kind() == b.kind()) return joined_lists(a, b, budget);
  if (op == "*" && (a.is_string() || a.is_sequence()) && b.is_integer()) {
    return repeated(a, b.to_integer("repetition"), budget);
  }
  if (op == "*" && (b.is_string() || b.is_sequence()) && a.is_integer()) {
    return repeated(b, a.to_integer("repetition"), budget);
  }
  if (!a.is_number() || !b.is_number()) bad_operands(op, a, b);
  const auto small = [](const JinjaValue& v) { return v.is(Kind::kInt) || v.is(Kind::kBool); };
  if (small(a) && small(b))
    return integer_binary(op, a.to_integer("operand"), b.to_integer("operand"));
  return real_binary(op, a.as_double(), b.as_double());
}

JinjaValue jinja_attribute(const JinjaValue& object, std::string_view name) {
  if (object.is_undefined()) {
    jinja_fail("member '" + std::string(name) + "' of an undefined value");
  }
  if (object.is(Kind::kNamespace)) {
    for (const auto& [key, value] : object.as_namespace().members) {
      if (key == name) return value;
    }
  }
  if (jinja_has_method(object, name)) return method_value(name);
  if (const JinjaValue* member = object.find(name)) return *member;
  return JinjaValue::undefined(std::string(name));
}

JinjaValue jinja_item(const JinjaValue& object, const JinjaValue& key) {
  if (object.is_undefined()) jinja_fail("item " + key.repr() + " of an undefined value");
  if (key.is_integer() && !key.is(Kind::kUint)) {
    const std::int64_t index = key.to_integer("index");
    if (object.is_string()) return character_at(object.as_marked(), index);
    if (object.is_sequence()) {
      const auto length = static_cast<std::int64_t>(object.as_list().size());
      const std::int64_t at = index < 0 ? index + length : index;
      if (at >= 0 && at < length) return object.as_list()[static_cast<std::size_t>(at)];
      return JinjaValue::undefined(key.repr());
    }
  }
  if (key.is_string()) {
    if (const JinjaValue* member = object.find(key.as_text())) return *member;
    return jinja_attribute(object, key.as_text());
  }
  if (object.is(Kind::kDict)) {
    for (const auto& [name, value] : object.as_dict()) {
      if (jinja_equal(name, key)) return value;
    }
  }
  return JinjaValue::undefined(key.repr());
}

JinjaValue jinja_slice(const JinjaValue& object, const JinjaValue* begin, const JinjaValue* end,
                       const JinjaValue* step, JinjaBudget& budget) {
  if (object.is_string()) {
    budget.charge_bytes(object.as_text().size());
    return sliced_text(object.as_marked(), begin, end, step);
  }
  if (!object.is_sequence()) jinja_fail(std::string(object.type_name()) + " cannot be sliced");
  const JinjaValue::List& items = object.as_list();
  budget.charge(items.size());
  const SliceBounds bounds =
      slice_bounds(begin, end, step, static_cast<std::int64_t>(items.size()));
  JinjaValue::List out;
  for (std::int64_t i = bounds.begin; bounds.step > 0 ? i < bounds.end : i > bounds.end;
       i += bounds.step) {
    out.push_back(items[static_cast<std::size_t>(i)]);
  }
  return object.is(Kind::kTuple) ? JinjaValue::tuple(std::move(out))
                                 : JinjaValue::list(std::move(out));
}

}  // namespace coppice
