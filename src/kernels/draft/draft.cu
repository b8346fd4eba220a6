#include "kernels/draft/draft.h"

#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch.h"

namespace coppice::kernels {
namespace {

constexpr int kSlotsPerBlock = 64;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__global__ void compile_draft_kernel(CompileDraftParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= params.num_seqs * params.block_size) return;
  const int b = row / params.block_size, j = row % params.block_size;
  const int32_t anchor = params.anchors[b];
  const bool live = anchor >= 0;
  const int32_t context_len = live ? params.context_len[b] : 0;
  const int32_t position = live ? context_len + j : 0;
  const int32_t* blocks = params.block_tables + int64_t{b} * params.max_blocks;
  params.token_ids[row] = !live ? -1 : j == 0 ? anchor : params.mask_token_id;
  params.positions[row] = position;
  params.slots[row] =
      live ? blocks[position / kSlotsPerBlock] * kSlotsPerBlock + position % kSlotsPerBlock : -1;
  params.seq_of_row[row] = live ? b : -1;
  params.kv_len[row] = live ? context_len + params.block_size : 0;
  params.path_len[row] = 0;
}

// Largest start s < len - n with history[s, s + n) equal to the last n tokens, or -1. All threads
// of the block take part.
__device__ int latest_match(const int32_t* history, int len, int n, int* shared_best) {
  if (threadIdx.x == 0) *shared_best = -1;
  __syncthreads();
  int best = -1;
  for (int s = static_cast<int>(threadIdx.x); s < len - n; s += static_cast<int>(blockDim.x)) {
    bool equal = true;
    for (int i = 0; i < n && equal; ++i) equal = history[s + i] == history[len - n + i];
    if (equal) best = s;
  }
  if (best >= 0) atomicMax(shared_best, best);
  __syncthreads();
  return *shared_best;
}

__global__ void ngram_propose_kernel(NgramProposeParams params) {
  __shared__ int shared_best;
  grid_dependency_launch();
  grid_dependency_wait();
  const int b = static_cast<int>(blockIdx.x);
  const int32_t anchor = params.anchors[b];
  const int64_t tree = int64_t{b} * (params.trees.max_nodes + 1);
  if (threadIdx.x == 0) params.trees.counts[b] = anchor < 0 ? -1 : 0;
  if (anchor < 0) return;
  if (threadIdx.x == 0) {
    params.trees.tokens[tree] = anchor;
    params.trees.parents[tree] = -1;
    params.trees.depths[tree] = 0;
    params.trees.scores[tree] = 0.0f;
  }
  const int32_t* history = params.history + int64_t{b} * params.history_stride;
  const int len = params.history_len[b];
  for (int n = params.max_ngram; n >= params.min_ngram; --n) {
    if (n >= len) continue;
    const int start = latest_match(history, len, n, &shared_best);
    __syncthreads();
    if (start < 0) continue;
    const int from = start + n;
    const int count = min(min(params.budgets[b], params.trees.max_nodes), len - from);
    for (int i = 1 + static_cast<int>(threadIdx.x); i <= count; i += static_cast<int>(blockDim.x)) {
      params.trees.tokens[tree + i] = history[from + i - 1];
      params.trees.parents[tree + i] = i - 1;
      params.trees.depths[tree + i] = i;
      params.trees.scores[tree + i] = 0.0f;
    }
    if (threadIdx.x == 0) params.trees.counts[b] = count;
    return;
  }
}

// Sums by a tree that the number of threads fixes.
__device__ float block_sum(float value, float* shared) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < kWarps; ++i) sum = __fadd_rn(sum, shared[i]);
  __syncthreads();
  return sum;
}

__device__ float block_max(float value, float* shared) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = shared[0];
  for (int i = 1; i < kWarps; ++i) largest = fmaxf(largest, shared[i]);
  __syncthreads();
  return largest;
}

__global__ void choice_log_probs_kernel(ChoiceLogProbsParams params) {
  __shared__ float shared[kWarps];
  grid_dependency_launch();
  grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x);
  const int32_t choice = params.choices[row];
  if (choice < 0) {
    if (threadIdx.x == 0) params.log_probs[row] = 0.0f;
    return;
  }
  const float* logits = params.logits + row * params.row_stride;
  float largest = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x); i < params.vocab_size; i += kThreads)
    largest = fmaxf(largest, logits[i]);
  largest = block_max(largest, shared);
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < params.vocab_size; i += kThreads)
    sum = __fadd_rn(sum, expf(logits[i] - largest));
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) params.log_probs[row] = (logits[choice] - largest) - logf(sum);
}

}  // namespace

cudaError_t compile_draft(const CompileDraftParams& params, cudaStream_t stream) {
  const int rows = params.num_seqs * params.block_size;
  if (rows == 0) return cudaSuccess;
  return launch_dependent(compile_draft_kernel,
                          dim3(static_cast<unsigned>((rows + kThreads - 1) / kThreads)), kThreads,
                          0, stream, params);
}

cudaError_t ngram_propose(const NgramProposeParams& params, cudaStream_t stream) {
  if (params.num_seqs == 0) return cudaSuccess;
  return launch_dependent(ngram_propose_kernel, dim3(static_cast<unsigned>(params.num_seqs)),
                          kThreads, 0, stream, params);
}

cudaError_t choice_log_probs(const ChoiceLogProbsParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  return launch_dependent(choice_log_probs_kernel, dim3(static_cast<unsigned>(params.num_rows)),
                          kThreads, 0, stream, params);
}

}  // namespace coppice::kernels
