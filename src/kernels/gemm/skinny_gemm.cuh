// Device side of skinny_gemm.h.
//
// One persistent block per SM; warps have roles: eight multiply, four stream weights and two stream
// inputs into a ring of stages, four add the multiplying warps' sums and write results. Weights
// start to flow before the previous kernel has finished. Weights are the 16-row operand of the MMA,
// tokens its eight columns. Within a group of 32 inputs lane q of a row takes inputs 8 q to 8 q + 7
// for both operands, so plain 16-byte loads of row-major data are fragments.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/registers.cuh"
#include "kernels/common/ring_index.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gemm/skinny_gemm_config.h"

namespace coppice::kernels {

inline constexpr int kSkinnyWarps = 8;  // that multiply: two warpgroups
inline constexpr int kSkinnyWeightThreads = 128, kSkinnyInputThreads = 64;
inline constexpr int kSkinnyFinishWarps = 4;
inline constexpr int kSkinnyFirstWeight = 32 * kSkinnyWarps;  // first thread of each role
inline constexpr int kSkinnyFirstInput = kSkinnyFirstWeight + kSkinnyWeightThreads;
inline constexpr int kSkinnyFirstFinish = kSkinnyFirstInput + kSkinnyInputThreads;
inline constexpr int kSkinnyLastFinish = kSkinnyFirstFinish + 32 * kSkinnyFinishWarps;
// Whole warpgroups, which can trade registers: the last two warps have no role.
inline constexpr int kSkinnyThreads = (kSkinnyLastFinish + 127) / 128 * 128;

struct SkinnyGemmKernelParams {
  SkinnyGemmParams op;
  SkinnyGemmSplit split;
  SkinnyGemmTiles tiles;
  uint32_t* piece_counters;  // [pieces] segments that are done
  float4* partial;           // [pieces, segments, 32 lanes]
  int groups;                // of outputs per head: 16 * kTiles * 8 / warps_k each
};

// Work item: one group of outputs of one head, one segment of the inputs, one chunk of tokens.
struct SkinnyItem {
  int head, group, segment, chunk;
};

struct SkinnyRange {
  int begin, end;
};

__device__ inline SkinnyItem decode_item(const SkinnyGemmKernelParams& p, int item) {
  SkinnyItem i;
  i.chunk = item % p.tiles.chunks;
  item /= p.tiles.chunks;
  i.segment = item % p.split.segments;
  item /= p.split.segments;
  i.group = item % p.groups;
  i.head = item / p.groups;
  return i;
}

// Shared memory of a block. A ring stage holds one step of weight rows, then of input rows, all
// `pitch` bytes apart: 64 more than a multiple of 128, so that fragment loads meet no bank twice.
struct SkinnyShared {
  uint8_t* stages;
  float4* sums;  // [kSkinnySumSlots, warps, 32 lanes]
  uint64_t *weights_full, *inputs_full, *empty;
  uint64_t *sums_full, *sums_empty;  // [kSkinnySumSlots]
};

__device__ inline SkinnyShared carve_skinny_shared(const SkinnyGemmKernelParams& p, uint8_t* base) {
  SkinnyShared s;
  s.stages = base;
  s.sums = reinterpret_cast<float4*>(base + p.tiles.stages * p.tiles.stage_bytes);
  s.weights_full = reinterpret_cast<uint64_t*>(s.sums + kSkinnySumSlots * kSkinnyWarps * 32);
  s.inputs_full = s.weights_full + p.tiles.stages;
  s.empty = s.inputs_full + p.tiles.stages;
  s.sums_full = s.empty + p.tiles.stages;
  s.sums_empty = s.sums_full + kSkinnySumSlots;
  return s;
}

__device__ inline void init_skinny_barriers(const SkinnyGemmKernelParams& p,
                                            const SkinnyShared& s) {
  for (int i = 0; i < p.tiles.stages; ++i) {
    mbarrier_init(&s.weights_full[i], kSkinnyWeightThreads);
    mbarrier_init(&s.inputs_full[i], kSkinnyInputThreads);
    mbarrier_init(&s.empty[i], kSkinnyWarps);
  }
  for (int i = 0; i < kSkinnySumSlots; ++i) {
    mbarrier_init(&s.sums_full[i], kSkinnyWarps);
    mbarrier_init(&s.sums_empty[i], 1);
  }
  mbarrier_init_fence();
}

// ------------------------------------------------------------------------------------- producers

// Which 16 bytes of which rows of a step a producing thread copies: the same piece of every
// `row_step`-th row.
struct RowPiece {
  int input, first_row, row_step, pitch;
};

template <int kThreads>
__device__ inline RowPiece row_piece(int warps_k, int thread) {
  const int row_copies = warps_k * kSkinnyCellInputs / 8;  // at most kThreads
  return {thread % row_copies * 8, thread / row_copies, kThreads / row_copies,
          row_copies * 16 + 64};
}

// Starts the copies of this thread's piece of rows [0, count): `from` is the piece in row 0, rows
// are `stride` elements apart.
template <typename... Policy>
__device__ inline void copy_pieces(const RowPiece& piece, uint8_t* to, const __nv_bfloat16* from,
                                   int count, int64_t stride, Policy... policy) {
  to += piece.first_row * piece.pitch;
  from += piece.first_row * stride;
  const int to_step = piece.row_step * piece.pitch;
  const int64_t from_step = piece.row_step * stride;
#pragma unroll 4
  for (int row = piece.first_row; row < count; row += piece.row_step) {
    async_copy_16(to, from, policy...);
    to += to_step;
    from += from_step;
  }
}

template <int kTiles>
__device__ void produce_weight_rows(const SkinnyGemmKernelParams& p, const SkinnyShared& shared,
                                    SkinnyRange range) {
  const int rows = 16 * kTiles * kSkinnyWarps / p.split.warps_k;
  const int row_inputs = p.split.warps_k * kSkinnyCellInputs;
  const RowPiece piece =
      row_piece<kSkinnyWeightThreads>(p.split.warps_k, threadIdx.x - kSkinnyFirstWeight);
  const uint64_t policy = evict_first_policy();
  const auto* weight = static_cast<const __nv_bfloat16*>(p.op.weight);
  RingIndex at;
  for (int index = range.begin; index < range.end; ++index) {
    const SkinnyItem item = decode_item(p, index);
    const int first_row = item.group * rows, count = min(rows, p.op.outputs - first_row);
    const auto* source = weight + (int64_t{item.head} * p.op.outputs + first_row) * p.op.inputs +
                         item.segment * p.split.steps * row_inputs;
    for (int step = 0; step < p.split.steps; ++step) {
      mbarrier_wait(&shared.empty[at.index], at.parity ^ 1);
      uint8_t* stage = shared.stages + at.index * p.tiles.stage_bytes + piece.input * 2;
      const auto* from = source + step * row_inputs + piece.input;
      copy_pieces(piece, stage, from, count, p.op.inputs, policy);
      async_copy_arrive(&shared.weights_full[at.index]);
      at.advance(p.tiles.stages);
    }
  }
}

template <int kTiles, int kColumns>
__device__ void produce_input_rows(const SkinnyGemmKernelParams& p, const SkinnyShared& shared,
                                   SkinnyRange range) {
  const int weight_rows = 16 * kTiles * kSkinnyWarps / p.split.warps_k;
  const int row_inputs = p.split.warps_k * kSkinnyCellInputs;
  const RowPiece piece =
      row_piece<kSkinnyInputThreads>(p.split.warps_k, threadIdx.x - kSkinnyFirstInput);
  const auto* x = static_cast<const __nv_bfloat16*>(p.op.x);
  RingIndex at;
  for (int index = range.begin; index < range.end; ++index) {
    const SkinnyItem item = decode_item(p, index);
    const int first_token = item.chunk * kColumns * 8;
    const int count = min(kColumns * 8, p.op.num_tokens - first_token);
    const auto* source = x + first_token * p.op.x_stride + int64_t{item.head} * p.op.inputs +
                         item.segment * p.split.steps * row_inputs;
    for (int step = 0; step < p.split.steps; ++step) {
      mbarrier_wait(&shared.empty[at.index], at.parity ^ 1);
      uint8_t* stage = shared.stages + at.index * p.tiles.stage_bytes + weight_rows * piece.pitch +
                       piece.input * 2;
      const auto* from = source + step * row_inputs + piece.input;
      copy_pieces(piece, stage, from, count, p.op.x_stride);
      async_copy_arrive(&shared.inputs_full[at.index]);
      at.advance(p.tiles.stages);
    }
  }
}

// --------------------------------------------------------------------------------------- results

// Writes columns 2 q, 2 q + 1 of outputs g, g + 8 of an m16 tile.
__device__ inline void write_outputs(const SkinnyGemmKernelParams& p, const SkinnyItem& item,
                                     int tile16, int first_token, float4 c) {
  const int lane = threadIdx.x % 32;
  const int64_t output = int64_t{item.head} * p.op.outputs + tile16 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int token = first_token + lane % 4 * 2 + j;
    if (token >= p.op.num_tokens) continue;
    const int64_t to = token * p.op.out_stride + output;
    const float low = j ? c.y : c.x, high = j ? c.w : c.z;
    if (p.op.out_is_float) {
      static_cast<float*>(p.op.out)[to] = low;
      static_cast<float*>(p.op.out)[to + 8] = high;
    } else {
      static_cast<__nv_bfloat16*>(p.op.out)[to] = __float2bfloat16_rn(low);
      static_cast<__nv_bfloat16*>(p.op.out)[to + 8] = __float2bfloat16_rn(high);
    }
  }
}

__device__ inline void add(float4& sum, float4 part) {
  sum.x = __fadd_rn(sum.x, part.x);
  sum.y = __fadd_rn(sum.y, part.y);
  sum.z = __fadd_rn(sum.z, part.z);
  sum.w = __fadd_rn(sum.w, part.w);
}

// A piece is one m16 tile of outputs by one n8 tile of tokens. The pieces of an item go to the
// finishing warps in turn, by way of a ring of slots that all share.
struct SkinnyPiece {
  int tile16, column;  // the m16 tile of the head, the n8 tile over all chunks
};

__device__ inline int64_t piece_index(const SkinnyGemmKernelParams& p, int head,
                                      const SkinnyPiece& piece) {
  const int columns = p.tiles.chunks * p.tiles.columns;
  return (int64_t{head} * (p.op.outputs / 16) + piece.tile16) * columns + piece.column;
}

// Adds all segments of a piece in order and writes it.
__device__ inline void combine_segments(const SkinnyGemmKernelParams& p, const SkinnyItem& item,
                                        const SkinnyPiece& piece) {
  constexpr int kBatch = 8;  // loads in flight
  const int segments = p.split.segments;
  const float4* parts =
      p.partial + piece_index(p, item.head, piece) * segments * 32 + threadIdx.x % 32;
  float4 total = make_float4(0, 0, 0, 0);
  for (int first = 0; first < segments; first += kBatch) {
    float4 part[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < segments) part[i] = __ldcg(&parts[(first + i) * 32]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < segments) add(total, part[i]);
    }
  }
  write_outputs(p, item, piece.tile16, piece.column * 8, total);
}

// Adds the sums of the warps that share inputs, in warp order. With several segments the warp that
// brings the last one of a piece adds all of them.
template <int kTiles, int kColumns>
__device__ void finish_rows(const SkinnyGemmKernelParams& p, const SkinnyShared& shared,
                            SkinnyRange range) {
  const int finisher = (threadIdx.x - kSkinnyFirstFinish) / 32, lane = threadIdx.x % 32;
  const int warps_k = p.split.warps_k, warp_rows = kSkinnyWarps / warps_k;
  uint32_t turn = 0;  // of the piece, over all items of the block
  for (int index = range.begin; index < range.end; ++index) {
    const SkinnyItem item = decode_item(p, index);
    SkinnyPiece mine = {};  // lane i keeps this warp's i-th piece of the item
    int count = 0;
    for (int i = 0; i < kTiles * kColumns; ++i, ++turn) {
      if (turn % kSkinnyFinishWarps != finisher) continue;
      const int slot = turn % kSkinnySumSlots, m = i / kColumns;
      mbarrier_wait(&shared.sums_full[slot], turn / kSkinnySumSlots % 2);
      for (int r = 0; r < warp_rows; ++r) {
        const SkinnyPiece piece = {(item.group * warp_rows + r) * kTiles + m,
                                   item.chunk * kColumns + i % kColumns};
        if (piece.tile16 * 16 >= p.op.outputs || piece.column * 8 >= p.op.num_tokens) continue;
        const float4* parts = shared.sums + (slot * kSkinnyWarps + r * warps_k) * 32 + lane;
        float4 total = make_float4(0, 0, 0, 0);
        for (int k = 0; k < warps_k; ++k) add(total, parts[k * 32]);
        if (p.split.segments == 1) {
          write_outputs(p, item, piece.tile16, piece.column * 8, total);
          continue;
        }
        const int64_t at = piece_index(p, item.head, piece) * p.split.segments + item.segment;
        p.partial[at * 32 + lane] = total;
        if (lane == count) mine = piece;
        ++count;
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.sums_empty[slot]);
    }
    if (count == 0) continue;
    bool last = false;
    if (lane < count) {
      uint32_t* counter = &p.piece_counters[piece_index(p, item.head, mine)];
      last = fetch_add_acq_rel(counter, 1) + 1 == static_cast<uint32_t>(p.split.segments);
      if (last) *counter = 0;
    }
    for (uint32_t ready = __ballot_sync(~0u, last); ready; ready &= ready - 1) {
      const int from = __ffs(ready) - 1;
      combine_segments(p, item,
                       {__shfl_sync(~0u, mine.tile16, from), __shfl_sync(~0u, mine.column, from)});
    }
  }
}

// ------------------------------------------------------------------------------------ multiplying

// One step of this warp: `weights` points at lane q's bytes of row g of its first tile, `inputs` at
// lane q's bytes of the first token, `row[n]` is the offset of the token in column 8 n + g.
template <int kTiles, int kColumns>
__device__ inline void multiply_step(float4 (&sum)[kTiles][kColumns], const uint8_t* weights,
                                     const uint8_t* inputs, const int (&row)[kColumns], int pitch) {
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    uint4 x[kColumns];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      x[n] = *reinterpret_cast<const uint4*>(inputs + row[n] + group * 64);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint8_t* from = weights + m * 16 * pitch + group * 64;
      const uint4 low = *reinterpret_cast<const uint4*>(from);
      const uint4 high = *reinterpret_cast<const uint4*>(from + 8 * pitch);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        sum[m][n] = mma_m16n8k16_bf16(low.x, high.x, low.y, high.y, x[n].x, x[n].y, sum[m][n]);
        sum[m][n] = mma_m16n8k16_bf16(low.z, high.z, low.w, high.w, x[n].z, x[n].w, sum[m][n]);
      }
    }
  }
}

template <int kTiles, int kColumns>
__device__ void multiply_rows(const SkinnyGemmKernelParams& p, const SkinnyShared& shared,
                              SkinnyRange range) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warps_k = p.split.warps_k;
  const int pitch = warps_k * kSkinnyCellInputs * 2 + 64;
  const int weight_rows = 16 * kTiles * kSkinnyWarps / warps_k;
  const int column_bytes = warp % warps_k * kSkinnyCellInputs * 2 + lane % 4 * 16;
  const uint8_t* weights =
      shared.stages + column_bytes + (warp / warps_k * kTiles * 16 + lane / 4) * pitch;
  const uint8_t* inputs = shared.stages + column_bytes + weight_rows * pitch;
  RingIndex at;
  uint32_t turn = 0;  // of the piece, over all items of the block
  for (int index = range.begin; index < range.end; ++index) {
    const int tokens = p.op.num_tokens - index % p.tiles.chunks * kColumns * 8;
    int row[kColumns];  // columns without a token repeat the last one; their results are dropped
#pragma unroll
    for (int n = 0; n < kColumns; ++n) row[n] = min(8 * n + lane / 4, tokens - 1) * pitch;
    float4 sum[kTiles][kColumns] = {};
    for (int step = 0; step < p.split.steps; ++step) {
      const int offset = at.index * p.tiles.stage_bytes;
      mbarrier_wait(&shared.weights_full[at.index], at.parity);
      mbarrier_wait(&shared.inputs_full[at.index], at.parity);
      multiply_step(sum, weights + offset, inputs + offset, row, pitch);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.empty[at.index]);
      at.advance(p.tiles.stages);
    }
#pragma unroll
    for (int i = 0; i < kTiles * kColumns; ++i, ++turn) {
      const int slot = turn % kSkinnySumSlots;
      mbarrier_wait(&shared.sums_empty[slot], turn / kSkinnySumSlots % 2 ^ 1);
      shared.sums[(slot * kSkinnyWarps + warp) * 32 + lane] = sum[i / kColumns][i % kColumns];
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.sums_full[slot]);
    }
  }
}

template <int kTiles, int kColumns>
__global__ void __launch_bounds__(kSkinnyThreads, 1)
    skinny_gemm_kernel(const __grid_constant__ SkinnyGemmKernelParams p) {
  extern __shared__ __align__(128) uint8_t dynamic_shared[];
  const SkinnyShared shared = carve_skinny_shared(p, dynamic_shared);
  if (threadIdx.x == 0) init_skinny_barriers(p, shared);
  __syncthreads();
  grid_dependency_launch();
  const int items = p.op.num_heads * p.groups * p.split.segments * p.tiles.chunks;
  const SkinnyRange range = {static_cast<int>(int64_t{items} * blockIdx.x / gridDim.x),
                             static_cast<int>(int64_t{items} * (blockIdx.x + 1) / gridDim.x)};
  if (threadIdx.x >= kSkinnyFirstWeight) {
    release_registers<64>();
    if (threadIdx.x < kSkinnyFirstInput) {
      produce_weight_rows<kTiles>(p, shared, range);  // weights depend on no earlier kernel
    } else {
      grid_dependency_wait();
      if (threadIdx.x < kSkinnyFirstFinish) {
        produce_input_rows<kTiles, kColumns>(p, shared, range);
      } else if (threadIdx.x < kSkinnyLastFinish) {
        finish_rows<kTiles, kColumns>(p, shared, range);
      }
    }
  } else {
    acquire_registers<144>();
    multiply_rows<kTiles, kColumns>(p, shared, range);
  }
}

}  // namespace coppice::kernels
