// POST /v1/chat/completions, and its render twin.
#pragma once

#include <memory>

#include "server/chat_request.h"
#include "server/generation.h"

namespace coppice {

// What the answering endpoints share.
struct ApiContext {
  GenerationContext generation;
  std::string fingerprint;        // system_fingerprint
  bool timings = false;           // add llama.cpp's timings object
  bool reasoning_content = true;  // also under SGLang's and Moonshot's name
};

// Choice `index` of a request over one of its prompts, for the engine; the grammar is the caller's.
GenerationChoice make_choice(const CommonRequest& common,
                             const std::vector<std::int32_t>& prompt_token_ids, std::int64_t index);

// A chat request ready for the engine.
struct PreparedChat {
  ChatRequest request;
  ChatPrompt prompt;
};
// From the body of /v1/chat/completions. Throws Error for what is wrong with it.
PreparedChat prepare_chat(const ApiContext& context, const Json& document);
// One choice for each of n.
std::vector<GenerationChoice> chat_choices(const PreparedChat& prepared, const ServedModel& model);

// Throws Error for what is wrong with the request; everything later goes to the responder.
void chat_completions(const ApiContext& context, const HttpRequest& request,
                      const std::shared_ptr<HttpResponder>& responder);

// The prompt that the request would make: {"prompt", "prompt_token_ids", ...}.
void render_chat_completions(const ApiContext& context, const HttpRequest& request,
                             HttpResponder& responder);

}  // namespace coppice
