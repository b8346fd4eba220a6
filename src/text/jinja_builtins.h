// What templates can call: operators, filters, tests and methods, as jinja2 and Python define them.
// All of them are pure; a fault is a JinjaFailure. There is no HTML escaping: "safe" changes
// nothing (jinja2 escapes what + adds to a safe string).
#pragma once

#include <cstdint>
#include <string_view>

#include "text/jinja_value.h"

namespace coppice {

struct JinjaLimits {
  std::int64_t max_steps = 20'000'000;
  std::size_t max_bytes = std::size_t{64} << 20;  // of the output and of any string on the way
};

// Counts work, so that no template runs for ever or fills the memory.
class JinjaBudget {
 public:
  explicit JinjaBudget(const JinjaLimits& limits)
      : steps_left_(limits.max_steps), max_bytes_(limits.max_bytes) {}
  void charge(std::size_t steps);
  // Work on, or a copy of, this many bytes.
  void charge_bytes(std::size_t bytes);
  // The limit alone, for text that grows piece by piece.
  void check_bytes(std::size_t bytes) const;

 private:
  std::int64_t steps_left_;
  std::size_t max_bytes_;
};

// + - * / // % **
JinjaValue jinja_binary(std::string_view op, const JinjaValue& a, const JinjaValue& b,
                        JinjaBudget& budget);
// object.name; undefined when there is no such member. Methods are functions that only a direct
// call can use.
JinjaValue jinja_attribute(const JinjaValue& object, std::string_view name);
// object[key]
JinjaValue jinja_item(const JinjaValue& object, const JinjaValue& key);
// object[begin:end:step]; null values stand for parts left out.
JinjaValue jinja_slice(const JinjaValue& object, const JinjaValue* begin, const JinjaValue* end,
                       const JinjaValue* step, JinjaBudget& budget);

JinjaValue jinja_filter(std::string_view name, const JinjaValue& input,
                        const JinjaArguments& arguments, JinjaBudget& budget);
bool jinja_test(std::string_view name, const JinjaValue& value, const JinjaArguments& arguments);

// Methods of strings and dicts.
bool jinja_has_method(const JinjaValue& object, std::string_view name);
JinjaValue jinja_call_method(const JinjaValue& object, std::string_view name,
                             const JinjaArguments& arguments, JinjaBudget& budget);

// Python's str.strip family: `chars` empty means white space.
MarkedText jinja_strip(const MarkedText& text, std::string_view chars, bool left, bool right);
// text.replace(from, to, count); count < 0 replaces all.
MarkedText jinja_replace(const MarkedText& text, std::string_view from, const MarkedText& to,
                         std::int64_t count);
std::string jinja_lower(std::string_view text);
std::string jinja_upper(std::string_view text);
// First letter of the text upper case, all others lower.
std::string jinja_capitalize(std::string_view text);
std::string jinja_title(std::string_view text);
// Number of code points.
std::size_t jinja_length(std::string_view text);
// format % values, for %s %r %d %i %f %x and %%.
std::string jinja_percent_format(std::string_view format, const JinjaValue& values);

}  // namespace coppice
