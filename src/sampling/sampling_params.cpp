#include "sampling/sampling_params.h"

#include <cmath>
#include <cstdint>
#include <sstream>

#include "base/error.h"

namespace coppice {
namespace {

// NaN fails every comparison, so it is refused here too.
template <typename T>
void require(bool holds, const std::string& field, T value, const std::string& range) {
  if (holds) return;
  std::ostringstream message;
  message << field << " is " << value << ": must be " << range;
  throw Error(ErrorKind::kInvalidArgument, message.str());
}

void check_id(const std::string& field, std::int64_t id, std::int64_t vocab_size) {
  require(id >= 0 && id < vocab_size, field, id,
          "a token id from 0 to " + std::to_string(vocab_size - 1));
}

}  // namespace

void SamplingParams::validate(std::int64_t vocab_size) const {
  require(temperature >= 0 && std::isfinite(temperature), "temperature", temperature,
          "at least 0 and finite");
  require(top_k >= -1, "top_k", top_k, "-1 or 0 (all) or at least 1");
  require(top_p > 0 && top_p <= 1, "top_p", top_p, "above 0 and at most 1");
  require(min_p >= 0 && min_p <= 1, "min_p", min_p, "from 0 to 1");
  require(repetition_penalty > 0 && std::isfinite(repetition_penalty), "repetition_penalty",
          repetition_penalty, "above 0 and finite");
  require(presence_penalty >= -2 && presence_penalty <= 2, "presence_penalty", presence_penalty,
          "from -2 to 2");
  require(frequency_penalty >= -2 && frequency_penalty <= 2, "frequency_penalty", frequency_penalty,
          "from -2 to 2");
  // Sums with a prompt's length must not overflow.
  require(max_tokens >= 1 && max_tokens <= INT32_MAX, "max_tokens", max_tokens,
          "from 1 to " + std::to_string(INT32_MAX));
  require(min_tokens >= 0 && min_tokens <= max_tokens, "min_tokens", min_tokens,
          "from 0 to max_tokens (" + std::to_string(max_tokens) + ")");
  require(std::ssize(stop_token_ids) <= kMaxStopIds / 2, "stop_token_ids", stop_token_ids.size(),
          "at most " + std::to_string(kMaxStopIds / 2) + " ids");
  for (const std::int64_t id : stop_token_ids) check_id("stop_token_ids", id, vocab_size);
  for (const std::string& text : stop)
    require(!text.empty(), "stop", "an empty string", "at least one character each");
  require(std::ssize(logit_bias) <= kMaxLogitBias, "logit_bias", logit_bias.size(),
          "at most " + std::to_string(kMaxLogitBias) + " entries");
  for (const auto& [id, value] : logit_bias) {
    check_id("logit_bias", id, vocab_size);
    require(value >= -100 && value <= 100, "logit_bias", value, "from -100 to 100");
  }
  for (const std::int64_t id : allowed_token_ids) check_id("allowed_token_ids", id, vocab_size);
  require(std::ssize(bad_words_token_ids) <= kMaxBadWords, "bad_words", bad_words_token_ids.size(),
          "at most " + std::to_string(kMaxBadWords) + " words");
  for (const auto& word : bad_words_token_ids) {
    require(!word.empty(), "bad_words", "an empty word", "at least one token each");
    for (const std::int32_t id : word) check_id("bad_words", id, vocab_size);
  }
  if (prompt_logprobs)
    require(*prompt_logprobs >= 0 && *prompt_logprobs <= kMaxLogprobs, "prompt_logprobs",
            *prompt_logprobs, "from 0 to " + std::to_string(kMaxLogprobs));
  if (logprobs)
    require(*logprobs >= 0 && *logprobs <= kMaxLogprobs, "logprobs", *logprobs,
            "from 0 to " + std::to_string(kMaxLogprobs));
}

}  // namespace coppice
