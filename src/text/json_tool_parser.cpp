#include "text/json_tool_parser.h"

#include <array>
#include <utility>

namespace coppice {
namespace {

constexpr std::array<std::string_view, 2> kTags = {"<tool_call>", "</tool_call>"};
constexpr std::array<std::string_view, 1> kPythonTag = {"<|python_tag|>"};

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

std::span<const std::string_view> marks_of(const ToolSyntax& syntax) {
  if (syntax.format == ToolFormat::kHermes) return kTags;
  return kPythonTag;
}

}  // namespace

JsonToolParser::JsonToolParser(const ToolSyntax& syntax, std::size_t first_index)
    : tagged_(syntax.format == ToolFormat::kHermes),
      scans_tags_(!syntax.tags_are_tokens),
      first_index_(first_index),
      scanner_(marks_of(syntax)) {}

std::vector<ToolEvent> JsonToolParser::add(const OutputPiece& piece) {
  if (piece.is_mark || !scans_tags_) {
    for (const OutputPiece& held : scanner_.finish()) add_piece(held);
    add_piece(piece);
  } else {
    for (const OutputPiece& part : scanner_.add(piece.text)) add_piece(part);
  }
  return std::exchange(events_, {});
}

std::vector<ToolEvent> JsonToolParser::finish() {
  for (const OutputPiece& piece : scanner_.finish()) add_piece(piece);
  if (begun_)
    end_call(false);
  else if (state_ == State::kObject || num_calls_ == 0)
    give_up();
  return std::exchange(events_, {});
}

void JsonToolParser::add_piece(const OutputPiece& piece) {
  const OutputMark mark = piece.is_mark ? mark_of(piece) : OutputMark::kNone;
  const bool is_tag = tagged_
                          ? mark == OutputMark::kToolCallBegin || mark == OutputMark::kToolCallEnd
                          : mark == OutputMark::kPythonTag;
  // A tag that was only found in the text may stand in a string of the arguments.
  const bool in_string = scans_tags_ && state_ == State::kObject && reader_.in_string();
  if (is_tag && !in_string)
    add_mark(piece);
  else if (!piece.hidden)
    add_text(piece.text);
}

void JsonToolParser::add_mark(const OutputPiece& piece) {
  if (!tagged_) {  // <|python_tag|>: nothing by itself
    if (state_ != State::kStart && !piece.hidden) add_text(piece.text);
    return;
  }
  const bool closes = mark_of(piece) == OutputMark::kToolCallEnd;
  if (state_ == State::kObject) {
    if (begun_) {
      end_call(true);
    } else {
      if (closes && !piece.hidden) held_ += piece.text;
      give_up();
      if (closes) return;
    }
  }
  if (closes && state_ == State::kTagRest) {
    state_ = State::kStart;
    return;
  }
  if (closes) {
    if (!piece.hidden) add_text(piece.text);  // of no call
    return;
  }
  held_.clear();  // white space beside a tag
  begin_object();
  if (!piece.hidden) held_ = piece.text;
}

void JsonToolParser::add_text(std::string_view text) {
  if (state_ == State::kContent && !text.empty()) {
    give_content(std::string(text));
    return;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    add_char(text[i]);
    if (state_ != State::kContent) continue;
    give_content(std::string(text.substr(i + 1)));
    break;
  }
  if (begun_)
    if (std::string arguments = reader_.take_arguments(); !arguments.empty()) {
      has_arguments_ = true;
      events_.push_back({.kind = ToolEvent::Kind::kArguments,
                         .call = num_calls_ - 1,
                         .text = std::move(arguments)});
    }
}

void JsonToolParser::add_char(char c) {
  switch (state_) {
    case State::kContent:
    case State::kTagRest:
      return;
    case State::kStart:
    case State::kBetween: {
      const bool between = !tagged_ && state_ == State::kBetween &&
                           (c == ',' || c == ';' || c == ']' || is_space(c));
      if (between) return;
      const bool opens_list =
          !tagged_ && state_ == State::kStart && c == '[' && held_.find('[') == std::string::npos;
      if (!tagged_ && c == '{') {
        begin_object();
        return read(c);
      }
      held_ += c;
      if (!is_space(c) && !opens_list) give_up();
      return;
    }
    case State::kObject:
      return read(c);
  }
}

void JsonToolParser::begin_object() {
  state_ = State::kObject;
  reader_ = {};
  begun_ = has_arguments_ = false;
}

void JsonToolParser::read(char c) {
  if (!begun_) held_ += c;
  reader_.add(c);
  if (!begun_) {
    if (const auto name = reader_.take_name(tagged_)) {
      begun_ = true;
      held_.clear();
      events_.push_back({.kind = ToolEvent::Kind::kCallBegin,
                         .call = num_calls_,
                         .id = "call_" + std::to_string(first_index_ + num_calls_),
                         .name = *name});
      ++num_calls_;
    }
  }
  if (reader_.state() == JsonCallReader::State::kOpen) return;
  if (begun_)
    end_call(true);
  else
    give_up();
}

void JsonToolParser::end_call(bool complete) {
  std::string rest = reader_.take_arguments();
  if (rest.empty() && !has_arguments_ && !reader_.has_arguments() && complete) rest = "{}";
  if (!rest.empty())
    events_.push_back(
        {.kind = ToolEvent::Kind::kArguments, .call = num_calls_ - 1, .text = std::move(rest)});
  events_.push_back(
      {.kind = ToolEvent::Kind::kCallEnd, .call = num_calls_ - 1, .complete = complete});
  begun_ = false;
  state_ = tagged_ ? State::kTagRest : State::kBetween;
}

// What is held is no call.
void JsonToolParser::give_up() {
  state_ = State::kContent;
  give_content(std::exchange(held_, {}));
}

void JsonToolParser::give_content(const std::string& text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == ToolEvent::Kind::kContent)
    events_.back().text += text;
  else
    events_.push_back({.kind = ToolEvent::Kind::kContent, .text = text});
}

}  // namespace coppice
