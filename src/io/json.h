// JSON values: parse, build, write. The only JSON type the rest of Coppice sees.
//
// Objects keep insertion order. Integers stay integers (int64, or uint64 above its range); numbers
// with a fraction or exponent, and integers too large for both, are doubles and always finite.
// Values own their memory; a const Json may be read from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace coppice {

class Json {
 public:
  // The order is that of the alternatives of the variant below.
  enum class Kind { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;
  // Out of line: inlined copies of the variant draw false warnings from GCC 12.
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint32_t value) : value_(std::int64_t{value}) {}
  // Stored as an int64 where it fits.
  Json(std::uint64_t value);
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json array(std::initializer_list<Json> items = {}) { return Json(Array(items)); }
  static Json object(std::initializer_list<Member> members = {}) { return Json(Object(members)); }

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_integer() const { return kind() == Kind::kInt || kind() == Kind::kUint; }
  bool is_number() const { return is_integer() || kind() == Kind::kDouble; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }

  // Direct access; asking for another kind is a programmer mistake (COPPICE_CHECK). For values that
  // come from a file or request use JsonField (io/json_field.h), which throws a message instead.
  bool as_bool() const;
  std::int64_t as_int() const;    // kInt only
  std::uint64_t as_uint() const;  // kUint, or kInt >= 0
  double as_double() const;       // any number
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // Elements of an array, members of an object, 0 otherwise.
  std::size_t size() const;
  // The member `key` of an object; nullptr when absent or when this is no object. Linear search.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  // The member `key`, appended as null when absent. A null value becomes an object.
  Json& operator[](std::string_view key);
  // Removes `key`; false when it was absent.
  bool erase(std::string_view key);
  // Appends to an array. A null value becomes an array.
  void push_back(Json item);

  // Equal kinds and values; 1 and 1.0 differ, and so do objects in another order.
  friend bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

const char* name_of(Json::Kind kind);

struct JsonParseOptions {
  int max_depth = 64;                          // nesting of arrays and objects
  ErrorKind error_kind = ErrorKind::kBadFile;  // kInvalidArgument for requests
};

// Parses one complete RFC 8259 document (UTF-8, no comments, no trailing commas). Throws Error
// "SOURCE: line L column C: cause" also for duplicate keys, numbers outside the range of a double
// and nesting beyond the limit.
Json parse_json(std::string_view text, std::string_view source,
                const JsonParseOptions& options = {});

// Reads and parses a file of at most 1 GiB. Throws kNotFound or kBadFile naming the path.
Json read_json_file(const std::filesystem::path& path);

// How write_json lays a value out. The defaults are the shortest text.
struct JsonStyle {
  int indent = -1;            // spaces per level on lines of their own; -1: one line
  bool spaces = false;        // Python's separators ", " and ": " (": " always with indent)
  bool ensure_ascii = false;  // everything above U+007F as \uXXXX
  bool sort_keys = false;     // by UTF-8 bytes
};
inline constexpr JsonStyle kCompactJson{};
inline constexpr JsonStyle kPythonJson{-1, true, true, false};  // json.dumps(x)

// Doubles are the shortest digits that read back the same, in Python's repr layout; non-finite
// ones become null. Bytes that are no UTF-8 become U+FFFD.
std::string write_json(const Json& value, const JsonStyle& style = kCompactJson);

}  // namespace coppice
