// The text of one choice of a chat as what a client sees: reasoning, content and tool calls, in the
// order in which they came. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "server/output_text.h"
#include "text/reasoning_parser.h"
#include "text/tool_parser.h"

namespace coppice {

struct ChatPart {
  enum class Kind { kReasoning, kContent, kCallBegin, kArguments, kCallEnd };
  Kind kind;
  std::string text;      // not of kCallBegin and kCallEnd
  std::size_t call = 0;  // index of the tool call within the answer
  std::string id, name;  // kCallBegin
};

struct ChatOutputOptions {
  bool parse_reasoning = false;
  bool in_reasoning = false;  // the prompt opened a thought
  ToolSyntax tools;
  std::size_t first_call_index = 0;  // tool calls in the conversation so far
};

class ChatOutput {
 public:
  explicit ChatOutput(const ChatOutputOptions& options);

  // Parts that the step added; neighbours of one kind are joined.
  std::vector<ChatPart> add(const OutputStep& step);
  std::size_t num_calls() const { return tools_ ? tools_->num_calls() : 0; }
  bool in_reasoning() const { return options_.parse_reasoning && reasoning_.in_reasoning(); }

 private:
  void add_piece(const OutputPiece& piece, std::vector<ChatPart>& parts);
  void add_events(const std::vector<ToolEvent>& events, std::vector<ChatPart>& parts);

  ChatOutputOptions options_;
  ReasoningParser reasoning_;
  std::unique_ptr<ToolParser> tools_;  // null: not parsed
};

}  // namespace coppice
