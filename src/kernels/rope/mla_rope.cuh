#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/norm/rms_norm.cuh"
#include "kernels/rope/mla_rope.h"
#include "kernels/rope/rope.cuh"

namespace coppice::kernels {

// One block per row: norm_threads threads for the latent, the others rotate.
__global__ void mla_rope_kernel(MlaRopeParams p, int norm_threads) {
  __shared__ float warp_sums[32];
  grid_dependency_launch();
  grid_dependency_wait();
  const int row = blockIdx.x, tid = threadIdx.x, lane = tid % 32;
  const int slot = p.slots[row];
  const int width = p.kv_lora_rank + p.rope_dim;
  const __nv_bfloat16* kv_a = static_cast<const __nv_bfloat16*>(p.kv_a) + row * p.kv_a_row_stride;
  __nv_bfloat16* cache = static_cast<__nv_bfloat16*>(p.cache) + int64_t{slot} * width;
  if (tid >= norm_threads) {
    // A padded row may have any negative position.
    const float* cosine = p.cos_sin + int64_t{max(p.positions[row], 0)} * p.rope_dim;
    const float* sine = cosine + p.rope_dim / 2;
    const int vectors = p.rope_dim / 8;
    __nv_bfloat16* q = static_cast<__nv_bfloat16*>(p.q_pe) + row * p.q_pe_row_stride;
    // Head num_heads stands for k_pe.
    const int heads = slot < 0 ? p.num_heads : p.num_heads + 1;
    for (int i = tid - norm_threads; i < heads * vectors; i += blockDim.x - norm_threads) {
      const int head = i / vectors, v = i % vectors;
      const bool is_key = head == p.num_heads;
      const __nv_bfloat16* from = is_key ? kv_a + p.kv_lora_rank : q + head * p.q_pe_head_stride;
      __nv_bfloat16* to = is_key ? cache + p.kv_lora_rank : q + head * p.q_pe_head_stride;
      store_bf16x8(to + v * 8,
                   rotate_bf16x8(load_bf16x8(from + v * 8), cosine + v * 4, sine + v * 4));
    }
  }
  if (slot < 0) return;  // for the whole block: its queries are rotated, nothing is written
  // The same reduction as rms_norm(): see rms_norm.cuh.
  const int vectors = p.kv_lora_rank / 8;
  const bool norms = tid < norm_threads;
  Bf16x8 value;
  float sum = 0;
  if (norms && tid < vectors) {
    value = load_bf16x8(kv_a + tid * 8);
    sum = add_squares(sum, value);
  }
  if (norms) {
    sum = warp_sum(sum);
    if (lane == 0) warp_sums[tid / 32] = sum;
  }
  __syncthreads();
  if (!norms) return;
  sum = warp_sum(lane < norm_threads / 32 ? warp_sums[lane] : 0.f);
  if (tid >= vectors) return;
  float weight[8];
  load_f32x8(weight, p.kv_norm + tid * 8);
  store_bf16x8(cache + tid * 8,
               scale_bf16x8(value, inverse_rms(sum, p.kv_lora_rank, p.eps), weight));
}

}  // namespace coppice::kernels
