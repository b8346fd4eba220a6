#include "text/jinja_globals.h"

#include <array>

namespace coppice {
namespace {

using Kind = JinjaValue::Kind;

constexpr std::size_t kMaxRange = 100'000;

}  // namespace

JinjaValue jinja_range(const JinjaArguments& arguments, JinjaBudget& budget) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3) jinja_fail("range takes one to three numbers");
  std::int64_t begin = 0, end = given[0].to_integer("range"), step = 1;
  if (given.size() > 1) begin = end, end = given[1].to_integer("range");
  if (given.size() > 2) step = given[2].to_integer("range");
  if (step == 0) jinja_fail("range step cannot be zero");
  JinjaValue::List items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (items.size() == kMaxRange) jinja_fail("range is too long");
    items.push_back(JinjaValue::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  budget.charge(items.size());
  return JinjaValue::list(std::move(items));
}

JinjaVariables jinja_members(const JinjaArguments& arguments) {
  JinjaVariables members;
  if (!arguments.positional.empty()) {
    const JinjaValue& from = arguments.positional[0];
    if (!from.is(Kind::kDict)) jinja_fail("namespace and dict take a dict and named values");
    for (const auto& [key, value] : from.as_dict()) {
      members.emplace_back(key.to_text().text(), value);
    }
  }
  members.insert(members.end(), arguments.named.begin(), arguments.named.end());
  return members;
}

JinjaValue jinja_dict(const JinjaArguments& arguments) {
  JinjaValue::Dict members;
  for (auto& [key, value] : jinja_members(arguments)) {
    members.emplace_back(JinjaValue::string(key, false), value);
  }
  return JinjaValue::dict(std::move(members));
}

JinjaValue jinja_strftime(const JinjaArguments& arguments, const std::tm& now) {
  const std::string format = arguments.at(0, "format").to_text().text();
  std::array<char, 256> buffer{};
  const std::size_t length = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
  return JinjaValue::string(std::string(buffer.data(), length), false);
}

JinjaVariables jinja_loop_members(const JinjaValue::List& items, std::size_t i) {
  const std::size_t count = items.size();
  return {{"index", JinjaValue::size(i + 1)},
          {"index0", JinjaValue::size(i)},
          {"revindex", JinjaValue::size(count - i)},
          {"revindex0", JinjaValue::size(count - i - 1)},
          {"first", JinjaValue::boolean(i == 0)},
          {"last", JinjaValue::boolean(i + 1 == count)},
          {"length", JinjaValue::size(count)},
          {"previtem", i > 0 ? items[i - 1] : JinjaValue::undefined("previtem")},
          {"nextitem", i + 1 < count ? items[i + 1] : JinjaValue::undefined("nextitem")}};
}

JinjaValue jinja_cycle(const JinjaValue& loop, const JinjaArguments& arguments) {
  const std::int64_t index = jinja_attribute(loop, "index0").to_integer("loop index");
  if (arguments.positional.empty()) jinja_fail("cycle needs values");
  const auto at = static_cast<std::size_t>(index) % arguments.positional.size();
  return arguments.positional[at];
}

bool jinja_compare(const std::string& op, const JinjaValue& a, const JinjaValue& b) {
  if (op == "==") return jinja_equal(a, b);
  if (op == "!=") return !jinja_equal(a, b);
  if (op == "<") return jinja_less(a, b);
  if (op == ">") return jinja_less(b, a);
  if (op == "<=") return !jinja_less(b, a);
  if (op == ">=") return !jinja_less(a, b);
  return jinja_contains(b, a) == (op == "in");
}

}  // namespace coppice
