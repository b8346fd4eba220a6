#include "io/json.h"

#include <algorithm>

#include "base/check.h"

namespace coppice {

Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(INT64_MAX))
    value_ = static_cast<std::int64_t>(value);
  else
    value_ = value;
}

const char* name_of(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "a boolean";
    case Json::Kind::kInt:
    case Json::Kind::kUint:
      return "an integer";
    case Json::Kind::kDouble:
      return "a number with a fraction";
    case Json::Kind::kString:
      return "a string";
    case Json::Kind::kArray:
      return "an array";
    case Json::Kind::kObject:
      return "an object";
  }
  return "?";
}

bool Json::as_bool() const {
  COPPICE_CHECK(is_bool(), name_of(kind()));
  return std::get<bool>(value_);
}

std::int64_t Json::as_int() const {
  COPPICE_CHECK(kind() == Kind::kInt, name_of(kind()));
  return std::get<std::int64_t>(value_);
}

std::uint64_t Json::as_uint() const {
  if (kind() == Kind::kUint) return std::get<std::uint64_t>(value_);
  COPPICE_CHECK_GE(as_int(), 0);
  return static_cast<std::uint64_t>(as_int());
}

double Json::as_double() const {
  if (kind() == Kind::kDouble) return std::get<double>(value_);
  if (kind() == Kind::kUint) return static_cast<double>(std::get<std::uint64_t>(value_));
  return static_cast<double>(as_int());
}

const std::string& Json::as_string() const {
  COPPICE_CHECK(is_string(), name_of(kind()));
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  COPPICE_CHECK(is_array(), name_of(kind()));
  return std::get<Array>(value_);
}

Json::Array& Json::as_array() {
  COPPICE_CHECK(is_array(), name_of(kind()));
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object() const {
  COPPICE_CHECK(is_object(), name_of(kind()));
  return std::get<Object>(value_);
}

Json::Object& Json::as_object() {
  COPPICE_CHECK(is_object(), name_of(kind()));
  return std::get<Object>(value_);
}

std::size_t Json::size() const {
  if (is_array()) return as_array().size();
  if (is_object()) return as_object().size();
  return 0;
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : as_object())
    if (member.first == key) return &member.second;
  return nullptr;
}

Json* Json::find(std::string_view key) {
  return const_cast<Json*>(std::as_const(*this).find(key));
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  if (Json* found = find(key)) return *found;
  return as_object().emplace_back(std::string(key), Json()).second;
}

bool Json::erase(std::string_view key) {
  Object& members = as_object();
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.first == key; });
  if (found == members.end()) return false;
  members.erase(found);
  return true;
}

void Json::push_back(Json item) {
  if (is_null()) value_ = Array();
  as_array().push_back(std::move(item));
}

}  // namespace coppice
