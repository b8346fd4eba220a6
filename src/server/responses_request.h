// POST /v1/responses brought to the form of a chat request.
#pragma once

#include "io/json_field.h"

namespace coppice {

// The body of /v1/chat/completions that asks for the same: instructions, input (text, messages,
// function calls and their outputs, reasoning), tools, limits and sampling. Throws 400 or 501
// naming the field.
Json chat_body_of_response(const JsonField& body);

}  // namespace coppice
