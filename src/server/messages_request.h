// POST /v1/messages (Anthropic) brought to the form of a chat request.
#pragma once

#include "io/json_field.h"

namespace coppice {

// The body of /v1/chat/completions that asks for the same: system, messages with text, thinking,
// tool_use and tool_result blocks, tools, tool_choice, thinking, limits and sampling. Throws 400
// naming the field. For count_tokens max_tokens may be absent.
Json chat_body_of_messages(const JsonField& body, bool needs_max_tokens);

}  // namespace coppice
