// The messages and tools of a chat request: checked field by field and brought to the one form that
// chat templates expect.
#pragma once

#include "io/json_field.h"

namespace coppice {

// body.messages as an array for ChatInput. Throws 400 naming messages[i]..., for image, audio and
// file parts messages[i].content[j]. `reasoning` becomes reasoning_content, developer parts and
// text parts of all spellings become plain text parts.
Json normalized_messages(const JsonField& messages);

// Tool calls that the conversation holds: ids are counted on from there.
std::size_t count_tool_calls(const Json& messages);

// body.tools as an array, or null when there are none. Deprecated `functions` count too.
Json normalized_tools(const JsonField& body);

}  // namespace coppice
