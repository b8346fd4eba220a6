// What a request asks its output to match, in the spellings of OpenAI (response_format), vLLM
// (structured_outputs, guided_*), SGLang (regex, ebnf, json_schema) and llama.cpp (grammar).
#pragma once

#include <optional>

#include "io/json_field.h"
#include "server/grammar_service.h"

namespace coppice {

// Nothing when the request asks for none. Throws 400 naming the field, also when two ask.
std::optional<GrammarRequest> parse_structured_output(const JsonField& body);

// 501 in builds without grammars.
void require_grammars(const std::string& field);

}  // namespace coppice
