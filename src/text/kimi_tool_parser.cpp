#include "text/kimi_tool_parser.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace coppice {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kPrefix = "functions.";

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1));
}

bool ends_arguments(OutputMark mark) {
  return mark == OutputMark::kCallEnd || mark == OutputMark::kCallBegin ||
         mark == OutputMark::kSectionBegin || mark == OutputMark::kSectionEnd;
}

struct IdParts {
  std::string_view name;
  bool canonical;  // functions.NAME:DIGITS
};

IdParts split_id(std::string_view id) {
  IdParts parts{id, false};
  const bool prefixed = id.starts_with(kPrefix) && id.size() > kPrefix.size();
  if (prefixed) parts.name.remove_prefix(kPrefix.size());
  const std::size_t colon = parts.name.rfind(':');
  if (colon == parts.name.npos) return parts;
  const std::string_view digits = parts.name.substr(colon + 1);
  if (digits.find_first_not_of("0123456789") != digits.npos) return parts;
  parts.name = parts.name.substr(0, colon);
  parts.canonical = prefixed && !digits.empty();
  return parts;
}

}  // namespace

std::vector<ToolEvent> KimiToolParser::add(const OutputPiece& piece) {
  const OutputMark mark = mark_of(piece);
  if (state_ == State::kArguments && !ends_arguments(mark)) {
    if (!piece.hidden && (named_ || !piece.is_mark)) add_arguments(piece.text);
  } else if (piece.is_mark) {
    add_mark(mark);
  } else if (state_ == State::kId) {
    id_ += piece.text;
  } else {
    add_content(piece.text);
  }
  return std::exchange(events_, {});
}

std::vector<ToolEvent> KimiToolParser::finish() {
  if (state_ == State::kId || state_ == State::kArguments) end_call(false);
  // White space alone is the answer's text only where there is nothing else.
  if (num_calls_ == 0 && !content_begun_ && !spaces_.empty()) {
    events_.push_back({.kind = ToolEvent::Kind::kContent, .text = std::exchange(spaces_, {})});
  }
  return std::exchange(events_, {});
}

void KimiToolParser::add_mark(OutputMark mark) {
  switch (mark) {
    case OutputMark::kSectionBegin:
    case OutputMark::kSectionEnd:
      if (state_ == State::kId || state_ == State::kArguments) end_call(true);
      state_ = mark == OutputMark::kSectionBegin ? State::kSection : State::kContent;
      spaces_.clear();
      content_begun_ = false;
      break;
    case OutputMark::kCallBegin:
      begin_call();
      break;
    case OutputMark::kArgumentBegin:
      if (state_ == State::kId) begin_arguments();
      break;
    case OutputMark::kCallEnd:
      if (state_ == State::kId || state_ == State::kArguments) end_call(true);
      break;
    default:
      break;
  }
}

void KimiToolParser::add_content(const std::string& text) {
  if (!content_begun_) {
    if (text.find_first_not_of(kSpaces) == text.npos) {
      spaces_ += text;
      return;
    }
    content_begun_ = true;
  }
  std::string content = std::exchange(spaces_, {}) + text;
  if (content.empty()) return;
  events_.push_back({.kind = ToolEvent::Kind::kContent, .text = std::move(content)});
}

// White space is held back: it may be the end.
void KimiToolParser::add_arguments(const std::string& text) {
  const std::size_t first = arguments_begun_ ? 0 : text.find_first_not_of(kSpaces);
  const std::size_t last = text.find_last_not_of(kSpaces);
  if (last == text.npos) {
    if (arguments_begun_) spaces_ += text;
    return;
  }
  std::string given = std::exchange(spaces_, text.substr(last + 1));
  given += text.substr(first, last + 1 - first);
  arguments_begun_ = true;
  const auto kind = named_ ? ToolEvent::Kind::kArguments : ToolEvent::Kind::kContent;
  events_.push_back({.kind = kind, .call = named_ ? num_calls_ - 1 : 0, .text = std::move(given)});
}

void KimiToolParser::begin_call() {
  if (state_ == State::kId || state_ == State::kArguments) end_call(true);
  state_ = State::kId;
  id_.clear();
  spaces_.clear();
  content_begun_ = false;
}

void KimiToolParser::begin_arguments() {
  state_ = State::kArguments;
  arguments_begun_ = false;
  const std::string id = trimmed(std::exchange(id_, {}));
  const std::string name(split_id(id).name);
  named_ = !name.empty();
  if (!named_) return;
  events_.push_back({.kind = ToolEvent::Kind::kCallBegin,
                     .call = num_calls_,
                     .id = unused_id(id, name),
                     .name = name});
  ++num_calls_;
}

void KimiToolParser::end_call(bool complete) {
  if (state_ == State::kId) {
    // No argument mark: the id may run straight into a JSON object.
    const std::size_t brace = std::min(id_.find('{'), id_.size());
    const std::string arguments = id_.substr(brace);
    id_.resize(brace);
    // A stream cut inside an id says nothing yet.
    if (!complete && arguments.empty()) id_.clear();
    begin_arguments();
    add_arguments(arguments);
  }
  if (named_) {
    if (!arguments_begun_ && complete) {
      events_.push_back(
          {.kind = ToolEvent::Kind::kArguments, .call = num_calls_ - 1, .text = "{}"});
    }
    events_.push_back(
        {.kind = ToolEvent::Kind::kCallEnd, .call = num_calls_ - 1, .complete = complete});
  }
  spaces_.clear();
  named_ = false;
  content_begun_ = false;
  state_ = State::kSection;
}

std::string KimiToolParser::unused_id(const std::string& id, const std::string& name) {
  std::string result = id;
  std::size_t index = first_index_ + num_calls_;
  while (!split_id(result).canonical || used_ids_.contains(result)) {
    result = std::string(kPrefix) + name + ":" + std::to_string(index++);
  }
  used_ids_.insert(result);
  return result;
}

}  // namespace coppice
