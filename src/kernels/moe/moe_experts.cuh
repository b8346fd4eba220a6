// Device side of moe_experts.h.
//
// One persistent block per SM: a producer warp streams expert weights through a ring of bulk
// copies, eight warps multiply. Weights are the 16-row operand of the MMA and tokens its eight
// columns, so a cell is turned into registers once and serves every row routed to the expert.
// Each block first does its share of gate and up, then its share of down; a counter per unit tells
// when the activations between the two are complete. The ring runs ahead across that wait.
//
// Nibbles become bf16 128 + u = 136 + value by one logic operation per pair. The -136 is taken out
// by starting each group's sum at -136 * sum(x), itself an MMA shared by all rows. The group's scale
// is applied once, to the fp32 sum.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/registers.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts.h"
#include "kernels/moe/moe_experts_config.h"
#include "kernels/moe/moe_work_list.cuh"

namespace coppice::kernels {

inline constexpr int kMoeWarps = kStepCells;           // that multiply
// Plus a warpgroup of which one warp produces; it is a whole one so that it can give its registers
// to the others.
inline constexpr int kMoeThreads = 32 * kMoeWarps + 128;

// One of the two products of an expert.
struct ExpertGemm {
  const uint8_t* blob;
  ExpertBlobShape shape;
  int64_t expert_bytes, block_bytes;
};

struct MoeExpertsKernelParams {
  MoeExpertsParams op;
  ExpertGemm w13, w2;
  uint32_t* unit_counters;    // [max_units] m16 tiles of gate and up that are done
  __nv_bfloat16* activation;  // [num_pairs, intermediate_size] in sorted order
  float* partial;             // [num_pairs, hidden_size] in pair order
  int stages;
  int max_units;
};

// Contiguous run of work items, numbered unit-major.
struct ItemRange {
  int begin, end;
};

struct MoeSchedule {
  int w13_groups, w2_groups;  // items per unit
  ItemRange w13, w2;          // of this block
};

// Both ranges of block `block`: gate/up items evenly, down items so that all blocks read the same
// number of weight bytes.
template <int kTiles>
__device__ MoeSchedule make_schedule(const MoeExpertsKernelParams& p, int units) {
  const int block = blockIdx.x, blocks = gridDim.x;
  MoeSchedule s;
  s.w13_groups = (p.w13.shape.blocks + kTiles - 1) / kTiles;
  s.w2_groups = (p.w2.shape.blocks + kTiles - 1) / kTiles;
  const int n13 = units * s.w13_groups, n2 = units * s.w2_groups;
  const int cost13 = p.w13.shape.steps, cost2 = p.w2.shape.steps;
  s.w13 = {static_cast<int>(int64_t{n13} * block / blocks),
           static_cast<int>(int64_t{n13} * (block + 1) / blocks)};
  const int64_t total = int64_t{n13} * cost13 + int64_t{n2} * cost2;
  const bool balanced = total >= int64_t{(n13 + blocks - 1) / blocks} * cost13 * blocks;
  const auto w2_bound = [&](int b, int w13_bound) {
    if (!balanced) return static_cast<int>(int64_t{n2} * b / blocks);
    return static_cast<int>((total * b / blocks - int64_t{w13_bound} * cost13) / cost2);
  };
  s.w2 = {w2_bound(block, s.w13.begin), block + 1 == blocks ? n2 : w2_bound(block + 1, s.w13.end)};
  return s;
}

// Ring of weight stages between the producer and the multiplying warps.
struct WeightRing {
  uint8_t* data;
  uint64_t* full;
  uint64_t* empty;
  uint32_t stage_bytes;
  int stages;
  int index = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// ------------------------------------------------------------------------------------- producer

// Streams the weights of an item range, in the order the multiplying warps take them.
template <int kTiles>
__device__ void produce_items(WeightRing& ring, const ExpertGemm& gemm, const MoeUnit* units,
                              ItemRange range, int groups, uint64_t policy) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int lane = threadIdx.x % 32;
  for (int item = range.begin; item < range.end; ++item) {
    const int first_block = item % groups * kTiles;
    const int tiles = min(kTiles, gemm.shape.blocks - first_block);
    const uint8_t* source = gemm.blob +
                            units[item / groups].expert * gemm.expert_bytes +
                            first_block * gemm.block_bytes;
    for (int step = 0; step < gemm.shape.steps; step += kSteps) {
      const uint32_t bytes = min(kSteps, gemm.shape.steps - step) * kStepBytes;
      mbarrier_wait(&ring.empty[ring.index], ring.parity ^ 1);
      if (lane == 0) mbarrier_arrive_expect(&ring.full[ring.index], tiles * bytes);
      __syncwarp();
      if (lane < tiles) {
        bulk_copy_to_shared(ring.data + ring.index * ring.stage_bytes + lane * kSteps * kStepBytes,
                            source + lane * gemm.block_bytes + int64_t{step} * kStepBytes, bytes,
                            &ring.full[ring.index], policy);
      }
      ring.advance();
    }
  }
}

// ------------------------------------------------------------------------------------ multiplying

struct MoeWarpState {
  WeightRing ring;
  uint32_t minus_136[4];  // pairs of bf16 -136
  float4* reduction;  // two buffers of [warps, 2 * tiles, 32 lanes]
  int reduction_parity = 0;
};

// Pairs of bf16 136 + value from nibbles i and i + 4 of an interleaved word.
__device__ inline uint32_t nibble_pair(uint32_t word, int i) {
  uint32_t pair;  // (word >> 4 i) & 0x000F000F | 0x43004300 in one instruction after the shift
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
      : "=r"(pair)
      : "r"(word >> (4 * i)), "n"(0x000F000F), "r"(0x43004300));
  return pair;
}

__device__ inline void add_scaled(float4& sum, float4 group, uint32_t scales) {
  const float low = __uint_as_float(scales << 16), high = __uint_as_float(scales & 0xFFFF0000u);
  sum.x = __fmaf_rn(group.x, low, sum.x);
  sum.y = __fmaf_rn(group.y, low, sum.y);
  sum.z = __fmaf_rn(group.z, high, sum.z);
  sum.w = __fmaf_rn(group.w, high, sum.w);
}

// Multiplies one group of 32 inputs of a cell row block: `words` holds rows g, g + 8 of two m16
// tiles, `scales` theirs.
template <int kColumns>
__device__ inline void multiply_group(float4 (&sum)[2][kColumns], const uint4& words,
                                      uint32_t scales0, uint32_t scales1,
                                      const uint4 (&x)[kColumns], const float4 (&bias)[kColumns]) {
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
  const uint32_t s[2] = {scales0, scales1};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = nibble_pair(w[2 * half], i);
      b[i] = nibble_pair(w[2 * half + 1], i);
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float4 group = mma_m16n8k16_bf16(a[0], b[0], a[1], b[1], x[n].x, x[n].y, bias[n]);
      group = mma_m16n8k16_bf16(a[2], b[2], a[3], b[3], x[n].z, x[n].w, group);
      add_scaled(sum[half][n], group, s[half]);
    }
  }
}

// -136 * sum of a group of inputs, for each column.
template <int kColumns>
__device__ inline void group_bias(float4 (&bias)[kColumns], const uint4 (&x)[kColumns],
                                  const uint32_t (&m)[4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    bias[n] = mma_m16n8k16_bf16(m[0], m[1], m[2], m[3], x[n].x, x[n].y, make_float4(0, 0, 0, 0));
    bias[n] = mma_m16n8k16_bf16(m[0], m[1], m[2], m[3], x[n].z, x[n].w, bias[n]);
  }
}

// Adds the eight warps' sums of one column tile in warp order; warp `m` returns m16 tile m's.
template <int kTiles, int kColumns>
__device__ inline float4 reduce_warps(MoeWarpState& state,
                                      const float4 (&sum)[kTiles][2][kColumns], int column) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4* buffer = state.reduction + state.reduction_parity * kMoeWarps * 2 * kTiles * 32;
  state.reduction_parity ^= 1;
#pragma unroll
  for (int m = 0; m < 2 * kTiles; ++m) {
    buffer[(warp * 2 * kTiles + m) * 32 + lane] = sum[m / 2][m % 2][column];
  }
  named_barrier_sync(1, 32 * kMoeWarps);
  float4 total = make_float4(0, 0, 0, 0);
  if (warp < 2 * kTiles) {
    for (int w = 0; w < kMoeWarps; ++w) {
      const float4 part = buffer[(w * 2 * kTiles + warp) * 32 + lane];
      total.x = __fadd_rn(total.x, part.x);
      total.y = __fadd_rn(total.y, part.y);
      total.z = __fadd_rn(total.z, part.z);
      total.w = __fadd_rn(total.w, part.w);
    }
  }
  return total;
}

// Runs items [first, last) of one unit. `row[n]` points at this lane's inputs (8 q) of the row in
// column 8 n + g. `emit(m16 tile, column tile, sums)` takes results,
// `finish(m16 tiles)` follows the emits of a warp in an item.
template <int kTiles, int kColumns, typename Emit, typename Finish>
__device__ void multiply_items(MoeWarpState& state, const ExpertBlobShape& shape,
                               const __nv_bfloat16* const (&row)[kColumns], int first, int last,
                               Emit emit, Finish finish) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_k = warp % shape.warps_k, warp_rows = warp / shape.warps_k;
  const int block_tiles = kMoeWarps / shape.warps_k;
  WeightRing& ring = state.ring;

  uint4 inputs[kSteps][2][kColumns];
  // Past the end of the row (padded cells, whose scales are zero) any inputs of the row will do.
  const auto load_inputs = [&](int step, int i) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const int k = (step * shape.warps_k + warp_k) * kCellInputs + group * kQuantGroup;
      const uint32_t from = min(k, shape.inputs - kQuantGroup);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        inputs[i][group][n] = *reinterpret_cast<const uint4*>(row[n] + from);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < kSteps; ++i) load_inputs(i, i);

  for (int item = first; item < last; ++item) {
    const int tiles = kTiles == 1 ? 1 : min(kTiles, shape.blocks - item * kTiles);
    float4 sum[kTiles][2][kColumns] = {};
    for (int stage = 0; stage < shape.steps; stage += kSteps) {
      // The inputs of the next stage; those of the next item are the first ones again.
      const int next = stage + kSteps < shape.steps ? stage + kSteps : 0;
      mbarrier_wait(&ring.full[ring.index], ring.parity);
      const uint8_t* cells =
          ring.data + ring.index * ring.stage_bytes + warp * kCellBytes;
      const auto multiply_step = [&](int i) {
#pragma unroll
        for (int group = 0; group < 2; ++group) {
          float4 bias[kColumns];
          group_bias(bias, inputs[i][group], state.minus_136);
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            const uint8_t* cell = cells + (t * kSteps + i) * kStepBytes;
            const uint4 words = *reinterpret_cast<const uint4*>(cell + group * 512 + lane * 16);
            const uint2 scales =
                *reinterpret_cast<const uint2*>(cell + 1024 + lane / 4 * 16 + group * 8);
            multiply_group(sum[t], words, scales.x, scales.y, inputs[i][group], bias);
          }
        }
        load_inputs(next + i, i);
      };
#pragma unroll
      for (int i = 0; i < kSteps; ++i) multiply_step(i);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&ring.empty[ring.index]);
      ring.advance();
    }

    if (shape.warps_k == 1) {
#pragma unroll
      for (int m = 0; m < 2 * kTiles; ++m) {
        const int tile = (item * kTiles + m / 2) * block_tiles + warp_rows;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          if (m / 2 < tiles) emit(tile * 2 + m % 2, n, sum[m / 2][m % 2][n]);
        }
      }
      finish(2 * tiles);
    } else {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const float4 total = reduce_warps(state, sum, n);
        if (warp < 2 * tiles) emit(item * kTiles * 2 + warp, n, total);
      }
      if (warp < 2 * tiles) finish(1);
    }
  }
}

// Gate and up of items [first, last) of a unit: writes silu(gate x) * (up x) in bf16.
template <int kTiles, int kColumns>
__device__ void run_w13(MoeWarpState& state, const MoeExpertsKernelParams& p,
                        const MoeWorkList& list, int unit_index, int first, int last) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const MoeUnit unit = list.units[unit_index];
  const __nv_bfloat16* row[kColumns];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    // Columns without a row repeat the last one; their results are dropped.
    const int position = unit.begin + min(8 * n + g, unit.count - 1);
    const int token = list.pairs[position] / p.op.top_k;
    row[n] = static_cast<const __nv_bfloat16*>(p.op.x) + int64_t{token} * p.op.hidden_size + 8 * q;
  }
  const auto emit = [&](int tile, int n, float4 c) {  // c = gate, gate, up, up
    const int feature = tile * 8 + g, column = 8 * n + 2 * q;
    if (feature >= p.op.intermediate_size) return;
    __nv_bfloat16* to =
        p.activation + int64_t{unit.begin + column} * p.op.intermediate_size + feature;
    const auto swiglu = [](float gate, float up) {
      return __float2bfloat16_rn(__fmul_rn(__fdividef(gate, 1.0f + __expf(-gate)), up));
    };
    if (column < unit.count) to[0] = swiglu(c.x, c.z);
    if (column + 1 < unit.count) to[p.op.intermediate_size] = swiglu(c.y, c.w);
  };
  const auto finish = [&](int tiles) {
    __syncwarp();
    if (lane == 0) add_release(&p.unit_counters[unit_index], tiles);
  };
  multiply_items<kTiles, kColumns>(state, p.w13.shape, row, first, last, emit, finish);
}

// Down of items [first, last) of a unit: writes one fp32 row per pair.
template <int kTiles, int kColumns>
__device__ void run_w2(MoeWarpState& state, const MoeExpertsKernelParams& p,
                       const MoeWorkList& list, int unit_index, int first, int last) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const MoeUnit unit = list.units[unit_index];
  const uint32_t all_tiles =
      2 * p.w13.shape.blocks * (kMoeWarps / p.w13.shape.warps_k);
  while (load_acquire(&p.unit_counters[unit_index]) != all_tiles) {
  }
  const __nv_bfloat16* row[kColumns];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int position = unit.begin + min(8 * n + g, unit.count - 1);
    row[n] = p.activation + int64_t{position} * p.op.intermediate_size + 8 * q;
  }
  const auto emit = [&](int tile, int n, float4 c) {
    const int output = tile * 16 + g;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = 8 * n + 2 * q + j;
      if (column < unit.count) {
        float* to = p.partial + int64_t{list.pairs[unit.begin + column]} * p.op.hidden_size;
        if (output < p.op.hidden_size) to[output] = j ? c.y : c.x;
        if (output + 8 < p.op.hidden_size) to[output + 8] = j ? c.w : c.z;
      }
    }
  };
  const auto finish = [](int) {};
  multiply_items<kTiles, kColumns>(state, p.w2.shape, row, first, last, emit, finish);
}

// Cuts an item range into runs of one unit and hands each to the code for its number of rows.
template <int kTiles, int kMaxColumns, bool kDown>
__device__ void consume_items(MoeWarpState& state, const MoeExpertsKernelParams& p,
                              const MoeWorkList& list, ItemRange range, int groups) {
  for (int item = range.begin; item < range.end;) {
    const int unit = item / groups;
    const int first = item - unit * groups;
    const int last = min(groups, first + range.end - item);
    const auto run = [&](auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      if constexpr (kDown) {
        run_w2<kTiles, kColumns>(state, p, list, unit, first, last);
      } else {
        run_w13<kTiles, kColumns>(state, p, list, unit, first, last);
      }
    };
    const int columns = (list.units[unit].count + 7) / 8;
    if (kMaxColumns == 1 || columns == 1) {
      run(std::integral_constant<int, 1>{});
    } else if (kMaxColumns == 2 || columns == 2) {
      run(std::integral_constant<int, 2>{});
    } else if (columns == 3) {
      run(std::integral_constant<int, 3>{});
    } else {
      run(std::integral_constant<int, 4>{});
    }
    item += last - first;
  }
}

// ----------------------------------------------------------------------------------------- kernel

template <int kTiles, int kMaxColumns>
__global__ void __launch_bounds__(kMoeThreads, 1)
    moe_experts_kernel(const __grid_constant__ MoeExpertsKernelParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  WeightRing ring;
  ring.stages = p.stages;
  ring.stage_bytes = kTiles * kMoeStageSteps<kTiles> * kStepBytes;
  ring.data = shared;
  auto* reduction = reinterpret_cast<float4*>(ring.data + ring.stages * ring.stage_bytes);
  ring.full = reinterpret_cast<uint64_t*>(reduction + 2 * kMoeWarps * 2 * kTiles * 32);
  ring.empty = ring.full + ring.stages;
  const int num_pairs = p.op.num_tokens * p.op.top_k;
  MoeWorkList list;
  list.scan = ring.empty + ring.stages;
  list.units = reinterpret_cast<MoeUnit*>(list.scan + kListWarps + 1);
  list.histogram = reinterpret_cast<uint16_t*>(list.units + p.max_units);
  list.pairs = list.histogram + kListWarps * p.op.num_experts;

  if (threadIdx.x == 0) {
    for (int i = 0; i < ring.stages; ++i) {
      mbarrier_init(&ring.full[i], 1);
      mbarrier_init(&ring.empty[i], kMoeWarps);
    }
    mbarrier_init_fence();
  }
  grid_dependency_launch();
  grid_dependency_wait();
  const MoeTotals totals =
      build_work_list(list, p.op.topk_ids, num_pairs, p.op.num_experts, 8 * kMaxColumns);
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.op.num_active_experts) {
    *p.op.num_active_experts = totals.active;
  }
  const MoeSchedule schedule = make_schedule<kTiles>(p, totals.units);

  if (threadIdx.x / 32 >= kMoeWarps) {
    release_registers<24>();
    if (threadIdx.x / 32 > kMoeWarps) return;
    const uint64_t policy = evict_first_policy();
    produce_items<kTiles>(ring, p.w13, list.units, schedule.w13, schedule.w13_groups, policy);
    produce_items<kTiles>(ring, p.w2, list.units, schedule.w2, schedule.w2_groups, policy);
  } else {
    acquire_registers<232>();
    MoeWarpState state{.ring = ring, .reduction = reduction};
    // Tied to a run-time zero: the compiler would otherwise rebuild the constants before every use.
#pragma unroll
    for (int i = 0; i < 4; ++i) state.minus_136[i] = 0xC308C308u ^ (p.max_units >> (24 + i));
    consume_items<kTiles, kMaxColumns, false>(state, p, list, schedule.w13, schedule.w13_groups);
    consume_items<kTiles, kMaxColumns, true>(state, p, list, schedule.w2, schedule.w2_groups);
  }
}

// Adds a token's slots in slot order, then the shared expert; also clears the counters for the
// next call. One thread per four outputs; grid (outputs, tokens).
__global__ void __launch_bounds__(128) moe_combine_kernel(
    const __grid_constant__ MoeExpertsKernelParams p) {
  grid_dependency_launch();
  const int token = blockIdx.y;
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  grid_dependency_wait();
  for (int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x; i < p.max_units;
       i += gridDim.x * gridDim.y * blockDim.x) {
    p.unit_counters[i] = 0;
  }
  if (column >= p.op.hidden_size) return;
  const int64_t at = int64_t{token} * p.op.hidden_size + column;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int slot = 0; slot < p.op.top_k; ++slot) {
    const int pair = token * p.op.top_k + slot;
    const int expert = p.op.topk_ids[pair];
    if (expert < 0 || expert >= p.op.num_experts) continue;
    const float weight = p.op.topk_weights[pair];
    const float4 row =
        *reinterpret_cast<const float4*>(p.partial + int64_t{pair} * p.op.hidden_size + column);
    sum.x = __fmaf_rn(weight, row.x, sum.x);
    sum.y = __fmaf_rn(weight, row.y, sum.y);
    sum.z = __fmaf_rn(weight, row.z, sum.z);
    sum.w = __fmaf_rn(weight, row.w, sum.w);
  }
  if (p.op.shared) {
    float4 add;
    if (p.op.shared_is_float) {
      add = *reinterpret_cast<const float4*>(static_cast<const float*>(p.op.shared) + at);
    } else {
      const auto* from = static_cast<const __nv_bfloat16*>(p.op.shared) + at;
      add = make_float4(__bfloat162float(from[0]), __bfloat162float(from[1]),
                        __bfloat162float(from[2]), __bfloat162float(from[3]));
    }
    sum.x = __fadd_rn(sum.x, add.x);
    sum.y = __fadd_rn(sum.y, add.y);
    sum.z = __fadd_rn(sum.z, add.z);
    sum.w = __fadd_rn(sum.w, add.w);
  }
  if (p.op.out_is_float) {
    *reinterpret_cast<float4*>(static_cast<float*>(p.op.out) + at) = sum;
  } else {
    __nv_bfloat162 packed[2] = {__floats2bfloat162_rn(sum.x, sum.y),
                                __floats2bfloat162_rn(sum.z, sum.w)};
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.op.out) + at) =
        *reinterpret_cast<const uint2*>(packed);
  }
}

}  // namespace coppice::kernels
