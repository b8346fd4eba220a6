// The arguments of a decode round's ops over RoundBuffers: for places 0 .. batch - 1 and the first
// `rows` rows of the step. The engine's rounds and the benchmark's are made of the same ones.
#pragma once

#include "engine/round_buffers.h"
#include "model/forward_batch.h"
#include "sampling/sampling_state.h"
#include "spec/drafter.h"
#include "spec/verifier.h"

namespace coppice {

TreeBuffers tree_rows(const RoundBuffers& buffers, std::int64_t batch);

DraftBatch draft_args(const RoundBuffers& buffers, const SamplingState& sampling,
                      std::int64_t batch);

// cut_by_cost: trees are cut to the best bucket of the cost table.
CompileTreeArgs compile_args(const RoundBuffers& buffers, std::int64_t batch, std::int64_t rows,
                             bool cut_by_cost);

ForwardBatch verify_args(const RoundBuffers& buffers, std::int64_t batch, std::int64_t rows);

// `slots`: where the rows of `choices` lie.
AcceptPathArgs accept_args(const RoundBuffers& buffers, const SamplingState& sampling,
                           std::int64_t batch, const Verifier::Choices& choices,
                           const Tensor& slots);

// Moves the accepted keys to where they stay, in each of `planes`.
MoveKvArgs move_args(const RoundBuffers& buffers, std::int64_t batch,
                     std::span<const Tensor> planes);

// Copies the accepted rows' features and hands them to the drafter.
void append_features(Backend& backend, const RoundBuffers& buffers, std::int64_t batch,
                     const Tensor& features, DflashModel& model, PagedKvCache& cache);

}  // namespace coppice
