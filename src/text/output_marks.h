// A model's output as a stream of text and control marks, the input of the reasoning and tool-call
// parsers. With token ids at hand a piece is a mark exactly when its token is an added one: text
// that only looks like a mark (a model that explains the format, a user who asks for it) stays
// text. For sources without ids MarkScanner finds the marks in the text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

struct OutputPiece {
  std::string text;
  bool is_mark;
  bool hidden = false;  // a mark for the parsers alone: skip_special_tokens takes it from the text
};

// What the marks of output formats mean: Kimi's, then those of others.
enum class OutputMark {
  kNone,  // text, or a control token that means nothing here
  kThinkBegin,
  kThinkEnd,
  kSectionBegin,  // of tool calls
  kSectionEnd,
  kCallBegin,
  kArgumentBegin,
  kCallEnd,
  kToolCallBegin,  // <tool_call>: Hermes, Qwen
  kToolCallEnd,
  kPythonTag,  // <|python_tag|>: Llama 3
};

// kNone unless piece.is_mark. The section marks are also known in the singular spelling that
// models have been seen to write.
OutputMark mark_of(const OutputPiece& piece);

// Splits text into text and marks, however it is cut. What may still become a mark is held back.
// Not thread-safe.
class MarkScanner {
 public:
  // Kimi's marks and those of thoughts.
  MarkScanner();
  // These ones, none a prefix of another; the views outlive the scanner.
  explicit MarkScanner(std::span<const std::string_view> marks) : marks_(marks) {}

  std::vector<OutputPiece> add(std::string_view text);
  // What was held back, as text. Call once at the end.
  std::vector<OutputPiece> finish();

 private:
  std::string_view mark_at(std::string_view text) const;
  bool may_become_mark(std::string_view text) const;

  std::span<const std::string_view> marks_;
  std::string held_;  // a proper prefix of a mark, or empty
};

}  // namespace coppice
