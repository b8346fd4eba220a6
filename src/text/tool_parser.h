// Tool calls out of a streamed answer, as it streams: content, then per call its id and name, then
// its arguments piece by piece. What was given out is never taken back, and every delta costs time
// in its own length only. One parser per choice; not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_marks.h"

namespace coppice {

struct ToolEvent {
  enum class Kind {
    kContent,    // text
    kCallBegin,  // call, id, name
    kArguments,  // call, text
    kCallEnd,    // call; complete = false when the stream ended inside of it
  };
  Kind kind;
  std::size_t call = 0;  // index within this answer
  std::string id, name, text;
  bool complete = true;
};

// How a model writes its calls.
enum class ToolFormat {
  kNone,
  kKimi,    // sections of marks
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3
  kJson,    // the answer itself is {"name": ..., "parameters": {...}}, or several: Llama 3
};

// By the names that vLLM and SGLang give their parsers; nullopt: not known here.
std::optional<ToolFormat> tool_format_of(std::string_view parser_name);
// Names of all, with commas.
std::string tool_format_names();

struct ToolSyntax {
  ToolFormat format = ToolFormat::kNone;
  bool tags_are_tokens = false;  // kHermes: a tag is a token of its own, text that looks so is text
};

class ToolParser {
 public:
  virtual ~ToolParser() = default;
  virtual std::vector<ToolEvent> add(const OutputPiece& piece) = 0;
  // The end of the stream: closes an open call. Call once.
  virtual std::vector<ToolEvent> finish() = 0;
  // finish_reason is "tool_calls" exactly when this is not 0.
  virtual std::size_t num_calls() const = 0;
};

// `first_index`: number of tool calls in the conversation so far, for ids made anew. Not for kNone.
std::unique_ptr<ToolParser> make_tool_parser(const ToolSyntax& syntax, std::size_t first_index = 0);

}  // namespace coppice
