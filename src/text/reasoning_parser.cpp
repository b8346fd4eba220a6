#include "text/reasoning_parser.h"

namespace coppice {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kSpaces) == text.npos;
}

}  // namespace

bool ReasoningParser::prompt_opens_reasoning(std::string_view prompt) {
  const auto last = [&](std::string_view mark) {
    const std::size_t found = prompt.rfind(mark);
    return found == prompt.npos ? 0 : found + 1;
  };
  const std::size_t open = last("<think>");
  return open > last("</think>") && open > last("<|tool_calls_section_begin|>");
}

ReasoningParser::Delta ReasoningParser::add(const OutputPiece& piece) {
  Delta delta;
  const OutputMark mark = mark_of(piece);
  if (state_ == State::kSection) {
    if (mark == OutputMark::kSectionEnd || mark == OutputMark::kToolCallEnd)
      state_ = State::kAnswer;
    delta.rest.push_back(piece);
    return delta;
  }
  if (mark == OutputMark::kSectionBegin || mark == OutputMark::kCallBegin ||
      mark == OutputMark::kToolCallBegin) {
    state_ = State::kSection;
    spaces_.clear();
    delta.rest.push_back(piece);
  } else if (mark == OutputMark::kThinkEnd) {
    state_ = State::kAnswer;
    spaces_.clear();
  } else if (mark == OutputMark::kThinkBegin) {
    if (state_ == State::kStart) state_ = State::kReasoning;
  } else if (state_ == State::kReasoning) {
    if (!piece.is_mark) add_reasoning(piece.text, delta);
  } else {
    if (piece.is_mark || !is_blank(piece.text)) state_ = State::kAnswer;
    delta.rest.push_back(piece);
  }
  return delta;
}

void ReasoningParser::add_reasoning(const std::string& text, Delta& delta) {
  const std::size_t last = text.find_last_not_of(kSpaces);
  if (last == text.npos) {
    spaces_ += text;
    return;
  }
  delta.reasoning = spaces_ + text.substr(0, last + 1);
  spaces_ = text.substr(last + 1);
}

}  // namespace coppice
