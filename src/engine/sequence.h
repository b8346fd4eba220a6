// One request on its way through the engine. Knows no tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/block_table.h"
#include "engine/request.h"
#include "sampling/token_constraint.h"

namespace coppice {

enum class SequenceState {
  kWaiting,  // no place, no blocks
  kPrefill,  // computing keys of its tokens: the prompt's, and decided ones' after a preemption
  kDecode,   // every token but the last is in the cache; the last one is the anchor
  kFinished,
};

// tokens = prompt and output; positions 0 .. num_computed - 1 are in the cache.
struct Sequence {
  Sequence(RequestId request_id, Request r, OutputCallback output, BlockAllocator& allocator)
      : id(request_id), request(std::move(r)), callback(std::move(output)), table(allocator) {
    tokens = request.prompt_token_ids;
    prompt_len = std::ssize(tokens);
    stats.num_prompt_tokens = prompt_len;
  }

  RequestId id;
  Request request;
  OutputCallback callback;
  std::int64_t seed = 0;
  std::vector<std::int64_t> stop_ids;
  std::unique_ptr<TokenConstraint> constraint;  // after its last token; null: none

  SequenceState state = SequenceState::kWaiting;
  std::vector<std::int32_t> tokens;
  std::int64_t prompt_len = 0;
  std::int64_t num_computed = 0;
  BlockTable table;
  std::int64_t num_indexed_blocks = 0;  // blocks offered to the prefix index
  std::int64_t place = -1;              // row of the batch buffers, while it runs
  std::int64_t num_places = 0;  // that it left: rounds launched before are not its own any more
  bool place_changed = false;   // the device does not know the place yet
  std::int64_t num_uploaded_blocks = 0;       // of the block table, at this place
  std::vector<TokenLogprob> prompt_logprobs;  // [i]: of prompt token i + 1, as far as computed
  RequestStats stats;

  // Once: a sequence that resumes has given its prompt_logprobs out.
  bool scores_prompt() const {
    return request.sampling.prompt_logprobs.has_value() && num_output() == 0;
  }
  std::int64_t num_output() const { return std::ssize(tokens) - prompt_len; }
  // Positions that prefill steps compute before decoding: all but the last decided token.
  std::int64_t prefill_target() const {
    return num_output() == 0 ? prompt_len : std::ssize(tokens) - 1;
  }
};

}  // namespace coppice
