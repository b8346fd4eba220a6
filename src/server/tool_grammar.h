// Tool calls as a grammar, in the model's own form: declared names only, arguments that match the
// tool's parameters; Kimi's ids as the model was trained on them.
#pragma once

#include <optional>
#include <string>

#include "server/grammar_service.h"
#include "server/served_model.h"

namespace coppice {

struct ToolRules {
  enum class Mode {
    kFree,      // no grammar
    kEnforced,  // calls only where the model wants one; those that come are valid
    kRequired,  // one or more calls and nothing else
  };
  Mode mode = Mode::kFree;
  std::vector<std::string> names;  // tools that may be called; empty: all
  bool parallel = true;            // more than one call
};

// The grammar of an answer that may call tools, or be `content` where the request asks its text to
// match something. tools: the request's, normalized. first_index: tool calls in the conversation so
// far. Throws 400 naming the tool's place for schemas that cannot be enforced (strict tools) or are
// too large.
std::optional<GrammarRequest> tool_grammar(const ToolRules& rules, const Json& tools,
                                           const std::optional<GrammarRequest>& content,
                                           std::size_t first_index, const ServedModel& model);

}  // namespace coppice
