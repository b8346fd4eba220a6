// Device side of moe_experts.h: one persistent kernel from the route list to a row per pair, and
// the sum over a token's slots.
//
// Blocks claim pieces of gate and up, then of down; a counter per unit tells when the activations
// between the two are complete. Warps have roles: eight multiply, one streams weights
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
#include "kernels/moe/moe_output.cuh"
#include "kernels/moe/moe_work_list.cuh"

namespace coppice::kernels {

inline constexpr int kMoeWarps = kStepCells;  // that multiply: two warpgroups
inline constexpr int kMoeWeightWarp = kMoeWarps, kMoeInputWarp = kMoeWarps + 1;
inline constexpr int kMoeFinishWarp = kMoeWarps + 2, kMoeFinishWarps = 2;
inline constexpr int kMoeThreads = 32 * (kMoeFinishWarp + kMoeFinishWarps);
inline constexpr int kMoeSumBuffers = 2;
inline constexpr int kMoeClaims = 4;  // claims on their way from the weight warp to the others
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
  uint32_t* next_claim;       // [1] claims handed out beyond each block's first
  uint32_t* unit_counters;    // [max_units] m16 tiles of gate and up that are done
  __nv_bfloat16* activation;  // [num_pairs, intermediate_size] in sorted order
  float* partial;             // [num_pairs, hidden_size] in pair order, outputs by partial_place
  MoeExpertsConfig config;
};

// Where output o of a row of down lies in `partial`: of every 32, outputs g + 8 i at 4 g + i.
inline constexpr int kPartialLine = 32;
__device__ inline int partial_place(int output) {
  return output / kPartialLine * kPartialLine + output % 8 * 4 + output % kPartialLine / 8;
}

// The work of a call in the order in which blocks claim it: all of gate and up, unit by unit, then
// all of down. A block that claims down waits only for work that others have claimed before it.
struct MoeSchedule {
  int groups13, groups2;  // items per unit: an item is up to kTiles blocks of outputs
  int run2;               // items of down in one claim
  int claims13, claims2;  // claims per unit; one item of gate and up each
  int units;
  bool fixed;  // little work: every block takes each gridDim.x-th claim
  __device__ int total() const { return units * (claims13 + claims2); }
};

template <int kTiles>
__device__ MoeSchedule make_schedule(const MoeExpertsKernelParams& p, int units) {
  // Short claims when there is little to share out.
  constexpr int kMostItems = kTiles >= 4 ? 1 : 4 / kTiles;
  MoeSchedule s;
  s.units = units;
  s.groups13 = (p.w13.shape.blocks + kTiles - 1) / kTiles;
  s.groups2 = (p.w2.shape.blocks + kTiles - 1) / kTiles;
  s.run2 = min(max(units * s.groups2 / (static_cast<int>(gridDim.x) * 8), 1), kMostItems);
  s.claims13 = s.groups13;
  s.claims2 = (s.groups2 + s.run2 - 1) / s.run2;
  s.fixed = s.total() <= 4 * static_cast<int>(gridDim.x);
  return s;
}

// Items [first, last) of gate and up or of down of one unit.
struct MoeClaim {
  bool valid, down;
  int unit, first, last;
};

__device__ inline MoeClaim decode_claim(const MoeSchedule& s, int claim) {
  MoeClaim c;
  c.valid = claim < s.total();
  c.down = claim >= s.units * s.claims13;
  if (c.down) {
    claim -= s.units * s.claims13;
    c.unit = claim / s.claims2;
    c.first = (claim - c.unit * s.claims2) * s.run2;
    c.last = min(s.groups2, c.first + s.run2);
  } else {
    c.unit = claim / s.claims13;
    c.first = claim - c.unit * s.claims13;
    c.last = c.first + 1;
  }
  return c;
}

// Shared memory of a block. A ring stage holds kSteps steps of kTiles blocks of weights, then the
// same inputs of every row of the unit, `input_pitch` bytes apart.
struct MoeShared {
  uint8_t* stages;
  float4* sums;  // [kMoeSumBuffers, warps, 2 m16 tiles, 32 lanes]
  uint64_t *weights_full, *inputs_full, *empty;
  uint64_t *sums_full, *sums_empty;      // [kMoeSumBuffers]
  uint64_t *claims_full, *claims_empty;  // [kMoeClaims]
  int* claims;                           // [kMoeClaims]
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

// The next claim that the weight warp has published; each warp of the other roles takes all.
__device__ inline MoeClaim take_claim(const MoeShared& shared, RingIndex& at,
                                      const MoeSchedule& schedule) {
  mbarrier_wait(&shared.claims_full[at.index], at.parity);
  const int claim = shared.claims[at.index];
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive_after(&shared.claims_empty[at.index], claim);
  at.advance(kMoeClaims);
  return decode_claim(schedule, claim);
}

// Claims work, tells the other warps, and streams its weights.
template <int kTiles>
__device__ void produce_weights(const MoeExpertsKernelParams& p, const MoeShared& shared,
                                const MoeSchedule& schedule) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int lane = threadIdx.x % 32;
  const uint64_t policy = evict_first_policy();
  RingIndex ring, claims;
  int claim = blockIdx.x;
  while (true) {
    mbarrier_wait(&shared.claims_empty[claims.index], claims.parity ^ 1);
    if (lane == 0) {
      shared.claims[claims.index] = claim;
      mbarrier_arrive(&shared.claims_full[claims.index]);
    }
    claims.advance(kMoeClaims);
    const MoeClaim work = decode_claim(schedule, claim);
    if (!work.valid) return;
    if (schedule.fixed) {
      claim += gridDim.x;
    } else if (lane == 0) {
      claim = gridDim.x + atomicAdd(p.next_claim, 1u);  // arrives during the copies
    }
    const ExpertGemm& gemm = work.down ? p.w2 : p.w13;
    const uint8_t* expert = gemm.blob + shared.list.units[work.unit].expert * gemm.expert_bytes;
    for (int item = work.first; item < work.last; ++item) {
      const int tiles = min(kTiles, gemm.shape.blocks - item * kTiles);
      const uint8_t* source = expert + (item * kTiles + lane) * gemm.block_bytes;
      for (int step = 0; step < gemm.shape.steps; step += kSteps) {
        mbarrier_wait(&shared.empty[ring.index], ring.parity ^ 1);
        uint64_t* full = &shared.weights_full[ring.index];
        if (lane == 0) mbarrier_arrive_expect(full, tiles * kSteps * kStepBytes);
        __syncwarp();
        if (lane < tiles) {
          bulk_copy_to_shared(
              shared.stages + ring.index * p.config.stage_bytes + lane * kSteps * kStepBytes,
              source + step * kStepBytes, kSteps * kStepBytes, full, policy);
        }
        ring.advance(p.config.stages);
      }
    }
    claim = __shfl_sync(~0u, claim, 0);
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

// Streams the inputs: rows of x for gate and up, of the activations for down.
template <int kTiles>
__device__ void produce_inputs(const MoeExpertsKernelParams& p, const MoeShared& shared,
                               const MoeSchedule& schedule) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int lane = threadIdx.x % 32;
  const uint32_t all_tiles = 2 * p.w13.shape.blocks * (kMoeWarps / p.w13.shape.warps_k);
  RingIndex ring, claims;
  for (MoeClaim work = take_claim(shared, claims, schedule); work.valid;
       work = take_claim(shared, claims, schedule)) {
    const ExpertBlobShape& shape = work.down ? p.w2.shape : p.w13.shape;
    const MoeUnit unit = shared.list.units[work.unit];
    const int chunk = input_chunk(shape, kSteps);
    const int position = unit.begin + min(lane, unit.count - 1);
    const __nv_bfloat16* row;
    if (work.down) {
      while (load_acquire(&p.unit_counters[work.unit]) != all_tiles) {
      }
      bulk_copy_fence();
      row = p.activation + int64_t{position} * p.op.intermediate_size;
    } else {
      const int token = shared.list.pairs[position] / p.op.top_k;
      row = static_cast<const __nv_bfloat16*>(p.op.x) + int64_t{token} * p.op.hidden_size;
    }
    for (int item = work.first; item < work.last; ++item) {
      for (int step = 0; step < shape.steps; step += kSteps) {
        mbarrier_wait(&shared.empty[ring.index], ring.parity ^ 1);
        uint64_t* full = &shared.inputs_full[ring.index];
        if (lane == 0) mbarrier_arrive_expect(full, unit.count * chunk * 2);
        __syncwarp();
        if (lane < unit.count) {
          uint8_t* to = shared.stages + ring.index * p.config.stage_bytes +
                        kTiles * kSteps * kStepBytes + lane * input_pitch(chunk);
          copy_inputs(to, row, step * shape.warps_k * kCellInputs, chunk, shape.inputs, full);
        }
        ring.advance(p.config.stages);
      }
    }
  }
}

// --------------------------------------------------------------------------------------- results

// Stores without a branch: a predicated instruction.
__device__ inline void store_if(bool wanted, float* to, float2 value) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.v2.f32 [%1], {%2, %3}; }" ::"r"(
                   static_cast<int>(wanted)),
               "l"(to), "f"(value.x), "f"(value.y)
               : "memory");
}
__device__ inline void store_if(bool wanted, float* to, float4 value) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.v4.f32 [%1], {%2, %3, %4, %5}; }" ::"r"(
          static_cast<int>(wanted)),
      "l"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

// Where the lane's columns 8 n + 2 q and 8 n + 2 q + 1 of a unit are written: elements from the
// start of the result, or -1 for columns without a row.
struct ColumnPair {
  int64_t to[2];
};

// silu(gate) * up in bf16, of gate (x, y) and up (z, w) of features g.
struct WriteActivation {
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
    sums = whole(sums);
    if (feature >= p.op.intermediate_size) return;
    if (c.to[0] >= 0) p.activation[c.to[0] + feature] = swiglu(sums.x, sums.z);
    if (c.to[1] >= 0) p.activation[c.to[1] + feature] = swiglu(sums.y, sums.w);
  }
  static __device__ void write_both(const MoeExpertsKernelParams& p, const ColumnPair& c, int tile,
                                    float4 first, float4 second) {
    write(p, c, tile, first);
    write(p, c, tile + 1, second);
  }
  // This warp has written `tiles` m16 tiles of the unit.
  static __device__ void finish(const MoeExpertsKernelParams& p, int unit_index, int tiles) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) add_release(&p.unit_counters[unit_index], tiles);
  }
};

// Outputs g (x, y) and g + 8 (z, w) of a tile of down, into the pair's fp32 row, whose outputs lie
// in the order of partial_place: a lane has two side by side, four of two tiles, a warp whole
// lines.
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
    const int output = tile * 16 + threadIdx.x % 32 / 4, place = partial_place(output);
    const bool inside = output < p.op.hidden_size;
    sums = whole(sums);
    store_if(inside && c.to[0] >= 0, p.partial + c.to[0] + place, make_float2(sums.x, sums.z));
    store_if(inside && c.to[1] >= 0, p.partial + c.to[1] + place, make_float2(sums.y, sums.w));
  }
  // Of tiles `tile`, which is even, and tile + 1.
  static __device__ void write_both(const MoeExpertsKernelParams& p, const ColumnPair& c, int tile,
                                    float4 first, float4 second) {
    const int output = tile * 16 + threadIdx.x % 32 / 4, place = partial_place(output);
    const bool inside = output < p.op.hidden_size;
    first = whole(first);
    second = whole(second);
    store_if(inside && c.to[0] >= 0, p.partial + c.to[0] + place,
             make_float4(first.x, first.z, second.x, second.z));
    store_if(inside && c.to[1] >= 0, p.partial + c.to[1] + place,
             make_float4(first.y, first.w, second.y, second.w));
  }
  static __device__ void finish(const MoeExpertsKernelParams&, int, int) {}
};

// Adds the eight warps' sums of items [first, last) of a unit in warp order and writes them; each
// of the two finishing warps takes one m16 tile of every block.
template <int kTiles, typename Write>
__device__ void finish_unit(const MoeExpertsKernelParams& p, const MoeShared& shared, RingIndex& at,
                            const ExpertBlobShape& shape, const MoeClaim& work) {
  const int half = threadIdx.x / 32 - kMoeFinishWarp, lane = threadIdx.x % 32;
  const MoeUnit unit = shared.list.units[work.unit];
  const int columns = (unit.count + 7) / 8;
  for (int block = work.first * kTiles; block < min(shape.blocks, work.last * kTiles); ++block) {
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
      if (lane == 0) {
        mbarrier_arrive_after(&shared.sums_empty[at.index], __float_as_uint(total.x));
      }
      at.advance(kMoeSumBuffers);
      Write::write(p, Write::locate(p, shared.list, unit, n), block * 2 + half, total);
    }
    Write::finish(p, work.unit, 1);
  }
}

// Only matrices whose inputs are shared by all warps have sums to add.
template <int kTiles>
__device__ void finish_claims(const MoeExpertsKernelParams& p, const MoeShared& shared,
                              const MoeSchedule& schedule) {
  RingIndex sums, claims;
  for (MoeClaim work = take_claim(shared, claims, schedule); work.valid;
       work = take_claim(shared, claims, schedule)) {
    if (work.down && p.w2.shape.warps_k > 1) {
      finish_unit<kTiles, WritePartial>(p, shared, sums, p.w2.shape, work);
    } else if (!work.down && p.w13.shape.warps_k > 1) {
      finish_unit<kTiles, WriteActivation>(p, shared, sums, p.w13.shape, work);
    }
  }
}

// ------------------------------------------------------------------------------------ multiplying

struct MoeMultiplyState {
  RingIndex ring, sums;
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

// A claim of a unit of up to 8 * kColumns rows.
template <int kTiles, int kColumns, typename Write>
__device__ void multiply_unit(const MoeExpertsKernelParams& p, const MoeShared& shared,
                              MoeMultiplyState& state, const ExpertBlobShape& shape,
                              const MoeClaim& work) {
  constexpr int kSteps = kMoeStageSteps<kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pitch = input_pitch(input_chunk(shape, kSteps));
  const int step_input_bytes = shape.warps_k * kCellInputs * 2;
  const uint8_t* cells = shared.stages + warp * kCellBytes;
  const uint8_t* inputs = shared.stages + kTiles * kSteps * kStepBytes + lane % 4 * 16 +
                          warp % shape.warps_k * kCellInputs * 2;
  const MoeUnit unit = shared.list.units[work.unit];
  constexpr bool kLate = kTiles >= 4;  // where results go is asked when there are registers again
  int row[kColumns];  // columns without a row repeat the last one; their results are dropped
  ColumnPair to[kColumns];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    row[n] = min(8 * n + lane / 4, unit.count - 1) * pitch;
    if (!kLate && shape.warps_k == 1) to[n] = Write::locate(p, shared.list, unit, n);
  }
  for (int item = work.first; item < work.last; ++item) {
    float4 sum[kTiles][2][kColumns] = {};
    for (int step = 0; step < shape.steps; step += kSteps) {
      const int slot = state.ring.index, offset = slot * p.config.stage_bytes;
      mbarrier_wait(&shared.weights_full[slot], state.ring.parity);
      mbarrier_wait(&shared.inputs_full[slot], state.ring.parity);
      const uint32_t seen = multiply_stage<kTiles, kColumns, kSteps>(
          sum, cells + offset, inputs + offset, row, step_input_bytes);
      __syncwarp();
      if (lane == 0) mbarrier_arrive_after(&shared.empty[slot], seen);
      state.ring.advance(p.config.stages);
    }
    const int tiles = min(kTiles, shape.blocks - item * kTiles);
    if (shape.warps_k > 1) {
      hand_over_sums(shared, state.sums, sum, tiles);
      continue;
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const ColumnPair here = kLate ? Write::locate(p, shared.list, unit, n) : to[n];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t >= tiles) break;
        const int tile = ((item * kTiles + t) * kMoeWarps + warp) * 2;
        Write::write_both(p, here, tile, sum[t][0][n], sum[t][1][n]);
      }
    }
    Write::finish(p, work.unit, 2 * tiles);
  }
}

// Hands a claim to the code for its number of rows.
template <int kTiles, int kMaxColumns, typename Write>
__device__ void multiply_claim(const MoeExpertsKernelParams& p, const MoeShared& shared,
                               MoeMultiplyState& state, const ExpertBlobShape& shape,
                               const MoeClaim& work) {
  const int columns = (shared.list.units[work.unit].count + 7) / 8;
  if (kMaxColumns == 1 || columns == 1) {
    multiply_unit<kTiles, 1, Write>(p, shared, state, shape, work);
  } else if (kMaxColumns == 2 || columns == 2) {
    multiply_unit<kTiles, 2, Write>(p, shared, state, shape, work);
  } else {
    multiply_unit<kTiles, 3, Write>(p, shared, state, shape, work);
  }
}

template <int kTiles, int kMaxColumns>
__device__ void multiply_claims(const MoeExpertsKernelParams& p, const MoeShared& shared,
                                const MoeSchedule& schedule) {
  MoeMultiplyState state;
  RingIndex claims;
  for (MoeClaim work = take_claim(shared, claims, schedule); work.valid;
       work = take_claim(shared, claims, schedule)) {
    if (work.down) {
      multiply_claim<kTiles, kMaxColumns, WritePartial>(p, shared, state, p.w2.shape, work);
    } else {
      multiply_claim<kTiles, kMaxColumns, WriteActivation>(p, shared, state, p.w13.shape, work);
    }
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
  s.claims_full = s.sums_empty + kMoeSumBuffers;
  s.claims_empty = s.claims_full + kMoeClaims;
  s.claims = reinterpret_cast<int*>(s.claims_empty + kMoeClaims);
  s.list.scan = reinterpret_cast<uint64_t*>(s.claims + kMoeClaims);
  s.list.units = reinterpret_cast<MoeUnit*>(s.list.scan + kListWarps + 1);
  s.list.pairs = reinterpret_cast<uint16_t*>(s.list.units + p.config.max_units);
  s.list.histogram = reinterpret_cast<uint16_t*>(s.stages);  // scratch: the ring is still empty
  s.list.experts = s.list.histogram + kListWarps * p.op.num_experts;
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
  for (int i = 0; i < kMoeClaims; ++i) {
    mbarrier_init(&s.claims_full[i], 1);
    mbarrier_init(&s.claims_empty[i], kMoeWarps + 1 + kMoeFinishWarps);
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
    if (warp == kMoeWeightWarp) {
      produce_weights<kTiles>(p, shared, schedule);
    } else if (warp == kMoeInputWarp) {
      produce_inputs<kTiles>(p, shared, schedule);
    } else {
      finish_claims<kTiles>(p, shared, schedule);
    }
  } else {
    acquire_registers<kManyRegisters>();
    multiply_claims<kTiles, kMaxColumns>(p, shared, schedule);
  }
}

}  // namespace coppice::kernels
