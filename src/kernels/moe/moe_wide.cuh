// Second kernel of the wide form (moe_wide.h): one persistent block per SM from the sorted list to
// the summed rows.
//
// Warpgroups have roles. Two multiply: weights become registers, the 64-row operand of wgmma, and
// the rows of the unit are its columns, in shared memory. One streams: a warp claims work and
// copies cells, two copy rows, one announces results to other blocks. The last adds up the slots of
// a chunk of 256 outputs for every token while the others work on the next chunks, so that partial
// sums are read while the L2 has them.
//
// Exactness: the sum of a group of 32 inputs, the scaled sums over groups, and the order of the
// eight segments of long inputs are those of moe_multiply.cuh and finish_unit in moe_experts.cuh.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/registers.cuh"
#include "kernels/common/ring_index.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/common/tensor_copy.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/moe/moe_multiply.cuh"
#include "kernels/moe/moe_output.cuh"
#include "kernels/moe/moe_wide_list.cuh"

namespace coppice::kernels {

inline constexpr int kWideWarps = 8;  // that multiply, one cell of an item each
inline constexpr int kWideWeightWarp = 8, kWideInputWarp = 9, kWideInputWarps = 2;
inline constexpr int kWideAnnounceWarp = kWideInputWarp + kWideInputWarps;
inline constexpr int kWideSumWarp = 12, kWideSumThreads = 128;
inline constexpr int kWideThreads = 512;
inline constexpr int kWideClaims = 4;
inline constexpr int kWideWritten = 4;          // claims written but not yet announced
inline constexpr int kWideClaimBytes = 147456;  // of weights in a claim of down, at least

// Both matrices as [blocks of all experts][steps][8 cells][1152 bytes]; a box is the eight cells
// that the multiplying warps take at once.
struct MoeWideMaps {
  CUtensorMap w13, w2;
};

// The work in the order of claims: gate and up by unit, then down by chunk of outputs.
struct WideSchedule {
  int units, items13, claims13;
  int run2, runs2, total;  // units in a claim of down, claims in a chunk
};

__device__ inline WideSchedule wide_schedule(const MoeWideKernelParams& p, int units) {
  WideSchedule s;
  s.units = units;
  s.items13 = (2 * p.op.intermediate_size + kWideOutputs - 1) / kWideOutputs;
  s.claims13 = units * s.items13;
  const int item_bytes = p.shape2.steps * p.shape2.warps_k * kStepBytes;
  s.run2 = max(1, kWideClaimBytes / item_bytes);
  s.runs2 = (units + s.run2 - 1) / s.run2;
  s.total = s.claims13 + wide_chunks(p) * s.runs2;
  return s;
}

// Item `item` (256 outputs) of units [first, last).
struct WideClaim {
  bool valid, down;
  int item, first, last;
};

__device__ inline WideClaim decode_wide_claim(const WideSchedule& s, int claim) {
  WideClaim c;
  c.valid = claim < s.total;
  c.down = claim >= s.claims13;
  if (c.down) {
    claim -= s.claims13;
    c.item = claim / s.runs2;
    c.first = (claim - c.item * s.runs2) * s.run2;
    c.last = min(s.units, c.first + s.run2);
  } else {
    c.first = claim / s.items13;
    c.item = claim - c.first * s.items13;
    c.last = c.first + 1;
  }
  return c;
}

struct WideShared {
  uint8_t* stages;  // [stages] of eight cells, then [columns] rows of 64 inputs, swizzled
  float4* sums;     // [columns / 4, 256 threads] sums over the segments before
  uint64_t *full, *empty;
  uint64_t *claims_full, *claims_empty;  // [kWideClaims]
  uint64_t *written, *announced;         // [kWideWritten]
  int* claims;                           // [kWideClaims]
  MoeWideUnit* units;                    // [max_units]
  MoeWideSlot* slots;                    // of the tokens that this block adds up
};

__device__ inline WideShared carve_wide(const MoeWideKernelParams& p, uint8_t* base) {
  WideShared s;
  s.stages = base;
  s.sums =
      reinterpret_cast<float4*>(base + p.config.stages * moe_wide_stage_bytes(p.config.columns));
  s.units = reinterpret_cast<MoeWideUnit*>(s.sums + p.config.columns / 4 * 256);
  s.full = reinterpret_cast<uint64_t*>(s.units + p.config.max_units);
  s.empty = s.full + p.config.stages;
  s.claims_full = s.empty + p.config.stages;
  s.claims_empty = s.claims_full + kWideClaims;
  s.written = s.claims_empty + kWideClaims;
  s.announced = s.written + kWideWritten;
  s.claims = reinterpret_cast<int*>(s.announced + kWideWritten);
  s.slots = reinterpret_cast<MoeWideSlot*>(s.claims + kWideClaims);
  return s;
}

// The next claim that the weight warp has published.
__device__ inline WideClaim take_wide_claim(const WideShared& shared, RingIndex& at,
                                            const WideSchedule& schedule) {
  mbarrier_wait(&shared.claims_full[at.index], at.parity);
  const int claim = shared.claims[at.index];
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive_after(&shared.claims_empty[at.index], claim);
  at.advance(kWideClaims);
  return decode_wide_claim(schedule, claim);
}

// Columns that a unit is multiplied as: those that its rows need, where registers allow the choice.
template <int kColumns>
__device__ int wide_active(int count) {
  return kColumns > 32 ? kColumns : max(16, (count + 7) / 8 * 8);
}

// ------------------------------------------------------------------------------------- producers

// Cells of one item in the order of the sums: segment by segment, steps within.
__device__ inline void copy_wide_item(const MoeWideKernelParams& p, const WideShared& shared,
                                      RingIndex& ring, const CUtensorMap* map,
                                      const ExpertBlobShape& shape, int expert, int item,
                                      uint64_t policy) {
  const int stage_bytes = moe_wide_stage_bytes(p.config.columns);
  const bool split = shape.warps_k > 1;
  const int block = expert * shape.blocks + (split ? item * kStepCells : item);
  for (int segment = 0; segment < shape.warps_k; ++segment) {
    for (int step = 0; step < shape.steps; ++step) {
      mbarrier_wait(&shared.empty[ring.index], ring.parity ^ 1);
      uint64_t* full = &shared.full[ring.index];
      mbarrier_arrive_expect(full, kStepBytes);
      tensor_copy_to_shared(shared_address(shared.stages + ring.index * stage_bytes), map, 0,
                            split ? segment : 0, step, block, full, policy);
      ring.advance(p.config.stages);
    }
  }
}

// One lane: claims work, tells the other warps, and streams its weights.
__device__ inline void produce_wide_weights(const MoeWideKernelParams& p, const MoeWideMaps& maps,
                                            const WideShared& shared,
                                            const WideSchedule& schedule) {
  uint32_t* next_claim = wide_counters(p).next_claim;
  // Weights leave the L2 first: partial sums stay until they are added up.
  const uint64_t policy = evict_first_policy();
  RingIndex ring, claims;
  int claim = blockIdx.x;
  while (true) {
    mbarrier_wait(&shared.claims_empty[claims.index], claims.parity ^ 1);
    shared.claims[claims.index] = claim;
    mbarrier_arrive(&shared.claims_full[claims.index]);
    claims.advance(kWideClaims);
    const WideClaim work = decode_wide_claim(schedule, claim);
    if (!work.valid) return;
    claim = gridDim.x + atomicAdd(next_claim, 1u);  // arrives during the copies
    for (int unit = work.first; unit < work.last; ++unit) {
      copy_wide_item(p, shared, ring, work.down ? &maps.w2 : &maps.w13,
                     work.down ? p.shape2 : p.shape13, shared.units[unit].expert, work.item,
                     policy);
    }
  }
}

// Waits until a unit's activations are complete. `all` remembers that every unit's are.
__device__ inline void wait_wide_unit(const WideCounters& counters, const WideSchedule& schedule,
                                      int unit, bool& all) {
  if (all) return;
  const uint32_t writers = schedule.items13;
  while (load_acquire(&counters.unit_done[unit]) != writers) {
  }
  all = load_acquire(counters.activations_done) == writers * schedule.units;
}

// Copies the unit's rows, 64 inputs a stage; rows and inputs that do not exist become zeros. Eight
// lanes take one row.
template <int kColumns>
__device__ void copy_wide_rows(const MoeWideKernelParams& p, const WideShared& shared,
                               RingIndex& ring, const ExpertBlobShape& shape, const void* rows,
                               const uint32_t (&row)[kColumns / 8], int count) {
  const int thread = threadIdx.x - kWideInputWarp * 32, chunk = thread % 8;
  const int stage_bytes = moe_wide_stage_bytes(kColumns);
  const uint32_t to =
      shared_address(shared.stages) + kStepBytes + thread / 8 * 128 + ((chunk ^ thread / 8) * 16);
  const auto* from = static_cast<const uint4*>(rows) + chunk;
  const int chunks = shape.inputs / 8, active = wide_active<kColumns>(count);
  for (int segment = 0; segment < shape.warps_k; ++segment) {
    for (int step = 0; step < shape.steps; ++step) {
      const int first = (step * shape.warps_k + segment) * 8;
      const bool inside = first + chunk < chunks;
      mbarrier_wait(&shared.empty[ring.index], ring.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        if (i * 8 >= active) break;
        const bool valid = inside && thread / 8 + 8 * i < count;
        copy_async_16(to + ring.index * stage_bytes + i * 1024, from + (valid ? row[i] + first : 0),
                      valid);
      }
      async_copy_arrive(&shared.full[ring.index]);
      ring.advance(p.config.stages);
    }
  }
}

template <int kColumns>
__device__ void produce_wide_rows(const MoeWideKernelParams& p, const WideShared& shared,
                                  const WideSchedule& schedule) {
  const int first_row = (threadIdx.x - kWideInputWarp * 32) / 8;
  const WideCounters counters = wide_counters(p);
  RingIndex ring, claims;
  bool all = false;
  for (WideClaim work = take_wide_claim(shared, claims, schedule); work.valid;
       work = take_wide_claim(shared, claims, schedule)) {
    for (int u = work.first; u < work.last; ++u) {
      const MoeWideUnit unit = shared.units[u];
      uint32_t row[kColumns / 8];  // in 16 bytes
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const int position = unit.begin + min(first_row + 8 * i, unit.count - 1);
        row[i] = work.down ? position * (p.op.intermediate_size / 8)
                           : p.pairs[position] / p.op.top_k * (p.op.hidden_size / 8);
      }
      if (work.down) wait_wide_unit(counters, schedule, u, all);
      copy_wide_rows<kColumns>(p, shared, ring, work.down ? p.shape2 : p.shape13,
                               work.down ? p.activation : p.x, row, unit.count);
    }
  }
}

// ------------------------------------------------------------------------------------ multiplying

// A warp's half of a cell's group: 16 rows x 32 inputs as two register operands of wgmma.
__device__ inline void wide_operand(uint32_t (&a)[2][4], uint32_t word, uint32_t word_8) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i / 2][i % 2 * 2] = nibble_pair(word, i);
    a[i / 2][i % 2 * 2 + 1] = nibble_pair(word_8, i);
  }
}

// sum += scale * group, rows g (low half of `scales`) and g + 8 (high half).
template <int kCount>
__device__ inline void add_wide(float (&sum)[kCount], const float (&group)[kCount],
                                uint32_t scales) {
  const float low = __uint_as_float(scales << 16), high = __uint_as_float(scales & 0xFFFF0000u);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sum[i] = __fmaf_rn(group[i], i % 4 < 2 ? low : high, sum[i]);
  }
}

template <int kColumns, int kActive>
struct WideMultiply {
  static constexpr int kCount = kActive / 2;  // elements of D a thread
  static constexpr int kSum4s = kCount / 4;

  const MoeWideKernelParams& p;
  const WideShared& shared;
  RingIndex& ring;
  float sum[2][kCount], group[2][kCount];
  uint32_t operand[2][2][4];
  struct {
    uint4 first, second, scales;  // of groups 0 and 1, and both
    WgmmaOperand rows;
  } cell;  // the loaded one

  __device__ WideMultiply(const MoeWideKernelParams& params, const WideShared& memory,
                          RingIndex& stages)
      : p(params), shared(memory), ring(stages) {}

  __device__ void start_half(int half, int g) {
    wgmma_fence();
    wgmma_rs(group[half], operand[half][0], cell.rows.at(g * 64), 0);
    wgmma_rs(group[half], operand[half][1], cell.rows.at(g * 64 + 32), 1);
    wgmma_commit();
  }
  template <int kPending>
  __device__ void end_half(int half, uint32_t scales) {
    wgmma_wait<kPending>();
    wgmma_hold(group[half]);
    wgmma_hold(operand[half][0]);
    wgmma_hold(operand[half][1]);
    add_wide(sum[half], group[half], scales);
  }

  // Takes the next stage and reads the warp's cell.
  __device__ void load_cell() {
    const int lane = threadIdx.x % 32;
    const uint8_t* stage = shared.stages + ring.index * moe_wide_stage_bytes(kColumns);
    const uint8_t* from = stage + threadIdx.x / 32 * kCellBytes;
    mbarrier_wait(&shared.full[ring.index], ring.parity);
    fence_proxy_async();  // the rows were written by ordinary copies
    cell.first = *reinterpret_cast<const uint4*>(from + lane * 16);
    cell.second = *reinterpret_cast<const uint4*>(from + 512 + lane * 16);
    cell.scales = *reinterpret_cast<const uint4*>(from + 1024 + lane / 4 * 16);
    cell.rows = wgmma_k_major(shared_address(stage + kStepBytes));
    ring.advance(p.config.stages);
  }

  // The loaded cell times all rows, and the load of the next one. One half's MMAs run while the
  // other half's weights become registers and its sums are scaled.
  __device__ void multiply_cell(bool more) {
    start_half(0, 0);
    wide_operand(operand[1], cell.first.z, cell.first.w);
    start_half(1, 0);
    end_half<1>(0, cell.scales.x);
    wide_operand(operand[0], cell.second.x, cell.second.y);
    start_half(0, 1);
    end_half<1>(1, cell.scales.y);
    wide_operand(operand[1], cell.second.z, cell.second.w);
    start_half(1, 1);
    const uint2 scales = make_uint2(cell.scales.z, cell.scales.w);
    uint64_t* empty = &shared.empty[(ring.index > 0 ? ring.index : p.config.stages) - 1];
    if (more) load_cell();
    end_half<1>(0, scales.x);
    wide_operand(operand[0], cell.first.x, cell.first.y);
    end_half<0>(1, scales.y);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
  }

  // The sums of one item, in `sum`. Long inputs: eight segments, added in order.
  __device__ void multiply_item(int segments, int steps) {
    float4* before = shared.sums + threadIdx.x;
    load_cell();
    wide_operand(operand[0], cell.first.x, cell.first.y);
    for (int segment = 0; segment < segments; ++segment) {
      const bool last = segment == segments - 1;
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[0][i] = sum[1][i] = 0.0f;
      for (int step = 0; step < steps; ++step) {
        multiply_cell(!last || step < steps - 1);
      }
      if (segments > 1) add_segments(before, segment == 0, last);
    }
  }

  __device__ void add_segments(float4* before, bool first, bool last) {
#pragma unroll
    for (int i = 0; i < 2 * kSum4s; ++i) {
      float* mine = &sum[i / kSum4s][i % kSum4s * 4];
      float4 total = first ? make_float4(0, 0, 0, 0) : before[i * 256];
      total.x = __fadd_rn(total.x, mine[0]);
      total.y = __fadd_rn(total.y, mine[1]);
      total.z = __fadd_rn(total.z, mine[2]);
      total.w = __fadd_rn(total.w, mine[3]);
      if (last) {
        mine[0] = total.x, mine[1] = total.y, mine[2] = total.z, mine[3] = total.w;
      } else {
        before[i * 256] = total;
      }
    }
  }

  __device__ float4 whole_at(int half, int i) const {
    return whole(make_float4(sum[half][i], sum[half][i + 1], sum[half][i + 2], sum[half][i + 3]));
  }

  // Rows g of a tile hold gate, rows g + 8 up, of eight features.
  __device__ void write_activations(const MoeWideUnit& unit, int item) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int tile = (item * kWideWarps + threadIdx.x / 32) * 2 + half;
      const int feature = tile * 8 + lane / 4;
      if (feature >= p.op.intermediate_size) continue;
      __nv_bfloat16* to = p.activation + int64_t{unit.begin} * p.op.intermediate_size +
                          feature / kQuantGroup * kQuantGroup +
                          wide_input_position(feature % kQuantGroup);
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const int column = i * 2 + lane % 4 * 2;
        const float4 s = whole_at(half, i);
        if (column < unit.count) {
          to[int64_t{column} * p.op.intermediate_size] = swiglu(s.x, s.z);
        }
        if (column + 1 < unit.count) {
          to[int64_t{column + 1} * p.op.intermediate_size] = swiglu(s.y, s.w);
        }
      }
    }
  }

  __device__ void write_partial(const MoeWideUnit& unit, int chunk) {
    const int lane = threadIdx.x % 32;
    const int64_t num_pairs = int64_t{p.op.num_tokens} * p.op.top_k;
    float* rows =
        p.partial + (chunk % kWideBuffers * num_pairs + unit.begin) * kWideOutputs + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* to = rows + (threadIdx.x / 32 * 2 + half) * 16;
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const int column = i * 2 + lane % 4 * 2;
        const float4 s = whole_at(half, i);
        if (column < unit.count) {
          to[column * kWideOutputs] = s.x;
          to[column * kWideOutputs + 8] = s.z;
        }
        if (column + 1 < unit.count) {
          to[(column + 1) * kWideOutputs] = s.y;
          to[(column + 1) * kWideOutputs + 8] = s.w;
        }
      }
    }
  }
};

struct WideState {
  RingIndex ring;
  int free_chunks = kWideBuffers;  // chunks below this may be written
};

template <int kColumns, int kActive>
__device__ void multiply_wide_unit(const MoeWideKernelParams& p, const WideShared& shared,
                                   WideState& state, const MoeWideUnit& unit,
                                   const WideClaim& work) {
  const WideCounters counters = wide_counters(p);
  WideMultiply<kColumns, kActive> multiply(p, shared, state.ring);
  multiply.multiply_item(work.down ? p.shape2.warps_k : p.shape13.warps_k,
                         work.down ? p.shape2.steps : p.shape13.steps);
  if (!work.down) {
    multiply.write_activations(unit, work.item);
    return;
  }
  while (work.item >= state.free_chunks) {
    state.free_chunks +=
        load_acquire(&counters.chunk_free[state.free_chunks - kWideBuffers]) == gridDim.x;
  }
  multiply.write_partial(unit, work.item);
}

template <int kColumns>
__device__ void multiply_wide_claims(const MoeWideKernelParams& p, const WideShared& shared,
                                     const WideSchedule& schedule) {
  WideState state;
  RingIndex claims, written;
  for (WideClaim work = take_wide_claim(shared, claims, schedule); work.valid;
       work = take_wide_claim(shared, claims, schedule)) {
    for (int u = work.first; u < work.last; ++u) {
      const MoeWideUnit unit = shared.units[u];
      const int active = wide_active<kColumns>(unit.count);
      if (kColumns == 32 && active == 16) {
        multiply_wide_unit<kColumns, 16>(p, shared, state, unit, work);
      } else if (kColumns == 32 && active == 24) {
        multiply_wide_unit<kColumns, 24>(p, shared, state, unit, work);
      } else {
        multiply_wide_unit<kColumns, kColumns>(p, shared, state, unit, work);
      }
    }
    mbarrier_wait(&shared.announced[written.index], written.parity ^ 1);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.written[written.index]);
    written.advance(kWideWritten);
  }
}

// One warp tells the other blocks, once a claim, what the multiplying warps have written: the fence
// before each announcement would cost them a microsecond.
__device__ inline void announce_wide_items(const MoeWideKernelParams& p, const WideShared& shared,
                                           const WideSchedule& schedule) {
  const WideCounters counters = wide_counters(p);
  RingIndex claims, written;
  for (WideClaim work = take_wide_claim(shared, claims, schedule); work.valid;
       work = take_wide_claim(shared, claims, schedule)) {
    mbarrier_wait(&shared.written[written.index], written.parity);
    if (threadIdx.x % 32 == 0) {
      mbarrier_arrive(&shared.announced[written.index]);
      if (work.down) {
        add_release(&counters.chunk_done[work.item], static_cast<uint32_t>(work.last - work.first));
      } else {
        add_release(&counters.unit_done[work.first], 1);
        add_release(counters.activations_done, 1);
      }
    }
    __syncwarp();
    written.advance(kWideWritten);
  }
}

// ---------------------------------------------------------------------------------------- results

// Four outputs of two tokens (or of one, `count`): slots in order, then the shared expert. Their
// loads are on their way together: one token's at a time are too few bytes. `slots` are of tokens
// that the block's halves take in turn, `at` is the first token's element.
__device__ inline void sum_wide_tokens(const MoeExpertsParams& op, const MoeWideSlot* slots,
                                       const float* chunk, int64_t at, int64_t stride, int count) {
  constexpr int kTokens = 2, kSlots = 8;
  float4 sum[kTokens] = {}, shared_expert[kTokens] = {};
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (op.shared && t < count) shared_expert[t] = load_shared_expert(op, at + t * stride);
  }
  for (int first = 0; first < op.top_k; first += kSlots) {
    float4 row[kTokens][kSlots];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        const bool inside = t < count && first + i < op.top_k;
        const int position = inside ? slots[t * 2 * op.top_k + first + i].position : -1;
        if (position >= 0) {
          row[t][i] =
              __ldcg(reinterpret_cast<const float4*>(chunk + int64_t{position} * kWideOutputs));
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        if (t >= count || first + i >= op.top_k) break;
        const MoeWideSlot slot = slots[t * 2 * op.top_k + first + i];
        if (slot.position >= 0) add_slot(sum[t], slot.weight, row[t][i]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= count) break;
    if (op.shared) add_to(sum[t], shared_expert[t]);
    store_combined(op, at + t * stride, sum[t]);
  }
}

// Adds up every chunk of outputs when all its partial sums are there. Half of the threads take two
// tokens, half two others.
__device__ inline void sum_wide_chunks(const MoeWideKernelParams& p, const WideShared& shared,
                                       const WideSchedule& schedule) {
  constexpr int kBarrier = 1;
  const MoeExpertsParams& op = p.op;
  const int thread = threadIdx.x - kWideSumWarp * 32, offset = thread % 64 * 4;
  const int first = blockIdx.x * 2, stride = gridDim.x * 2;
  const WideCounters counters = wide_counters(p);
  const uint32_t writers = static_cast<uint32_t>(schedule.units);
  const int64_t num_pairs = int64_t{op.num_tokens} * op.top_k;
  for (int i = thread; i < moe_wide_block_slots(op.num_tokens, op.top_k, gridDim.x);
       i += kWideSumThreads) {
    const int token = first + i / op.top_k / 2 * stride + i / op.top_k % 2;
    if (token >= op.num_tokens) continue;
    const int pair = token * op.top_k + i % op.top_k;
    shared.slots[i] = {wide_expert(op, pair) < 0 ? -1 : p.positions[pair], op.topk_weights[pair]};
  }
  for (int chunk = 0; chunk < wide_chunks(p); ++chunk) {
    if (thread == 0) {
      while (load_acquire(&counters.chunk_done[chunk]) != writers) {
      }
    }
    named_barrier_sync(kBarrier, kWideSumThreads);
    const int column = chunk * kWideOutputs + offset;
    if (column < op.hidden_size) {
      const float* rows = p.partial + chunk % kWideBuffers * num_pairs * kWideOutputs + offset;
      const MoeWideSlot* slots = shared.slots + thread / 64 * op.top_k;
      for (int token = first + thread / 64; token < op.num_tokens; token += 2 * stride) {
        sum_wide_tokens(op, slots, rows, int64_t{token} * op.hidden_size + column,
                        int64_t{stride} * op.hidden_size, token + stride < op.num_tokens ? 2 : 1);
        slots += 4 * op.top_k;
      }
    }
    named_barrier_sync(kBarrier, kWideSumThreads);
    if (thread == 0) add_release(&counters.chunk_free[chunk], 1);
  }
}

// ----------------------------------------------------------------------------------------- kernel

__device__ inline void init_wide_barriers(const MoeWideKernelParams& p, const WideShared& s) {
  for (int i = 0; i < p.config.stages; ++i) {
    mbarrier_init(&s.full[i], 1 + 32 * kWideInputWarps);
    mbarrier_init(&s.empty[i], kWideWarps);
  }
  for (int i = 0; i < kWideClaims; ++i) {
    mbarrier_init(&s.claims_full[i], 1);
    mbarrier_init(&s.claims_empty[i], kWideWarps + kWideInputWarps + 1);
  }
  for (int i = 0; i < kWideWritten; ++i) {
    mbarrier_init(&s.written[i], kWideWarps);
    mbarrier_init(&s.announced[i], 1);
  }
  mbarrier_init_fence();
}

template <int kColumns>
__global__ void __launch_bounds__(kWideThreads, 1)
    moe_wide_kernel(const __grid_constant__ MoeWideKernelParams p,
                    const __grid_constant__ MoeWideMaps maps) {
  extern __shared__ __align__(1024) uint8_t wide_shared[];
  const WideShared shared = carve_wide(p, wide_shared);
  if (threadIdx.x == 0) init_wide_barriers(p, shared);
  grid_dependency_wait();
  grid_dependency_launch();
  const int units = static_cast<int>(*wide_counters(p).num_units);
  for (int i = threadIdx.x; i < units; i += kWideThreads) shared.units[i] = p.units[i];
  __syncthreads();
  const WideSchedule schedule = wide_schedule(p, units);
  const int warp = threadIdx.x / 32;
  if (warp < kWideWarps) {
    acquire_registers<168>();
    multiply_wide_claims<kColumns>(p, shared, schedule);
  } else if (warp < kWideSumWarp) {
    release_registers<56>();
    if (warp == kWideWeightWarp) {
      if (threadIdx.x % 32 == 0) produce_wide_weights(p, maps, shared, schedule);
    } else if (warp < kWideAnnounceWarp) {
      produce_wide_rows<kColumns>(p, shared, schedule);
    } else {
      announce_wide_items(p, shared, schedule);
    }
  } else {
    release_registers<120>();
    sum_wide_chunks(p, shared, schedule);
  }
}

}  // namespace coppice::kernels
