// Request fields that the generating endpoints share. Names are OpenAI's and vLLM's; SGLang's and
// llama.cpp's spellings are accepted. Errors are 400 naming the field, or 501 for what a build or
// the engine cannot do; nothing is ignored that would change the output.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/json_field.h"
#include "server/grammar_service.h"
#include "server/output_text.h"
#include "server/served_model.h"

namespace coppice {

inline constexpr std::int64_t kMaxChoices = 128;  // n
inline constexpr std::int64_t kMaxStopStrings = 64;
inline constexpr std::int64_t kMaxStopBytes = 4096;  // of one stop string

struct CommonRequest {
  SamplingParams sampling;                 // max_tokens is settled by settle_length
  std::optional<std::int64_t> max_tokens;  // as asked; 0 is allowed
  std::int64_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<std::int64_t> truncate_prompt_tokens;  // -1: to what fits
  bool truncate_left = true;                           // which end goes
  std::optional<std::int64_t> ddtree_budget;
  std::optional<GrammarRequest> grammar;  // of the answer's text
  std::string cache_salt;
  std::string id;  // of the answer, without its prefix
};

// The body as JSON, under a limit on nesting. Throws kInvalidArgument.
Json parse_body(const std::string& body);
// Its fields; `document` outlives them. Errors are kInvalidArgument naming the field.
JsonField body_fields(const Json& document);

// A list of ids of the model's vocabulary.
std::vector<std::int32_t> token_ids_of(const JsonField& field, const ServedModel& model);
Json token_ids_json(std::span<const std::int32_t> ids);

// 404 unless the request names no model or one of ours.
void check_model(const JsonField& body, const ServedModel& model);

CommonRequest parse_common(const JsonField& body, const ServedModel& model);

// Applies truncate_prompt_tokens, checks ids, and settles sampling.max_tokens from what was asked,
// what fits and `otherwise` (nothing: all that fits). `field` names the prompt in errors.
void settle_length(CommonRequest& request, std::vector<std::int32_t>& prompt,
                   std::optional<std::int64_t> otherwise, const ServedModel& model,
                   const std::string& field);

// Tells a thinking budget what of a thought the prompt has begun.
void settle_thinking(std::span<const std::int32_t> prompt, SamplingParams& sampling);

OutputTextOptions text_options(const CommonRequest& request);

}  // namespace coppice
