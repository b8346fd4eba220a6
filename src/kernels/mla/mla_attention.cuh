// MLA attention on Hopper: one persistent CTA per SM walks its fragments, runs of chunks of a tile.
//
// A tile is 64 query rows (tokens x heads) of one sequence; a step is one cache block of 64 keys, a
// 64 x 576 tile whose first 512 columns are also the values. Two math warpgroups share the 64 x 512
// accumulator by columns and take turns: warpgroup i % 2 computes scores and softmax of step i and
// hands its weights to the other through shared memory (the rope columns of the key tile, which are
// no longer needed). One warp feeds the two key buffers with tensor copies.
//
// Exactness: every step updates (m, l, O) of a row in position order from a chunk's start; chunk
// results merge in a binary tree over the chunk index. Prompt rows are one chunk, whose last step
// is masked. In the form for decided rows, steps with undecided positions (tail passes) gather each
// token's keys by position with ldmatrix addresses and use mma.sync, whose bits equal wgmma's
// (docs/results/mla-h200.md).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/mla/mla_key_copy.cuh"
#include "kernels/mla/mla_work.cuh"

namespace coppice::kernels {

constexpr int kMlaRank = 512;
constexpr int kMlaWidth = 576;
constexpr int kMlaColumnBlocks = kMlaWidth / 64;
constexpr int kMlaColumnBlockBytes = 64 * 128;
constexpr int kMlaKeyTileBytes = kMlaColumnBlocks * kMlaColumnBlockBytes;
constexpr int kMlaRopeBlock = 8 * kMlaColumnBlockBytes;  // offset inside a key tile
constexpr int kMlaPieces =
    5;  // copies that bring a key tile: two column blocks each, then the rope
constexpr int kMlaMathThreads = 256;
constexpr int kMlaThreads = kMlaMathThreads + 128;  // the third warpgroup uses one warp

// Named barriers; 0 is __syncthreads.
constexpr int kMlaWeightsReady = 1;  // + warpgroup
constexpr int kMlaMathBarrier = 3;
constexpr int kMlaClearBarrier = 4;  // + warpgroup

struct MlaShared {
  char q[kMlaKeyTileBytes];
  char keys[2][kMlaKeyTileBytes];
  char tail_weights[kMlaColumnBlockBytes];  // bf16 [64 rows][64 positions], swizzled
  float row_max[2][kMlaTileRows];           // after the warpgroup's latest step
  float rescale[2][kMlaTileRows];           // factor of O at that step
  float sum[2][2][kMlaTileRows];            // [chunk parity][warpgroup]
  MlaTailPass pass;
  uint64_t full[2][kMlaPieces];  // a piece of the key tile has arrived
  uint64_t empty[2][2];          // [buffer][warpgroup]: the warpgroup has used its value columns
  uint64_t tail_done;
};
static_assert(sizeof(MlaShared) <= 227 * 1024);

// The value of every partial result, the last one included, is rounded to half precision, so that a
// merge in registers equals one through memory and a merge with an empty side changes nothing.
__device__ __forceinline__ float mla_round_partial(float x) {
  return __half2float(__float2half_rn(x));
}

// What a math thread keeps of its two rows (lane / 4 and lane / 4 + 8 of its warp's 16) and of its
// warpgroup's 256 columns: o[4n + 2h + e] is row h, column 8n + 2 (lane % 4) + e.
struct MlaState {
  float o[128];
  float m[2];      // running maximum of raw scores
  float m_own[2];  // the maximum that l is scaled by
  float l[2];      // sum of weights over this warpgroup's steps
};

struct MlaThread {
  int warpgroup, warp, lane;  // warp inside the warpgroup
  __device__ int row(int half) const { return warp * 16 + half * 8 + lane / 4; }
};

__device__ __forceinline__ void mla_barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kMlaMathThreads) : "memory");
}
__device__ __forceinline__ void mla_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kMlaMathThreads) : "memory");
}

__device__ __forceinline__ uint32_t mla_pack(float x, float y) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&v);
}

__device__ __forceinline__ void mla_rescale(float (&o)[128], float a0, float a1) {
  if (!__any_sync(~0u, a0 != 1.f || a1 != 1.f)) return;
#pragma unroll
  for (int n = 0; n < 32; n++) {
    o[4 * n] *= a0, o[4 * n + 1] *= a0;
    o[4 * n + 2] *= a1, o[4 * n + 3] *= a1;
  }
}

// Starts scores (+)= q keys^T over column blocks [begin, end) of the nine, for a step of the given
// parity; with kWait, after waiting for each piece of the keys. Odd steps take columns 256 to 511
// first: their buffer is refilled in that order.
template <bool kWait>
__device__ __forceinline__ void mla_start_scores(float (&s)[32], uint32_t q, uint32_t keys,
                                                 int step_parity, uint64_t* full, uint32_t phase,
                                                 int begin, int end) {
  const WgmmaOperand a = wgmma_k_major(q), k = wgmma_k_major(keys);
#pragma unroll kMlaColumnBlocks
  for (int i = begin; i < end; i++) {
    const int block = i == 8 ? 8 : i ^ (step_parity * 4);
    if (kWait && i % 2 == 0) mbarrier_wait(full + block / 2, phase);
    wgmma_fence();
    const uint32_t offset = block * kMlaColumnBlockBytes;
#pragma unroll
    for (int j = 0; j < 4; j++)
      wgmma_m64n64_ss(s, a.at(offset + 32 * j), k.at(offset + 32 * j), i + j > 0);
  }
  wgmma_commit();
}

// One softmax step over 64 scores of a row spread over four lanes: updates m, l; leaves the weights
// in p as MMA operand fragments and the factor for O in `alpha`. A row that sees no key here keeps
// its state.
__device__ __forceinline__ void mla_softmax(MlaState& st, const float (&s)[32], float scale,
                                            uint32_t (&p)[16], float (&alpha)[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; n++) top = fmaxf(top, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float m = fmaxf(st.m[h], top);
    const float base = m == -INFINITY ? 0.f : __fmul_rn(m, scale);
    alpha[h] = m == -INFINITY ? 1.f : exp2_approx(__fsub_rn(__fmul_rn(st.m[h], scale), base));
    if (top != -INFINITY) {
      st.l[h] = __fmul_rn(st.l[h], exp2_approx(__fsub_rn(__fmul_rn(st.m_own[h], scale), base)));
      st.m_own[h] = m;
    }
    st.m[h] = m;
#pragma unroll
    for (int n = 0; n < 8; n++)
      p[2 * n + h] = mla_pack(exp2_approx(__fmaf_rn(s[4 * n + 2 * h], scale, -base)),
                              exp2_approx(__fmaf_rn(s[4 * n + 2 * h + 1], scale, -base)));
  }
  // The sum of the rounded weights, as one more value column that is 1 for every key.
  constexpr uint32_t kOnes = 0x3F803F80;
  float4 sum = make_float4(st.l[0], st.l[0], st.l[1], st.l[1]);
#pragma unroll
  for (int g = 0; g < 4; g++)
    sum = mma_m16n8k16_bf16(p[4 * g], p[4 * g + 1], p[4 * g + 2], p[4 * g + 3], kOnes, kOnes, sum);
  st.l[0] = sum.x, st.l[1] = sum.z;
}

// Publishes a step's weights, maxima and factors; the caller orders them with a barrier.
__device__ __forceinline__ void mla_store_weights(MlaShared* sm, const MlaThread& th,
                                                  const MlaState& st, const uint32_t (&p)[16],
                                                  const float (&alpha)[2], uint32_t weights) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const uint32_t row = th.row(h);
#pragma unroll
    for (int n = 0; n < 8; n++)
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(weights + row * 128 + ((n ^ (row & 7)) << 4) +
                                                   th.lane % 4 * 4),
                   "r"(p[2 * n + h])
                   : "memory");
    if (th.lane % 4 == 0) {
      sm->row_max[th.warpgroup][row] = st.m[h];
      sm->rescale[th.warpgroup][row] = alpha[h];
    }
  }
}

__device__ __forceinline__ void mla_release(uint64_t* barrier, int lane) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive(barrier);
}

// Takes over the other warpgroup's maxima and starts O += weights values for its step.
__device__ __forceinline__ void mla_start_other_values(MlaShared* sm, const MlaThread& th,
                                                       MlaState& st) {
  const int other = 1 - th.warpgroup;
  mla_barrier_sync(kMlaWeightsReady + other);
  st.m[0] = sm->row_max[other][th.row(0)];
  st.m[1] = sm->row_max[other][th.row(1)];
  mla_rescale(st.o, sm->rescale[other][th.row(0)], sm->rescale[other][th.row(1)]);
  const uint32_t keys = shared_address(sm->keys[other]);
  const WgmmaOperand a = wgmma_k_major(keys + kMlaRopeBlock);
  const WgmmaOperand v =
      wgmma_n_major(keys + th.warpgroup * 4 * kMlaColumnBlockBytes, kMlaColumnBlockBytes);
  wgmma_hold(st.o);
  wgmma_fence();
#pragma unroll
  for (int g = 0; g < 4; g++) wgmma_m64n256_ss(st.o, a.at(32 * g), v.at(2048 * g), 1);
  wgmma_commit();
}

// A step that is only partly visible: columns from `limit` on are not seen, by half of the warp's
// rows. Keys from `keys_end` on are not there yet.
struct MlaMask {
  int limit[2];
  int keys_end;
  int step;  // of the chunk; -1: none
};

// Waits for the keys of a step and clears those that are not there: NaN times 0 is NaN.
__device__ __forceinline__ void mla_clear_keys(MlaShared* sm, const MlaThread& th, int keys_end,
                                               uint32_t phase) {
  for (int i = 0; i < kMlaPieces; i++) mbarrier_wait(&sm->full[th.warpgroup][i], phase);
  const int thread = threadIdx.x % 128;
  for (int i = thread; i < (kMlaStepPositions - keys_end) * kMlaColumnBlocks * 8; i += 128) {
    const int row = keys_end + i / (kMlaColumnBlocks * 8), chunk = i % (kMlaColumnBlocks * 8);
    *reinterpret_cast<uint4*>(sm->keys[th.warpgroup] + chunk / 8 * kMlaColumnBlockBytes +
                              row * 128 + chunk % 8 * 16) = make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async();
  named_barrier_sync(kMlaClearBarrier + th.warpgroup, 128);
}

// One step of this warpgroup's turn. Unless it is the chunk's first, the other warpgroup's previous
// step is applied to O once half of the keys are here: waiting for all of them would hold up the
// buffer which that step occupies.
template <bool kFirst>
__device__ __forceinline__ void mla_own_step(MlaShared* sm, const MlaThread& th, MlaState& st,
                                             float scale, uint32_t phase, const MlaMask& mask,
                                             bool masked) {
  const int own = th.warpgroup;
  const uint32_t q = shared_address(sm->q), keys = shared_address(sm->keys[own]);
  float s[32], alpha[2];
  uint32_t p[16];
  if (masked) mla_clear_keys(sm, th, mask.keys_end, phase);
  if constexpr (kFirst) {
    mla_start_scores<true>(s, q, keys, own, sm->full[own], phase, 0, kMlaColumnBlocks);
  } else {
    mla_start_scores<true>(s, q, keys, own, sm->full[own], phase, 0, 4);
    mla_start_other_values(sm, th, st);
    mla_start_scores<true>(s, q, keys, own, sm->full[own], phase, 4, kMlaColumnBlocks);
    wgmma_wait<1>();
    wgmma_hold(st.o);
    mla_release(&sm->empty[1 - own][own], th.lane);
  }
  wgmma_wait<0>();
  wgmma_hold(s);
  if (masked) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
      if (i / 4 * 8 + th.lane % 4 * 2 + i % 2 >= mask.limit[i / 2 % 2]) s[i] = -INFINITY;
    }
  }
  mla_softmax(st, s, scale, p, alpha);
  mla_store_weights(sm, th, st, p, alpha, keys + kMlaRopeBlock);
  fence_proxy_async();
  mla_barrier_arrive(kMlaWeightsReady + own);
  mla_rescale(st.o, alpha[0], alpha[1]);
  const WgmmaOperand v = wgmma_n_major(keys + own * 4 * kMlaColumnBlockBytes, kMlaColumnBlockBytes);
  wgmma_hold(st.o);
  wgmma_fence();
#pragma unroll
  for (int g = 0; g < 4; g++) {
    const uint32_t a[4] = {p[4 * g], p[4 * g + 1], p[4 * g + 2], p[4 * g + 3]};
    wgmma_m64n256_rs(st.o, a, v.at(2048 * g), 1);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold(st.o);
  wgmma_hold(p);
  mla_release(&sm->empty[own][own], th.lane);
}

// The first `num_steps` steps of a chunk. All keys are visible to all rows, but for those of the
// masked step.
__device__ __forceinline__ void mla_full_steps(MlaShared* sm, const MlaThread& th, MlaState& st,
                                               int num_steps, float scale, uint32_t& uses,
                                               const MlaMask& mask) {
  int i = th.warpgroup;
  if (i == 0 && num_steps > 0) {
    mla_own_step<true>(sm, th, st, scale, uses++ & 1, mask, mask.step == 0);
    i = 2;
  }
  for (; i < num_steps; i += 2)
    mla_own_step<false>(sm, th, st, scale, uses++ & 1, mask, mask.step == i);
  if (num_steps > 0 && (num_steps - 1) % 2 != th.warpgroup) {
    mla_start_other_values(sm, th, st);
    wgmma_wait<0>();
    wgmma_hold(st.o);
    mla_release(&sm->empty[1 - th.warpgroup][th.warpgroup], th.lane);
  }
}

// Copies one row of 576 values into a swizzled tile; four threads share a row.
__device__ __forceinline__ void mla_copy_row(uint32_t tile, int row, int quarter,
                                             const char* latent, const char* rope, bool valid) {
  const uint32_t to = tile + row * 128;
#pragma unroll
  for (int i = 0; i < 18; i++) {
    const int chunk = 4 * i + quarter;  // 16 bytes each; the last 8 are the rope part
    const char* from = i < 16 ? latent + chunk * 16 : rope + (chunk - 64) * 16;
    copy_async_16(to + i / 2 * kMlaColumnBlockBytes + ((chunk % 8 ^ (row & 7)) << 4), from, valid);
  }
}

// Where row `r`, column `c` of the exchanged scores lies: the rope columns of both key tiles.
__device__ __forceinline__ float* mla_exchange(MlaShared* sm, int r, int c) {
  return reinterpret_cast<float*>(sm->keys[r / 32] + kMlaRopeBlock) + r % 32 * 64 +
         (c ^ ((r & 7) << 3));
}

// Starts the copy of a tail pass's description.
__device__ __forceinline__ void mla_fetch_pass(MlaShared* sm, const MlaTailPass& pass) {
  const int i = threadIdx.x * 16;
  if (i < static_cast<int>(sizeof(MlaTailPass)))
    copy_async_16(shared_address(&sm->pass) + i, reinterpret_cast<const char*>(&pass) + i, true);
}

// Brings the keys of a tail pass: tile 0 from the block table, tile 1 from the list of slots.
__device__ __forceinline__ void mla_gather_tail(MlaShared* sm, const MlaAttentionParams& p,
                                                const MlaTile& tile) {
  const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
  const char* cache = static_cast<const char*>(p.cache);
#pragma unroll 1
  for (int t = 0; t < 2; t++) {
    if (row >= (t == 0 ? sm->pass.num_from_table : sm->pass.num_listed)) continue;
    const int64_t slot =
        t == 0 ? int64_t{p.block_tables[int64_t{tile.seq} * p.max_blocks + sm->pass.step]} *
                         kMlaStepPositions +
                     row
               : sm->pass.slot[row];
    mla_copy_row(shared_address(sm->keys[t]), row, quarter, cache + slot * kMlaWidth * 2,
                 cache + (slot * kMlaWidth + kMlaRank) * 2, true);
  }
  copy_async_wait_all();
  fence_proxy_async();
  mla_barrier_sync(kMlaMathBarrier);
}

// O += weights values with each token's keys gathered by position.
__device__ __forceinline__ void mla_tail_values(MlaShared* sm, const MlaThread& th, MlaState& st,
                                                int num_nodes, int padded_heads) {
  const bool one_node = padded_heads >= 16;  // both octets of a warp belong to one token
  const uint32_t weights = shared_address(sm->tail_weights);
  const int a_row = th.warp * 16 + th.lane % 16;
  for (int half = 0; half < (one_node ? 1 : 2); half++) {
    const int node = (2 * th.warp + half) * 8 / padded_heads;
    if (node >= num_nodes) continue;
    for (int g = 0; g < 4; g++) {
      if (sm->pass.column[node][16 * g] & kMlaMasked) break;  // beyond the token
      uint32_t a[4], b[4];
      ldmatrix_x4(a, weights + a_row * 128 + (((2 * g + th.lane / 16) ^ (a_row & 7)) << 4));
      if (!one_node && half == 0) a[1] = a[3] = 0;
      if (!one_node && half == 1) a[0] = a[2] = 0;
      const int code = sm->pass.column[node][16 * g + th.lane % 16] & ~kMlaMasked;
      const int key = code & (kMlaStepPositions - 1);
      const uint32_t base = shared_address(sm->keys[code & kMlaFromTable ? 0 : 1]) + key * 128 +
                            th.warpgroup * 4 * kMlaColumnBlockBytes;
#pragma unroll
      for (int n = 0; n < 16; n++) {
        ldmatrix_x4_transposed(b, base + n / 4 * kMlaColumnBlockBytes +
                                      (((n % 4 * 2 + th.lane / 16) ^ (key & 7)) << 4));
        float* o = st.o + 8 * n;
        float4 d = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], b[0], b[1],
                                     make_float4(o[0], o[1], o[2], o[3]));
        o[0] = d.x, o[1] = d.y, o[2] = d.z, o[3] = d.w;
        d = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], b[2], b[3],
                              make_float4(o[4], o[5], o[6], o[7]));
        o[4] = d.x, o[5] = d.y, o[6] = d.z, o[7] = d.w;
      }
    }
  }
}

// One step whose positions are undecided, invisible or missing for some row. `owner` is the
// warpgroup whose turn the step is. Both key buffers must be free.
__device__ __forceinline__ void mla_tail_pass(MlaShared* sm, const MlaThread& th, MlaState& st,
                                              const MlaAttentionParams& p, const MlaTile& tile,
                                              int owner, int padded_heads, float scale) {
  copy_async_wait_all();
  mla_barrier_sync(kMlaMathBarrier);
  mla_gather_tail(sm, p, tile);
  const bool owns = th.warpgroup == owner;
  const bool listed = sm->pass.num_listed > 0;
  float s[32], alpha[2];
#pragma unroll
  for (int i = 0; i < 32; i++) s[i] = 0;
  if (owns ? sm->pass.num_from_table > 0 : listed) {
    mla_start_scores<false>(s, shared_address(sm->q), shared_address(sm->keys[owns ? 0 : 1]), owner,
                            nullptr, 0, 0, kMlaColumnBlocks);
    wgmma_wait<0>();
    wgmma_hold(s);
  }
  mla_barrier_sync(kMlaMathBarrier);
  if (!owns && listed) {
#pragma unroll
    for (int i = 0; i < 32; i += 2)
      *reinterpret_cast<float2*>(mla_exchange(sm, th.row(i / 2 % 2), i / 4 * 8 + th.lane % 4 * 2)) =
          make_float2(s[i], s[i + 1]);
  }
  mla_barrier_sync(kMlaMathBarrier);
  if (owns) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = th.row(h);
      const uint8_t* columns = sm->pass.column[row / padded_heads] + th.lane % 4 * 2;
      const float* exchanged = mla_exchange(sm, row, 0) - (row & 7) * 8;
#pragma unroll
      for (int n = 0; n < 8; n++) {
        const uint32_t pair = *reinterpret_cast<const uint16_t*>(columns + 8 * n);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const uint32_t code = pair >> (8 * e) & 0xFF;
          const float other = exchanged[(code & 63) ^ ((row & 7) << 3)];
          float& score = s[4 * n + 2 * h + e];
          score = code & kMlaMasked ? -INFINITY : code & kMlaFromTable ? score : other;
        }
      }
    }
    uint32_t w[16];
    mla_softmax(st, s, scale, w, alpha);
    mla_store_weights(sm, th, st, w, alpha, shared_address(sm->tail_weights));
  }
  mla_barrier_sync(kMlaMathBarrier);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    st.m[h] = sm->row_max[owner][th.row(h)];
    alpha[h] = sm->rescale[owner][th.row(h)];
  }
  mla_rescale(st.o, alpha[0], alpha[1]);
  mla_tail_values(sm, th, st, tile.num_nodes, padded_heads);
}

// Queries of a tile into shared memory; unused rows become zero.
__device__ __forceinline__ void mla_load_queries(MlaShared* sm, const MlaAttentionParams& p,
                                                 const MlaTile& tile, int padded_heads) {
  const int r = threadIdx.x / 4, node = r / padded_heads, head = r % padded_heads;
  const bool valid = node < tile.num_nodes && head < p.num_heads;
  const int64_t row = tile.first_row + (valid ? node : 0), h = valid ? head : 0;
  mla_copy_row(
      shared_address(sm->q), r, threadIdx.x % 4,
      static_cast<const char*>(p.q_lat) + (row * p.num_heads + h) * kMlaRank * 2,
      static_cast<const char*>(p.q_pe) + (row * p.q_pe_row_stride + h * p.q_pe_head_stride) * 2,
      valid);
  copy_async_wait_all();
  fence_proxy_async();
  mla_barrier_sync(kMlaMathBarrier);
}

__device__ __forceinline__ void mla_clear_state(MlaState& st) {
#pragma unroll
  for (int i = 0; i < 128; i++) st.o[i] = 0;
  st.m[0] = st.m[1] = st.m_own[0] = st.m_own[1] = -INFINITY;
  st.l[0] = st.l[1] = 0;
}

// Adds the sums of both warpgroups and divides O by them.
__device__ __forceinline__ void mla_normalise(MlaShared* sm, const MlaThread& th, MlaState& st,
                                              int parity, float scale) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float m = st.m[h] == -INFINITY ? 0.f : __fmul_rn(st.m[h], scale);
    const float l = __fmul_rn(st.l[h], exp2_approx(__fsub_rn(__fmul_rn(st.m_own[h], scale), m)));
    if (th.lane % 4 == 0) sm->sum[parity][th.warpgroup][th.row(h)] = l;
  }
  mla_barrier_sync(kMlaMathBarrier);
#pragma unroll
  for (int h = 0; h < 2; h++)
    st.l[h] = __fadd_rn(sm->sum[parity][0][th.row(h)], sm->sum[parity][1][th.row(h)]);
  const float i0 = st.l[0] > 0 ? __frcp_rn(st.l[0]) : 0.f;
  const float i1 = st.l[1] > 0 ? __frcp_rn(st.l[1]) : 0.f;
#pragma unroll
  for (int n = 0; n < 32; n++) {
    st.o[4 * n] *= i0, st.o[4 * n + 1] *= i0;
    st.o[4 * n + 2] *= i1, st.o[4 * n + 3] *= i1;
  }
}

// Runs one chunk; leaves the normalised O, the maximum and the sum of each row.
__device__ __forceinline__ void mla_chunk(MlaShared* sm, const MlaThread& th, MlaState& st,
                                          const MlaAttentionParams& p, const MlaWorkspace& ws,
                                          const MlaTile& tile, int chunk, int padded_heads,
                                          float scale, uint32_t& uses) {
  const int begin = chunk << tile.log2_steps, end = (chunk + 1) << tile.log2_steps;
  mla_clear_state(st);
  MlaMask mask = {{}, 0, -1};
  if (tile.in_table && tile.last_step < end) {
    const int length = p.kv_len[tile.first_row] + p.path_len[tile.first_row];
    mask.keys_end = length - tile.last_step * kMlaStepPositions;
    mask.step = tile.last_step - begin;
#pragma unroll
    for (int h = 0; h < 2; h++)
      mask.limit[h] = th.row(h) < padded_heads ? mask.keys_end : kMlaStepPositions;
  }
  const bool has_tail =
      !tile.in_table && tile.full_steps < end && tile.full_steps <= tile.last_step;
  const MlaTailPass* pass = ws.passes + tile.first_pass;
  const MlaTailPass* const passes_end = pass + (has_tail ? tile.num_passes : 0);
  while (pass != passes_end && pass->step < begin) pass++;
  if (has_tail) mla_fetch_pass(sm, *pass);
  const int table_end = tile.in_table ? tile.last_step + 1 : tile.full_steps;
  mla_full_steps(sm, th, st, min(end, table_end) - begin, scale, uses, mask);
  if (has_tail) {
    while (true) {
      const int parity = (pass->step - begin) & 1;
      mla_tail_pass(sm, th, st, p, tile, parity, padded_heads, scale);
      if (++pass == passes_end || pass->step >= end) break;
      mla_barrier_sync(kMlaMathBarrier);
      mla_fetch_pass(sm, *pass);
    }
    fence_proxy_async();
    mla_release(&sm->tail_done, th.lane);
  }
  mla_normalise(sm, th, st, chunk & 1, scale);
}

__device__ __forceinline__ uint4 mla_load_partial(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// st = merge of the partial result in `slot` (earlier positions) and st. Loads run ahead of their
// use: those of the second octet take the place of the first's.
__device__ __forceinline__ void mla_merge_slot(const MlaThread& th, MlaState& st,
                                               const MlaWorkspace& ws, int64_t slot, int num_octets,
                                               float scale) {
  if (2 * th.warp >= num_octets) return;
  const bool both = 2 * th.warp + 1 < num_octets;
  const uint4* from = ws.slots + slot * 4096 + (4 * th.warp + th.warpgroup) * 256 + th.lane;
  uint4 packed[8];
  float2 left[2];
#pragma unroll
  for (int u = 0; u < 8; u++) packed[u] = mla_load_partial(from + u * 32);
#pragma unroll
  for (int h = 0; h < 2; h++)
    left[h] = __ldcg(ws.slot_stats + (slot * 2 + th.warpgroup) * kMlaTileRows + th.row(h));
  __syncwarp();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (h == 1 && !both) break;
    const AttentionMerge merge = attention_merge(left[h].x, left[h].y, st.m[h], st.l[h], scale);
    st.m[h] = merge.m, st.l[h] = merge.l;
#pragma unroll
    for (int u = 0; u < 8; u++) {
      const uint4 units = packed[u];
      if (h == 0 && both) packed[u] = mla_load_partial(from + 512 + u * 32);
      const __half2* value = reinterpret_cast<const __half2*>(&units);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float* o = st.o + 16 * u + 4 * k + 2 * h;
        const float2 v = __half22float2(value[k]);
        o[0] = merge_values(merge, v.x, mla_round_partial(o[0]));
        o[1] = merge_values(merge, v.y, mla_round_partial(o[1]));
      }
    }
  }
}

__device__ __forceinline__ void mla_store_slot(const MlaThread& th, const MlaState& st,
                                               const MlaWorkspace& ws, int64_t slot,
                                               int num_octets) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (2 * th.warp + h >= num_octets) continue;
    if (th.lane % 4 == 0)
      __stcg(ws.slot_stats + (slot * 2 + th.warpgroup) * kMlaTileRows + th.row(h),
             make_float2(st.m[h], st.l[h]));
    __syncwarp();
    uint4* to = ws.slots + slot * 4096 + ((2 * th.warp + h) * 2 + th.warpgroup) * 256 + th.lane;
#pragma unroll
    for (int u = 0; u < 8; u++) {
      uint4 packed;
      __half2* value = reinterpret_cast<__half2*>(&packed);
#pragma unroll
      for (int k = 0; k < 4; k++)
        value[k] =
            __floats2half2_rn(st.o[16 * u + 4 * k + 2 * h], st.o[16 * u + 4 * k + 2 * h + 1]);
      __stcg(to + u * 32, packed);
    }
  }
}

__device__ __forceinline__ void mla_store_output(const MlaThread& th, const MlaState& st,
                                                 const MlaAttentionParams& p, const MlaTile& tile,
                                                 int padded_heads) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int node = th.row(h) / padded_heads, head = th.row(h) % padded_heads;
    if (node >= tile.num_nodes || head >= p.num_heads) continue;
    const int64_t row = tile.first_row + node;
    uint32_t* out = static_cast<uint32_t*>(p.o_lat) +
                    ((row * p.num_heads + head) * kMlaRank + th.warpgroup * 256) / 2 + th.lane % 4;
#pragma unroll
    for (int n = 0; n < 32; n++)
      out[4 * n] = mla_pack(mla_round_partial(st.o[4 * n + 2 * h]),
                            mla_round_partial(st.o[4 * n + 2 * h + 1]));
  }
}

// The CTA's fragments: every gridDim-th; prompt tiles grow with their position, so turns alternate.
template <bool kPrompt>
__device__ __forceinline__ int mla_fragment(int turn) {
  const int ctas = gridDim.x, cta = blockIdx.x;
  return turn * ctas + (kPrompt && turn % 2 == 1 ? ctas - 1 - cta : cta);
}

// Chunks of one fragment, and the merges that lie inside it.
__device__ __forceinline__ void mla_run_fragment(MlaShared* sm, const MlaThread& th, MlaState& st,
                                                 const MlaAttentionParams& p,
                                                 const MlaWorkspace& ws, const MlaFragment& f,
                                                 int64_t slots, int padded_heads, float scale,
                                                 uint32_t& uses) {
  const int num_octets = f.tile.num_nodes * padded_heads / 8;
  int depth = 0;
  for (int chunk = f.chunk_begin; chunk < f.chunk_end; chunk++) {
    mla_chunk(sm, th, st, p, ws, f.tile, chunk, padded_heads, scale, uses);
    // Merge with finished left siblings that began in this fragment; at a whole tile's end with
    // all.
    int merges = 0;
    for (int start = chunk; (start >> merges & 1) && start - (1 << merges) >= f.chunk_begin;
         merges++)
      start -= 1 << merges;
    const bool done = f.tile.parts == 1 && chunk + 1 == f.chunk_end;
    if (done) merges = depth;
    for (; merges > 0; merges--) mla_merge_slot(th, st, ws, slots + --depth, num_octets, scale);
    if (done) {
      mla_store_output(th, st, p, f.tile, padded_heads);
    } else {
      mla_store_slot(th, st, ws, slots + depth++, num_octets);
    }
  }
}

// All steps of a tile of prompt rows.
__device__ __forceinline__ void mla_run_prompt_tile(MlaShared* sm, const MlaThread& th,
                                                    MlaState& st, const MlaAttentionParams& p,
                                                    const MlaTile& tile, int parity,
                                                    int padded_heads, float scale, uint32_t& uses) {
  const int step_begin = tile.last_step * kMlaStepPositions;
  MlaMask mask = {{kMlaStepPositions, kMlaStepPositions}, tile.kv_end - step_begin, tile.last_step};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int node = th.row(h) / padded_heads;
    if (node < tile.num_nodes) mask.limit[h] = p.kv_len[tile.first_row + node] - step_begin;
  }
  mla_clear_state(st);
  mla_full_steps(sm, th, st, tile.last_step + 1, scale, uses, mask);
  mla_normalise(sm, th, st, parity, scale);
  mla_store_output(th, st, p, tile, padded_heads);
}

// A math thread's walk over the CTA's fragments.
template <bool kPrompt>
__device__ __forceinline__ void mla_math(MlaShared* sm, const MlaAttentionParams& p,
                                         const MlaWorkspace& ws, int num_fragments,
                                         int padded_heads, float scale) {
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);  // uniform
  const MlaThread th = {warp / 4, warp % 4, static_cast<int>(threadIdx.x) % 32};
  MlaState st;
  uint32_t uses = 0;
  int index;
  for (int turn = 0; (index = mla_fragment<kPrompt>(turn)) < num_fragments; turn++) {
    const MlaFragment f = ws.fragments[index];
    if (turn == 0) grid_dependency_wait();
    if (f.chunk_begin == f.chunk_end) continue;
    mla_load_queries(sm, p, f.tile, padded_heads);
    if constexpr (kPrompt) {
      mla_run_prompt_tile(sm, th, st, p, f.tile, turn & 1, padded_heads, scale, uses);
    } else {
      const int64_t slots = f.slot < 0 ? int64_t{blockIdx.x} * kMlaOwnSlots : int64_t{f.slot};
      mla_run_fragment(sm, th, st, p, ws, f, slots, padded_heads, scale, uses);
    }
  }
}

// The cache as the copy engine sees it: boxes of 64 rows x 64 columns, two column blocks at a time
// for the latent and one for the rope part.
struct MlaCacheMaps {
  CUtensorMap latent;  // [column block][row][64 columns]
  CUtensorMap rope;
};

// Refills key buffer `b` in the order in which its warpgroup will read it.
__device__ __forceinline__ void mla_load_keys(MlaShared* sm, const MlaCacheMaps* maps, int block,
                                              int b, uint32_t phase, uint64_t policy) {
  const uint32_t keys = shared_address(sm->keys[b]);
#pragma unroll
  for (int i = 0; i < kMlaPieces - 1; i++) {
    const int piece = i ^ (b * 2);
    // Columns of values are free when their warpgroup has used them.
    if (i % 2 == 0) mbarrier_wait(&sm->empty[b][piece / 2], phase);
    mbarrier_arrive_expect(&sm->full[b][piece], 2 * kMlaColumnBlockBytes);
    mla_copy_keys(keys + piece * 2 * kMlaColumnBlockBytes, &maps->latent, block * kMlaStepPositions,
                  piece * 2, &sm->full[b][piece], policy);
  }
  // The rope columns carried the weights, which the other warpgroup has read by now.
  mbarrier_arrive_expect(&sm->full[b][kMlaPieces - 1], kMlaColumnBlockBytes);
  mla_copy_keys(keys + kMlaRopeBlock, &maps->rope, block * kMlaStepPositions, 8,
                &sm->full[b][kMlaPieces - 1], policy);
}

// The producer warp: streams the keys of all steps that come through the block table.
template <bool kPrompt>
__device__ __forceinline__ void mla_produce(MlaShared* sm, const MlaAttentionParams& p,
                                            const MlaWorkspace& ws, int num_fragments,
                                            const MlaCacheMaps* maps) {
  const int lane = threadIdx.x % 32;
  uint32_t uses[2] = {0, 0}, tails = 0;
  // Keys that were in the cache before mla_plan, which waits for all before it and holds up all
  // after it, can be had before the previous kernel has finished.
  bool waited = false;
  int index;
  for (int turn = 0; (index = mla_fragment<kPrompt>(turn)) < num_fragments; turn++) {
    const MlaFragment f = ws.fragments[index];
    const MlaTile& tile = f.tile;
    const int32_t* blocks = p.block_tables + int64_t{tile.seq} * p.max_blocks;
    const uint64_t policy = mla_key_policy(!kPrompt && tile.group_size == 1);
    for (int chunk = f.chunk_begin; chunk < f.chunk_end; chunk++) {
      const int begin = chunk << tile.log2_steps, end = (chunk + 1) << tile.log2_steps;
      const bool all = kPrompt || tile.in_table;  // every step comes through the table
      const int num_steps = min(end, all ? tile.last_step + 1 : tile.full_steps) - begin;
      for (int i = 0; i < num_steps; i += 32) {
        const int mine = i + lane < num_steps ? blocks[begin + i + lane] : 0;
        for (int j = 0; j < 32 && i + j < num_steps; j++) {
          const int block = __shfl_sync(~0u, mine, j), b = j & 1;
          if (!waited && (kPrompt || begin + i + j >= tile.old_steps)) {
            grid_dependency_wait();
            waited = true;
          }
          if (lane == 0) mla_load_keys(sm, maps, block, b, ~uses[b]++ & 1, policy);
          __syncwarp();
        }
      }
      if (!all && tile.full_steps < end && tile.full_steps <= tile.last_step)
        mbarrier_wait(&sm->tail_done, tails++ & 1);
    }
  }
}

// Zeros for inert rows, by the warps that have nothing else to do.
__device__ __forceinline__ void mla_clear_inert_rows(const MlaAttentionParams& p,
                                                     const MlaWorkspace& ws) {
  constexpr int kThreads = kMlaThreads - kMlaMathThreads - 32;
  const int vectors = p.num_heads * kMlaRank / 8;
  grid_dependency_wait();
  for (int row = blockIdx.x; row < p.num_rows; row += gridDim.x) {
    if (ws.tile_of_row[row] >= 0) continue;
    uint4* out = static_cast<uint4*>(p.o_lat) + int64_t{row} * vectors;
    for (int i = threadIdx.x % kThreads; i < vectors; i += kThreads)
      out[i] = make_uint4(0, 0, 0, 0);
  }
}

// Of the whole block.
__device__ __forceinline__ void mla_init_barriers(MlaShared* sm) {
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; b++) {
      for (int i = 0; i < kMlaPieces; i++) mbarrier_init(&sm->full[b][i], 1);
      for (int w = 0; w < 2; w++) mbarrier_init(&sm->empty[b][w], 4);
    }
    mbarrier_init(&sm->tail_done, kMlaMathThreads / 32);
    mbarrier_init_fence();
  }
  __syncthreads();
}

template <bool kPrompt>
__global__ void __launch_bounds__(kMlaThreads, 1)
    mla_attention_sm90(MlaAttentionParams p, MlaWorkspace ws, int padded_heads,
                       const __grid_constant__ MlaCacheMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // wgmma exists on sm_90a alone
  extern __shared__ __align__(1024) char dynamic_shared[];
  MlaShared* sm = reinterpret_cast<MlaShared*>(dynamic_shared);
  mla_init_barriers(sm);
  grid_dependency_launch();
  // The plan was made before the previous kernel could start: mla_plan releases no kernel early.
  const int num_fragments = ws.header->num_fragments;
  if (threadIdx.x >= kMlaMathThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < kMlaMathThreads + 32)
      mla_produce<kPrompt>(sm, p, ws, num_fragments, &maps);
    else if (kPrompt)
      mla_clear_inert_rows(p, ws);
    grid_dependency_wait();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    mla_math<kPrompt>(sm, p, ws, num_fragments, padded_heads, log2_scale(p.softmax_scale));
  }
#endif
}

}  // namespace coppice::kernels
