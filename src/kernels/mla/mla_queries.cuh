// Device side of mla_queries.h.
//
// A head is a cluster of eight blocks. Each multiplies 16 of the head's 128 outputs of q_b, sends
// them to the other seven, and then multiplies 64 of the head's 512 outputs of W_UK. Further
// clusters do the 16-output tiles of the rotated part, and the cache rows. Both weights of a block
// lie in its shared memory before the previous kernel has finished. Every block norms all rows for
// itself: all at once with eight heads, else eight at a time.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/tensor_copy.cuh"
#include "kernels/mla/mla_queries.h"
#include "kernels/mla/mla_queries_config.h"
#include "kernels/norm/rms_norm.cuh"
#include "kernels/rope/rope.cuh"

namespace coppice::kernels {

struct MlaQueriesMaps {
  CUtensorMap q_b;         // [outputs, 1536] in boxes of 16 rows x 64 inputs
  CUtensorMap k_absorbed;  // [num_heads * 512, 128] in boxes of 64 rows x 64 inputs
};

constexpr int kMlaQueriesWarps = kMlaQueriesThreads / 32;
constexpr int kMlaQueriesBoxBytes = kMlaQueriesTile * 128;  // 64 inputs of 16 outputs

struct MlaQueriesShared {
  uint8_t *q_b, *k_absorbed;
  uint64_t *q_b_full, *k_absorbed_full, *nope_full;
  uint8_t* nope;  // bf16 [rows][128], kMlaQueriesNopePitch
  float* sums;    // [segment][rows][kMlaQueriesSumPitch]
  uint8_t* x;     // bf16 [rows at once][1536], kMlaQueriesRowPitch
  // overlays: the sums of q_b take the place of its weights.
  __device__ MlaQueriesShared(uint8_t* base, int rows, int segments, bool overlays)
      : q_b(base),
        k_absorbed(q_b + kMlaQueriesWeightBytes),
        q_b_full(reinterpret_cast<uint64_t*>(k_absorbed + kMlaQueriesAbsorbedBytes)),
        k_absorbed_full(q_b_full + 1),
        nope_full(q_b_full + 2),
        nope(reinterpret_cast<uint8_t*>(q_b_full) + 128),
        sums(reinterpret_cast<float*>(nope + rows * kMlaQueriesNopePitch)),
        x(reinterpret_cast<uint8_t*>(sums + segments * rows * kMlaQueriesSumPitch)) {
    if (!overlays) return;
    x = reinterpret_cast<uint8_t*>(sums);
    sums = reinterpret_cast<float*>(q_b);
  }
};

// What a block does: a tile of a head's part without rotation, or one of the rotated part.
struct MlaQueriesBlock {
  int rank;  // in its cluster
  int head;  // of the cluster; num_heads and more: the rotated part
  bool rotated;
  int tile;  // of the rotated part
  int weight_row;
  __device__ explicit MlaQueriesBlock(const MlaQueriesParams& p)
      : rank(blockIdx.x % kMlaQueriesCluster),
        head(blockIdx.x / kMlaQueriesCluster),
        rotated(head >= p.num_heads),
        tile(static_cast<int>(blockIdx.x) - p.num_heads * kMlaQueriesCluster),
        weight_row(kMlaQueriesTile * static_cast<int>(blockIdx.x)) {}
};

// One thread: all weights of the block.
__device__ inline void mla_queries_fetch(const MlaQueriesBlock& b, const MlaQueriesShared& s,
                                         const MlaQueriesMaps& maps) {
  const uint64_t policy = evict_first_policy();
  mbarrier_arrive_expect(s.q_b_full, kMlaQueriesWeightBytes);
  for (int i = 0; i < kMlaQueriesSteps; ++i) {
    tensor_copy_to_shared(shared_address(s.q_b + i * kMlaQueriesBoxBytes), &maps.q_b, 64 * i,
                          b.weight_row, s.q_b_full, policy);
  }
  if (b.rotated) return;
  mbarrier_arrive_expect(s.k_absorbed_full, kMlaQueriesAbsorbedBytes);
  for (int i = 0; i < 2; ++i) {
    tensor_copy_to_shared(shared_address(s.k_absorbed + i * 8192), &maps.k_absorbed, 64 * i,
                          b.head * 512 + b.rank * 64, s.k_absorbed_full, policy);
  }
}

// One row of the compressed query in a warp's registers.
struct MlaQueriesRow {
  Bf16x8 value[6];
};

__device__ __forceinline__ void mla_queries_load(const MlaQueriesParams& p, MlaQueriesRow& x,
                                                 int row, int lane) {
  if (row >= p.num_rows) return;
  const __nv_bfloat16* from =
      static_cast<const __nv_bfloat16*>(p.qkv_a) + row * p.qkv_a_stride + lane * 8;
#pragma unroll
  for (int w = 0; w < 6; ++w) x.value[w] = load_bf16x8(from + w * 256);
}

// A warp norms its row, in the order of rms_norm(): there a thread has one vector and warp w its
// vectors 32 w to 32 w + 31.
__device__ __forceinline__ void mla_queries_norm(const MlaQueriesParams& p, const MlaQueriesRow& x,
                                                 uint8_t* row, const float (&weight)[6][8],
                                                 int lane) {
  float sum[6];
#pragma unroll
  for (int w = 0; w < 6; ++w) sum[w] = warp_sum(add_squares(0, x.value[w]));
  const float even = __fadd_rn(__fadd_rn(sum[0], sum[4]), sum[2]);
  const float odd = __fadd_rn(__fadd_rn(sum[1], sum[5]), sum[3]);
  const float scale = inverse_rms(__fadd_rn(even, odd), kMlaQueriesInputs, p.eps);
  auto* to = reinterpret_cast<__nv_bfloat16*>(row) + lane * 8;
#pragma unroll
  for (int w = 0; w < 6; ++w)
    store_bf16x8(to + w * 256, scale_bf16x8(x.value[w], scale, weight[w]));
}

// A warp writes one row of the cache, with the bits of mla_rope_kernel.
__device__ inline void mla_queries_write_kv(const MlaQueriesParams& p, int row, int lane) {
  const int slot = p.slots[row];
  if (slot < 0) return;
  const __nv_bfloat16* from =
      static_cast<const __nv_bfloat16*>(p.qkv_a) + row * p.qkv_a_stride + kMlaQueriesInputs;
  __nv_bfloat16* to = static_cast<__nv_bfloat16*>(p.cache) + int64_t{slot} * 576;
  const Bf16x8 low = load_bf16x8(from + lane * 8), high = load_bf16x8(from + 256 + lane * 8);
  float weight[2][8];
  load_f32x8(weight[0], p.kv_norm + lane * 8);
  load_f32x8(weight[1], p.kv_norm + 256 + lane * 8);
  if (lane < 8) {
    const float* cosine = p.cos_sin + int64_t{max(p.positions[row], 0)} * 64 + lane * 4;
    store_bf16x8(to + 512 + lane * 8,
                 rotate_bf16x8(load_bf16x8(from + 512 + lane * 8), cosine, cosine + 32));
  }
  const float sum = __fadd_rn(warp_sum(add_squares(0, low)), warp_sum(add_squares(0, high)));
  const float scale = inverse_rms(sum, 512, p.eps);
  store_bf16x8(to + lane * 8, scale_bf16x8(low, scale, weight[0]));
  store_bf16x8(to + 256 + lane * 8, scale_bf16x8(high, scale, weight[1]));
}

// 64 inputs of 16 outputs by 8 tokens a group: `weights` is this lane's row of a swizzled box, `x`
// its row of the tokens' inputs.
template <int kGroups>
__device__ __forceinline__ void mla_queries_multiply(float4 (&sum)[kGroups], uint32_t weights,
                                                     const uint32_t (&x)[kGroups], uint32_t input,
                                                     int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[kGroups][4], a[4];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) ldmatrix_x4(b[g], x[g] + input + half * 64 + lane / 8 * 16);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int chunk = half * 4 + k * 2 + lane / 16;
      ldmatrix_x4(a, weights + ((chunk ^ (lane & 7)) << 4));
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        sum[g] = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], b[g][2 * k], b[g][2 * k + 1], sum[g]);
    }
  }
}

// The block's 16 outputs of q_b for `rows` tokens from `first` on. A warp takes a segment of the
// inputs by one group of eight tokens or, where up to 24 rows go together, by every second group.
template <int kSegments, bool kTogether>
__device__ inline void mla_queries_q_b(const MlaQueriesParams& p, const MlaQueriesShared& s,
                                       int first, int rows, int warp, int lane) {
  constexpr int kGroups = kTogether ? 2 : 1;
  constexpr int kSteps = kMlaQueriesSteps / kSegments;
  const int segment = warp % kSegments, group = warp / kSegments;
  if (!kTogether && group > 0) return;
  const uint32_t weights =
      shared_address(s.q_b) + segment * kSteps * kMlaQueriesBoxBytes + lane % 16 * 128;
  uint32_t x[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int row = min(8 * (group + 2 * g) + lane % 8, rows - 1);
    x[g] = shared_address(s.x) + row * kMlaQueriesRowPitch + segment * kSteps * 128;
  }
  float4 sum[kGroups] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    mla_queries_multiply(sum, weights + step * kMlaQueriesBoxBytes, x, step * 128, lane);
  if (kTogether) __syncthreads();  // all have read the weights
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int token = first + 8 * (group + 2 * g) + lane % 4 * 2;
    float* to = s.sums + (segment * p.num_rows + token) * kMlaQueriesSumPitch + lane / 4;
    if (token < p.num_rows) to[0] = sum[g].x, to[8] = sum[g].z;
    to += kMlaQueriesSumPitch;
    if (token + 1 < p.num_rows) to[0] = sum[g].y, to[8] = sum[g].w;
  }
}

// Adds the segments in order, rounds; sends the pair to all blocks of the cluster, or rotates it.
template <int kSegments>
__device__ inline void mla_queries_finish_q_b(const MlaQueriesParams& p, const MlaQueriesBlock& b,
                                              const MlaQueriesShared& s) {
  for (int i = threadIdx.x; i < p.num_rows * 8; i += kMlaQueriesThreads) {
    const int token = i / 8, pair = i % 8;
    const float* from = s.sums + token * kMlaQueriesSumPitch + 2 * pair;
    float2 sum = *reinterpret_cast<const float2*>(from);
#pragma unroll
    for (int segment = 1; segment < kSegments; ++segment) {
      const float2 next =
          *reinterpret_cast<const float2*>(from + segment * p.num_rows * kMlaQueriesSumPitch);
      sum = make_float2(__fadd_rn(sum.x, next.x), __fadd_rn(sum.y, next.y));
    }
    __nv_bfloat162 value = __floats2bfloat162_rn(sum.x, sum.y);
    if (!b.rotated) {
      const uint32_t arrived = shared_address(s.nope_full);
      const uint32_t to =
          shared_address(s.nope) + token * kMlaQueriesNopePitch + b.rank * 32 + pair * 4;
#pragma unroll
      for (int rank = 0; rank < kMlaQueriesCluster; ++rank)
        cluster_store_async(cluster_address(to, rank), *reinterpret_cast<const uint32_t*>(&value),
                            cluster_address(arrived, rank));
      continue;
    }
    const int output = b.tile * kMlaQueriesTile + 2 * pair, head = output / 64;
    if (head >= p.num_heads) continue;
    const float* cosine = p.cos_sin + int64_t{max(p.positions[token], 0)} * 64 + output % 64 / 2;
    const float2 r = rotate_pair(__low2float(value), __high2float(value), cosine[0], cosine[32]);
    auto* to = static_cast<__nv_bfloat16*>(p.q_pe) + token * p.q_pe_row_stride +
               head * p.q_pe_head_stride + output % 64;
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(r.x, r.y);
  }
}

// The block's 64 outputs of W_UK.
__device__ inline void mla_queries_absorb(const MlaQueriesParams& p, const MlaQueriesBlock& b,
                                          const MlaQueriesShared& s, int warp, int lane) {
  const int tasks = 4 * ((p.num_rows + 7) / 8);
  for (int task = warp; task < tasks; task += kMlaQueriesWarps) {
    const int tile = task % 4, first = task / 4 * 8;
    const uint32_t weights = shared_address(s.k_absorbed) + (tile * 16 + lane % 16) * 128;
    const uint32_t x[1] = {shared_address(s.nope) +
                           min(first + lane % 8, p.num_rows - 1) * kMlaQueriesNopePitch};
    float4 sums[1] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step)
      mla_queries_multiply(sums, weights + step * 8192, x, step * 128, lane);
    const float4 sum = sums[0];
    const int token = first + lane % 4 * 2;
    __nv_bfloat16* to = static_cast<__nv_bfloat16*>(p.q_lat) +
                        (int64_t{token} * p.num_heads + b.head) * 512 + b.rank * 64 + tile * 16 +
                        lane / 4;
    if (token < p.num_rows) to[0] = __float2bfloat16_rn(sum.x), to[8] = __float2bfloat16_rn(sum.z);
    if (token + 1 < p.num_rows) {
      to += int64_t{p.num_heads} * 512;
      to[0] = __float2bfloat16_rn(sum.y), to[8] = __float2bfloat16_rn(sum.w);
    }
  }
}

// Grid: clusters of eight, one for each head, then those of the rotated part. Together: all rows in
// one pass, where segments are half as many as warps; else eight a pass.
template <int kSegments, bool kTogether>
__global__ void __launch_bounds__(kMlaQueriesThreads, 2)
    mla_queries_kernel(const MlaQueriesParams p, const __grid_constant__ MlaQueriesMaps maps) {
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  const MlaQueriesShared s(dynamic_shared, p.num_rows, kSegments, kTogether);
  const MlaQueriesBlock b(p);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(s.q_b_full, 1);
    mbarrier_init(s.k_absorbed_full, 1);
    mbarrier_init(s.nope_full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(s.nope_full, p.num_rows * kMlaQueriesCluster * kMlaQueriesTile * 2);
    mla_queries_fetch(b, s, maps);
  }
  __syncwarp();
  cluster_arrive();
  float weight[6][8];
#pragma unroll
  for (int w = 0; w < 6; ++w) load_f32x8(weight[w], p.q_norm + w * 256 + lane * 8);
  grid_dependency_launch();
  grid_dependency_wait();
  MlaQueriesRow x;
  mla_queries_load(p, x, warp, lane);
  if constexpr (kTogether) {
    for (int row = warp; row < p.num_rows; row += kMlaQueriesWarps) {
      mla_queries_norm(p, x, s.x + row * kMlaQueriesRowPitch, weight, lane);
      mla_queries_load(p, x, row + kMlaQueriesWarps, lane);
    }
    __syncthreads();
    mbarrier_wait(s.q_b_full, 0);
    mla_queries_q_b<kSegments, true>(p, s, 0, p.num_rows, warp, lane);
    __syncthreads();
  } else {
    for (int first = 0; first < p.num_rows; first += kMlaQueriesWarps) {
      if (first + warp < p.num_rows)
        mla_queries_norm(p, x, s.x + warp * kMlaQueriesRowPitch, weight, lane);
      mla_queries_load(p, x, first + kMlaQueriesWarps + warp, lane);
      __syncthreads();
      if (first == 0) mbarrier_wait(s.q_b_full, 0);
      mla_queries_q_b<kSegments, false>(p, s, first, p.num_rows - first, warp, lane);
      __syncthreads();
    }
  }
  if (b.rotated) {
    const int blocks = static_cast<int>(gridDim.x) - p.num_heads * kMlaQueriesCluster;
    for (int row = b.tile + (kMlaQueriesWarps - 1 - warp) * blocks; row < p.num_rows;
         row += kMlaQueriesWarps * blocks)
      mla_queries_write_kv(p, row, lane);
  }
  cluster_wait();  // the other blocks' barriers are there
  mla_queries_finish_q_b<kSegments>(p, b, s);
  if (b.rotated) return;  // for the whole cluster
  mbarrier_wait(s.k_absorbed_full, 0);
  mbarrier_wait_cluster(s.nope_full, 0);
  mla_queries_absorb(p, b, s, warp, lane);
}

}  // namespace coppice::kernels
