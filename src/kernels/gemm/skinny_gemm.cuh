// Device side of skinny_gemm.h.
//
// A block multiplies one tile of 64 to 192 outputs by up to 256 tokens over one segment of the
// inputs: four warps for each 64 outputs issue warpgroup products, one warp streams weights and one
// inputs into a ring of stages of 64 inputs. Weights start to flow before the previous kernel has
// finished. The blocks of the segments of a tile form a cluster and add their sums through each
// other's shared memory: few tokens' sums are pushed to the blocks that add them up, one trip
// instead of two barriers and a read.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/ring_index.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/common/tensor_copy.cuh"
#include "kernels/common/wgmma_tiles.cuh"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gemm/skinny_gemm_config.h"

namespace coppice::kernels {

// Where a product goes.
struct SkinnyProduct {
  void* out;
  int64_t out_stride;  // elements between tokens
  int outputs;
  bool out_is_float;
};

struct SkinnyGemmKernelParams {
  // A second product of the same inputs takes the tiles from `second_tile` on.
  SkinnyProduct product[2];
  int second_tile;
  int num_tokens, inputs;
  // skinny_gemm_config.h
  int segments, tile_outputs, head_tiles, copied_rows, stages;
  int pushed_at;  // bytes behind the first stage; 0: not pushed

  __device__ bool is_second() const { return static_cast<int>(blockIdx.z) >= second_tile; }
  __device__ int weight_bytes() const {
    return tile_outputs * 2 * kSkinnyStepInputs;
  }  // of a stage
};

// Sizes that follow from the tile.
template <int kColumns, int kWarpgroups>
struct SkinnyTile {
  static constexpr int kOutputs = 64 * kWarpgroups;  // and less, tile_outputs, that are kept
  static constexpr int kMathThreads = 128 * kWarpgroups;
  static constexpr int kThreads = kMathThreads + 64;
  static constexpr int kRowBytes = 2 * kSkinnyStepInputs;
  static constexpr int kInputBytes = kColumns * kRowBytes;  // of a stage, behind its weights
  static constexpr int kPitch = skinny_sum_pitch(kOutputs);
  // Few tokens' products take little time each: there the whole layer's code shall stay in caches.
  // Four of 64 columns would make the compiler serialise them.
  static constexpr int kUnrolled = kColumns <= 16 ? 1 : kColumns == 64 ? 2 : 4;
  static constexpr int kBlocksPerSm = kColumns <= 192 && kWarpgroups == 1 ? 2 : 1;
};

// The matrices as the copy engine sees them, in boxes of 64 inputs x rows with the 128-byte
// swizzle; rows beyond the end read as zeros.
struct SkinnyGemmMaps {
  CUtensorMap weight[2];  // [num_heads * outputs, inputs] of each product
  CUtensorMap x;          // [num_tokens, num_heads * inputs]
};

// Shared memory of a block: the barriers, then stages of weights and inputs. The sums of a tile
// that blocks exchange take the place of the stages; pushed ones, which come while others still
// multiply, lie behind them.
struct SkinnyShared {
  uint8_t* stages;
  float* sums;  // [tokens][kPitch]
  uint64_t *full, *empty, *pushed;
  __device__ SkinnyShared(uint8_t* base)
      : stages(base + 1024),
        sums(reinterpret_cast<float*>(base + 1024)),
        full(reinterpret_cast<uint64_t*>(base)),
        empty(full + 32),
        pushed(full + 64) {}
};

struct SkinnySteps {
  int begin, end;
};

__device__ inline SkinnySteps skinny_steps(const SkinnyGemmKernelParams& p) {
  const int steps = p.inputs / kSkinnyStepInputs, segment = blockIdx.x;
  return {segment * steps / p.segments, (segment + 1) * steps / p.segments};
}

// One thread. Weights depend on no earlier kernel.
template <class Tile>
__device__ inline void skinny_produce_weights(const SkinnyGemmKernelParams& p,
                                              const SkinnyGemmMaps& maps, const SkinnyShared& s) {
  const SkinnySteps steps = skinny_steps(p);
  const bool second = p.is_second();
  const int tile = static_cast<int>(blockIdx.z) - (second ? p.second_tile : 0);
  const int row =
      second ? tile * p.tile_outputs
             : tile / p.head_tiles * p.product[0].outputs + tile % p.head_tiles * p.tile_outputs;
  const uint64_t policy = evict_first_policy();
  RingIndex at;
#pragma unroll(Tile::kUnrolled)
  for (int step = steps.begin; step < steps.end; ++step) {
    mbarrier_wait(&s.empty[at.index], at.parity ^ 1);
    mbarrier_arrive_expect(&s.full[at.index], p.weight_bytes());
    tensor_copy_to_shared(
        shared_address(s.stages + at.index * (p.weight_bytes() + Tile::kInputBytes)),
        &maps.weight[second], step * kSkinnyStepInputs, row, &s.full[at.index], policy);
    at.advance(p.stages);
  }
}

// One thread. Rows of the stage beyond the last token keep whatever they hold: their columns of the
// product are dropped.
template <class Tile>
__device__ inline void skinny_produce_inputs(const SkinnyGemmKernelParams& p,
                                             const SkinnyGemmMaps& maps, const SkinnyShared& s,
                                             int first_token) {
  const SkinnySteps steps = skinny_steps(p);
  const int first_input =
      p.is_second() ? 0 : static_cast<int>(blockIdx.z) / p.head_tiles * p.inputs;
  RingIndex at;
#pragma unroll(Tile::kUnrolled)
  for (int step = steps.begin; step < steps.end; ++step) {
    mbarrier_wait(&s.empty[at.index], at.parity ^ 1);
    mbarrier_arrive_expect(&s.full[at.index], p.copied_rows * Tile::kRowBytes);
    tensor_copy_to_shared(shared_address(s.stages + p.weight_bytes() +
                                         at.index * (p.weight_bytes() + Tile::kInputBytes)),
                          &maps.x, first_input + step * kSkinnyStepInputs, first_token,
                          &s.full[at.index]);
    at.advance(p.stages);
  }
}

// The math warps: sums of this block's segment. Rows beyond the tile's last output, whatever lies
// behind them, are dropped.
template <class Tile, int kColumns>
__device__ inline void skinny_multiply(const SkinnyGemmKernelParams& p, const SkinnyShared& s,
                                       float (&sum)[kColumns / 2]) {
  const SkinnySteps steps = skinny_steps(p);
  const int lane = threadIdx.x % 32;
  const uint32_t own = __shfl_sync(~0u, threadIdx.x / 128, 0) * 64 * Tile::kRowBytes;
  RingIndex at;
  int previous = -1;
#pragma unroll(Tile::kUnrolled)
  for (int step = steps.begin; step < steps.end; ++step) {
    const uint32_t stage =
        shared_address(s.stages + at.index * (p.weight_bytes() + Tile::kInputBytes));
    const WgmmaOperand w = wgmma_k_major(stage + own);
    const WgmmaOperand x = wgmma_k_major(stage + p.weight_bytes());
    mbarrier_wait(&s.full[at.index], at.parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSkinnyStepInputs / 16; ++k) {
      wgmma_m64_ss<kColumns>(sum, w.at(32 * k), x.at(32 * k), step > steps.begin || k > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (previous >= 0 && lane == 0) mbarrier_arrive(&s.empty[previous]);
    previous = at.index;
    at.advance(p.stages);
  }
  wgmma_wait<0>();
  wgmma_hold(sum);
}

// Leaves a block's sums in its shared memory, tokens by outputs.
template <class Tile, int kColumns>
__device__ inline void skinny_store_sums(const SkinnyShared& s, const float (&sum)[kColumns / 2],
                                         int count) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* to = s.sums + lane % 4 * 2 * Tile::kPitch + warp * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    if (8 * n >= count) break;
#pragma unroll
    for (int e = 0; e < 4; ++e) to[(8 * n + e % 2) * Tile::kPitch + e / 2 * 8] = sum[4 * n + e];
  }
}

__device__ inline void skinny_write(const SkinnyProduct& p, int64_t to, float4 v) {
  if (p.out_is_float) {
    *reinterpret_cast<float4*>(static_cast<float*>(p.out) + to) = v;
  } else {
    const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y),
                         high = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + to) =
        make_uint2(reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high));
  }
}

// Where a block's tile of outputs lies in its product.
struct SkinnyTarget {
  SkinnyProduct product;
  int quads;  // of outputs
  int64_t column;
};

__device__ inline SkinnyTarget skinny_target(const SkinnyGemmKernelParams& p) {
  const bool second = p.is_second();
  const SkinnyProduct product = p.product[second];
  const int tile = static_cast<int>(blockIdx.z) - (second ? p.second_tile : 0);
  const int head = second ? 0 : tile / p.head_tiles;
  const int output = (tile - head * p.head_tiles) * p.tile_outputs;
  return {.product = product,
          .quads = min(product.outputs - output, p.tile_outputs) / 4,
          .column = int64_t{head} * product.outputs + output};
}

// The sums of all segments, added in order.
__device__ inline float4 skinny_add(const float4 (&part)[kSkinnyMaxSegments], int segments) {
  float4 total = part[0];
#pragma unroll
  for (int r = 1; r < kSkinnyMaxSegments; ++r) {
    if (r >= segments) break;
    total.x = __fadd_rn(total.x, part[r].x);
    total.y = __fadd_rn(total.y, part[r].y);
    total.z = __fadd_rn(total.z, part[r].z);
    total.w = __fadd_rn(total.w, part[r].w);
  }
  return total;
}

// Writes the tile of a block that has all inputs: several quads a thread on their way at a time.
template <class Tile>
__device__ inline void skinny_write_alone(const SkinnyGemmKernelParams& p, const SkinnyShared& s,
                                          int first_token, int count) {
  constexpr int kQuads = Tile::kOutputs / 4, kAtOnce = 4;
  const auto [product, quads, column] = skinny_target(p);
  const int items = count * kQuads;
  for (int first = threadIdx.x; first < items; first += kAtOnce * Tile::kThreads) {
    float4 sum[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = min(first + j * Tile::kThreads, items - 1);
      sum[j] =
          *reinterpret_cast<const float4*>(s.sums + i / kQuads * Tile::kPitch + i % kQuads * 4);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * Tile::kThreads, token = i / kQuads, quad = i % kQuads;
      if (i >= items || quad >= quads) continue;
      skinny_write(product, (first_token + token) * product.out_stride + column + quad * 4, sum[j]);
    }
  }
}

// Adds the sums of all segments and writes this block's share of the tile.
template <class Tile>
__device__ inline void skinny_write_outputs(const SkinnyGemmKernelParams& p, const SkinnyShared& s,
                                            int first_token, int count) {
  constexpr int kQuads = Tile::kOutputs / 4;
  const auto [product, quads, column] = skinny_target(p);
  for (int i = blockIdx.x * Tile::kThreads + threadIdx.x; i < count * kQuads;
       i += p.segments * Tile::kThreads) {
    const int token = i / kQuads, quad = i % kQuads;
    if (quad >= quads) continue;
    const uint32_t at = shared_address(s.sums + token * Tile::kPitch + quad * 4);
    float4 part[kSkinnyMaxSegments];
#pragma unroll
    for (int r = 0; r < kSkinnyMaxSegments; ++r) {
      if (r < p.segments) part[r] = cluster_load(cluster_address(at, r));
    }
    skinny_write(product, (first_token + token) * product.out_stride + column + quad * 4,
                 skinny_add(part, p.segments));
  }
}

// Pushed sums: block r of the cluster adds up the tokens r, r + segments, ... Its shared memory
// holds them as [segment][own tokens, up to kept][kOutputs], those of the warps that have outputs.
struct SkinnyPush {
  float* sums;
  int log2_segments, kept, own, warps;
};

__device__ inline SkinnyPush skinny_push(const SkinnyGemmKernelParams& p, const SkinnyShared& s,
                                         int count) {
  const int log2_segments = 31 - __clz(p.segments), more = p.segments - 1;
  return {.sums = reinterpret_cast<float*>(s.stages + p.pushed_at),
          .log2_segments = log2_segments,
          .kept = (count + more) >> log2_segments,
          .own = (count - static_cast<int>(blockIdx.x) + more) >> log2_segments,
          .warps = (p.tile_outputs + 15) / 16};
}

// Sends a block's sums to the blocks that add them up.
template <class Tile, int kColumns>
__device__ inline void skinny_push_sums(const SkinnyPush& push, const SkinnyShared& s,
                                        const float (&sum)[kColumns / 2], int count) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= push.warps) return;
  const uint32_t to = shared_address(
      push.sums + static_cast<int>(blockIdx.x) * push.kept * Tile::kOutputs + warp * 16 + lane / 4);
  const uint32_t barrier = shared_address(s.pushed);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    if (8 * n >= count) break;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = 8 * n + lane % 4 * 2 + e, slot = token >> push.log2_segments;
      const int rank = token - (slot << push.log2_segments);
      if (token >= count) continue;
      const uint32_t at = cluster_address(to + slot * Tile::kOutputs * 4, rank);
      const uint32_t arrived = cluster_address(barrier, rank);
      cluster_store_async(at, __float_as_uint(sum[4 * n + e]), arrived);
      cluster_store_async(at + 32, __float_as_uint(sum[4 * n + e + 2]), arrived);
    }
  }
}

// Adds the sums that were pushed to this block and writes its tokens.
template <class Tile>
__device__ inline void skinny_write_pushed(const SkinnyGemmKernelParams& p, const SkinnyPush& push,
                                           const SkinnyShared& s, int first_token) {
  constexpr int kQuads = Tile::kOutputs / 4;
  const auto [product, quads, column] = skinny_target(p);
  const int items = push.own * kQuads;
  if (static_cast<int>(threadIdx.x) >= items) return;
  mbarrier_wait_cluster(s.pushed, 0);
  for (int i = threadIdx.x; i < items; i += Tile::kMathThreads) {
    const int quad = i % kQuads;
    const int token = (i / kQuads << push.log2_segments) + static_cast<int>(blockIdx.x);
    const float4* from = reinterpret_cast<const float4*>(push.sums) + i;
    float4 part[kSkinnyMaxSegments];
#pragma unroll
    for (int r = 0; r < kSkinnyMaxSegments; ++r) {
      if (r < p.segments) part[r] = from[r * push.kept * kQuads];
    }
    const float4 total = skinny_add(part, p.segments);
    if (quad >= quads) continue;
    skinny_write(product, (first_token + token) * product.out_stride + column + quad * 4, total);
  }
}

// Grid: (segments, chunks of tokens, tiles of outputs of all heads), clusters of `segments`.
template <int kColumns, int kWarpgroups>
__global__ void __launch_bounds__(SkinnyTile<kColumns, kWarpgroups>::kThreads,
                                  SkinnyTile<kColumns, kWarpgroups>::kBlocksPerSm)
    skinny_gemm_kernel(const __grid_constant__ SkinnyGemmKernelParams p,
                       const __grid_constant__ SkinnyGemmMaps maps) {
  using Tile = SkinnyTile<kColumns, kWarpgroups>;
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  const SkinnyShared s(dynamic_shared);
  const int first_token = blockIdx.y * p.copied_rows;
  const int count = min(p.num_tokens - first_token, p.copied_rows);
  const bool pushes = kColumns <= kSkinnyMostPushed && p.pushed_at > 0;
  const SkinnyPush push = skinny_push(p, s, count);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      mbarrier_init(&s.full[i], 2);
      mbarrier_init(&s.empty[i], Tile::kMathThreads / 32);
    }
    mbarrier_init(s.pushed, 1);
    mbarrier_init_fence();
    if (pushes) mbarrier_arrive_expect(s.pushed, push.own * p.segments * push.warps * 16 * 4);
  }
  __syncthreads();
  if (pushes) cluster_arrive();
  grid_dependency_launch();
  if (threadIdx.x < Tile::kMathThreads) {
    float sum[kColumns / 2];
    skinny_multiply<Tile, kColumns>(p, s, sum);
    if constexpr (kColumns <= kSkinnyMostPushed) {
      if (pushes) {
        cluster_wait();  // the others' barriers are there
        skinny_push_sums<Tile, kColumns>(push, s, sum, count);
        grid_dependency_wait();
        skinny_write_pushed<Tile>(p, push, s, first_token);
        return;
      }
    }
    named_barrier_sync(1, Tile::kMathThreads);  // all stages have been read
    skinny_store_sums<Tile, kColumns>(s, sum, count);
  } else if (threadIdx.x == Tile::kMathThreads) {
    skinny_produce_weights<Tile>(p, maps, s);
  } else if (threadIdx.x == Tile::kMathThreads + 32) {
    grid_dependency_wait();
    skinny_produce_inputs<Tile>(p, maps, s, first_token);
  }
  grid_dependency_wait();
  __syncwarp();
  if (pushes) {
    cluster_wait();
    return;
  }
  if (p.segments == 1) {
    __syncthreads();
    skinny_write_alone<Tile>(p, s, first_token, count);
  } else {
    cluster_sync();
    skinny_write_outputs<Tile>(p, s, first_token, count);
    cluster_sync();  // no block leaves while others read its sums
  }
}

}  // namespace coppice::kernels
