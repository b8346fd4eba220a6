#include "server/json_schema_check.h"

#include <algorithm>
#include <array>

#include "io/json.h"

namespace coppice {
namespace {

constexpr std::array<std::string_view, 12> kNotEnforced = {
    "not",           "if",         "then",        "else",        "dependentRequired",
    "dependencies",  "contains",   "minContains", "maxContains", "dependentSchemas",
    "contentSchema", "$dynamicRef"};
constexpr std::array<std::string_view, 6> kCounts = {"minLength", "maxLength",     "minItems",
                                                     "maxItems",  "minProperties", "maxProperties"};
// Keywords whose value maps names to schemas, is a list of schemas, or is one.
constexpr std::array<std::string_view, 4> kMaps = {"properties", "patternProperties", "$defs",
                                                   "definitions"};
constexpr std::array<std::string_view, 4> kLists = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array<std::string_view, 6> kSchemas = {
    "items",           "additionalProperties", "propertyNames",
    "additionalItems", "unevaluatedItems",     "unevaluatedProperties"};

template <std::size_t N>
bool is_one_of(std::string_view key, const std::array<std::string_view, N>& keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// What a keyword may hold at most.
void check_size(std::string_view key, const JsonField& value) {
  if (is_one_of(key, kCounts) && value.value().is_number() &&
      value.value().as_double() > static_cast<double>(kMaxSchemaCount))
    value.fail("is larger than " + std::to_string(kMaxSchemaCount));
  if (key == "pattern" && value.value().is_string() &&
      value.value().as_string().size() > kMaxPatternBytes)
    value.fail("is longer than " + std::to_string(kMaxPatternBytes) + " bytes");
}

void check_node(const JsonField& schema, bool lenient) {
  if (schema.value().is_bool()) return;
  if (!schema.value().is_object()) schema.fail("must be a schema: an object, true or false");
  for (const auto& [key, value] : schema.members()) {
    const bool banned =
        is_one_of(key, kNotEnforced) || (key == "uniqueItems" && value.value() == Json(true));
    if (banned && !lenient) value.fail("cannot be enforced here");
    check_size(key, value);
    if (is_one_of(key, kMaps) && value.value().is_object())
      for (const auto& [name, child] : value.members()) check_node(child, lenient);
    if (is_one_of(key, kLists) && value.value().is_array())
      for (const JsonField& child : value.elements()) check_node(child, lenient);
    if (is_one_of(key, kSchemas) && !value.value().is_array()) check_node(value, lenient);
  }
}

}  // namespace

void check_json_schema(const JsonField& schema, bool lenient) {
  if (write_json(schema.value()).size() > kMaxSchemaBytes)
    schema.fail("is larger than " + std::to_string(kMaxSchemaBytes) + " bytes");
  check_node(schema, lenient);
}

}  // namespace coppice
