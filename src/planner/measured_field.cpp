#include "planner/measured_field.h"

namespace coppice {
namespace {

constexpr double kLeastUs = 1e-3, kMostUs = 1e9;  // an hour is 3.6e9

}  // namespace

double read_between(const JsonField& field, double lowest, double highest) {
  const auto value = field.as<double>();
  if (!(value >= lowest && value <= highest))
    field.fail(write_json(field.value()) + " is not between " + write_json(Json(lowest)) + " and " +
               write_json(Json(highest)));
  return value;
}

std::int64_t read_count(const JsonField& field, std::int64_t lowest, std::int64_t highest) {
  const auto value = field.as<std::int64_t>();
  if (value < lowest || value > highest)
    field.fail(std::to_string(value) + " is not between " + std::to_string(lowest) + " and " +
               std::to_string(highest));
  return value;
}

double read_us(const JsonField& field) {
  return read_between(field, kLeastUs, kMostUs);
}

double read_us_or_zero(const JsonField& field) {
  return field.as<double>() == 0 ? 0 : read_us(field);
}

double read_bytes(const JsonField& field) {
  constexpr double kMostBytes = 1e15;
  return read_between(field, 0, kMostBytes);
}

}  // namespace coppice
