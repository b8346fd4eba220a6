// How one request chooses its tokens. Names, defaults and ranges are vLLM's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace coppice {

inline constexpr std::int64_t kMaxLogitBias = 300;  // entries of logit_bias
inline constexpr std::int64_t kMaxStopIds = 32;     // stop_token_ids and the model's own stop ids
inline constexpr std::int64_t kMaxLogprobs = 20;
inline constexpr std::int64_t kMaxBadWords = 1024;

// Below it the largest logit is taken, as in vLLM: single-precision quotients would overflow.
inline constexpr double kGreedyTemperature = 1e-5;

class Grammar;

// What the output must match, and from where on.
struct StructuredOutput {
  std::shared_ptr<const Grammar> grammar = {};  // null: nothing
  // The grammar begins behind this token (</think>); nothing: with the first one.
  std::optional<std::int32_t> start_token_id = {};
  std::vector<std::int32_t> banned_before_start = {};
};

// At most so many tokens of a thought, then end_id and nothing else.
struct ThinkingBudget {
  std::int64_t num_tokens = 0;
  std::optional<std::int32_t> begin_id = {};  // opens a thought (<think>)
  std::int32_t end_id = 0;                    // ends it (</think>)
  std::optional<std::int64_t> open = {};      // tokens of a thought that the prompt left open
};

struct SamplingParams {
  double temperature = 1.0;  // below kGreedyTemperature: greedy
  std::int64_t top_k = 0;    // 0 or -1: all
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;   // over prompt and output
  double presence_penalty = 0.0;     // over output
  double frequency_penalty = 0.0;    // over output
  std::optional<std::int64_t> seed;  // none: the engine derives one from its own seed
  std::int64_t choice_index = 0;     // which of n choices of one request: an own noise stream each

  std::int64_t max_tokens = 16;
  std::int64_t min_tokens = 0;  // stop ids are banned before
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  bool ignore_eos = false;
  std::map<std::int64_t, double> logit_bias;                   // token id -> added to its logit
  std::vector<std::int64_t> allowed_token_ids;                 // empty: all
  std::vector<std::vector<std::int32_t>> bad_words_token_ids;  // none of them may be completed
  StructuredOutput structured;
  std::optional<ThinkingBudget> thinking_budget;
  // As logprobs, of every prompt token but the first: computed without the prefix cache.
  std::optional<std::int64_t> prompt_logprobs;
  std::optional<std::int64_t> logprobs;  // how many alternatives; 0: the chosen token's only

  bool is_greedy() const { return temperature < kGreedyTemperature; }

  // Throws Error(kInvalidArgument) naming the field, its value and its range.
  void validate(std::int64_t vocab_size) const;
};

}  // namespace coppice
