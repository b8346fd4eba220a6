// POST /tokenize, POST /detokenize and GET /tokenizer_info in vLLM's shapes.
#pragma once

#include "server/http_server.h"
#include "server/served_model.h"

namespace coppice {

// A prompt, or messages through the chat template: {"count", "max_model_len", "tokens"}.
void tokenize(const ServedModel& model, const HttpRequest& request, HttpResponder& responder);
// {"tokens": [...]}: {"prompt"}.
void detokenize(const ServedModel& model, const HttpRequest& request, HttpResponder& responder);
void tokenizer_info(const ServedModel& model, HttpResponder& responder);

}  // namespace coppice
