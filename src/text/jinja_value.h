// Values of the template language: what Python objects a published chat template can touch, and
// nothing more. Copies are cheap (shared, immutable payloads); only namespaces can be changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/json.h"
#include "text/marked_text.h"

namespace coppice {

// A fault while rendering, without its place; the interpreter adds the line and throws Error.
struct JinjaFailure {
  std::string cause;
};
[[noreturn]] void jinja_fail(std::string cause);

class JinjaValue;
struct JinjaArguments;
using JinjaFunction = std::function<JinjaValue(const JinjaArguments&)>;

class JinjaValue {
 public:
  // The order of the variant's alternatives.
  enum class Kind : std::uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kUint,  // above the range of kInt
    kDouble,
    kString,
    kList,
    kTuple,
    kDict,
    kNamespace,
    kFunction
  };
  using List = std::vector<JinjaValue>;
  using Dict = std::vector<std::pair<JinjaValue, JinjaValue>>;  // insertion order
  struct Namespace {
    std::vector<std::pair<std::string, JinjaValue>> members;
  };

  JinjaValue() = default;  // undefined without a name
  static JinjaValue undefined(std::string name);
  static JinjaValue none() { return JinjaValue(Storage(None{})); }
  static JinjaValue boolean(bool value) { return JinjaValue(Storage(value)); }
  static JinjaValue integer(std::int64_t value) { return JinjaValue(Storage(value)); }
  static JinjaValue size(std::size_t value) { return integer(static_cast<std::int64_t>(value)); }
  static JinjaValue number(double value) { return JinjaValue(Storage(value)); }
  static JinjaValue string(MarkedText text);
  // A string that the template itself wrote, or one that came from data.
  static JinjaValue string(std::string text, bool trusted) {
    return string(MarkedText(std::move(text), trusted));
  }
  static JinjaValue list(List items);
  static JinjaValue tuple(List items);
  static JinjaValue dict(Dict members);
  static JinjaValue make_namespace(std::shared_ptr<Namespace> members);
  static JinjaValue function(JinjaFunction function);
  // Strings become data, except the well-known roles under the key "role": templates build
  // control tokens around those.
  static JinjaValue from_json(const Json& json);

  Kind kind() const { return static_cast<Kind>(storage_.index()); }
  bool is(Kind wanted) const { return kind() == wanted; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_string() const { return is(Kind::kString); }
  bool is_sequence() const { return is(Kind::kList) || is(Kind::kTuple); }
  bool is_number() const;
  bool is_integer() const { return is(Kind::kInt) || is(Kind::kUint) || is(Kind::kBool); }

  // Payloads; asking for another kind is a programmer mistake.
  bool as_bool() const { return std::get<bool>(storage_); }
  double as_double() const;  // any number or bool
  const MarkedText& as_marked() const;
  const std::string& as_text() const { return as_marked().text(); }
  const List& as_list() const;  // list or tuple
  const Dict& as_dict() const;
  Namespace& as_namespace() const;
  const JinjaFunction& as_function() const;
  // The value as an int64 (bool counts); fails with `what` in the message otherwise.
  std::int64_t to_integer(const char* what) const;

  bool truthy() const;
  // Member of a dict by string key; null when absent or no dict.
  const JinjaValue* find(std::string_view key) const;
  // What {{ value }} prints: Python's str().
  MarkedText to_text() const;
  // Python's repr(), as printed inside of containers.
  std::string repr() const;
  Json to_json() const;
  // "str", "list" ... for messages.
  const char* type_name() const;

 private:
  struct Undefined {
    std::string name;
  };
  struct None {};
  struct ListPayload {
    List items;
    int depth;  // nesting below, bounded so that no walk runs out of stack
  };
  struct DictPayload {
    Dict members;
    int depth;
  };
  struct ListBox {
    std::shared_ptr<const ListPayload> payload;
  };
  struct TupleBox {
    std::shared_ptr<const ListPayload> payload;
  };
  using Storage = std::variant<Undefined, None, bool, std::int64_t, std::uint64_t, double,
                               std::shared_ptr<const MarkedText>, ListBox, TupleBox,
                               std::shared_ptr<const DictPayload>, std::shared_ptr<Namespace>,
                               std::shared_ptr<const JinjaFunction>>;
  static std::shared_ptr<const ListPayload> make_payload(List items);
  int depth() const;
  explicit JinjaValue(Storage storage) : storage_(std::move(storage)) {}

  Storage storage_;
};

// Arguments of a call, a filter or a test.
struct JinjaArguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;

  // The argument at this position or of this name; null when not given.
  const JinjaValue* find(std::size_t position, std::string_view name) const;
  // As find, but fails naming the argument when it is missing.
  const JinjaValue& at(std::size_t position, std::string_view name) const;
};

// Python's ==, and < (fails for kinds that Python cannot order).
bool jinja_equal(const JinjaValue& a, const JinjaValue& b);
bool jinja_less(const JinjaValue& a, const JinjaValue& b);
// Python's `item in container`.
bool jinja_contains(const JinjaValue& container, const JinjaValue& item);
// The items a `for` walks over: elements, keys of a dict, characters of a string.
JinjaValue::List jinja_items(const JinjaValue& value);

}  // namespace coppice
