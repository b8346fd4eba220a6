#include "text/output_marks.h"

#include <algorithm>
#include <array>
#include <utility>

namespace coppice {
namespace {

constexpr std::array<std::pair<std::string_view, OutputMark>, 12> kMarks = {{
    {"<think>", OutputMark::kThinkBegin},
    {"</think>", OutputMark::kThinkEnd},
    {"<|tool_calls_section_begin|>", OutputMark::kSectionBegin},
    {"<|tool_calls_section_end|>", OutputMark::kSectionEnd},
    {"<|tool_call_section_begin|>", OutputMark::kSectionBegin},
    {"<|tool_call_section_end|>", OutputMark::kSectionEnd},
    {"<|tool_call_begin|>", OutputMark::kCallBegin},
    {"<|tool_call_argument_begin|>", OutputMark::kArgumentBegin},
    {"<|tool_call_end|>", OutputMark::kCallEnd},
    {"<tool_call>", OutputMark::kToolCallBegin},
    {"</tool_call>", OutputMark::kToolCallEnd},
    {"<|python_tag|>", OutputMark::kPythonTag},
}};

constexpr std::array<std::string_view, 9> kKimiMarks = [] {
  std::array<std::string_view, 9> texts;
  for (std::size_t i = 0; i < texts.size(); ++i) texts[i] = kMarks[i].first;
  return texts;
}();

}  // namespace

OutputMark mark_of(const OutputPiece& piece) {
  if (!piece.is_mark) return OutputMark::kNone;
  const auto found = std::find_if(kMarks.begin(), kMarks.end(),
                                  [&](const auto& mark) { return mark.first == piece.text; });
  return found == kMarks.end() ? OutputMark::kNone : found->second;
}

MarkScanner::MarkScanner() : MarkScanner(kKimiMarks) {}

// No mark is a prefix of another: the first that fits is the one.
std::string_view MarkScanner::mark_at(std::string_view text) const {
  const auto found = std::find_if(marks_.begin(), marks_.end(),
                                  [&](std::string_view mark) { return text.starts_with(mark); });
  return found == marks_.end() ? std::string_view() : *found;
}

bool MarkScanner::may_become_mark(std::string_view text) const {
  return std::any_of(marks_.begin(), marks_.end(),
                     [&](std::string_view mark) { return mark.starts_with(text); });
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
