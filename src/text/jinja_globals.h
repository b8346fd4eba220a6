// Functions that every template can call, and the loop variable.
#pragma once

#include <ctime>
#include <string>

#include "text/jinja_builtins.h"
#include "text/jinja_scope.h"

namespace coppice {

JinjaValue jinja_range(const JinjaArguments& arguments, JinjaBudget& budget);
// dict(mapping, name=value ...)
JinjaValue jinja_dict(const JinjaArguments& arguments);
// What namespace(mapping, name=value ...) holds.
JinjaVariables jinja_members(const JinjaArguments& arguments);
JinjaValue jinja_strftime(const JinjaArguments& arguments, const std::tm& now);

// Members of `loop` at items[i].
JinjaVariables jinja_loop_members(const JinjaValue::List& items, std::size_t i);
// loop.cycle(a, b ...)
JinjaValue jinja_cycle(const JinjaValue& loop, const JinjaArguments& arguments);

// a op b for a comparison operator, "in" and "not in".
bool jinja_compare(const std::string& op, const JinjaValue& a, const JinjaValue& b);

}  // namespace coppice
