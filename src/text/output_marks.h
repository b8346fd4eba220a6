// A model's output as a stream of text and control marks, the input of the reasoning and tool-call
// parsers. With token ids at hand a piece is a mark exactly when its token is an added one: text
// that only looks like a mark (a model that explains the format, a user who asks for it) stays
// text. For sources without ids MarkScanner finds the marks in the text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coppice {

struct OutputPiece {
  std::string text;
  bool is_mark;
  bool hidden = false;  // a mark for the parsers alone: skip_special_tokens takes it from the text
};

// What the marks of Kimi's output format mean.
enum class OutputMark {
  kNone,  // text, or a control token that means nothing here
  kThinkBegin,
  kThinkEnd,
  kSectionBegin,  // of tool calls
  kSectionEnd,
  kCallBegin,
  kArgumentBegin,
  kCallEnd,
};

// kNone unless piece.is_mark. The section marks are also known in the singular spelling that
// models have been seen to write.
OutputMark mark_of(const OutputPiece& piece);

// Splits text into text and marks, however it is cut. What may still become a mark is held back.
// Not thread-safe.
class MarkScanner {
 public:
  std::vector<OutputPiece> add(std::string_view text);
  // What was held back, as text. Call once at the end.
  std::vector<OutputPiece> finish();

 private:
  std::string held_;  // a proper prefix of a mark, or empty
};

}  // namespace coppice
