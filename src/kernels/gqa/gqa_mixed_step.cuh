// A step in which the rows of a group read different keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/ldmatrix.cuh"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/gqa/gqa_groups.h"
#include "kernels/gqa/gqa_step.cuh"

namespace coppice::kernels {

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

}  // namespace coppice::kernels
