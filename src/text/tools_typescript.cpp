#include "text/tools_typescript.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace coppice {
namespace {

constexpr std::string_view kIndent = "  ";

// The schema has no TypeScript form.
struct NoForm {};

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

bool is_text(const Json* value, std::string_view text) {
  return value != nullptr && value->is_string() && value->as_string() == text;
}

// Numbers and booleans as Python's str() writes them.
std::string python_text(const Json& value) {
  return JinjaValue::from_json(value).to_text().text();
}

std::string comment_lines(const std::string& text, const std::string& indent) {
  std::string out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0) out += '\n';
    if (end > begin) out += indent + "// " + text.substr(begin, end - begin);
    begin = end + 1;
  }
  return out;
}

std::string description_of(const Json& schema) {
  const Json* description = schema.find("description");
  if (description == nullptr || description->is_null()) return {};
  if (!description->is_string()) throw NoForm{};
  return description->as_string();
}

// The keys that may stand in a constraint line, sorted.
std::vector<std::string_view> constraint_keys(const Json& schema) {
  if (schema.find("anyOf") != nullptr || schema.find("enum") != nullptr) return {};
  const Json* type = schema.find("type");
  if (is_text(type, "string")) return {"maxLength", "minLength", "pattern"};
  if (is_text(type, "number") || is_text(type, "integer")) return {"maximum", "minimum"};
  if (is_text(type, "array")) return {"maxItems", "minItems"};
  return {};
}

class FunctionWriter {
 public:
  explicit FunctionWriter(const Json& function) : function_(function) {}

  std::string write() {
    const Json empty = Json::object();
    const Json* parameters = function_.find("parameters");
    if (parameters == nullptr || !JinjaValue::from_json(*parameters).truthy()) parameters = &empty;
    check_object(*parameters);
    std::vector<std::string> parts;
    const bool self_reference = self_reference_;
    if (self_reference) parts.push_back(root_interface(*parameters));
    const auto definitions = definitions_;  // those of the parameters, not what follows from them
    for (const auto& [name, schema] : definitions) parts.push_back(definition(name, *schema));
    const std::string description = description_of(function_);
    if (!description.empty()) parts.push_back(comment_lines(description, ""));
    const Json* name = function_.find("name");
    parts.push_back("type " + (name == nullptr ? "function" : python_text(*name)) + " = (_: " +
                    (self_reference ? "parameters" : object_text(*parameters, "")) + ") => any;");
    return joined(parts, "\n");
  }

 private:
  // First walk, in the order of the document: collects $defs, resolves references, refuses.

  void check(const Json& schema) {
    if (schema.is_bool()) return;
    if (!schema.is_object()) throw NoForm{};
    description_of(schema);
    if (const Json* reference = schema.find("$ref")) return check_reference(*reference);
    if (const Json* options = schema.find("anyOf")) {
      if (!options->is_array()) throw NoForm{};
      for (const Json& option : options->as_array()) check(option);
      return;
    }
    if (schema.find("enum") != nullptr) return check_enum(schema);
    const Json* type = schema.find("type");
    if (type == nullptr) {
      if (schema.size() != 0) throw NoForm{};
    } else if (type->is_array()) {
      union_text(*type);
    } else if (!type->is_string()) {
      throw NoForm{};
    } else if (type->as_string() == "object") {
      check_object(schema);
    } else if (type->as_string() == "array") {
      const Json* items = schema.find("items");
      if (has_items(items)) check(*items);
    }
  }

  static bool has_items(const Json* items) {
    return items != nullptr && JinjaValue::from_json(*items).truthy();
  }

  void check_reference(const Json& reference) {
    constexpr std::string_view kPrefix = "#/$defs/";
    if (!reference.is_string()) throw NoForm{};
    const std::string& text = reference.as_string();
    if (text == "#") {
      self_reference_ = true;
    } else if (!text.starts_with(kPrefix) || find_definition(reference_name(text)) == nullptr) {
      throw NoForm{};
    }
  }

  static std::string reference_name(const std::string& reference) {
    return reference == "#" ? "parameters" : reference.substr(reference.rfind('/') + 1);
  }

  // A name that is defined again keeps its place.
  void define(const std::string& name, const Json& schema) {
    for (auto& [key, old] : definitions_) {
      if (key != name) continue;
      old = &schema;
      return;
    }
    definitions_.emplace_back(name, &schema);
  }

  const Json* find_definition(const std::string& name) const {
    for (const auto& [key, schema] : definitions_) {
      if (key == name) return schema;
    }
    return nullptr;
  }

  void check_object(const Json& schema) {
    if (!schema.is_object()) throw NoForm{};
    description_of(schema);
    if (const Json* definitions = schema.find("$defs"); definitions != nullptr) {
      if (!definitions->is_object()) throw NoForm{};
      for (const auto& [name, definition] : definitions->as_object()) {
        define(name, definition);
      }
    }
    if (const Json* additional = schema.find("additionalProperties"); additional != nullptr) {
      if (additional->is_object()) check(*additional);
    }
    if (const Json* properties = schema.find("properties"); properties != nullptr) {
      if (!properties->is_object()) throw NoForm{};
      for (const auto& [name, property] : properties->as_object()) check(property);
    }
  }

  static void check_enum(const Json& schema) {
    const Json& values = *schema.find("enum");
    if (!values.is_array()) throw NoForm{};
    const Json* type = schema.find("type");
    if (type != nullptr && type->is_array()) {
      const Json::Array& types = type->as_array();
      const bool nullable =
          types.size() == 2 && (is_text(&types[0], "null") || is_text(&types[1], "null"));
      if (types.size() != 1 && !nullable) throw NoForm{};
      type = types.size() == 2 && is_text(&types[0], "null") ? &types[1] : &types[0];
    }
    for (const Json& value : values.as_array()) {
      const bool integer = value.is_integer() || value.is_bool();  // as in Python
      if (value.is_null()) continue;
      if (is_text(type, "string") && !value.is_string()) throw NoForm{};
      if (is_text(type, "number") && !integer && !value.is_number()) throw NoForm{};
      if (is_text(type, "integer") && !integer) throw NoForm{};
      if (is_text(type, "boolean") && !value.is_bool()) throw NoForm{};
    }
  }

  // Second walk: the text. `indent` is that of the line the type starts on.

  std::string root_interface(const Json& parameters) const {
    std::vector<std::string> fields;
    const Json* properties = parameters.find("properties");
    if (properties != nullptr) {
      const std::set<std::string> required = required_names(parameters);
      for (const auto& [name, property] : properties->as_object()) {
        fields.push_back(field(name, property, required.contains(name), std::string(kIndent)));
      }
    }
    const std::string body = fields.empty() ? "" : "\n" + joined(fields, ",\n") + "\n";
    return "interface parameters {" + body + "}";
  }

  std::string definition(const std::string& name, const Json& schema) {
    if (!schema.is_object()) throw NoForm{};
    check(schema);
    const std::string description = description_of(schema);
    return (description.empty() ? "" : comment_lines(description, "") + "\n") + "interface " +
           name + " " + type_text(schema, "");
  }

  static std::set<std::string> required_names(const Json& schema) {
    std::set<std::string> names;
    const Json* required = schema.find("required");
    if (required == nullptr) return names;
    if (!required->is_array()) throw NoForm{};
    for (const Json& name : required->as_array()) {
      if (name.is_string()) names.insert(name.as_string());
    }
    return names;
  }

  static std::string comments(const Json& schema, const std::string& indent) {
    if (!schema.is_object()) return {};
    std::string out;
    if (const std::string description = description_of(schema); !description.empty()) {
      out += comment_lines(description, indent) + "\n";
    }
    if (schema.find("$ref") != nullptr) return out;
    std::vector<std::string> constraints;
    for (const std::string_view key : constraint_keys(schema)) {
      if (const Json* value = schema.find(key)) {
        constraints.push_back(std::string(key) + ": " + python_text(*value));
      }
    }
    if (!constraints.empty()) out += indent + "// " + joined(constraints, ", ") + "\n";
    return out;
  }

  std::string field(const std::string& name, const Json& schema, bool required,
                    const std::string& indent) const {
    std::string out = comments(schema, indent);
    if (const Json* value = schema.find("default"); value != nullptr && !value->is_null()) {
      out += indent + "// Default: " + write_json(*value, JsonStyle{-1, true, false, false}) + "\n";
    }
    return out + indent + name + (required ? "" : "?") + ": " + type_text(schema, indent);
  }

  std::string object_text(const Json& schema, const std::string& indent) const {
    const std::string inner = indent + std::string(kIndent);
    const std::set<std::string> required = required_names(schema);
    std::vector<const Json::Member*> members;
    if (const Json* properties = schema.find("properties"); properties != nullptr) {
      for (const Json::Member& member : properties->as_object()) members.push_back(&member);
    }
    std::stable_sort(members.begin(), members.end(), [&](const auto* a, const auto* b) {
      const bool a_first = required.contains(a->first), b_first = required.contains(b->first);
      return a_first != b_first ? a_first : a->first < b->first;
    });
    std::vector<std::string> fields;
    fields.reserve(members.size() + 1);
    for (const Json::Member* member : members) {
      fields.push_back(
          field(member->first, member->second, required.contains(member->first), inner));
    }
    if (const Json* additional = schema.find("additionalProperties");
        additional != nullptr && !additional->is_null()) {
      if (!additional->is_object() && !additional->is_bool()) throw NoForm{};
      std::string type = "any";
      if (additional->is_bool() && !additional->as_bool()) type = "never";
      if (additional->is_object()) type = type_text(*additional, inner);
      fields.push_back(inner + "[k: string]: " + type);
    }
    return fields.empty() ? "{}" : "{\n" + joined(fields, ",\n") + "\n" + indent + "}";
  }

  std::string array_text(const Json& schema, const std::string& indent) const {
    const Json* items = schema.find("items");
    if (!has_items(items)) return "Array<any>";
    const std::string inner = indent + std::string(kIndent);
    const std::string item_comments = comments(*items, inner);
    if (item_comments.empty()) return "Array<" + type_text(*items, indent) + ">";
    return "Array<\n" + item_comments + inner + type_text(*items, inner) + "\n" + indent + ">";
  }

  static std::string union_text(const Json& types) {
    std::vector<std::string> names;
    for (const Json& type : types.as_array()) {
      if (is_text(&type, "integer")) {
        names.push_back("number");
      } else if (is_text(&type, "object")) {
        names.push_back("{}");
      } else if (is_text(&type, "array")) {
        names.push_back("Array<any>");
      } else if (is_text(&type, "string") || is_text(&type, "number") ||
                 is_text(&type, "boolean") || is_text(&type, "null")) {
        names.push_back(type.as_string());
      } else {
        throw NoForm{};
      }
    }
    return joined(names, " | ");
  }

  std::string type_text(const Json& schema, const std::string& indent) const {
    if (schema.is_bool()) return schema.as_bool() ? "any" : "null";
    if (const Json* reference = schema.find("$ref")) return reference_name(reference->as_string());
    std::vector<std::string> options;
    if (const Json* any_of = schema.find("anyOf")) {
      for (const Json& option : any_of->as_array()) options.push_back(type_text(option, indent));
      return joined(options, " | ");
    }
    if (const Json* values = schema.find("enum")) {
      for (const Json& value : values->as_array()) {
        options.push_back(value.is_string() ? "\"" + value.as_string() + "\"" : python_text(value));
      }
      return joined(options, " | ");
    }
    const Json* type = schema.find("type");
    if (type == nullptr) return "any";
    if (type->is_array()) return union_text(*type);
    if (type->as_string() == "object") return object_text(schema, indent);
    if (type->as_string() == "array") return array_text(schema, indent);
    return type->as_string() == "integer" ? "number" : type->as_string();
  }

  const Json& function_;
  std::vector<std::pair<std::string, const Json*>> definitions_;
  bool self_reference_ = false;
};

}  // namespace

Json sort_keys(const Json& value) {
  if (value.is_array()) {
    Json::Array items;
    for (const Json& item : value.as_array()) items.push_back(sort_keys(item));
    return Json(std::move(items));
  }
  if (!value.is_object()) return value;
  Json::Object members;
  for (const auto& [key, member] : value.as_object()) members.emplace_back(key, sort_keys(member));
  std::stable_sort(members.begin(), members.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return Json(std::move(members));
}

std::optional<std::string> tools_to_typescript(const Json& tools) {
  if (!tools.is_array()) return std::nullopt;
  const Json sorted = sort_keys(tools);
  std::vector<std::string> functions;
  try {
    for (const Json& tool : sorted.as_array()) {
      if (!is_text(tool.find("type"), "function")) continue;
      const Json* function = tool.find("function");
      if (function == nullptr || function->size() == 0) continue;
      if (!function->is_object()) return std::nullopt;
      functions.push_back(FunctionWriter(*function).write());
    }
  } catch (const NoForm&) {
    return std::nullopt;
  }
  if (functions.empty()) return std::string();
  return "# Tools\n\n## functions\nnamespace functions {\n" + joined(functions, "\n") + "\n}\n";
}

}  // namespace coppice
