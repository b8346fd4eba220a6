#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/unicode.h"

namespace coppice {
namespace {

using Kind = JinjaValue::Kind;

constexpr int kMaxDepth = 200;

// Roles that a request may name and a template may wrap into a control token ('<|' + role + '|>').
constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "developer"};

bool is_role(std::string_view text) {
  return std::find(std::begin(kRoles), std::end(kRoles), text) != std::end(kRoles);
}

JinjaValue from_json_member(const Json::Member& member) {
  if (member.first == "role" && member.second.is_string() && is_role(member.second.as_string())) {
    return JinjaValue::string(member.second.as_string(), true);
  }
  return JinjaValue::from_json(member.second);
}

// Whether Python's repr writes the character as it is. Unassigned code points count as printable.
bool is_printable(char32_t c) {
  if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) return false;
  if (char_class(c) & (kLetter | kNumber | kMark)) return true;
  if (c != U' ' && (char_class(c) & kSpace)) return false;
  const bool format = (c >= 0x200b && c <= 0x200f) || (c >= 0x202a && c <= 0x202e) ||
                      (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb);
  const bool private_use = (c >= 0xe000 && c <= 0xf8ff) || c >= 0xe0000;
  return !format && !private_use && (c & 0xfffe) != 0xfffe;
}

void append_hex(std::string& out, char32_t c) {
  const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
  out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[c >> shift & 0xf];
  }
}

std::string quoted(const std::string& text) {
  const bool doubles = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = doubles ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    i += c.length;
    if (c.code_point == U'\n') {
      out += "\\n";
    } else if (c.code_point == U'\r') {
      out += "\\r";
    } else if (c.code_point == U'\t') {
      out += "\\t";
    } else if (c.code_point == U'\\' || c.code_point == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c.code_point);
    } else if (c.code_point < kInvalidByte && !is_printable(c.code_point)) {
      append_hex(out, c.code_point);
    } else {
      append_utf8(out, c.code_point);
    }
  }
  return out + quote;
}

std::string repr_items(const JinjaValue::List& items) {
  std::string out;
  for (const JinjaValue& item : items) {
    if (!out.empty()) out += ", ";
    out += item.repr();
  }
  return out;
}

std::string repr_dict(const JinjaValue::Dict& members) {
  std::string out = "{";
  for (const auto& [key, value] : members) {
    if (out.size() > 1) out += ", ";
    out += key.repr() + ": " + value.repr();
  }
  return out + "}";
}

bool equal_lists(const JinjaValue::List& a, const JinjaValue::List& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), jinja_equal);
}

bool equal_dicts(const JinjaValue& a, const JinjaValue& b) {
  if (a.as_dict().size() != b.as_dict().size()) return false;
  for (const auto& [key, value] : a.as_dict()) {
    const auto& other = b.as_dict();
    const auto found = std::find_if(other.begin(), other.end(), [&key = key](const auto& member) {
      return jinja_equal(member.first, key);
    });
    if (found == other.end() || !jinja_equal(found->second, value)) return false;
  }
  return true;
}

}  // namespace

void jinja_fail(std::string cause) {
  throw JinjaFailure{std::move(cause)};
}

JinjaValue JinjaValue::undefined(std::string name) {
  return JinjaValue(Storage(Undefined{std::move(name)}));
}
JinjaValue JinjaValue::string(MarkedText text) {
  return JinjaValue(Storage(std::make_shared<const MarkedText>(std::move(text))));
}

std::shared_ptr<const JinjaValue::ListPayload> JinjaValue::make_payload(List items) {
  int deepest = 0;
  for (const JinjaValue& item : items) deepest = std::max(deepest, item.depth());
  if (deepest >= kMaxDepth) jinja_fail("lists are nested too deeply");
  return std::make_shared<const ListPayload>(ListPayload{std::move(items), deepest + 1});
}
JinjaValue JinjaValue::list(List items) {
  return JinjaValue(Storage(ListBox{make_payload(std::move(items))}));
}
JinjaValue JinjaValue::tuple(List items) {
  return JinjaValue(Storage(TupleBox{make_payload(std::move(items))}));
}
JinjaValue JinjaValue::dict(Dict members) {
  int deepest = 0;
  for (const auto& member : members) {
    deepest = std::max({deepest, member.first.depth(), member.second.depth()});
  }
  if (deepest >= kMaxDepth) jinja_fail("dicts are nested too deeply");
  return JinjaValue(
      Storage(std::make_shared<const DictPayload>(DictPayload{std::move(members), deepest + 1})));
}
JinjaValue JinjaValue::make_namespace(std::shared_ptr<Namespace> members) {
  return JinjaValue(Storage(std::move(members)));
}
JinjaValue JinjaValue::function(JinjaFunction function) {
  return JinjaValue(Storage(std::make_shared<const JinjaFunction>(std::move(function))));
}

JinjaValue JinjaValue::from_json(const Json& json) {
  switch (json.kind()) {
    case Json::Kind::kNull:
      return none();
    case Json::Kind::kBool:
      return boolean(json.as_bool());
    case Json::Kind::kInt:
      return integer(json.as_int());
    case Json::Kind::kUint:
      return JinjaValue(Storage(json.as_uint()));
    case Json::Kind::kDouble:
      return number(json.as_double());
    case Json::Kind::kString:
      return string(json.as_string(), false);
    case Json::Kind::kArray: {
      List items;
      for (const Json& item : json.as_array()) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case Json::Kind::kObject:
      break;
  }
  Dict members;
  for (const Json::Member& member : json.as_object()) {
    members.emplace_back(string(member.first, false), from_json_member(member));
  }
  return dict(std::move(members));
}

bool JinjaValue::is_number() const {
  return is_integer() || is(Kind::kDouble);
}

double JinjaValue::as_double() const {
  if (is(Kind::kDouble)) return std::get<double>(storage_);
  if (is(Kind::kUint)) return static_cast<double>(std::get<std::uint64_t>(storage_));
  if (is(Kind::kBool)) return as_bool() ? 1.0 : 0.0;
  return static_cast<double>(std::get<std::int64_t>(storage_));
}

const MarkedText& JinjaValue::as_marked() const {
  return *std::get<std::shared_ptr<const MarkedText>>(storage_);
}
const JinjaValue::List& JinjaValue::as_list() const {
  if (is(Kind::kTuple)) return std::get<TupleBox>(storage_).payload->items;
  return std::get<ListBox>(storage_).payload->items;
}
const JinjaValue::Dict& JinjaValue::as_dict() const {
  return std::get<std::shared_ptr<const DictPayload>>(storage_)->members;
}
int JinjaValue::depth() const {
  if (is(Kind::kList)) return std::get<ListBox>(storage_).payload->depth;
  if (is(Kind::kTuple)) return std::get<TupleBox>(storage_).payload->depth;
  return is(Kind::kDict) ? std::get<std::shared_ptr<const DictPayload>>(storage_)->depth : 0;
}
JinjaValue::Namespace& JinjaValue::as_namespace() const {
  return *std::get<std::shared_ptr<Namespace>>(storage_);
}
const JinjaFunction& JinjaValue::as_function() const {
  return *std::get<std::shared_ptr<const JinjaFunction>>(storage_);
}

std::int64_t JinjaValue::to_integer(const char* what) const {
  if (is(Kind::kInt)) return std::get<std::int64_t>(storage_);
  if (is(Kind::kBool)) return as_bool() ? 1 : 0;
  jinja_fail(std::string(what) + " must be an integer, not " + type_name());
}

bool JinjaValue::truthy() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return as_bool();
    case Kind::kInt:
    case Kind::kUint:
    case Kind::kDouble:
      return as_double() != 0;
    case Kind::kString:
      return !as_text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !as_list().empty();
    case Kind::kDict:
      return !as_dict().empty();
    case Kind::kNamespace:
    case Kind::kFunction:
      return true;
  }
  return true;
}

const JinjaValue* JinjaValue::find(std::string_view key) const {
  if (!is(Kind::kDict)) return nullptr;
  for (const auto& [name, value] : as_dict()) {
    if (name.is_string() && name.as_text() == key) return &value;
  }
  return nullptr;
}

MarkedText JinjaValue::to_text() const {
  if (is_string()) return as_marked();
  if (is_undefined()) return {};
  return MarkedText(repr(), false);
}

std::string JinjaValue::repr() const {
  switch (kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return as_bool() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(std::get<std::int64_t>(storage_));
    case Kind::kUint:
      return std::to_string(std::get<std::uint64_t>(storage_));
    case Kind::kDouble: {
      const double value = as_double();
      if (std::isnan(value)) return "nan";
      if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
      return write_json(Json(value));
    }
    case Kind::kString:
      return quoted(as_text());
    case Kind::kList:
      return "[" + repr_items(as_list()) + "]";
    case Kind::kTuple:
      return "(" + repr_items(as_list()) + (as_list().size() == 1 ? ",)" : ")");
    case Kind::kDict:
      return repr_dict(as_dict());
    case Kind::kNamespace:
      return "<Namespace>";
    case Kind::kFunction:
      return "<function>";
  }
  return {};
}

Json JinjaValue::to_json() const {
  switch (kind()) {
    case Kind::kNone:
      return Json();
    case Kind::kBool:
      return Json(as_bool());
    case Kind::kInt:
      return Json(std::get<std::int64_t>(storage_));
    case Kind::kUint:
      return Json(std::get<std::uint64_t>(storage_));
    case Kind::kDouble:
      return Json(as_double());
    case Kind::kString:
      return Json(as_text());
    case Kind::kList:
    case Kind::kTuple: {
      Json::Array items;
      for (const JinjaValue& item : as_list()) items.push_back(item.to_json());
      return Json(std::move(items));
    }
    case Kind::kDict: {
      Json::Object members;
      for (const auto& [key, value] : as_dict()) {
        members.emplace_back(key.to_text().text(), value.to_json());
      }
      return Json(std::move(members));
    }
    default:
      jinja_fail(std::string("a value of type ") + type_name() + " has no JSON form");
  }
}

const char* JinjaValue::type_name() const {
  constexpr const char* kNames[] = {"Undefined", "None", "bool",  "int",  "int",       "float",
                                    "str",       "list", "tuple", "dict", "Namespace", "function"};
  return kNames[storage_.index()];
}

const JinjaValue* JinjaArguments::find(std::size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

const JinjaValue& JinjaArguments::at(std::size_t position, std::string_view name) const {
  const JinjaValue* value = find(position, name);
  if (value == nullptr) jinja_fail("missing argument '" + std::string(name) + "'");
  return *value;
}

bool jinja_equal(const JinjaValue& a, const JinjaValue& b) {
  if (a.is(Kind::kInt) && b.is(Kind::kInt)) return a.to_integer("") == b.to_integer("");
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.as_text() == b.as_text();
    case Kind::kList:
    case Kind::kTuple:
      return equal_lists(a.as_list(), b.as_list());
    case Kind::kDict:
      return equal_dicts(a, b);
    case Kind::kNamespace:
      return &a.as_namespace() == &b.as_namespace();
    default:
      return &a.as_function() == &b.as_function();
  }
}

bool jinja_less(const JinjaValue& a, const JinjaValue& b) {
  if (a.is(Kind::kInt) && b.is(Kind::kInt)) return a.to_integer("") < b.to_integer("");
  if (a.is_number() && b.is_number()) return a.as_double() < b.as_double();
  if (a.is_string() && b.is_string()) return a.as_text() < b.as_text();  // UTF-8 keeps the order
  if (a.is_sequence() && a.kind() == b.kind()) {
    return std::lexicographical_compare(a.as_list().begin(), a.as_list().end(), b.as_list().begin(),
                                        b.as_list().end(), jinja_less);
  }
  jinja_fail(std::string("'<' between ") + a.type_name() + " and " + b.type_name());
}

bool jinja_contains(const JinjaValue& container, const JinjaValue& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      jinja_fail(std::string("'in <string>' requires a string, not ") + item.type_name());
    }
    return container.as_text().find(item.as_text()) != std::string::npos;
  }
  if (container.is(Kind::kDict)) {
    if (item.is_string()) return container.find(item.as_text()) != nullptr;
    return std::any_of(container.as_dict().begin(), container.as_dict().end(),
                       [&](const auto& member) { return jinja_equal(member.first, item); });
  }
  const JinjaValue::List items = jinja_items(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const JinjaValue& other) { return jinja_equal(other, item); });
}

JinjaValue::List jinja_items(const JinjaValue& value) {
  if (value.is_sequence()) return value.as_list();
  if (value.is_undefined()) return {};
  JinjaValue::List items;
  if (value.is(Kind::kDict)) {
    for (const auto& member : value.as_dict()) items.push_back(member.first);
    return items;
  }
  if (!value.is_string()) jinja_fail(std::string(value.type_name()) + " is not iterable");
  const MarkedText& marked = value.as_marked();
  for (std::size_t i = 0; i < marked.size();) {
    const std::size_t end = i + decode_utf8(marked.text(), i).length;
    items.push_back(JinjaValue::string(marked.substring(i, end)));
    i = end;
  }
  return items;
}

}  // namespace coppice
