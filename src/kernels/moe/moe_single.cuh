// Device side of moe_single.h: from the route of one row to its sum in one kernel.
//
// All weights of a block have room in its shared memory: one block of gate and up of one slot, and
// tiles of down of all slots, so that a block adds up the slots of its
// outputs by itself. The activations cross between blocks as words that carry the call's tag next
// to the data: no counter, no fence, one trip through the L2.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/moe/moe_multiply.cuh"
#include "kernels/moe/moe_output.cuh"
#include "kernels/moe/moe_single.h"

namespace coppice::kernels {

inline constexpr int kSingleWarps = kStepCells;  // that multiply
inline constexpr int kSingleThreads = 32 * (kSingleWarps + 1);
inline constexpr int kSingleMaxSteps = 32;  // of gate and up

struct MoeSingleKernelParams {
  MoeExpertsParams op;
  ExpertBlobShape shape13, shape2;
  int64_t expert_bytes13, expert_bytes2;
  uint32_t* tag;         // [1] of the last call
  uint32_t* finished;    // [1] blocks that have read the tag
  uint64_t* activation;  // [top_k, intermediate_size / 2] two bf16, then the tag
  MoeSingleConfig config;
};

struct SingleShared {
  uint8_t* w13;          // [steps, 8 cells]
  uint8_t* w2;           // [tiles, top_k, steps] cells
  __nv_bfloat16* x;      // [hidden_size]
  uint32_t* activation;  // [top_k, intermediate_size / 2]
  float* sums;           // [tiles, 8 warps, 32 rows]
  uint64_t* full13;      // [steps]
};

__device__ inline SingleShared carve_single(const MoeSingleKernelParams& p, uint8_t* base) {
  SingleShared s;
  s.w13 = base;
  s.w2 = s.w13 + p.shape13.steps * kStepBytes;
  s.x = reinterpret_cast<__nv_bfloat16*>(s.w2 +
                                         p.config.tiles * p.op.top_k * p.shape2.steps * kCellBytes);
  s.activation = reinterpret_cast<uint32_t*>(s.x + p.op.hidden_size);
  s.sums = reinterpret_cast<float*>(s.activation + p.op.top_k * p.op.intermediate_size / 2);
  s.full13 = reinterpret_cast<uint64_t*>(s.sums + p.config.tiles * kSingleWarps * kCellRows);
  return s;
}

__device__ inline int single_expert(const MoeExpertsParams& op, int slot) {
  const int expert = op.topk_ids[slot];
  return expert >= 0 && expert < op.num_experts ? expert : -1;
}

// The row's slots, the same in every thread.
struct SingleSlots {
  int expert[kSingleMaxSlots];  // -1 if it has none
  float weight[kSingleMaxSlots];
};

__device__ inline SingleSlots load_slots(const MoeExpertsParams& op) {
  SingleSlots slots;
#pragma unroll
  for (int i = 0; i < kSingleMaxSlots; ++i) {
    slots.expert[i] = i < op.top_k ? single_expert(op, i) : -1;
    slots.weight[i] = i < op.top_k ? op.topk_weights[i] : 0.0f;
  }
  return slots;
}

// One warp: starts the copies of the block's piece of gate and up, and of x.
__device__ inline void copy_gate_up(const MoeSingleKernelParams& p, const SingleShared& shared,
                                    int expert, int block) {
  constexpr int kInputs = kStepCells * kCellInputs;
  const uint64_t policy = evict_first_policy();
  const uint8_t* from = static_cast<const uint8_t*>(p.op.w13) + expert * p.expert_bytes13 +
                        block * expert_blob_block_bytes(p.shape13);
  const auto* x = static_cast<const __nv_bfloat16*>(p.op.x);
  for (int step = threadIdx.x % 32; step < p.shape13.steps; step += 32) {
    uint64_t* full = &shared.full13[step];
    mbarrier_arrive_expect(full, kStepBytes + kInputs * 2);
    // The engine takes orders in turn: first what the first step needs.
    bulk_copy_to_shared(shared.x + step * kInputs, x + step * kInputs, kInputs * 2, full);
    bulk_copy_to_shared(shared.w13 + step * kStepBytes, from + step * kStepBytes, kStepBytes, full,
                        policy);
  }
}

// A multiplying warp starts the copies of its slot's cells of down, for every tile of the block.
// Asynchronous copies of the warp itself: as bulk copies these short pieces arrive at half speed.
__device__ inline void copy_down(const MoeSingleKernelParams& p, const SingleShared& shared,
                                 int slot, int expert) {
  constexpr int kPieces = kCellBytes / 16;
  const int lane = threadIdx.x % 32;
  const uint64_t policy = evict_first_policy();
  for (int tile = 0; tile < p.config.tiles; ++tile) {
    const int cell = blockIdx.x + tile * gridDim.x;  // of the output
    if (cell * kCellRows >= p.op.hidden_size) break;
    const uint8_t* from = static_cast<const uint8_t*>(p.op.w2) + expert * p.expert_bytes2 +
                          cell / kStepCells * expert_blob_block_bytes(p.shape2) +
                          cell % kStepCells * kCellBytes;
    uint8_t* to = shared.w2 + (tile * p.op.top_k + slot) * p.shape2.steps * kCellBytes;
    for (int step = 0; step < p.shape2.steps; ++step) {
#pragma unroll
      for (int i = lane; i < kPieces; i += 32) {
        async_copy_16(to + step * kCellBytes + i * 16, from + step * kStepBytes + i * 16, policy);
      }
    }
  }
}

// Of a cell's 32 rows: of rows g and g + 8 of each half.
struct SingleSums {
  float4 half[2];
};

// Two cells at a time times one row; every column of the MMA repeats the row. `cell` and `inputs`
// are `cell_bytes` and `step` further on for the next; `full` is waited for, if given. One copy of
// this code for both products: what runs once is slow for want of its instructions.
__device__ __noinline__ SingleSums multiply_single(const uint8_t* cell, int cell_bytes,
                                                   const __nv_bfloat16* inputs, int step, int count,
                                                   uint64_t* full) {
  const int lane = threadIdx.x % 32;
  float4 sum[2][1] = {};
#pragma unroll 1
  for (int first = 0; first < count; first += 2) {  // counts are even
    if (full) {
      mbarrier_wait(full + first, 0);
      mbarrier_wait(full + first + 1, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* from = cell + (first + i / 2) * cell_bytes;
      const int group = i % 2;
      const uint4 x[1] = {*reinterpret_cast<const uint4*>(inputs + (first + i / 2) * step +
                                                          group * kQuantGroup + lane % 4 * 8)};
      const uint4 words = *reinterpret_cast<const uint4*>(from + group * 512 + lane * 16);
      const uint2 scales = *reinterpret_cast<const uint2*>(from + 1024 + lane / 4 * 16 + group * 8);
      multiply_group(sum, words, scales, x);
    }
  }
  return {{sum[0][0], sum[1][0]}};
}

// The warp's sums of 32 rows, one column of them, to shared memory.
__device__ inline void store_single(float* sums, const SingleSums& sum) {
  const int lane = threadIdx.x % 32;
  if (lane % 4 != 0) return;
  float* to = sums + threadIdx.x / 32 * kCellRows + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    to[half * 16] = whole(sum.half[half].x);
    to[half * 16 + 8] = whole(sum.half[half].z);
  }
}

// The block's sixteen features of one slot, and their publication.
__device__ inline void single_gate_up(const MoeSingleKernelParams& p, const SingleShared& shared,
                                      int slot, int block, uint32_t tag) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const SingleSums sum =
      multiply_single(shared.w13 + warp * kCellBytes, kStepBytes, shared.x + warp * kCellInputs,
                      kStepCells * kCellInputs, p.shape13.steps, shared.full13);
  store_single(shared.sums, sum);
  named_barrier_sync(1, 32 * kSingleWarps);
  if (warp != 0) return;
  // Feature f of the block: gate in row f % 8 of tile f / 8, up eight rows on.
  float gate = 0.0f, up = 0.0f;
  const float* row = shared.sums + lane % 16 / 8 * 16 + lane % 8;
#pragma unroll
  for (int w = 0; w < kSingleWarps; ++w) {
    gate = __fadd_rn(gate, row[w * kCellRows]);
    up = __fadd_rn(up, row[w * kCellRows + 8]);
  }
  const uint32_t mine = __bfloat16_as_ushort(swiglu(gate, up));
  const uint32_t next = __shfl_down_sync(~0u, mine, 1);
  if (lane < 16 && lane % 2 == 0) {
    store_tagged(&p.activation[slot * p.op.intermediate_size / 2 + block * 8 + lane / 2],
                 mine | next << 16, tag);
  }
}

// Collects the activations of every slot that has an expert, two words a load.
__device__ inline void collect_single(const MoeSingleKernelParams& p, const SingleShared& shared,
                                      uint32_t experts, uint32_t tag) {
  const int slot_words = p.op.intermediate_size / 2, words = p.op.top_k * slot_words;
  for (int i = threadIdx.x * 2; i < words; i += 64 * kSingleWarps) {
    if (!(experts >> (i / slot_words) & 1)) continue;
    ulonglong2 two;
    do {
      two = load_tagged(&p.activation[i]);
    } while (two.x >> 32 != tag || two.y >> 32 != tag);
    *reinterpret_cast<uint2*>(shared.activation + i) =
        make_uint2(static_cast<uint32_t>(two.x), static_cast<uint32_t>(two.y));
  }
  copy_async_wait_all();  // this warp's cells of down
  named_barrier_sync(1, 32 * kSingleWarps);
}

// The output that a thread adds up: warps take the block's tiles.
__device__ inline int single_output(int thread) {
  return (blockIdx.x + thread / 32 * gridDim.x) * kCellRows + thread % 32;
}

// 32 outputs a tile: warp s multiplies slot s, then a thread for each output adds the slots in
// order. `shared_expert` is this thread's.
__device__ inline void single_down(const MoeSingleKernelParams& p, const SingleShared& shared,
                                   const SingleSlots& slots, bool has_slot, float shared_expert) {
  const MoeExpertsParams& op = p.op;
  const int warp = threadIdx.x / 32;
  if (has_slot) {
    const auto* inputs =
        reinterpret_cast<const __nv_bfloat16*>(shared.activation) + warp * op.intermediate_size;
    for (int tile = 0; tile < p.config.tiles; ++tile) {
      const uint8_t* cells = shared.w2 + (tile * op.top_k + warp) * p.shape2.steps * kCellBytes;
      const SingleSums sum =
          multiply_single(cells, kCellBytes, inputs, kCellInputs, p.shape2.steps, nullptr);
      store_single(shared.sums + tile * kSingleWarps * kCellRows, sum);
    }
  }
  named_barrier_sync(1, 32 * kSingleWarps);
  const int row = single_output(threadIdx.x);
  if (warp >= p.config.tiles || row >= op.hidden_size) return;
  const float* rows = shared.sums + warp * kSingleWarps * kCellRows + threadIdx.x % 32;
  float sum = 0.0f;
#pragma unroll
  for (int slot = 0; slot < kSingleMaxSlots; ++slot) {
    if (slots.expert[slot] >= 0) {
      sum = __fmaf_rn(slots.weight[slot], rows[slot * kCellRows], sum);
    }
  }
  if (op.shared) sum = __fadd_rn(sum, shared_expert);
  if (op.out_is_float) {
    static_cast<float*>(op.out)[row] = sum;
  } else {
    static_cast<__nv_bfloat16*>(op.out)[row] = __float2bfloat16_rn(sum);
  }
}

__device__ inline void count_single_experts(const MoeExpertsParams& op) {
  int active = 0;
  for (int i = 0; i < op.top_k; ++i) {
    bool fresh = single_expert(op, i) >= 0;
    for (int j = 0; j < i; ++j) fresh = fresh && op.topk_ids[j] != op.topk_ids[i];
    active += fresh;
  }
  *op.num_active_experts = active;
}

__global__ void __launch_bounds__(kSingleThreads, 1)
    moe_single_kernel(const __grid_constant__ MoeSingleKernelParams p) {
  extern __shared__ __align__(128) uint8_t single_shared[];
  const SingleShared shared = carve_single(p, single_shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.shape13.steps; ++i) mbarrier_init(&shared.full13[i], 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  grid_dependency_wait();
  grid_dependency_launch();
  const int warp = threadIdx.x / 32;
  const int slot13 = blockIdx.x / p.shape13.blocks;
  const int block13 = blockIdx.x - slot13 * p.shape13.blocks;
  const int expert13 = slot13 < p.op.top_k ? single_expert(p.op, slot13) : -1;
  if (warp == kSingleWarps) {
    if (expert13 >= 0) copy_gate_up(p, shared, expert13, block13);
    if (blockIdx.x == 0 && threadIdx.x % 32 == 0 && p.op.num_active_experts) {
      count_single_experts(p.op);
    }
    return;
  }
  const uint32_t tag = *p.tag + 1;
  const SingleSlots slots = load_slots(p.op);
  const int my_expert = warp < p.op.top_k ? single_expert(p.op, warp) : -1;
  uint32_t experts = 0;
#pragma unroll
  for (int i = 0; i < kSingleMaxSlots; ++i) experts |= (slots.expert[i] >= 0) << i;
  float shared_expert = 0.0f;
  const int output = single_output(threadIdx.x);
  if (p.op.shared && warp < p.config.tiles && output < p.op.hidden_size) {
    shared_expert = p.op.shared_is_float
                        ? static_cast<const float*>(p.op.shared)[output]
                        : __bfloat162float(static_cast<const __nv_bfloat16*>(p.op.shared)[output]);
  }
  // Gate and up come first; down fills what the memory has left from their first arrival on.
  if (expert13 >= 0) mbarrier_wait(&shared.full13[0], 0);
  if (my_expert >= 0) copy_down(p, shared, warp, my_expert);
  if (expert13 >= 0) single_gate_up(p, shared, slot13, block13, tag);
  collect_single(p, shared, experts, tag);
  single_down(p, shared, slots, my_expert >= 0, shared_expert);
  // The last block to finish leaves the tag for the next call; all have read it by then.
  if (threadIdx.x == 0 && fetch_add_acq_rel(p.finished, 1) == gridDim.x - 1) {
    *p.finished = 0;
    *p.tag = tag;
  }
}

}  // namespace coppice::kernels
