#include "io/json_field.h"

#include <algorithm>
#include <cmath>

#include "io/mapped_file.h"

namespace coppice {

JsonField::JsonField(const Json& document, std::string_view source, ErrorKind kind)
    : value_(&document),
      origin_(std::make_shared<const Origin>(Origin{std::string(source), kind})) {}

JsonField JsonField::child(const Json& value, std::string path) const {
  JsonField field = *this;
  field.value_ = &value;
  field.path_ = std::move(path);
  return field;
}

void JsonField::fail(const std::string& cause) const {
  const std::string where = path_.empty() ? "" : ": field '" + path_ + "'";
  throw Error(origin_->kind, origin_->source + where + ": " + cause);
}

std::optional<JsonField> JsonField::find(std::string_view key) const {
  if (!value_->is_object())
    fail(std::string("expected an object, found ") + name_of(value_->kind()));
  const Json* member = value_->find(key);
  if (member == nullptr || member->is_null()) return std::nullopt;
  const std::string name = printable(key);
  return child(*member, path_.empty() ? name : path_ + "." + name);
}

JsonField JsonField::at(std::string_view key) const {
  if (std::optional<JsonField> field = find(key)) return *std::move(field);
  static const Json null;
  const std::string name = printable(key);
  child(null, path_.empty() ? name : path_ + "." + name).fail("missing");
}

std::vector<JsonField> JsonField::elements() const {
  if (!value_->is_array()) fail(std::string("expected an array, found ") + name_of(value_->kind()));
  std::vector<JsonField> fields;
  for (const Json& item : value_->as_array())
    fields.push_back(child(item, path_ + "[" + std::to_string(fields.size()) + "]"));
  return fields;
}

std::vector<std::pair<std::string, JsonField>> JsonField::members() const {
  if (!value_->is_object())
    fail(std::string("expected an object, found ") + name_of(value_->kind()));
  std::vector<std::pair<std::string, JsonField>> fields;
  for (const auto& [key, item] : value_->as_object()) {
    const std::string name = printable(key);
    fields.emplace_back(key, child(item, path_.empty() ? name : path_ + "." + name));
  }
  return fields;
}

void JsonField::allow_only(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, field] : members()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known)
      names += (names.empty() ? "" : ", ") + std::string(name);
    field.fail("unknown; there are " + names);
  }
}

std::int64_t JsonField::as_int_between(std::int64_t lowest, std::int64_t highest) const {
  // 16.0 is an integer too, and what some languages write. Beyond 2^53 a double may not be exact.
  constexpr double kExact = 9007199254740992.0;
  if (value_->kind() == Json::Kind::kDouble && std::abs(value_->as_double()) <= kExact &&
      std::trunc(value_->as_double()) == value_->as_double()) {
    const Json whole(static_cast<std::int64_t>(value_->as_double()));
    return child(whole, path_).as_int_between(lowest, highest);
  }
  if (!value_->is_integer())
    fail(std::string("expected an integer, found ") + name_of(value_->kind()));
  if (value_->kind() == Json::Kind::kUint || value_->as_int() < lowest ||
      value_->as_int() > highest)
    fail(write_json(*value_) + " is not between " + std::to_string(lowest) + " and " +
         std::to_string(highest));
  return value_->as_int();
}

std::uint64_t JsonField::as_uint64() const {
  if (!value_->is_integer())
    fail(std::string("expected an integer, found ") + name_of(value_->kind()));
  if (value_->kind() == Json::Kind::kInt && value_->as_int() < 0)
    fail(write_json(*value_) + " is negative");
  return value_->as_uint();
}

bool JsonField::as_bool() const {
  if (!value_->is_bool()) fail(std::string("expected a boolean, found ") + name_of(value_->kind()));
  return value_->as_bool();
}

double JsonField::as_double() const {
  if (!value_->is_number())
    fail(std::string("expected a number, found ") + name_of(value_->kind()));
  return value_->as_double();
}

const std::string& JsonField::as_string() const {
  if (!value_->is_string())
    fail(std::string("expected a string, found ") + name_of(value_->kind()));
  return value_->as_string();
}

}  // namespace coppice
