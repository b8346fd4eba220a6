#include "text/json_call_reader.h"

#include <utility>

#include "base/error.h"
#include "io/json.h"

namespace coppice {
namespace {

constexpr int kMaxDepth = 200;
constexpr std::size_t kMaxName = 1024;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool is_arguments(const std::string& key) {
  return key == "\"arguments\"" || key == "\"parameters\"";
}

}  // namespace

void JsonCallReader::add(char c) {
  if (state_ != State::kOpen) return;
  if (in_value_) return add_to_value(c);
  if (in_string_) {
    key_ += c;
    if (escaped_)
      escaped_ = false;
    else if (c == '\\')
      escaped_ = true;
    else if (c == '"') {
      in_string_ = false;
      expect_ = Expect::kColon;
    }
    return;
  }
  if (!is_space(c)) add_outside(c);
}

void JsonCallReader::add_outside(char c) {
  switch (expect_) {
    case Expect::kObject:
      if (c != '{') break;
      expect_ = Expect::kKeyOrEnd;
      return;
    case Expect::kKeyOrEnd:
    case Expect::kKey:
      if (c == '}' && expect_ == Expect::kKeyOrEnd) {
        state_ = State::kDone;
        return;
      }
      if (c != '"') break;
      key_.assign(1, '"');
      in_string_ = true;
      return;
    case Expect::kColon:
      if (c != ':') break;
      expect_ = Expect::kValue;
      return;
    case Expect::kValue:
      return begin_value(c);
    case Expect::kCommaOrEnd:
      if (c == '}')
        state_ = State::kDone;
      else if (c == ',')
        expect_ = Expect::kKey;
      else
        break;
      return;
  }
  state_ = State::kBroken;
}

void JsonCallReader::begin_value(char c) {
  const bool is_name = key_ == "\"name\"" && !name_;
  if ((is_name && c != '"') || c == ',' || c == '}' || c == ']' || c == ':') {
    state_ = State::kBroken;
    return;
  }
  if (!is_name && is_arguments(key_) && !has_arguments_)
    has_arguments_ = true;
  else if (!is_name)
    key_.clear();  // skipped
  in_value_ = true;
  in_scalar_ = c != '"' && c != '{' && c != '[';
  depth_ = 0;
  add_to_value(c);
}

void JsonCallReader::add_to_value(char c) {
  if (in_scalar_ && (is_space(c) || c == ',' || c == '}')) {
    end_value();
    if (state_ == State::kOpen && !is_space(c)) add_outside(c);
    return;
  }
  if (is_arguments(key_)) arguments_ += c;
  if (key_ == "\"name\"") name_text_ += c;
  if (in_string_) {
    if (escaped_)
      escaped_ = false;
    else if (c == '\\')
      escaped_ = true;
    else if (c == '"')
      in_string_ = false;
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  if (depth_ > kMaxDepth || name_text_.size() > kMaxName) state_ = State::kBroken;
  if (!in_scalar_ && !in_string_ && depth_ == 0) end_value();
}

void JsonCallReader::end_value() {
  in_value_ = false;
  expect_ = Expect::kCommaOrEnd;
  if (key_ != "\"name\"" || name_) return;
  try {
    name_ = parse_json(name_text_, "name").as_string();
  } catch (const Error&) {
    state_ = State::kBroken;
  }
  if (name_ && name_->empty()) state_ = State::kBroken;
}

std::optional<std::string> JsonCallReader::take_name(bool bare) {
  if (name_given_ || !name_ || state_ == State::kBroken) return std::nullopt;
  if (!has_arguments_ && !(bare && state_ == State::kDone)) return std::nullopt;
  name_given_ = true;
  return name_;
}

std::string JsonCallReader::take_arguments() {
  return std::exchange(arguments_, {});
}

}  // namespace coppice
