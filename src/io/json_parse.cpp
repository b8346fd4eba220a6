// The parser is Boost.JSON's, compiled into this file alone; values are built by JsonBuilder.
#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>
#include <charconv>
#include <cmath>

#include "io/json.h"
#include "io/mapped_file.h"

namespace coppice {
namespace {

using boost::json::error_code;
using boost::json::string_view;

// Receives parse events and builds a Json bottom-up. Returning false stops the parser; `problem`
// then says why.
class JsonBuilder {
 public:
  // NOLINTBEGIN: names and limits that basic_parser asks for
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  // NOLINTEND

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return begin(Json::object()); }
  bool on_object_end(std::size_t, error_code& ec) { return check_keys(ec) && end(); }
  bool on_array_begin(error_code&) { return begin(Json::array()); }
  bool on_array_end(std::size_t, error_code&) { return end(); }

  bool on_key_part(string_view part, std::size_t, error_code&) { return append(part); }
  bool on_key(string_view part, std::size_t, error_code&) {
    append(part);
    open_.back().as_object().emplace_back(std::move(text_), Json());
    text_.clear();
    return true;
  }
  bool on_string_part(string_view part, std::size_t, error_code&) { return append(part); }
  bool on_string(string_view part, std::size_t, error_code&) {
    append(part);
    add(Json(std::move(text_)));
    text_.clear();
    return true;
  }
  bool on_number_part(string_view part, error_code&) { return append(part); }
  bool on_int64(std::int64_t value, string_view, error_code&) { return number(Json(value)); }
  bool on_uint64(std::uint64_t value, string_view, error_code&) { return number(Json(value)); }
  // Boost 1.81 does not round decimals correctly in every case, so the digits are read again.
  bool on_double(double approximate, string_view part, error_code& ec) {
    append(part);
    double value = 0;
    const auto result = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (result.ec == std::errc::result_out_of_range) {
      if (std::abs(approximate) > 1)
        return fail("number " + text_.substr(0, 40) + " is outside the range of a double", ec);
      value = 0;  // underflow
    }
    return number(Json(value));
  }
  bool on_bool(bool value, error_code&) { return add(Json(value)); }
  bool on_null(error_code&) { return add(Json()); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  bool append(string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool number(Json value) {
    text_.clear();
    return add(std::move(value));
  }
  bool begin(Json container) {
    open_.push_back(std::move(container));
    return true;
  }
  bool end() {
    Json closed = std::move(open_.back());
    open_.pop_back();
    return add(std::move(closed));
  }
  bool add(Json value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (open_.back().is_object())
      open_.back().as_object().back().second = std::move(value);
    else
      open_.back().as_array().push_back(std::move(value));
    return true;
  }
  bool fail(std::string problem, error_code& ec) {
    problem_ = std::move(problem);
    ec = boost::json::error::syntax;
    return false;
  }
  bool check_keys(error_code& ec) {
    std::vector<std::string_view> keys;
    keys.reserve(open_.back().size());
    for (const Json::Member& member : open_.back().as_object()) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    return twice == keys.end() || fail("duplicate key '" + printable(*twice) + "'", ec);
  }

  Json root_;
  std::vector<Json> open_;  // containers begun and not ended, outermost first
  std::string text_;        // the key, string or number being read
  std::string problem_;
};

std::string position(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return "line " + std::to_string(line) + " column " + std::to_string(offset - line_start + 1);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view source, const JsonParseOptions& options) {
  const auto fail = [&](std::size_t offset, const std::string& cause) -> Json {
    throw Error(options.error_kind,
                std::string(source) + ": " + position(text, offset) + ": " + cause);
  };
  boost::json::parse_options boost_options;
  boost_options.max_depth = static_cast<std::size_t>(options.max_depth);
  boost::json::basic_parser<JsonBuilder> parser(boost_options);
  error_code ec;
  std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (ec) {
    const std::string& problem = parser.handler().problem();
    if (!problem.empty()) return fail(used, problem);
    if (ec == boost::json::error::incomplete) return fail(text.size(), "the document ends early");
    if (ec == boost::json::error::too_deep)
      return fail(used, "nested deeper than " + std::to_string(options.max_depth) + " levels");
    return fail(used, "not valid JSON (" + ec.message() + ")");
  }
  while (used < text.size() && std::string_view(" \t\r\n").find(text[used]) != std::string::npos)
    ++used;
  if (used < text.size()) return fail(used, "more text after the end of the document");
  return parser.handler().take();
}

Json read_json_file(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  const MappedFile file(path);
  if (file.size() > kMaxBytes)
    throw Error(ErrorKind::kBadFile,
                file.name() + ": " + std::to_string(file.size()) + " bytes are too many for JSON");
  const std::string_view text = file.text();
  if (const std::string_view other = looks_like(text); !other.empty())
    throw Error(ErrorKind::kBadFile, file.name() + ": expected JSON, found " + std::string(other));
  return parse_json(text, file.name());
}

}  // namespace coppice
