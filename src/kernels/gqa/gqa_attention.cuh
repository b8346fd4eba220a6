// Grouped-query attention with mma.sync. A group is a run of rows (tokens) of one sequence whose
// (token, head) pairs fill up to eight tiles of 16; its blocks stage every key once for all of
// them. A chunk of 512 positions is eight steps of 64 keys: part b of four runs steps b and b + 4
// from zero, the four results merge in a tree, chunks merge in order. All of it follows from
// absolute positions, so a row's bits depend on nothing else. The parts are the blocks of a
// cluster; where there are no clusters, one block runs them in turn.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/attention_merge.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/mbarrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/sync.cuh"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/gqa/gqa_groups.h"

namespace coppice::kernels {

constexpr int kGqaStepsOfChunk = kGqaChunkPositions / kGqaStep;

// The position range a row sees.
__device__ __forceinline__ void gqa_range(const GqaAttentionParams& p, int row, int& begin,
                                          int& end) {
  begin = 0;
  end = p.kv_len[row] + p.path_len[row];
  if (p.sliding_window > 0) begin = max(0, p.positions[row] - p.sliding_window + 1);
  if (p.causal) end = min(end, p.positions[row] + 1);
}

__device__ __forceinline__ int gqa_first_chunk(int begin) {
  return begin / kGqaChunkPositions;
}

// Chunks of a group that sees [begin, end): one, an empty one, where it sees nothing.
__device__ __forceinline__ int gqa_num_chunks(int begin, int end) {
  return begin < end ? (end - 1) / kGqaChunkPositions - gqa_first_chunk(begin) + 1 : 1;
}

// Of a group's work, as its blocks share it: four for a chunk, two for a last one in which every
// part has a step at most.
__device__ __forceinline__ bool gqa_last_is_light(int end) {
  return (end + kGqaChunkPositions - 1) % kGqaChunkPositions < kGqaParts * kGqaStep;
}

// Finds the groups of the window's rows.
__device__ __forceinline__ void gqa_find_groups(const GqaAttentionParams& p, int window_row,
                                                int num_rows, int rows_of_group, GqaGroups& g) {
  constexpr int kFar = 1 << 30;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < num_rows; i += blockDim.x) {
    const int row = window_row + i;
    g.seq[i] = p.seq_of_row[row];
    gqa_range(p, row, g.row_begin[i], g.row_end[i]);
    g.kv_len[i] = p.kv_len[row];
    g.num_rows[i] = 0;
    g.begin[i] = g.table_end[i] = kFar;
    g.end[i] = g.longest[i] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int groups = 0, run = 0;  // where the row's run of one sequence starts
    for (int base = 0; base < num_rows; base += 32) {
      const int i = base + lane, seq = i < num_rows ? g.seq[i] : -1;
      const bool starts = i < num_rows && (i == 0 || g.seq[i - 1] != seq);
      const unsigned before = __ballot_sync(~0u, starts) & (~0u >> (31 - lane));
      const int my_run = before ? base + 31 - __clz(before) : run;
      const bool first = seq >= 0 && (i - my_run) % rows_of_group == 0;
      const unsigned firsts = __ballot_sync(~0u, first);
      const int group = groups + __popc(firsts & (~0u >> (31 - lane))) - 1;
      if (first) g.first_row[group] = i;
      if (seq >= 0) g.group_of_row[i] = static_cast<uint8_t>(group);
      groups += __popc(firsts);
      run = __shfl_sync(~0u, my_run, 31);
    }
    if (lane == 0) g.count = groups;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_rows; i += blockDim.x) {
    if (g.seq[i] < 0) continue;
    const int group = g.group_of_row[i], row = window_row + i;
    atomicAdd(&g.num_rows[group], 1);
    atomicMax(&g.longest[group], g.kv_len[i]);
    if (p.path_len[row] > 0) atomicMin(&g.table_end[group], g.kv_len[i]);
    if (g.row_begin[i] < g.row_end[i]) atomicMin(&g.begin[group], g.row_begin[i]);
    atomicMax(&g.end[group], g.row_end[i]);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int items = 0, work = 0, num_lights = 0;
    for (int base = 0; base < g.count; base += 32) {
      const int i = base + lane;
      const int chunks = i < g.count ? gqa_num_chunks(g.begin[i], g.end[i]) : 0;
      const int light = i < g.count && gqa_last_is_light(g.end[i]) ? 1 : 0;
      int sum = chunks, lights = light;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d),
                  other_lights = __shfl_up_sync(~0u, lights, d);
        if (lane >= d) sum += other, lights += other_lights;
      }
      if (i < g.count) {
        g.first_item[i] = items + sum - chunks;
        g.first_work[i] = work + 4 * (sum - chunks) - 2 * (lights - light);
      }
      items += __shfl_sync(~0u, sum, 31);
      work = 4 * items - 2 * (num_lights += __shfl_sync(~0u, lights, 31));
    }
    if (lane == 0) g.first_item[g.count] = items, g.first_work[g.count] = work;
  }
  __syncthreads();
}

// A step of a block's work: its `turn`th of a chunk of a group. The group follows from the item,
// the number of the chunk among those of all groups.
struct GqaCursor {
  int item, group, turn;
};

// The first item whose middle lies at `work` or behind it.
__device__ __forceinline__ int gqa_item_at(const GqaGroups& g, int work) {
  int low = 0, high = g.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (g.first_work[middle] <= work ? low : high) = middle;
  }
  const int chunks = g.first_item[low + 1] - g.first_item[low];
  const int whole = chunks - (gqa_last_is_light(g.end[low]) ? 1 : 0);
  const int offset = work - g.first_work[low];
  const int before = min(whole, (offset + 1) / 4);  // of whole chunks, with middles at 2, 6, ...
  const bool light_too = before == whole && whole < chunks && 4 * whole + 1 < offset;
  return g.first_item[low] + before + (light_too ? 1 : 0);
}

// Chunks that a cluster works on.
struct GqaItems {
  int first, last;
};

// Without a split all chunks of a group belong to one cluster.
template <bool kSplit>
__device__ __forceinline__ GqaItems gqa_items_of(const GqaGroups& g, int cluster, int clusters) {
  const int shared_out = kSplit ? g.first_work[g.count] : g.count;
  int first = shared_out * cluster / clusters;
  int last = shared_out * (cluster + 1) / clusters;
  if (kSplit) {
    first = gqa_item_at(g, first);
    last = cluster + 1 < clusters ? gqa_item_at(g, last) : g.first_item[g.count];
  } else {
    first = g.first_item[first], last = g.first_item[last];
  }
  return {first, last};
}

__device__ __forceinline__ GqaCursor gqa_cursor(const GqaGroups& g, int item) {
  int low = 0, high = g.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (g.first_item[middle] <= item ? low : high) = middle;
  }
  return {item, low, 0};
}

template <int kTurns>
__device__ __forceinline__ void gqa_advance(const GqaGroups& g, GqaCursor& c) {
  c.turn = (c.turn + 1) % kTurns;
  if (c.turn > 0) return;
  c.item++;
  if (c.item == g.first_item[c.group + 1]) c.group++;
}

struct GqaStepOf {
  int step;    // of absolute positions
  bool empty;  // no row of the group sees a key of it
  bool mixed;  // its keys differ from row to row
};

__device__ __forceinline__ GqaStepOf gqa_step_of(const GqaGroups& g, const GqaCursor& c,
                                                 int block) {
  const int begin = g.begin[c.group], end = g.end[c.group];
  const int chunk = (begin < end ? gqa_first_chunk(begin) : 0) + c.item - g.first_item[c.group];
  GqaStepOf s;
  s.step = chunk * kGqaStepsOfChunk + block + c.turn / 2 + kGqaParts * (c.turn % 2);
  s.empty = s.step * kGqaStep >= end || (s.step + 1) * kGqaStep <= begin;
  s.mixed = !s.empty && (s.step + 1) * kGqaStep > g.table_end[c.group];
  return s;
}

// Where 16-byte piece `piece` of a row lies in a swizzled tile.
template <int kHeadDim>
__device__ __forceinline__ uint32_t gqa_piece(uint32_t tile, int row, int piece) {
  constexpr int kPieces = kHeadDim / 8;
  return tile + (row * kPieces + (piece ^ (row & 7))) * 16;
}

// Starts the copies of a step's keys and values that all rows of a group read through the table;
// beyond the longest row they become zero.
template <int kHeadDim>
__device__ __forceinline__ void gqa_start_copy(const GqaAttentionParams& p, const GqaGroups& g,
                                               int group, int step, int kv_head, uint32_t stage) {
  constexpr int kPieces = kHeadDim / 8;
  const int seq = g.seq[g.first_row[group]];
  const int64_t block = p.block_tables[int64_t{seq} * p.max_blocks + step];
  const int num_keys = g.longest[group] - step * kGqaStep;
  const int64_t first = (block * kGqaStep * p.num_kv_heads + kv_head) * kHeadDim;
  const int64_t stride = int64_t{p.num_kv_heads} * kHeadDim;
#pragma unroll
  for (int side = 0; side < 2; side++) {
    const auto* from = static_cast<const __nv_bfloat16*>(side == 0 ? p.k_cache : p.v_cache) + first;
    const uint32_t to = stage + side * kGqaStep * kHeadDim * 2;
#pragma unroll 4
    for (int i = threadIdx.x; i < kGqaStep * kPieces; i += blockDim.x) {
      const int key = i / kPieces, piece = i % kPieces;
      const bool valid = key < num_keys;
      copy_async_16(gqa_piece<kHeadDim>(to, key, piece),
                    from + (valid ? key : 0) * stride + piece * 8, valid);
    }
  }
}

__device__ __forceinline__ void gqa_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's groups of copies are in flight.
__device__ __forceinline__ void gqa_wait_copies(int pending) {
  if (pending >= 3)
    asm volatile("cp.async.wait_group 3;" ::: "memory");
  else if (pending == 2)
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  else if (pending == 1)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// What a warp works on.
struct GqaWarp {
  int kv_head, tile, first_piece, log2_group, window_row;
};

template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ GqaWarp gqa_warp(int window_row, int log2_group) {
  GqaWarp warp;
  warp.kv_head = blockIdx.y;
  warp.tile = threadIdx.x / 32 / kColumnParts;
  warp.first_piece = threadIdx.x / 32 % kColumnParts * (kHeadDim / kColumnParts / 8);
  warp.log2_group = log2_group, warp.window_row = window_row;
  return warp;
}

// Row `r` of a group's (token, head) pairs: its token in the group and its head; token -1: none.
struct GqaPair {
  int token, head;
};

__device__ __forceinline__ GqaPair gqa_pair(const GqaAttentionParams& p, const GqaGroups& g,
                                            int group, int log2_group, int r) {
  const GqaPair pair = {r >> log2_group, r & ((1 << log2_group) - 1)};
  const bool exists = pair.token < g.num_rows[group] && pair.head < p.num_heads / p.num_kv_heads;
  return {exists ? pair.token : -1, pair.head};
}

// What a thread's rows of its warp's tile, lane / 4 and lane / 4 + 8, and the whole tile see.
struct GqaTile {
  int begin[2], end[2];
  int tile_begin, tile_end;
};

__device__ __forceinline__ GqaTile gqa_tile(const GqaAttentionParams& p, const GqaGroups& g,
                                            int group, int tile, int log2_group) {
  GqaTile t;
  const int lane = threadIdx.x % 32;
  t.tile_begin = 1 << 30, t.tile_end = 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const GqaPair pair = gqa_pair(p, g, group, log2_group, tile * kGqaTileRows + lane / 4 + 8 * h);
    t.begin[h] = t.end[h] = 0;
    if (pair.token < 0) continue;
    const int row = g.first_row[group] + pair.token;
    t.begin[h] = g.row_begin[row], t.end[h] = g.row_end[row];
    if (t.begin[h] < t.end[h]) t.tile_begin = min(t.tile_begin, t.begin[h]);
    t.tile_end = max(t.tile_end, t.end[h]);
  }
#pragma unroll
  for (int d = 4; d < 32; d *= 2) {
    t.tile_begin = min(t.tile_begin, __shfl_xor_sync(~0u, t.tile_begin, d));
    t.tile_end = max(t.tile_end, __shfl_xor_sync(~0u, t.tile_end, d));
  }
  return t;
}

// Starts the copies of a tile's queries, by its warps; rows it does not have become zero.
template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ void gqa_copy_queries(const GqaAttentionParams& p, const GqaGroups& g,
                                                 int group, const GqaWarp& warp, uint32_t to) {
  constexpr int kPieces = kHeadDim / 8;
  const int heads = p.num_heads / p.num_kv_heads;
  for (int i = threadIdx.x % (32 * kColumnParts); i < kGqaTileRows * kPieces;
       i += 32 * kColumnParts) {
    const int r = i / kPieces, piece = i % kPieces;
    const GqaPair pair = gqa_pair(p, g, group, warp.log2_group, warp.tile * kGqaTileRows + r);
    const int row = warp.window_row + g.first_row[group] + max(pair.token, 0);
    const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(p.q) + row * p.q_row_stride +
                                (warp.kv_head * heads + pair.head) * kHeadDim + piece * 8;
    copy_async_16(gqa_piece<kHeadDim>(to, r, piece), pair.token < 0 ? p.q : from, pair.token >= 0);
  }
}

// Query fragments of mma.m16n8k16, four registers per 16 dimensions. Ends when all warps of the
// tile have theirs.
template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ void gqa_load_queries(uint32_t queries, int tile,
                                                 uint32_t (&q)[kHeadDim / 4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; i++) {
    uint32_t a[4];
    ldmatrix_x4(a, gqa_piece<kHeadDim>(queries, lane % 16, 2 * i + lane / 16));
    q[4 * i] = a[0], q[4 * i + 1] = a[1], q[4 * i + 2] = a[2], q[4 * i + 3] = a[3];
  }
  named_barrier_sync(1 + tile, 32 * kColumnParts);
}

// Running softmax of a warp's rows; o, of its part of the columns, as in the fragments of
// mma.m16n8k16.
template <int kColumns>
struct GqaState {
  float o[kColumns / 2];
  float m[2], l[2];
};

template <int kColumns>
__device__ __forceinline__ void gqa_reset(GqaState<kColumns>& st) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; i++) st.o[i] = 0;
  st.m[0] = st.m[1] = -INFINITY, st.l[0] = st.l[1] = 0;
}

// [16, 8] = q k^T, of eight keys; `row`: where key lane % 8 lies.
template <int kHeadDim>
__device__ __forceinline__ float4 gqa_eight_scores(const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                                   int row) {
  const int lane = threadIdx.x % 32;
  float4 d = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; i++) {
    uint32_t k[4];
    ldmatrix_x4(k, gqa_piece<kHeadDim>(keys, row, 4 * i + lane / 8));
    const uint32_t* a = q + 8 * i;
    d = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], k[0], k[1], d);
    d = mma_m16n8k16_bf16(a[4], a[5], a[6], a[7], k[2], k[3], d);
  }
  return d;
}

// d[i] [16, 8] = q k^T of the eights of keys from `first` on. Their sums run side by side.
template <int kHeadDim, int kEights>
__device__ __forceinline__ void gqa_eights(const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                           int first, float4 (&d)[kEights]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kEights; n++) d[n] = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; i++) {
    const uint32_t* a = q + 8 * i;
    uint32_t k[kEights][4];
#pragma unroll
    for (int n = 0; n < kEights; n++)
      ldmatrix_x4(k[n], gqa_piece<kHeadDim>(keys, 8 * (first + n) + lane % 8, 4 * i + lane / 8));
#pragma unroll
    for (int n = 0; n < kEights; n++)
      d[n] = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], k[n][0], k[n][1], d[n]);
#pragma unroll
    for (int n = 0; n < kEights; n++)
      d[n] = mma_m16n8k16_bf16(a[4], a[5], a[6], a[7], k[n][2], k[n][3], d[n]);
  }
}

// s [16, 64] = q k^T. The warps of a tile take an equal part of the keys each and pass it to the
// others by `exchange`, a row of `kPitch` floats for each of the tile's.
template <int kHeadDim, int kColumnParts>
__device__ __forceinline__ void gqa_scores(const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                           int tile, int column_part, float* exchange,
                                           float (&s)[32]) {
  constexpr int kPitch = gqa_part_pitch(kHeadDim), kEights = 8 / kColumnParts;
  if constexpr (kColumnParts == 1) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float4 d[4];
      gqa_eights<kHeadDim, 4>(q, keys, 4 * half, d);
#pragma unroll
      for (int n = 0; n < 4; n++) {
        float* to = s + 16 * half + 4 * n;
        to[0] = d[n].x, to[1] = d[n].y, to[2] = d[n].z, to[3] = d[n].w;
      }
    }
  } else {
    const int lane = threadIdx.x % 32;
    float* mine = exchange + lane / 4 * kPitch + lane % 4 * 2;
    float4 d[kEights];
    gqa_eights<kHeadDim, kEights>(q, keys, column_part * kEights, d);
#pragma unroll
    for (int i = 0; i < kEights; i++) {
      float* to = mine + 8 * (column_part * kEights + i);
      *reinterpret_cast<float2*>(to) = make_float2(d[i].x, d[i].y);
      *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(d[i].z, d[i].w);
    }
    named_barrier_sync(1 + tile, 32 * kColumnParts);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const float2 a = *reinterpret_cast<const float2*>(mine + 8 * n);
      const float2 b = *reinterpret_cast<const float2*>(mine + 8 * kPitch + 8 * n);
      s[4 * n] = a.x, s[4 * n + 1] = a.y, s[4 * n + 2] = b.x, s[4 * n + 3] = b.y;
    }
  }
}

// Masked softmax step: updates the state, leaves the weights as operand fragments.
template <int kColumns>
__device__ __forceinline__ void gqa_softmax(GqaState<kColumns>& st, const GqaTile& t, int step,
                                            float scale, float (&s)[32], uint32_t (&w)[16]) {
  const int lane = threadIdx.x % 32;
  float alpha[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      float& x = s[i / 2 * 4 + 2 * h + i % 2];
      const int position = step * kGqaStep + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (position < t.begin[h] || position >= t.end[h]) x = -INFINITY;
      top = fmaxf(top, x);
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float m = fmaxf(st.m[h], top);
    const float base = m == -INFINITY ? 0.f : __fmul_rn(m, scale);
    alpha[h] = m == -INFINITY ? 1.f : exp2_approx(__fsub_rn(__fmul_rn(st.m[h], scale), base));
    st.m[h] = m;
    st.l[h] = __fmul_rn(st.l[h], alpha[h]);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(exp2_approx(__fmaf_rn(s[4 * n + 2 * h], scale, -base)),
                                exp2_approx(__fmaf_rn(s[4 * n + 2 * h + 1], scale, -base)));
      w[2 * n + h] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns / 2; i++) st.o[i] *= alpha[i / 2 % 2];
  // The sum of the rounded weights, as one more value column that is 1 for every key.
  constexpr uint32_t kOnes = 0x3F803F80;
  float4 sum = make_float4(st.l[0], st.l[0], st.l[1], st.l[1]);
#pragma unroll
  for (int g = 0; g < 4; g++)
    sum = mma_m16n8k16_bf16(w[4 * g], w[4 * g + 1], w[4 * g + 2], w[4 * g + 3], kOnes, kOnes, sum);
  st.l[0] = sum.x, st.l[1] = sum.z;
}

// o += weights values, of 16 keys and the columns from `first_piece` on, for the rows of `mask` (0
// or all bits per row of the thread); `row`: where key lane % 16 lies.
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void gqa_add_values(GqaState<kColumns>& st, const uint32_t* w,
                                               uint32_t mask0, uint32_t mask1, uint32_t values,
                                               int first_piece, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kColumns / 16; n++) {
    uint32_t b[4];
    ldmatrix_x4_transposed(b, gqa_piece<kHeadDim>(values, row, first_piece + 2 * n + lane / 16));
    float* o = st.o + 8 * n;
    float4 d = mma_m16n8k16_bf16(w[0] & mask0, w[1] & mask1, w[2] & mask0, w[3] & mask1, b[0], b[1],
                                 make_float4(o[0], o[1], o[2], o[3]));
    o[0] = d.x, o[1] = d.y, o[2] = d.z, o[3] = d.w;
    d = mma_m16n8k16_bf16(w[0] & mask0, w[1] & mask1, w[2] & mask0, w[3] & mask1, b[2], b[3],
                          make_float4(o[4], o[5], o[6], o[7]));
    o[4] = d.x, o[5] = d.y, o[6] = d.z, o[7] = d.w;
  }
}

// o += weights values, of the step's 64 keys, which all rows read.
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void gqa_add_all_values(GqaState<kColumns>& st, const uint32_t (&w)[16],
                                                   uint32_t values, const GqaWarp& warp) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; i++)
    gqa_add_values<kHeadDim>(st, w + 4 * i, ~0u, ~0u, values, warp.first_piece, 16 * i + lane % 16);
}

// The stages as a pool of keys, in a step in which rows read different ones: the keys that all rows
// read through the table, then each row's own, then a row of zeros for those a row does not have.
struct GqaPool {
  int nodes, first_row;   // rows of the group, and its first in the window
  int step, begin;        // the step, and its first position
  int table_end;          // positions below it are of keys that all rows read
  int shared_keys, room;  // such keys, and those of rows that fit beside them
};

// Rows of a group whose keys are in the pool at once.
struct GqaPoolRows {
  int from, last;
};

// Sums up the rows' own keys. Whole blocks.
__device__ __forceinline__ GqaPool gqa_make_pool(GqaGroups& g, int group, int step, int pool_rows) {
  GqaPool pool;
  const int lane = threadIdx.x % 32;
  pool.nodes = g.num_rows[group], pool.first_row = g.first_row[group];
  pool.step = step, pool.begin = step * kGqaStep;
  pool.table_end = min(max(g.table_end[group], pool.begin), pool.begin + kGqaStep);
  pool.shared_keys = pool.table_end - pool.begin, pool.room = pool_rows - pool.shared_keys - 1;
  if (threadIdx.x < 32) {
    int keys = 0;
    for (int base = 0; base < pool.nodes; base += 32) {
      const int end = base + lane < pool.nodes ? g.row_end[pool.first_row + base + lane] : 0;
      int sum = max(0, min(end, pool.begin + kGqaStep) - pool.table_end);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      if (base + lane < pool.nodes) g.pool_first[base + lane + 1] = keys + sum;
      keys += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) g.pool_first[0] = 0;
  }
  __syncthreads();
  return pool;
}

// Where the rows from `from` on whose keys find room end.
__device__ __forceinline__ int gqa_last_with_room(const GqaGroups& g, const GqaPool& pool,
                                                  int from) {
  if (g.pool_first[pool.nodes] - g.pool_first[from] <= pool.room) return pool.nodes;
  int last = from + 1;
  while (g.pool_first[last + 1] - g.pool_first[from] <= pool.room) last++;
  return last;
}

// Finds where the cache has the keys of the pool. Whole blocks.
__device__ __forceinline__ void gqa_find_slots(const GqaAttentionParams& p, GqaGroups& g,
                                               const GqaPool& pool, const GqaPoolRows& rows,
                                               const GqaWarp& warp) {
  const auto [from, last] = rows;
  const int64_t table = int64_t{g.seq[pool.first_row]} * p.max_blocks;
  for (int i = threadIdx.x; i < pool.shared_keys; i += blockDim.x)
    g.pool_slots[i] = p.block_tables[table + pool.step] * kGqaStep + i;
  for (int i = threadIdx.x; i < (last - from) * kGqaStep; i += blockDim.x) {
    const int node = from + i / kGqaStep, own = i % kGqaStep;
    const int at = g.pool_first[node] + own, row = pool.first_row + node;
    if (at >= g.pool_first[node + 1]) continue;
    const int position = pool.table_end + own, kv_len = g.kv_len[row];
    g.pool_slots[pool.shared_keys + at - g.pool_first[from]] =
        position < kv_len ? p.block_tables[table + pool.step] * kGqaStep + position - pool.begin
                          : p.path[int64_t{warp.window_row + row} * p.max_path + position - kv_len];
  }
  if (threadIdx.x == 0)
    g.pool_slots[pool.shared_keys + g.pool_first[last] - g.pool_first[from]] = -1;
  __syncthreads();
}

// Starts the copies of one side of the cache.
template <int kHeadDim>
__device__ __forceinline__ void gqa_copy_pool(const GqaAttentionParams& p, const GqaGroups& g,
                                              const GqaPool& pool, const GqaPoolRows& rows,
                                              const void* cache, int kv_head, uint32_t to) {
  constexpr int kPieces = kHeadDim / 8;
  const int used = pool.shared_keys + g.pool_first[rows.last] - g.pool_first[rows.from] + 1;
  for (int i = threadIdx.x; i < used * kPieces; i += blockDim.x) {
    const int row = i / kPieces, piece = i % kPieces, slot = g.pool_slots[row];
    copy_async_16(gqa_piece<kHeadDim>(to, row, piece),
                  static_cast<const __nv_bfloat16*>(cache) +
                      (int64_t{max(slot, 0)} * p.num_kv_heads + kv_head) * kHeadDim + piece * 8,
                  slot >= 0);
  }
  gqa_commit();
}

// Where key `key` of a node lies in the pool.
__device__ __forceinline__ int gqa_pool_row(const GqaGroups& g, const GqaPool& pool,
                                            const GqaPoolRows& rows, int node, int key) {
  const int at = g.pool_first[node] + key - pool.shared_keys;
  if (key < pool.shared_keys) return key;
  const int end = at < g.pool_first[node + 1] ? at : g.pool_first[rows.last];
  return pool.shared_keys - g.pool_first[rows.from] + end;
}

// How many of the step's keys a node has.
__device__ __forceinline__ int gqa_keys_of(const GqaGroups& g, const GqaPool& pool, int node) {
  return pool.shared_keys + g.pool_first[node + 1] - g.pool_first[node];
}

// Nodes of a warp's tile, and those of the thread's rows, lane / 4 and lane / 4 + 8.
struct GqaTileNodes {
  int first, last;
  int mine[2];
};

__device__ __forceinline__ GqaTileNodes gqa_tile_nodes(const GqaPool& pool, const GqaWarp& warp) {
  const int row = warp.tile * kGqaTileRows, lane = threadIdx.x % 32;
  GqaTileNodes nodes;
  nodes.first = row >> warp.log2_group;
  nodes.last = min(pool.nodes, ((warp.tile + 1) * kGqaTileRows) >> warp.log2_group);
  nodes.mine[0] = (row + lane / 4) >> warp.log2_group;
  nodes.mine[1] = (row + lane / 4 + 8) >> warp.log2_group;
  return nodes;
}

// Scores of the rows whose keys are in the pool; those of shared keys with the first of them.
template <int kHeadDim>
__device__ __forceinline__ void gqa_mixed_scores(const GqaGroups& g, const GqaPool& pool,
                                                 const GqaPoolRows& rows, const GqaTileNodes& nodes,
                                                 const uint32_t (&q)[kHeadDim / 4], uint32_t keys,
                                                 float (&s)[32]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 8; n++) {
    if (8 * n + 8 <= pool.shared_keys) {
      if (rows.from > 0) continue;
      const float4 d = gqa_eight_scores<kHeadDim>(q, keys, 8 * n + lane % 8);
      s[4 * n] = d.x, s[4 * n + 1] = d.y, s[4 * n + 2] = d.z, s[4 * n + 3] = d.w;
      continue;
    }
    for (int node = max(rows.from, nodes.first); node < min(rows.last, nodes.last); node++) {
      if (8 * n >= gqa_keys_of(g, pool, node)) continue;
      const int row = gqa_pool_row(g, pool, rows, node, 8 * n + lane % 8);
      const float4 d = gqa_eight_scores<kHeadDim>(q, keys, row);
      if (nodes.mine[0] == node) s[4 * n] = d.x, s[4 * n + 1] = d.y;
      if (nodes.mine[1] == node) s[4 * n + 2] = d.z, s[4 * n + 3] = d.w;
    }
  }
}

// Adds the values that are in the pool, weighted by `w`.
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void gqa_add_mixed_values(const GqaGroups& g, const GqaPool& pool,
                                                     const GqaPoolRows& rows,
                                                     const GqaTileNodes& nodes,
                                                     const uint32_t (&w)[16], uint32_t values,
                                                     const GqaWarp& warp, GqaState<kColumns>& st) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (16 * i + 16 <= pool.shared_keys) {
      if (rows.from == 0)
        gqa_add_values<kHeadDim>(st, w + 4 * i, ~0u, ~0u, values, warp.first_piece,
                                 16 * i + lane % 16);
      continue;
    }
    for (int node = max(rows.from, nodes.first); node < min(rows.last, nodes.last); node++)
      if (16 * i < gqa_keys_of(g, pool, node))
        gqa_add_values<kHeadDim>(st, w + 4 * i, nodes.mine[0] == node ? ~0u : 0u,
                                 nodes.mine[1] == node ? ~0u : 0u, values, warp.first_piece,
                                 gqa_pool_row(g, pool, rows, node, 16 * i + lane % 16));
  }
}

// A step in which rows read different keys: rows whose keys fill the pool go together. Whole
// blocks.
template <int kHeadDim, int kColumns>
__device__ __noinline__ void gqa_mixed_step(const GqaAttentionParams& p, GqaGroups& g, int group,
                                            const GqaWarp& warp, const GqaTile& t,
                                            GqaState<kColumns>& state,
                                            const uint32_t (&queries)[kHeadDim / 4], int step,
                                            float scale, uint32_t ring, int pool_rows) {
  const GqaPool pool = gqa_make_pool(g, group, step, pool_rows);
  const GqaTileNodes nodes = gqa_tile_nodes(pool, warp);
  const bool busy = pool.begin < t.tile_end && pool.begin + kGqaStep > t.tile_begin;
  const uint32_t values = ring + pool_rows * kHeadDim * 2;
  const bool together = gqa_last_with_room(g, pool, 0) == pool.nodes;  // keys and values at once
  const auto copy = [&](const GqaPoolRows& rows, const void* cache, uint32_t to) {
    gqa_copy_pool<kHeadDim>(p, g, pool, rows, cache, warp.kv_head, to);
  };
  const auto arrived = [&] {
    gqa_wait_copies(0);
    __syncthreads();
  };
  uint32_t q[kHeadDim / 4];
#pragma unroll
  for (int i = 0; i < kHeadDim / 4; i++) q[i] = queries[i];
  float s[32];
#pragma unroll
  for (int i = 0; i < 32; i++) s[i] = 0;
  for (int from = 0; from < pool.nodes;) {
    const GqaPoolRows rows = {from, gqa_last_with_room(g, pool, from)};
    gqa_find_slots(p, g, pool, rows, warp);
    copy(rows, p.k_cache, ring);
    if (together) copy(rows, p.v_cache, values);
    arrived();
    if (busy) gqa_mixed_scores<kHeadDim>(g, pool, rows, nodes, q, ring, s);
    __syncthreads();
    from = rows.last;
  }
  GqaState<kColumns> st = state;
  uint32_t w[16];
  if (busy) gqa_softmax(st, t, step, scale, s, w);
  for (int from = 0; from < pool.nodes;) {
    const GqaPoolRows rows = {from, gqa_last_with_room(g, pool, from)};
    if (!together) {
      gqa_find_slots(p, g, pool, rows, warp);
      copy(rows, p.v_cache, values);
      arrived();
    }
    if (busy) gqa_add_mixed_values<kHeadDim>(g, pool, rows, nodes, w, values, warp, st);
    __syncthreads();
    from = rows.last;
  }
  state = st;
}

// A block's part of a chunk: normalised values and (maximum, sum) of its rows.
template <int kHeadDim>
struct GqaPart {
  float* o;
  float2* stats;
};

template <int kHeadDim, int kColumns>
__device__ __forceinline__ void gqa_store_part(const GqaState<kColumns>& st, const GqaWarp& warp,
                                               const GqaPart<kHeadDim>& to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = warp.tile * kGqaTileRows + lane / 4 + 8 * h;
    const float inverse = st.l[h] > 0 ? __frcp_rn(st.l[h]) : 0.f;
    if (warp.first_piece == 0 && lane % 4 == 0) to.stats[row] = make_float2(st.m[h], st.l[h]);
    float* o = to.o + row * gqa_part_pitch(kHeadDim) + warp.first_piece * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kColumns / 8; n++)
      *reinterpret_cast<float2*>(o + 8 * n) = make_float2(
          __fmul_rn(st.o[4 * n + 2 * h], inverse), __fmul_rn(st.o[4 * n + 2 * h + 1], inverse));
  }
}

__device__ __forceinline__ float4 merge_values(const AttentionMerge& merge, float4 left,
                                               float4 right) {
  return make_float4(merge_values(merge, left.x, right.x), merge_values(merge, left.y, right.y),
                     merge_values(merge, left.z, right.z), merge_values(merge, left.w, right.w));
}

// Four values of one row, and the row's maximum and sum.
struct GqaMerged {
  float4 o;
  float m, l;
};

__device__ __forceinline__ GqaMerged gqa_merge(const GqaMerged& a, const GqaMerged& b,
                                               float scale) {
  const AttentionMerge merge = attention_merge(a.m, a.l, b.m, b.l, scale);
  return {merge_values(merge, a.o, b.o), merge.m, merge.l};
}

// Four values of row `r` from `column` on: the parts of a cluster's blocks, merged in a tree.
template <int kHeadDim>
__device__ __forceinline__ void gqa_load_of_cluster(const GqaPart<kHeadDim>& mine, int r,
                                                    int column, GqaMerged (&from)[kGqaParts]) {
  const uint32_t o = shared_address(mine.o + r * gqa_part_pitch(kHeadDim) + column);
  const uint32_t stats = shared_address(mine.stats + r);
#pragma unroll
  for (int b = 0; b < kGqaParts; b++) {
    from[b].o = cluster_load(cluster_address(o, b));
    const float2 m_and_l = cluster_load_pair(cluster_address(stats, b));
    from[b].m = m_and_l.x, from[b].l = m_and_l.y;
  }
}

template <int kHeadDim>
__device__ __forceinline__ GqaMerged gqa_part_of_block(const GqaPart<kHeadDim>& mine, int r,
                                                       int column) {
  const float* o = mine.o + r * gqa_part_pitch(kHeadDim) + column;
  return {*reinterpret_cast<const float4*>(o), mine.stats[r].x, mine.stats[r].y};
}

__device__ __forceinline__ void gqa_store_output(const GqaAttentionParams& p, int64_t at,
                                                 float4 o) {
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(o.x, o.y),
                                   __floats2bfloat162_rn(o.z, o.w)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + at) =
      *reinterpret_cast<const uint2*>(pairs);
}

// Where results of chunks lie between the kernels: values of (token, head, chunk), then statistics.
template <int kHeadDim>
struct GqaWorkspace {
  float* o;
  float2* stats;
};

template <int kHeadDim>
__device__ __forceinline__ GqaWorkspace<kHeadDim> gqa_workspace(const GqaAttentionParams& p,
                                                                int max_chunks) {
  GqaWorkspace<kHeadDim> w;
  w.o = static_cast<float*>(p.workspace);
  w.stats =
      reinterpret_cast<float2*>(w.o + int64_t{p.num_rows} * p.num_heads * max_chunks * kHeadDim);
  return w;
}

template <int kHeadDim>
__device__ __forceinline__ void gqa_store_chunk(const GqaWorkspace<kHeadDim>& to, int64_t at,
                                                int column, const GqaMerged& merged) {
  __stcg(reinterpret_cast<float4*>(to.o + at * kHeadDim + column), merged.o);
  if (column == 0) __stcg(to.stats + at, make_float2(merged.m, merged.l));
}

// Inert rows of the window: zero.
__device__ __forceinline__ void gqa_zero_rows(const GqaAttentionParams& p, const GqaGroups& g,
                                              int window_row, int num_rows, int kv_head) {
  const int size = p.num_heads / p.num_kv_heads * p.head_dim;
  for (int row = 0; row < num_rows; row++) {
    if (g.seq[row] >= 0) continue;
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) +
                         (int64_t{window_row + row} * p.num_kv_heads + kv_head) * size;
    for (int i = threadIdx.x; i < size; i += blockDim.x) out[i] = __float2bfloat16_rn(0.f);
  }
}

// A block of a cluster, its window and the heads of its kv head.
struct GqaPlace {
  int block, window_row, heads, log2_group;
};

// A chunk of a group, and its part that a block has completed.
struct GqaChunk {
  int group, chunk, part;
  bool ends;  // the group
};

// Merges the four parts of a row's chunk, in each block of the cluster for a quarter of the rows,
// and stores it or, without a split, adds it to `total` and stores that of the last one. A thread
// has kVectors times four values. `from`: room for the parts of a row; where one block runs them,
// `two` and `left` hold two parts and the first two.
template <bool kSplit, int kBlocks, int kHeadDim, int kVectors>
__device__ __forceinline__ void gqa_merge_parts(
    const GqaAttentionParams& p, const GqaLaunch& launch, const GqaGroups& g, const GqaWarp& warp,
    const GqaPlace& place, const GqaChunk& chunk, const GqaPart<kHeadDim>& mine,
    const GqaWorkspace<kHeadDim>& workspace, float scale, GqaMerged (&from)[kGqaParts],
    GqaMerged (&two)[kVectors], GqaMerged (&left)[kVectors], GqaMerged (&total)[kVectors]) {
  const int tiles =
      ((g.num_rows[chunk.group] << place.log2_group) + kGqaTileRows - 1) / kGqaTileRows;
  const int share = tiles * (kGqaTileRows / kBlocks);
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    const int i = threadIdx.x + v * blockDim.x, column = i % (kHeadDim / 4) * 4;
    const int r = place.block * share + i / (kHeadDim / 4);
    const GqaPair pair = gqa_pair(p, g, chunk.group, place.log2_group, r);
    if (i / (kHeadDim / 4) >= share || pair.token < 0) continue;
    GqaMerged merged;
    if constexpr (kBlocks > 1) {
      gqa_load_of_cluster(mine, r, column, from);
      merged =
          gqa_merge(gqa_merge(from[0], from[1], scale), gqa_merge(from[2], from[3], scale), scale);
    } else {
      const GqaMerged own = gqa_part_of_block(mine, r, column);
      two[v] = chunk.part % 2 == 0 ? own : gqa_merge(two[v], own, scale);
      if (chunk.part == 1) left[v] = two[v];
      if (chunk.part < 3) continue;
      merged = gqa_merge(left[v], two[v], scale);
    }
    const int64_t row_head =
        int64_t{place.window_row + g.first_row[chunk.group] + pair.token} * p.num_heads +
        warp.kv_head * place.heads + pair.head;
    if constexpr (kSplit) {
      gqa_store_chunk(workspace, row_head * launch.max_chunks + chunk.chunk, column, merged);
    } else {
      total[v] = gqa_merge(total[v], merged, scale);
      if (chunk.ends) gqa_store_output(p, row_head * kHeadDim + column, total[v].o);
    }
  }
}

// Grid: (clusters of kBlocks, kv heads, windows).
template <int kHeadDim, int kColumnParts, bool kSplit, int kBlocks>
__device__ __forceinline__ void gqa_attend(const GqaAttentionParams& p, const GqaLaunch& launch) {
  constexpr int kColumns = kHeadDim / kColumnParts, kPitch = gqa_part_pitch(kHeadDim);
  constexpr int kTurns = kGqaStepsOfChunk / kBlocks;
  extern __shared__ __align__(128) char dynamic_shared[];
  GqaGroups& g = *reinterpret_cast<GqaGroups*>(dynamic_shared);
  GqaPart<kHeadDim> mine;
  mine.o = reinterpret_cast<float*>(dynamic_shared + sizeof(GqaGroups));
  mine.stats = reinterpret_cast<float2*>(mine.o + launch.tiles * kGqaTileRows * kPitch);
  const uint32_t ring = shared_address(mine.stats + launch.tiles * kGqaTileRows);
  grid_dependency_launch();
  grid_dependency_wait();
  const int block = blockIdx.x % kBlocks, cluster = blockIdx.x / kBlocks;
  const int window_row = blockIdx.z * kGqaWindowRows;
  const int window_rows = min(kGqaWindowRows, p.num_rows - window_row);
  const int log2_group = launch.log2_group;
  const GqaPlace place = {block, window_row, p.num_heads / p.num_kv_heads, log2_group};
  gqa_find_groups(p, window_row, window_rows, launch.tiles * kGqaTileRows >> log2_group, g);
  const GqaWarp warp = gqa_warp<kHeadDim, kColumnParts>(window_row, log2_group);
  if (blockIdx.x == 0) gqa_zero_rows(p, g, window_row, window_rows, warp.kv_head);
  if (g.count == 0) return;  // all rows are inert, as the rows of a round behind the last are

  const auto [first, last] = gqa_items_of<kSplit>(g, cluster, launch.clusters);
  if (first == last) return;  // as all blocks of the cluster

  const float scale = log2_scale(p.softmax_scale);
  const GqaWorkspace<kHeadDim> workspace = gqa_workspace<kHeadDim>(p, launch.max_chunks);
  // Fours of a tile's values that each thread merges.
  constexpr int kThreadsOfTile = 32 * kColumnParts;
  constexpr int kVectors =
      (kGqaTileRows * kHeadDim / 4 / kBlocks + kThreadsOfTile - 1) / kThreadsOfTile;
  GqaMerged total[kVectors];                // without a split
  GqaMerged two[kVectors], left[kVectors];  // two parts, the first two, where one block runs them
  GqaState<kColumns> st;
  GqaTile t;
  uint32_t q[kHeadDim / 4];
  GqaCursor work = gqa_cursor(g, first), ahead = work;
  int issued = 0;
  const int jobs = kTurns * (last - first);
  // Starts copies up to those of `until`, but not past a step of mixed keys.
  const auto fill = [&](int until) {
    for (until = min(until, jobs); issued < until; issued++, gqa_advance<kTurns>(g, ahead)) {
      const GqaStepOf s = gqa_step_of(g, ahead, block);
      if (s.mixed) return;
      if (!s.empty)
        gqa_start_copy<kHeadDim>(p, g, ahead.group, s.step, warp.kv_head,
                                 ring + (issued & (launch.stages - 1)) * gqa_stage_bytes(kHeadDim));
      gqa_commit();
    }
  };
  int loaded = -1;  // the group whose queries the warp holds
  // Of the tile: its queries, then scores, then its part of a chunk.
  float* const scratch = mine.o + warp.tile * kGqaTileRows * kPitch;
  const auto load_queries = [&] {
    gqa_load_queries<kHeadDim, kColumnParts>(shared_address(scratch), warp.tile, q);
  };
  for (int job = 0; job < jobs; job++, gqa_advance<kTurns>(g, work)) {
    if (work.turn % 2 == 0) {
      // The parts of the chunk before have been read.
      if (kBlocks > 1 && job > 0) cluster_wait();
      gqa_reset(st);
    }
    const bool fresh = work.group != loaded;
    if (fresh) {
      loaded = work.group;
      if (kBlocks == 1) __syncthreads();
      gqa_copy_queries<kHeadDim, kColumnParts>(p, g, loaded, warp, shared_address(scratch));
      gqa_commit();
      t = gqa_tile(p, g, loaded, warp.tile, log2_group);
      if constexpr (!kSplit)
        for (GqaMerged& row : total) row = {make_float4(0, 0, 0, 0), -INFINITY, 0};
    }
    const GqaStepOf s = gqa_step_of(g, work, block);
    const bool filled = issued > job;  // not at the beginning and behind mixed keys
    if (filled || s.mixed) gqa_wait_copies(fresh ? 0 : issued - job - 1);
    __syncthreads();
    if (fresh && (filled || s.mixed)) load_queries();
    if (s.mixed) {
      // Copies, lest they lie in memory all the time for this call's sake.
      GqaState<kColumns> state = st;
      GqaTile tile = t;
      uint32_t queries[kHeadDim / 4];
#pragma unroll
      for (int i = 0; i < kHeadDim / 4; i++) queries[i] = q[i];
      gqa_mixed_step<kHeadDim, kColumns>(p, g, loaded, warp, tile, state, queries, s.step, scale,
                                         ring, launch.stages * kGqaStep);
      st = state;
      issued++;
      gqa_advance<kTurns>(g, ahead);
    } else {
      fill(job + launch.stages);
      if (!filled) {
        gqa_wait_copies(issued - job - 1);
        __syncthreads();
        if (fresh) load_queries();
      }
      if (s.step * kGqaStep < t.tile_end && (s.step + 1) * kGqaStep > t.tile_begin) {
        const uint32_t keys = ring + (job & (launch.stages - 1)) * gqa_stage_bytes(kHeadDim);
        float scores[32];
        uint32_t w[16];
        gqa_scores<kHeadDim, kColumnParts>(q, keys, warp.tile, warp.first_piece / (kColumns / 8),
                                           scratch, scores);
        gqa_softmax(st, t, s.step, scale, scores, w);
        gqa_add_all_values<kHeadDim>(st, w, keys + kGqaStep * kHeadDim * 2, warp);
      }
    }
    if (work.turn % 2 == 0) continue;

    // A part is complete. The four of a row merge, in each block of the cluster for a quarter of
    // the rows.
    named_barrier_sync(1 + warp.tile, 32 * kColumnParts);  // the tile's scores have been read
    if (warp.tile * kGqaTileRows < g.num_rows[loaded] << log2_group) gqa_store_part(st, warp, mine);
    if constexpr (kBlocks > 1)
      cluster_sync();
    else
      __syncthreads();
    const GqaChunk chunk = {loaded, s.step / kGqaStepsOfChunk, work.turn / 2,
                            work.item + 1 == g.first_item[loaded + 1]};
    GqaMerged from[kGqaParts];
    gqa_merge_parts<kSplit, kBlocks>(p, launch, g, warp, place, chunk, mine, workspace, scale, from,
                                     two, left, total);
    if constexpr (kBlocks > 1) cluster_arrive();
  }
  if constexpr (kBlocks > 1) cluster_wait();
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr int kGqaMostBlocks = kGqaParts;
#else
constexpr int kGqaMostBlocks = 1;
#endif

template <int kHeadDim, int kColumnParts, bool kSplit, int kBlocks>
__global__ void __launch_bounds__(kGqaMaxThreads)
    gqa_attention_kernel(const __grid_constant__ GqaAttentionParams p,
                         const __grid_constant__ GqaLaunch launch) {
  if constexpr (kBlocks <= kGqaMostBlocks)
    gqa_attend<kHeadDim, kColumnParts, kSplit, kBlocks>(p, launch);
}

// Merges the chunks of a row in order, one warp a (token, head) pair. All loads of a batch of
// chunks are in flight together, and only the sum of a chunk waits for the one before.
template <int kHeadDim>
__global__ void __launch_bounds__(128) gqa_combine_kernel(GqaAttentionParams p, int max_chunks) {
  constexpr int kBatch = 16, kValues = kHeadDim / 32;
  using Vector = std::conditional_t<kValues == 4, float4, float2>;
  grid_dependency_launch();
  grid_dependency_wait();
  const int row_head = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int row = row_head / p.num_heads;
  if (row >= p.num_rows) return;
  int begin, end;
  gqa_range(p, row, begin, end);
  if (p.seq_of_row[row] < 0) return;
  const float scale = log2_scale(p.softmax_scale);
  const GqaWorkspace<kHeadDim> workspace = gqa_workspace<kHeadDim>(p, max_chunks);
  const int last = begin < end ? (end - 1) / kGqaChunkPositions + 1 : 0;
  float m = -INFINITY, l = 0, o[kValues] = {};
  for (int first = gqa_first_chunk(begin); first < last; first += kBatch) {
    const int count = min(kBatch, last - first);
    const int64_t at = int64_t{row_head} * max_chunks + first;
    float2 stats = make_float2(-INFINITY, 0);
    if (lane < count) stats = __ldcg(workspace.stats + at + lane);
    Vector values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++)
      if (i < count)
        values[i] =
            __ldcg(reinterpret_cast<const Vector*>(workspace.o + (at + i) * kHeadDim) + lane);
    // As attention_merge: of lane i, the merge of chunk i with all before it.
    float top = stats.x;
#pragma unroll
    for (int d = 1; d < kBatch; d *= 2) {
      const float other = __shfl_up_sync(~0u, top, d);
      if (lane >= d) top = fmaxf(top, other);
    }
    top = fmaxf(top, m);
    float before = __shfl_up_sync(~0u, top, 1);
    if (lane == 0) before = m;
    const float base = __fmul_rn(top, scale);
    const float decay = exp2_approx(__fsub_rn(__fmul_rn(before, scale), base));
    const float b =
        stats.y > 0 ? __fmul_rn(stats.y, exp2_approx(__fsub_rn(__fmul_rn(stats.x, scale), base)))
                    : 0.f;
    float a = 0, sum = 1;
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const float left = l > 0 ? __fmul_rn(l, __shfl_sync(~0u, decay, i)) : 0.f;
      const float both = __fadd_rn(left, __shfl_sync(~0u, b, i));
      if (i < count) l = both;
      if (lane == i) a = left, sum = both;
    }
    AttentionMerge merge;
    const float left = a > 0 ? __fdiv_rn(a, sum) : 0.f, right = b > 0 ? __fdiv_rn(b, sum) : 0.f;
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      merge.left = __shfl_sync(~0u, left, i), merge.right = __shfl_sync(~0u, right, i);
      if (i < count) {
        const float* v = reinterpret_cast<const float*>(&values[i]);
#pragma unroll
        for (int c = 0; c < kValues; c++) o[c] = merge_values(merge, o[c], v[c]);
      }
    }
    m = __shfl_sync(~0u, top, count - 1);
  }
  __nv_bfloat16* out =
      static_cast<__nv_bfloat16*>(p.out) + int64_t{row_head} * kHeadDim + lane * kValues;
#pragma unroll
  for (int c = 0; c < kValues; c += 2)
    *reinterpret_cast<__nv_bfloat162*>(out + c) = __floats2bfloat162_rn(o[c], o[c + 1]);
}

}  // namespace coppice::kernels
