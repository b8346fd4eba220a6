#include "server/json_schema_check.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "io/json.h"
#include "server/string_pattern.h"

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

// Keywords besides which the grammar reads no other of a node.
constexpr std::array<std::string_view, 6> kAlone = {"$ref",  "const", "enum",
                                                    "anyOf", "oneOf", "allOf"};
// Keywords that bound a value of one type, and are not read where no `type` says which.
constexpr std::array<std::string_view, 13> kBounds = {
    "minimum",       "maximum",       "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength",     "maxLength",     "pattern",          "minItems",         "maxItems",
    "minProperties", "maxProperties", "propertyNames"};
constexpr std::array<std::string_view, 6> kShapes = {
    "properties", "required", "items", "prefixItems", "patternProperties", "additionalProperties"};
// Formats whose texts would have to be escaped in a JSON string.
constexpr std::array<std::string_view, 2> kEscapedFormats = {"json-pointer",
                                                             "relative-json-pointer"};

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "integer" && value.is_number())
    return std::trunc(value.as_double()) == value.as_double();
  return value.is_number();
}

// enum and const beside `type`: the grammar takes their values whatever their type is.
void check_values(const JsonField& schema) {
  const auto type = schema.find("type");
  if (!type) return;
  const Json* nullable = schema.value().find("nullable");  // OpenAPI 3.0
  const auto check = [&](const JsonField& value) {
    if (value.value().is_null() && nullable != nullptr && *nullable == Json(true)) return;
    if (type->value().is_string() && is_of_type(value.value(), type->value().as_string())) return;
    if (type->value().is_array())
      for (const Json& one : type->value().as_array())
        if (one.is_string() && is_of_type(value.value(), one.as_string())) return;
    value.fail("is not of the type beside it");
  };
  for (const auto& [key, value] : schema.members()) {
    if (key == "const") check(value);
    if (key == "enum" && value.value().is_array())
      for (const JsonField& element : value.elements()) check(element);
  }
}

// A branch that leaves the type to the node around it.
bool has_untyped_branch(const JsonField& list) {
  if (!list.value().is_array()) return false;
  for (const Json& branch : list.value().as_array()) {
    const bool typed = branch.is_object() &&
                       (branch.find("type") != nullptr || branch.find("properties") != nullptr ||
                        std::any_of(kAlone.begin(), kAlone.end(), [&](std::string_view key) {
                          return branch.find(key) != nullptr;
                        }));
    if (!typed) return true;
  }
  return false;
}

// Keywords that would be passed over in silence beside others. is_name: in propertyNames, where all
// is a string.
void check_combination(const JsonField& schema, bool is_name) {
  std::string alone;
  for (const std::string_view key : kAlone)
    if (alone.empty() && schema.value().find(key) != nullptr) alone = key;
  const bool typed = is_name || schema.value().find("type") != nullptr;
  for (const auto& [key, value] : schema.members()) {
    const bool bounds = is_one_of(key, kBounds);
    const bool lists_values = alone == "const" || alone == "enum";  // which are within bounds
    const bool same_value = alone == "const" && key == "enum";      // pydantic writes both
    if (!alone.empty() && key != alone && !same_value &&
        ((bounds && !lists_values) || is_one_of(key, kShapes) || is_one_of(key, kAlone)))
      value.fail("cannot be enforced beside " + alone);
    if (typed && is_one_of(key, kLists) && key != "prefixItems" && has_untyped_branch(value))
      value.fail("cannot be enforced beside type: each of its schemas needs a type of its own");
    if (alone.empty() && bounds && !typed) value.fail("cannot be enforced without type");
  }
  check_values(schema);
}

bool is_set(const Json& schema, const char* key) {
  const Json* value = schema.find(key);
  return value != nullptr && value->is_object() && value->size() > 0;
}

// What bounds the keys of an object: beside declared properties the grammar would let one of them
// come twice, or go unbound, and of two rules for one key it would take either. A key that is not
// declared may come again, so that two members may be one.
void check_keys(const JsonField& schema) {
  const Json& node = schema.value();
  const bool declared = is_set(node, "properties"), matched = is_set(node, "patternProperties");
  if (declared && matched)
    schema.at("patternProperties").fail("cannot be enforced beside properties");
  if (declared && is_set(node, "propertyNames"))
    schema.at("propertyNames").fail("cannot be enforced beside properties");
  if (matched && is_set(node, "propertyNames"))
    schema.at("propertyNames").fail("cannot be enforced beside patternProperties");
  if (matched && node.find("patternProperties")->size() > 1)
    schema.at("patternProperties").fail("holds more than one pattern, which cannot be enforced");
  const Json* more = node.find("additionalProperties");
  const bool open = !declared || (more != nullptr && *more != Json(false));
  if (const auto least = schema.find("minProperties");
      least && open && least->value().is_number() && least->value().as_double() > 1)
    least->fail("above 1 cannot be enforced for properties that are not declared");
}

// A required property that is not declared would never come.
void check_required(const JsonField& schema) {
  const Json* required = schema.value().find("required");
  if (required == nullptr || !required->is_array()) return;
  const Json* properties = schema.value().find("properties");
  for (const JsonField& name : schema.at("required").elements())
    if (name.value().is_string() &&
        (properties == nullptr || properties->find(name.value().as_string()) == nullptr))
      name.fail("is not among properties, so that it cannot be enforced");
}

// What a keyword may hold at most.
void check_size(std::string_view key, const JsonField& value) {
  if (is_one_of(key, kCounts) && value.value().is_number() &&
      value.value().as_double() > static_cast<double>(kMaxSchemaCount))
    value.fail("is larger than " + std::to_string(kMaxSchemaCount));
}

bool breaks_json_string(std::string_view key, const Json& value) {
  if (!value.is_string()) return false;
  if (key == "pattern") return needs_json_escapes(value.as_string());
  return key == "format" && is_one_of(value.as_string(), kEscapedFormats);
}

// A pattern or format, found at `place`.
void check_text(std::string_view key, const Json& text, const JsonField& place, bool lenient) {
  if (!lenient && breaks_json_string(key, text))
    place.fail("matches text that JSON has to escape, which cannot be enforced here");
  if (key == "pattern" && text.is_string() && text.as_string().size() > kMaxPatternBytes)
    place.fail("is longer than " + std::to_string(kMaxPatternBytes) + " bytes");
}

void check_node(const JsonField& schema, bool lenient, bool is_name = false) {
  if (schema.value().is_bool()) return;
  if (!schema.value().is_object()) schema.fail("must be a schema: an object, true or false");
  if (!lenient) {
    check_combination(schema, is_name);
    check_required(schema);
    check_keys(schema);
  }
  for (const auto& [key, value] : schema.members()) {
    const bool banned =
        is_one_of(key, kNotEnforced) || (key == "uniqueItems" && value.value() == Json(true));
    if (banned && !lenient) value.fail("cannot be enforced here");
    check_text(key, value.value(), value, lenient);
    check_size(key, value);
    if (is_one_of(key, kMaps) && value.value().is_object())
      for (const auto& [name, child] : value.members()) {
        if (key == "patternProperties") check_text("pattern", name, child, lenient);
        check_node(child, lenient);
      }
    if (is_one_of(key, kLists) && value.value().is_array())
      for (const JsonField& child : value.elements()) check_node(child, lenient);
    if (is_one_of(key, kSchemas) && !value.value().is_array())
      check_node(value, lenient, key == "propertyNames");
  }
}

bool holds_a_value(std::string_view key) {
  return key == "const" || key == "enum" || key == "default" || key == "examples";
}

// The schemas of a map from names, or from patterns.
Json with_json_patterns_of(std::string_view keyword, const Json& map) {
  Json out = Json::object();
  for (const auto& [name, schema] : map.as_object()) {
    const bool is_pattern = keyword == "patternProperties";
    if (is_pattern && breaks_json_string("pattern", name)) continue;
    out[is_pattern ? ascii_pattern(name) : name] = with_json_patterns(schema);
  }
  return out;
}

}  // namespace

Json with_json_patterns(const Json& schema) {
  if (schema.is_array()) {
    Json list = Json::array();
    for (const Json& element : schema.as_array()) list.push_back(with_json_patterns(element));
    return list;
  }
  if (!schema.is_object()) return schema;
  Json out = Json::object();
  for (const auto& [key, value] : schema.as_object()) {
    if (key == "patternProperties" && is_set(schema, "properties")) continue;
    if (holds_a_value(key))
      out[key] = value;
    else if (is_one_of(key, kMaps) && value.is_object())
      out[key] = with_json_patterns_of(key, value);
    else if (!breaks_json_string(key, value))
      out[key] = key == "pattern" && value.is_string() ? Json(ascii_pattern(value.as_string()))
                                                       : with_json_patterns(value);
  }
  return out;
}

void check_json_schema(const JsonField& schema, bool lenient) {
  if (write_json(schema.value()).size() > kMaxSchemaBytes)
    schema.fail("is larger than " + std::to_string(kMaxSchemaBytes) + " bytes");
  check_node(schema, lenient);
}

}  // namespace coppice
