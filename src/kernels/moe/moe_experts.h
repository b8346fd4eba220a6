// Routed experts of one mixture-of-experts layer, decode form:
//   out[t] = sum over slots s of topk_weights[t, s] * down(silu(gate x[t]) * (up x[t])) + shared[t]
// with INT4 weights (expert_blob.h). Source of the mathematics: DeepSeek-V3 technical
// report, 2.1.2.
//
// A row's bits depend on its own input, experts and weights alone, never on the other rows or on
// num_tokens. Slots are added in slot order, then the shared expert, in fp32, with one rounding.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

struct MoeExpertsParams {
  const void* x = nullptr;              // bf16 [num_tokens, hidden_size]
  const int32_t* topk_ids = nullptr;    // [num_tokens, top_k]; out of [0, num_experts): no expert
  const float* topk_weights = nullptr;  // [num_tokens, top_k]
  const void* w13 = nullptr;     // blob of gate and up, [num_experts] x 2 * intermediate_size
  const void* w2 = nullptr;      // blob of down, [num_experts] x hidden_size
  const void* shared = nullptr;  // [num_tokens, hidden_size] added last, or null; bf16 or fp32
  void* out = nullptr;           // [num_tokens, hidden_size], bf16 or fp32
  int32_t* num_active_experts = nullptr;  // [1] distinct experts of this call, or null
  void* workspace = nullptr;              // moe_experts_workspace_bytes, 128-byte aligned
  int num_tokens = 0;                     // 0 to kMoeExpertsMaxTokens
  int top_k = 0;
  int num_experts = 0;
  int hidden_size = 0;        // a multiple of 32
  int intermediate_size = 0;  // of this rank, a multiple of 32
  bool shared_is_float = false;
  bool out_is_float = false;
};

inline constexpr int kMoeExpertsMaxTokens = 8192;
inline constexpr int kMoeExpertsMaxTopK = 16;

// The first moe_experts_counter_bytes of the workspace must be zero before the first call; every
// call leaves them zero. The rest needs no initialisation. One workspace serves one stream.
size_t moe_experts_workspace_bytes(int max_tokens, int top_k, int num_experts, int hidden_size,
                                   int intermediate_size);
size_t moe_experts_counter_bytes(int top_k, int num_experts);

// Enqueues on `stream`; capturable. Its blocks wait for each other, so two calls must not run at
// the same time on one GPU. Returns cudaErrorInvalidValue for shapes outside the limits above.
cudaError_t moe_experts(const MoeExpertsParams& params, cudaStream_t stream);

}  // namespace coppice::kernels
