// A value inside a JSON document that came from outside, together with where it came from: every
// getter throws Error "SOURCE: field 'a.b[2].c': cause" when the value is absent or unsuitable.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.h"

namespace coppice {

// Refers to the document, which must outlive it. Copies are cheap.
class JsonField {
 public:
  // `source` is a path or "request body"; `kind` is what the getters throw.
  JsonField(const Json& document, std::string_view source, ErrorKind kind = ErrorKind::kBadFile);

  const Json& value() const { return *value_; }
  const std::string& source() const { return origin_->source; }
  // "text_config.rope_scaling.factor"; empty for the whole document.
  const std::string& path() const { return path_; }

  // A member that must be there and not null.
  JsonField at(std::string_view key) const;
  // Nothing when the member is absent or null. This field must be an object.
  std::optional<JsonField> find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key).has_value(); }
  // The elements of an array, the members of an object.
  std::vector<JsonField> elements() const;
  std::vector<std::pair<std::string, JsonField>> members() const;

  // This value as T: bool, an integer type (range-checked; 2.0 is no integer), float, double (an
  // integer is fine), std::string, or a std::vector of those.
  template <typename T>
  T as() const;
  template <typename T>
  T get(std::string_view key) const {
    return at(key).template as<T>();
  }
  template <typename T>
  T get(std::string_view key, T otherwise) const {
    const std::optional<JsonField> field = find(key);
    return field ? field->template as<T>() : std::move(otherwise);
  }
  std::string get(std::string_view key, const char* otherwise) const {
    return get<std::string>(key, otherwise);
  }

  // For what is ours to define: throws for the first member that is none of `known`, naming it and
  // them. Anything else is left alone: files of others may hold more than we read.
  void allow_only(std::initializer_list<std::string_view> known) const;

  // Throws the Error for this field with a cause of the caller's.
  [[noreturn]] void fail(const std::string& cause) const;

 private:
  struct Origin {
    std::string source;
    ErrorKind kind;
  };
  JsonField child(const Json& value, std::string path) const;
  std::int64_t as_int_between(std::int64_t lowest, std::int64_t highest) const;
  std::uint64_t as_uint64() const;
  bool as_bool() const;
  double as_double() const;
  const std::string& as_string() const;

  const Json* value_;
  std::shared_ptr<const Origin> origin_;
  std::string path_;
};

namespace detail {
template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};
}  // namespace detail

template <typename T>
T JsonField::as() const {
  if constexpr (std::same_as<T, bool>) {
    return as_bool();
  } else if constexpr (std::same_as<T, std::uint64_t>) {
    return as_uint64();
  } else if constexpr (std::integral<T>) {
    return static_cast<T>(as_int_between(std::int64_t{std::numeric_limits<T>::lowest()},
                                         std::int64_t{std::numeric_limits<T>::max()}));
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(as_double());
  } else if constexpr (detail::IsVector<T>::value) {
    T items;
    for (const JsonField& element : elements())
      items.push_back(element.template as<typename T::value_type>());
    return items;
  } else {
    static_assert(std::same_as<T, std::string>, "no JSON getter for this type");
    return as_string();
  }
}

}  // namespace coppice
