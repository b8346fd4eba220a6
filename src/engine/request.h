// What goes into the engine and what comes out of it: token ids only, never text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sampling/sampling_params.h"

namespace coppice {

using RequestId = std::uint64_t;

struct Request {
  std::vector<std::int32_t> prompt_token_ids = {};  // at least one
  SamplingParams sampling = {};                     // stop strings are the caller's: Engine::finish
  // Draft nodes a round for this request: 0 switches speculation off, kAutoBudget lets the
  // controller choose, nothing takes the engine's setting. Never changes the output.
  std::optional<std::int64_t> ddtree_budget = {};
  std::string cache_salt = {};  // requests share cached prefixes only within equal salts
};

// Why nothing more will come, in OpenAI's words where it has them. What ends by Engine::cancel or
// Engine::finish has no further output, and so no reason.
enum class EndReason {
  kNone,     // more will come
  kStop,     // a stop id was emitted; behind the engine also: a stop string was found
  kLength,   // max_tokens
  kError,    // no token to choose: logits with NaN or infinity
  kDeadEnd,  // what the request allows leaves no token to choose
};
const char* name_of(EndReason reason);  // "", "stop", "length", "error", "dead_end"

struct TokenLogprob {
  float logprob = 0;  // of the emitted token; temperature 1, no filters
  std::vector<std::pair<std::int32_t, float>> top;  // sampling.logprobs alternatives, best first
};

struct RequestStats {
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_cached_tokens = 0;  // prompt tokens taken from the prefix cache
  std::int64_t num_output_tokens = 0;
  std::int64_t num_rounds = 0;           // decode rounds that emitted something
  std::int64_t num_draft_tokens = 0;     // nodes verified, without roots
  std::int64_t num_accepted_tokens = 0;  // nodes accepted
  std::int64_t num_preemptions = 0;
  std::int64_t arrival_ns = 0, start_ns = 0, first_token_ns = 0,
               end_ns = 0;  // engine clock; 0: not yet
};

// Valid during the callback.
struct RequestOutput {
  RequestId id = 0;
  std::span<const std::int32_t> token_ids;  // new since the last output; a stop id included
  std::span<const TokenLogprob> logprobs;   // one for each token if asked for, else empty
  // With the first tokens, if asked for: of prompt tokens 1, 2, ..., given what is before each.
  std::span<const TokenLogprob> prompt_logprobs = {};
  EndReason end_reason = EndReason::kNone;
  std::optional<std::int32_t> stop_token_id;  // with kStop, when an id stopped it
  const RequestStats* stats = nullptr;
};

// Runs inside Engine::step, on its thread. May call the engine's add_request, cancel and finish.
using OutputCallback = std::function<void(const RequestOutput&)>;

}  // namespace coppice
