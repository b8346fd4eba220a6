#include "text/output_marks.h"

#include <algorithm>
#include <array>
#include <utility>

namespace coppice {
namespace {

constexpr std::array<std::pair<std::string_view, OutputMark>, 9> kMarks = {{
    {"<think>", OutputMark::kThinkBegin},
    {"</think>", OutputMark::kThinkEnd},
    {"<|tool_calls_section_begin|>", OutputMark::kSectionBegin},
    {"<|tool_calls_section_end|>", OutputMark::kSectionEnd},
    {"<|tool_call_section_begin|>", OutputMark::kSectionBegin},
    {"<|tool_call_section_end|>", OutputMark::kSectionEnd},
    {"<|tool_call_begin|>", OutputMark::kCallBegin},
    {"<|tool_call_argument_begin|>", OutputMark::kArgumentBegin},
    {"<|tool_call_end|>", OutputMark::kCallEnd},
}};

// No mark is a prefix of another: the first that fits is the one.
std::string_view mark_at(std::string_view text) {
  const auto found = std::find_if(kMarks.begin(), kMarks.end(),
                                  [&](const auto& mark) { return text.starts_with(mark.first); });
  return found == kMarks.end() ? std::string_view() : found->first;
}

bool may_become_mark(std::string_view text) {
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [&](const auto& mark) { return mark.first.starts_with(text); });
}

}  // namespace

OutputMark mark_of(const OutputPiece& piece) {
  if (!piece.is_mark) return OutputMark::kNone;
  const auto found = std::find_if(kMarks.begin(), kMarks.end(),
                                  [&](const auto& mark) { return mark.first == piece.text; });
  return found == kMarks.end() ? OutputMark::kNone : found->second;
}

std::vector<OutputPiece> MarkScanner::add(std::string_view added) {
  const std::string text = std::exchange(held_, {}) + std::string(added);
  std::vector<OutputPiece> pieces;
  std::size_t begin = 0;  // of text not given out yet
  const auto give_text = [&](std::size_t end) {
    if (end > begin) pieces.push_back({text.substr(begin, end - begin), false});
  };
  for (std::size_t i = text.find('<'); i != text.npos; i = text.find('<', i)) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (const std::string_view mark = mark_at(rest); !mark.empty()) {
      give_text(i);
      pieces.push_back({std::string(mark), true});
      i += mark.size();
      begin = i;
    } else if (may_become_mark(rest)) {
      give_text(i);
      held_ = rest;
      return pieces;
    } else {
      ++i;
    }
  }
  give_text(text.size());
  return pieces;
}

std::vector<OutputPiece> MarkScanner::finish() {
  if (held_.empty()) return {};
  return {{std::exchange(held_, {}), false}};
}

}  // namespace coppice
