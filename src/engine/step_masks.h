// The masks of a step's constrained sequences: grammar, allowed_token_ids, bad_words. Rows of all
// other sequences stay as they are.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "engine/round_buffers.h"
#include "engine/scheduler.h"

namespace coppice {

// A prefill step: one row a sampling sequence, by place.
void fill_prefill_masks(const StepPlan& plan, std::span<std::int32_t> masks);

// A round: one row a node, where row_offsets say. Trees and row_offsets are on the host. Sequences
// are shared out among `threads`; null: the caller's alone.
void fill_round_masks(const StepPlan& plan, const RoundResults& results,
                      std::span<std::int32_t> masks, std::size_t words_per_row,
                      ThreadPool* threads);

}  // namespace coppice
