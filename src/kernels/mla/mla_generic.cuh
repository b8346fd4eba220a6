// Plain path for shapes outside the tensor-core kernel (small models). One block per (row, head),
// keys in position order, 64 at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/mla/mla_attention.h"
#include "kernels/mla/mla_attention_config.h"

namespace coppice::kernels {

constexpr int kMlaGenericThreads = 128;
constexpr int kMlaGenericMaxWidth = 1024;

__device__ __forceinline__ int64_t mla_slot_of(const MlaAttentionParams& p, int row, int seq,
                                               int kv_len, int position) {
  if (position >= kv_len) return p.path[int64_t{row} * p.max_path + position - kv_len];
  return int64_t{p.block_tables[int64_t{seq} * p.max_blocks + position / kMlaStepPositions]} *
             kMlaStepPositions +
         position % kMlaStepPositions;
}

__global__ void __launch_bounds__(kMlaGenericThreads) mla_generic(MlaAttentionParams p) {
  __shared__ float q[kMlaGenericMaxWidth];
  __shared__ float weight[kMlaStepPositions];
  __shared__ int64_t slots[kMlaStepPositions];
  grid_dependency_launch();
  grid_dependency_wait();
  const int row = blockIdx.x, head = blockIdx.y, tid = threadIdx.x;
  const int rank = p.kv_lora_rank, width = rank + p.qk_rope_head_dim;
  __nv_bfloat16* out =
      static_cast<__nv_bfloat16*>(p.o_lat) + (int64_t{row} * p.num_heads + head) * rank;
  const int seq = p.seq_of_row[row];
  const int kv_len = seq < 0 ? 0 : p.kv_len[row];
  const int length = seq < 0 ? 0 : kv_len + p.path_len[row];
  if (length == 0) {
    for (int c = tid; c < rank; c += kMlaGenericThreads) out[c] = __float2bfloat16_rn(0.f);
    return;
  }
  const __nv_bfloat16* q_lat =
      static_cast<const __nv_bfloat16*>(p.q_lat) + (int64_t{row} * p.num_heads + head) * rank;
  const __nv_bfloat16* q_pe = static_cast<const __nv_bfloat16*>(p.q_pe) + row * p.q_pe_row_stride +
                              head * p.q_pe_head_stride;
  for (int c = tid; c < width; c += kMlaGenericThreads)
    q[c] = __bfloat162float(c < rank ? q_lat[c] : q_pe[c - rank]);
  const __nv_bfloat16* cache = static_cast<const __nv_bfloat16*>(p.cache);
  const float scale = log2_scale(p.softmax_scale);
  constexpr int kColumns = kMlaGenericMaxWidth / kMlaGenericThreads;
  float o[kColumns] = {}, m = -INFINITY, l = 0;
  for (int begin = 0; begin < length; begin += kMlaStepPositions) {
    const int count = min(kMlaStepPositions, length - begin);
    __syncthreads();
    if (tid < count) slots[tid] = mla_slot_of(p, row, seq, kv_len, begin + tid);
    __syncthreads();
    for (int k = tid / 32; k < kMlaStepPositions; k += kMlaGenericThreads / 32) {
      float s = 0;
      if (k < count)
        for (int c = tid % 32; c < width; c += 32)
          s = __fmaf_rn(q[c], __bfloat162float(cache[slots[k] * width + c]), s);
      for (int d = 16; d > 0; d /= 2) s = __fadd_rn(s, __shfl_xor_sync(~0u, s, d));
      if (tid % 32 == 0) weight[k] = k < count ? s : -INFINITY;
    }
    __syncthreads();
    float top = m;
    for (int k = 0; k < count; k++) top = fmaxf(top, weight[k]);
    const float base = __fmul_rn(top, scale);
    const float alpha = exp2_approx(__fsub_rn(__fmul_rn(m, scale), base));
    m = top;
    l = __fmul_rn(l, alpha);
#pragma unroll
    for (int i = 0; i < kColumns; i++) o[i] = __fmul_rn(o[i], alpha);
    for (int k = 0; k < count; k++) {
      const float w = exp2_approx(__fmaf_rn(weight[k], scale, -base));
      l = __fadd_rn(l, w);
#pragma unroll
      for (int i = 0; i < kColumns; i++) {
        const int c = tid + i * kMlaGenericThreads;
        if (c < rank) o[i] = __fmaf_rn(w, __bfloat162float(cache[slots[k] * width + c]), o[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns; i++) {
    const int c = tid + i * kMlaGenericThreads;
    if (c < rank) out[c] = __float2bfloat16_rn(__fdiv_rn(o[i], l));
  }
}

}  // namespace coppice::kernels
