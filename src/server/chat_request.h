// POST /v1/chat/completions as a struct, and the prompt it makes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/chat_output.h"
#include "server/request_common.h"
#include "server/tool_grammar.h"

namespace coppice {

struct ChatRequest {
  CommonRequest common;
  Json messages;
  Json tools;  // array, or null
  ToolRules tool_rules;
  bool parse_tools = false;
  bool parse_reasoning = false;
  bool include_reasoning = true;
  Json template_kwargs;       // object
  std::string chat_template;  // instead of the model's
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;  // in front of what the template writes
};

// Reads and checks the body. Throws 400, 404 or 501 naming the field.
ChatRequest parse_chat_request(const JsonField& body, const ServedModel& model);

struct ChatPrompt {
  std::string text;
  std::vector<std::int32_t> token_ids;
  ChatOutputOptions output;  // how the answer is to be read
  std::optional<GrammarRequest> grammar;
};

// Renders the template and encodes the text. Throws kInvalidArgument.
ChatPrompt render_chat(const ChatRequest& request, const ServedModel& model);

}  // namespace coppice
