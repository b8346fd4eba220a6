// Numbers of a benchmark's report, read within what a benchmark can have found: anything else is
// damage, and the planner's networks and fits are not made for it.
#pragma once

#include <string>

#include "io/json_field.h"

namespace coppice {

// Throw Error naming the file and the field unless `field` is from `lowest` to `highest`.
double read_between(const JsonField& field, double lowest, double highest);
std::int64_t read_count(const JsonField& field, std::int64_t lowest, std::int64_t highest);

// Microseconds of something that ran.
double read_us(const JsonField& field);
// The same, or 0 for what the run did not have.
double read_us_or_zero(const JsonField& field);
// Bytes of memory; 0 for none.
double read_bytes(const JsonField& field);

}  // namespace coppice
