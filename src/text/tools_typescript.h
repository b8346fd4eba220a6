// Tool declarations as the TypeScript text that Kimi K2.5 and later were trained on.
#pragma once

#include <optional>
#include <string>

#include "io/json.h"

namespace coppice {

// `tools` is an OpenAI tool list. Empty when it declares no function; nothing when a schema uses
// what the format cannot say (the template then falls back to JSON).
std::optional<std::string> tools_to_typescript(const Json& tools);

// The same value with the keys of every object sorted, as Kimi's tokenizer passes tools on.
Json sort_keys(const Json& value);

}  // namespace coppice
