// Device side of moe_experts.h: one persistent kernel from the route list to a row per pair, and
// the sum over a token's slots.
//
// Each block does a share of gate and up, then a share of down; a counter per unit tells when the
// activations between the two are complete. Warps have roles: eight multiply, one streams weights
// and one streams inputs into a ring of stages, two add the multiplying warps' sums
// and write results. Weights run ahead across the wait for the activations.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/registers.cuh"
#include "kernels/common/ring_index.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts.h"
#include "kernels/moe/moe_experts_config.h"
#include "kernels/moe/moe_multiply.cuh"
#include "kernels/moe/moe_work_list.cuh"

namespace coppice::kernels {

inline constexpr int kMoeWarps = kStepCells;  // that multiply: two warpgroups
inline constexpr int kMoeWeightWarp = kMoeWarps, kMoeInputWarp = kMoeWarps + 1;
inline constexpr int kMoeFinishWarp = kMoeWarps + 2, kMoeFinishWarps = 2;
inline constexpr int kMoeThreads = 32 * (kMoeFinishWarp + kMoeFinishWarps);
inline constexpr int kMoeSumBuffers = 2;
inline constexpr int kMoeSumFloat4s = kMoeWarps * 2 * 32;  // in one buffer

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
  MoeExpertsConfig config;
};

// Contiguous run of work items, numbered unit-major: an item is up to kTiles blocks of a unit.
struct ItemRange {
  int begin, end;
  int groups;  // items per unit
};

struct MoeSchedule {
  ItemRange w13, w2;  // of this block
};

// Both ranges of block `block`: gate/up items evenly, down items so that all blocks read the same
// number of weight bytes.
template <int kTiles>
__device__ MoeSchedule make_schedule(const MoeExpertsKernelParams& p, int units) {
  const uint32_t block = blockIdx.x, blocks = gridDim.x;
  const uint32_t groups13 = (p.w13.shape.blocks + kTiles - 1) / kTiles;
  const uint32_t groups2 = (p.w2.shape.blocks + kTiles - 1) / kTiles;
  const uint32_t n13 = units * groups13, n2 = units * groups2;
  const uint32_t cost13 = p.w13.shape.steps, cost2 = p.w2.shape.steps;
  const uint32_t total = n13 * cost13 + n2 * cost2, most13 = (n13 + blocks - 1) / blocks;
  // With few items a block without gate and up would only wait for the others: share down evenly.
  const bool balanced = n13 >= 4 * blocks && total >= most13 * cost13 * blocks;
  const auto w13_bound = [&](uint32_t b) { return n13 * b / blocks; };
  const auto w2_bound = [&](uint32_t b) {
    if (b == blocks) return n2;
    return balanced ? (total * b / blocks - w13_bound(b) * cost13) / cost2 : n2 * b / blocks;
  };
  const auto range = [&](auto bound, uint32_t groups) {
    return ItemRange{static_cast<int>(bound(block)), static_cast<int>(bound(block + 1)),
                     static_cast<int>(groups)};
  };
  return {range(w13_bound, groups13), range(w2_bound, groups2)};
}

// Shared memory of a block. A ring stage holds kSteps steps of kTiles blocks of weights, then the
// same inputs of every row of the unit, `input_pitch` bytes apart.
struct MoeShared {
  uint8_t* stages;
  float4* sums;  // [kMoeSumBuffers, warps, 2 m16 tiles, 32 lanes]
  uint64_t *weights_full, *inputs_full, *empty;
  uint64_t *sums_full, *sums_empty;  // [kMoeSumBuffers]
  MoeWorkList list;
};

// Rows of inputs in a stage are 64 bytes more than a multiple of 128 apart: no bank conflicts.
__device__ inline int input_chunk(const ExpertBlobShape& shape, int steps) {
  return steps * shape.warps_k * kCellInputs;
}
__device__ inline int input_pitch(int chunk) {
  return chunk * 2 + 64;
}

// ------------------------------------------------------------------------------------- producers

// Streams the weights of an item range, in the order the multiplying warps take them.
template <int kTiles>
__device__ void produce_weights(const MoeExpertsKernelParams& p, const MoeShared& shared,
                                RingIndex& at, const ExpertGemm& gemm, ItemRange range) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int lane = threadIdx.x % 32;
  const uint64_t policy = evict_first_policy();
  for (int item = range.begin; item < range.end; ++item) {
    const int first_block = item % range.groups * kTiles;
    const int tiles = min(kTiles, gemm.shape.blocks - first_block);
    const uint8_t* source = gemm.blob +
                            shared.list.units[item / range.groups].expert * gemm.expert_bytes +
                            (first_block + lane) * gemm.block_bytes;
    for (int step = 0; step < gemm.shape.steps; step += kSteps) {
      mbarrier_wait(&shared.empty[at.index], at.parity ^ 1);
      uint64_t* full = &shared.weights_full[at.index];
      if (lane == 0) mbarrier_arrive_expect(full, tiles * kSteps * kStepBytes);
      __syncwarp();
      if (lane < tiles) {
        bulk_copy_to_shared(
            shared.stages + at.index * p.config.stage_bytes + lane * kSteps * kStepBytes,
            source + step * kStepBytes, kSteps * kStepBytes, full, policy);
      }
      at.advance(p.config.stages);
    }
  }
}

// Copies the inputs [first, first + chunk) of this lane's row. Past the end of the row, where cells
// are padding with scales of zero, any inputs of the row will do.
__device__ inline void copy_inputs(uint8_t* to, const __nv_bfloat16* row, int first, int chunk,
                                   int inputs, uint64_t* full) {
  const int count = max(0, min(chunk, inputs - first));
  if (count > 0) bulk_copy_to_shared(to, row + first, count * 2, full);
  for (int k = count; k < chunk; k += kQuantGroup) {
    bulk_copy_to_shared(to + k * 2, row, kQuantGroup * 2, full);
  }
}

// Streams the inputs of an item range: rows of x for gate and up, of the activations for down.
template <int kTiles>
__device__ void produce_inputs(const MoeExpertsKernelParams& p, const MoeShared& shared,
                               RingIndex& at, const ExpertGemm& gemm, ItemRange range, bool down) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int lane = threadIdx.x % 32;
  const int chunk = input_chunk(gemm.shape, kSteps);
  const uint32_t all_tiles = 2 * p.w13.shape.blocks * (kMoeWarps / p.w13.shape.warps_k);
  const __nv_bfloat16* row = nullptr;
  int current = -1, rows = 0;
  for (int item = range.begin; item < range.end; ++item) {
    if (const int unit_index = item / range.groups; unit_index != current) {
      current = unit_index;
      const MoeUnit unit = shared.list.units[unit_index];
      rows = unit.count;
      const int position = unit.begin + min(lane, rows - 1);
      if (down) {
        while (load_acquire(&p.unit_counters[unit_index]) != all_tiles) {
        }
        bulk_copy_fence();
        row = p.activation + int64_t{position} * p.op.intermediate_size;
      } else {
        const int token = shared.list.tokens[position];
        row = static_cast<const __nv_bfloat16*>(p.op.x) + int64_t{token} * p.op.hidden_size;
      }
    }
    for (int step = 0; step < gemm.shape.steps; step += kSteps) {
      mbarrier_wait(&shared.empty[at.index], at.parity ^ 1);
      uint64_t* full = &shared.inputs_full[at.index];
      if (lane == 0) mbarrier_arrive_expect(full, rows * chunk * 2);
      __syncwarp();
      if (lane < rows) {
        uint8_t* to = shared.stages + at.index * p.config.stage_bytes +
                      kTiles * kSteps * kStepBytes + lane * input_pitch(chunk);
        copy_inputs(to, row, step * gemm.shape.warps_k * kCellInputs, chunk, gemm.shape.inputs,
                    full);
      }
      at.advance(p.config.stages);
    }
  }
}

// --------------------------------------------------------------------------------------- results

// Where the lane's columns 8 n + 2 q and 8 n + 2 q + 1 of a unit are written: elements from the
// start of the result, or -1 for columns without a row.
struct ColumnPair {
  int64_t to[2];
};

// silu(gate) * up in bf16, of gate (x, y) and up (z, w) of features g.
struct WriteActivation {
  static __device__ __nv_bfloat16 swiglu(float gate, float up) {
    return __float2bfloat16_rn(__fmul_rn(__fdividef(gate, 1.0f + __expf(-gate)), up));
  }
  static __device__ ColumnPair locate(const MoeExpertsKernelParams& p, const MoeWorkList&,
                                      const MoeUnit& unit, int n) {
    ColumnPair c;
    for (int j = 0; j < 2; ++j) {
      const int column = 8 * n + threadIdx.x % 4 * 2 + j;
      c.to[j] = column < unit.count ? int64_t{unit.begin + column} * p.op.intermediate_size : -1;
    }
    return c;
  }
  static __device__ void write(const MoeExpertsKernelParams& p, const ColumnPair& c, int tile,
                               float4 sums) {
    const int feature = tile * 8 + threadIdx.x % 32 / 4;
    if (feature >= p.op.intermediate_size) return;
    if (c.to[0] >= 0) p.activation[c.to[0] + feature] = swiglu(sums.x, sums.z);
    if (c.to[1] >= 0) p.activation[c.to[1] + feature] = swiglu(sums.y, sums.w);
  }
  // This warp has written `tiles` m16 tiles of the unit.
  static __device__ void finish(const MoeExpertsKernelParams& p, int unit_index, int tiles) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) add_release(&p.unit_counters[unit_index], tiles);
  }
};

// Outputs g (x, y) and g + 8 (z, w) of down, into the pair's fp32 row.
struct WritePartial {
  static __device__ ColumnPair locate(const MoeExpertsKernelParams& p, const MoeWorkList& list,
                                      const MoeUnit& unit, int n) {
    ColumnPair c;
    for (int j = 0; j < 2; ++j) {
      const int column = 8 * n + threadIdx.x % 4 * 2 + j;
      c.to[j] =
          column < unit.count ? int64_t{list.pairs[unit.begin + column]} * p.op.hidden_size : -1;
    }
    return c;
  }
  static __device__ void write(const MoeExpertsKernelParams& p, const ColumnPair& c, int tile,
                               float4 sums) {
    const int output = tile * 16 + threadIdx.x % 32 / 4;
    if (output >= p.op.hidden_size) return;
    const bool both = output + 8 < p.op.hidden_size;
    if (c.to[0] >= 0) {
      p.partial[c.to[0] + output] = sums.x;
      if (both) p.partial[c.to[0] + output + 8] = sums.z;
    }
    if (c.to[1] >= 0) {
      p.partial[c.to[1] + output] = sums.y;
      if (both) p.partial[c.to[1] + output + 8] = sums.w;
    }
  }
  static __device__ void finish(const MoeExpertsKernelParams&, int, int) {}
};

// Adds the eight warps' sums in warp order and writes them; each of the two warps takes one m16
// tile of every block. Only for matrices whose inputs are shared by all warps.
template <int kTiles, typename Write>
__device__ void finish_items(const MoeExpertsKernelParams& p, const MoeShared& shared,
                             RingIndex& at, const ExpertGemm& gemm, ItemRange range) {
  if (gemm.shape.warps_k == 1) return;
  const int half = threadIdx.x / 32 - kMoeFinishWarp, lane = threadIdx.x % 32;
  for (int item = range.begin; item < range.end; ++item) {
    const int unit_index = item / range.groups;
    const MoeUnit unit = shared.list.units[unit_index];
    const int first_block = item % range.groups * kTiles;
    const int tiles = min(kTiles, gemm.shape.blocks - first_block);
    const int columns = (unit.count + 7) / 8;
    for (int t = 0; t < tiles; ++t) {
      for (int n = 0; n < columns; ++n) {
        const float4* sums = shared.sums + at.index * kMoeSumFloat4s + half * 32 + lane;
        mbarrier_wait(&shared.sums_full[at.index], at.parity);
        float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kMoeWarps; ++w) {
          const float4 part = sums[w * 64];
          total.x = __fadd_rn(total.x, part.x);
          total.y = __fadd_rn(total.y, part.y);
          total.z = __fadd_rn(total.z, part.z);
          total.w = __fadd_rn(total.w, part.w);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&shared.sums_empty[at.index]);
        at.advance(kMoeSumBuffers);
        Write::write(p, Write::locate(p, shared.list, unit, n), (first_block + t) * 2 + half,
                     total);
      }
      Write::finish(p, unit_index, 1);
    }
  }
}

// ------------------------------------------------------------------------------------ multiplying

struct MoeMultiplyState {
  RingIndex ring, sums;
  uint32_t minus_136[4];  // pairs of bf16 -136
};

// Hands the sums of an item to the finishing warps.
template <int kTiles, int kColumns>
__device__ void hand_over_sums(const MoeShared& shared, RingIndex& at,
                               const float4 (&sum)[kTiles][2][kColumns], int tiles) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (t >= tiles) return;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      mbarrier_wait(&shared.sums_empty[at.index], at.parity ^ 1);
      float4* to = shared.sums + at.index * kMoeSumFloat4s + warp * 64 + lane;
      to[0] = sum[t][0][n];
      to[32] = sum[t][1][n];
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.sums_full[at.index]);
      at.advance(kMoeSumBuffers);
    }
  }
}

// Items [first, last) of one unit of up to 8 * kColumns rows.
template <int kTiles, int kColumns, typename Write>
__device__ void multiply_unit(const MoeExpertsKernelParams& p, const MoeShared& shared,
                              MoeMultiplyState& state, const ExpertBlobShape& shape, int unit_index,
                              int first, int last) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pitch = input_pitch(input_chunk(shape, kSteps));
  const int step_input_bytes = shape.warps_k * kCellInputs * 2;
  const uint8_t* cells = shared.stages + warp * kCellBytes;
  const uint8_t* inputs = shared.stages + kTiles * kSteps * kStepBytes + lane % 4 * 16 +
                          warp % shape.warps_k * kCellInputs * 2;
  const MoeUnit unit = shared.list.units[unit_index];
  int row[kColumns];  // columns without a row repeat the last one; their results are dropped
  ColumnPair to[kColumns];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    row[n] = min(8 * n + lane / 4, unit.count - 1) * pitch;
    if (shape.warps_k == 1) to[n] = Write::locate(p, shared.list, unit, n);
  }
  for (int item = first; item < last; ++item) {
    float4 sum[kTiles][2][kColumns] = {};
    for (int step = 0; step < shape.steps; step += kSteps) {
      const int slot = state.ring.index, offset = slot * p.config.stage_bytes;
      mbarrier_wait(&shared.weights_full[slot], state.ring.parity);
      mbarrier_wait(&shared.inputs_full[slot], state.ring.parity);
      multiply_stage<kTiles, kColumns, kSteps>(sum, cells + offset, inputs + offset, row,
                                               step_input_bytes, state.minus_136);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.empty[slot]);
      state.ring.advance(p.config.stages);
    }
    const int tiles = min(kTiles, shape.blocks - item * kTiles);
    if (shape.warps_k > 1) {
      hand_over_sums(shared, state.sums, sum, tiles);
      continue;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t >= tiles) break;
      const int tile = ((item * kTiles + t) * kMoeWarps + warp) * 2;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        Write::write(p, to[n], tile, sum[t][0][n]);
        Write::write(p, to[n], tile + 1, sum[t][1][n]);
      }
    }
    Write::finish(p, unit_index, 2 * tiles);
  }
}

// Cuts an item range into runs of one unit and hands each to the code for its number of rows.
template <int kTiles, int kMaxColumns, typename Write>
__device__ void multiply_items(const MoeExpertsKernelParams& p, const MoeShared& shared,
                               MoeMultiplyState& state, const ExpertGemm& gemm, ItemRange range) {
  for (int item = range.begin; item < range.end;) {
    const int unit = item / range.groups, first = item - unit * range.groups;
    const int last = min(range.groups, first + range.end - item);
    const auto run = [&](auto columns) {
      multiply_unit<kTiles, decltype(columns)::value, Write>(p, shared, state, gemm.shape, unit,
                                                             first, last);
    };
    const int columns = (shared.list.units[unit].count + 7) / 8;
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

// Lays out dynamic shared memory; moe_experts_config.cpp counts the same bytes.
__device__ inline MoeShared carve_shared(const MoeExpertsKernelParams& p, uint8_t* base) {
  MoeShared s;
  s.stages = base;
  s.sums = reinterpret_cast<float4*>(base + p.config.stages * p.config.stage_bytes);
  s.weights_full = reinterpret_cast<uint64_t*>(s.sums + kMoeSumBuffers * kMoeSumFloat4s);
  s.inputs_full = s.weights_full + p.config.stages;
  s.empty = s.inputs_full + p.config.stages;
  s.sums_full = s.empty + p.config.stages;
  s.sums_empty = s.sums_full + kMoeSumBuffers;
  s.list.scan = s.sums_empty + kMoeSumBuffers;
  s.list.units = reinterpret_cast<MoeUnit*>(s.list.scan + kListWarps + 1);
  s.list.histogram = reinterpret_cast<uint16_t*>(s.list.units + p.config.max_units);
  s.list.pairs = s.list.histogram + kListWarps * p.op.num_experts;
  s.list.tokens = s.list.pairs + p.op.num_tokens * p.op.top_k;
  return s;
}

__device__ inline void init_barriers(const MoeExpertsKernelParams& p, const MoeShared& s) {
  for (int i = 0; i < p.config.stages; ++i) {
    mbarrier_init(&s.weights_full[i], 1);
    mbarrier_init(&s.inputs_full[i], 1);
    mbarrier_init(&s.empty[i], kMoeWarps);
  }
  for (int i = 0; i < kMoeSumBuffers; ++i) {
    mbarrier_init(&s.sums_full[i], kMoeWarps);
    mbarrier_init(&s.sums_empty[i], kMoeFinishWarps);
  }
  mbarrier_init_fence();
}

template <int kTiles, int kMaxColumns, int kBlocksPerSm>
__global__ void __launch_bounds__(kMoeThreads, kBlocksPerSm)
    moe_experts_kernel(const __grid_constant__ MoeExpertsKernelParams p) {
  // Per thread of the multiplying and of the other warpgroups; the sum is what the block starts
  // with.
  constexpr int kManyRegisters = kBlocksPerSm == 1 ? 216 : 96;
  constexpr int kFewRegisters = kBlocksPerSm == 1 ? 64 : 48;
  extern __shared__ __align__(128) uint8_t dynamic_shared[];
  const MoeShared shared = carve_shared(p, dynamic_shared);
  if (threadIdx.x == 0) init_barriers(p, shared);
  grid_dependency_wait();
  grid_dependency_launch();  // only now: the sum reads inputs of this kernel before it ends
  const MoeTotals totals = build_work_list(shared.list, p.op.topk_ids, p.op.num_tokens, p.op.top_k,
                                           p.op.num_experts, p.config.unit_rows);
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.op.num_active_experts) {
    *p.op.num_active_experts = totals.active;
  }
  const MoeSchedule schedule = make_schedule<kTiles>(p, totals.units);
  const int warp = threadIdx.x / 32;
  if (warp >= kMoeWarps) {
    release_registers<kFewRegisters>();
    RingIndex at;
    if (warp == kMoeWeightWarp) {
      produce_weights<kTiles>(p, shared, at, p.w13, schedule.w13);
      produce_weights<kTiles>(p, shared, at, p.w2, schedule.w2);
    } else if (warp == kMoeInputWarp) {
      produce_inputs<kTiles>(p, shared, at, p.w13, schedule.w13, false);
      produce_inputs<kTiles>(p, shared, at, p.w2, schedule.w2, true);
    } else {
      finish_items<kTiles, WriteActivation>(p, shared, at, p.w13, schedule.w13);
      finish_items<kTiles, WritePartial>(p, shared, at, p.w2, schedule.w2);
    }
  } else {
    acquire_registers<kManyRegisters>();
    MoeMultiplyState state;
    // Tied to a run-time zero: the compiler would otherwise rebuild the constants before every use.
#pragma unroll
    for (int i = 0; i < 4; ++i) state.minus_136[i] = 0xC308C308u ^ (p.config.max_units >> (24 + i));
    multiply_items<kTiles, kMaxColumns, WriteActivation>(p, shared, state, p.w13, schedule.w13);
    multiply_items<kTiles, kMaxColumns, WritePartial>(p, shared, state, p.w2, schedule.w2);
  }
}

}  // namespace coppice::kernels
