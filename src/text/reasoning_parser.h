// Splits a Kimi or Qwen style output into reasoning and the rest, as it streams. What was given
// out is never taken back. One parser per choice; not thread-safe.
//
// Rules. Reasoning ends at </think>, or where a tool section begins (models skip </think>): that
// section is a real one. White space at the end of the reasoning is dropped. <think> opens
// reasoning only before any answer text; elsewhere stray think marks are dropped. Inside a tool
// section nothing is touched.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/output_marks.h"

namespace coppice {

class ReasoningParser {
 public:
  struct Delta {
    std::string reasoning;
    std::vector<OutputPiece> rest;  // for the tool parser, marks included
  };

  // Whether the model continues inside a thought: the last think or section mark of the prompt,
  // as the template wrote it, decides.
  static bool prompt_opens_reasoning(std::string_view prompt);

  explicit ReasoningParser(bool in_reasoning)
      : state_(in_reasoning ? State::kReasoning : State::kStart) {}

  Delta add(const OutputPiece& piece);
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State {
    kStart,  // nothing but white space so far
    kReasoning,
    kAnswer,
    kSection,
  };
  void add_reasoning(const std::string& text, Delta& delta);

  State state_;
  std::string spaces_;  // white space that may turn out to end the reasoning
};

}  // namespace coppice
