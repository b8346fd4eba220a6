// Log-probabilities in the two shapes of the OpenAI API.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "io/json.h"
#include "text/tokenizer.h"

namespace coppice {

// How a token is written in logprobs: its bytes as text, or "token_id:ID".
std::string logprob_token(const Tokenizer& tokenizer, std::int32_t id, bool as_id);

// Chat: {"content": [{token, logprob, bytes, top_logprobs}, ...]}.
Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                   const std::vector<TokenLogprob>& logprobs, bool as_ids);

// vLLM's prompt_logprobs: null, then for every further token {"ID": {logprob, rank,
// decoded_token}, ...}. A token beyond the best ones has no rank.
Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                          const std::vector<TokenLogprob>& logprobs);

// Completions: {tokens, token_logprobs, top_logprobs, text_offset}, grown step by step.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const Tokenizer& tokenizer, bool as_ids, std::int64_t first_offset)
      : tokenizer_(&tokenizer), as_ids_(as_ids), offset_(first_offset) {}

  // The same for a prompt, whose first token has none. logprobs: of ids 1, 2, ...
  Json add_prompt(const std::vector<std::int32_t>& ids, const std::vector<TokenLogprob>& logprobs);
  // The object for these tokens alone; offsets go on from the last call's, in characters.
  Json add(const std::vector<std::int32_t>& ids, const std::vector<TokenLogprob>& logprobs);

 private:
  struct Lists {
    Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
         offsets = Json::array();
    Json object() &&;
  };
  void add_token(std::int32_t id, const TokenLogprob* logprob, Lists& lists);

  const Tokenizer* tokenizer_;
  bool as_ids_;
  std::int64_t offset_;
};

}  // namespace coppice
