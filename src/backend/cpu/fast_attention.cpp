#include "backend/cpu/fast_attention.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/key_range.h"
#include "backend/cpu/ops.h"

namespace coppice::cpu {
namespace {

using simd::kMaxHeadTile;

constexpr std::int64_t kMaxMlaKeyDim = 1024;

// Heads that read the same keys are computed together where that leaves work for every thread; a
// head's bits do not depend on it.
std::int64_t head_tile(std::int64_t group, std::int64_t num_rows, std::int64_t num_heads,
                       const ThreadPool& pool) {
  for (std::int64_t tile = std::min(group, kMaxHeadTile); tile > 1; --tile)
    if (group % tile == 0 && num_rows * (num_heads / tile) >= 2 * pool.num_threads()) return tile;
  return 1;
}

// The cache rows of the step that starts at `step`; none behind the range.
void find_keys(const KeyRange& range, std::int64_t step, const float* key_rows,
               const float* value_rows, std::int64_t row_size, simd::AttentionKeys& found) {
  const std::int64_t end = std::min(step + kAttentionStep, range.end);
  found.count = 0;
  for (std::int64_t p = std::max(step, range.begin); p < end; ++p, ++found.count) {
    const std::int64_t offset = range.slot(p) * row_size;
    found.keys[found.count] = key_rows + offset;
    found.values[found.count] = value_rows + offset;
  }
}

void attend(const simd::Kernels& kernels, const KeyRange& range, const float* key_rows,
            const float* value_rows, std::int64_t row_size, simd::AttentionTile tile) {
  float running_max[kMaxHeadTile], running_sum[kMaxHeadTile];
  std::fill_n(running_max, tile.heads, -std::numeric_limits<float>::infinity());
  std::fill_n(running_sum, tile.heads, 0.0f);
  std::fill_n(tile.out, tile.heads * tile.value_dim, 0.0f);
  if (range.begin >= range.end) return;
  tile.max = running_max;
  tile.sum = running_sum;
  simd::AttentionKeys found[2];
  std::int64_t step = range.first_step();
  find_keys(range, step, key_rows, value_rows, row_size, found[0]);
  for (int now = 0; found[now].count > 0; now = 1 - now) {
    step += kAttentionStep;
    find_keys(range, step, key_rows, value_rows, row_size, found[1 - now]);
    kernels.attention_step(tile, found[now], found[1 - now]);
  }
  kernels.attention_finish(tile);
}

}  // namespace

void fast_mla_attention(const simd::Kernels& kernels, const MlaAttentionArgs& args,
                        ThreadPool& pool) {
  const std::int64_t num_heads = args.q_lat.shape(1), rank = args.q_lat.shape(2);
  const std::int64_t rope_dim = args.q_pe.shape(2), key_dim = rank + rope_dim;
  if (rank % 16 != 0 || rope_dim % 16 != 0 || key_dim > kMaxMlaKeyDim)
    return mla_attention(args, pool);
  COPPICE_CHECK_EQ(args.cache.shape(2), key_dim);
  const std::int64_t tile = head_tile(num_heads, args.q_lat.shape(0), num_heads, pool);
  const std::int64_t tiles = num_heads / tile;
  const float* const rows = args.cache.data<float>();
  pool.parallel_for(args.q_lat.shape(0) * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    float query[kMaxHeadTile * kMaxMlaKeyDim];  // [tile, key_dim]
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t t = item / tiles, first = item % tiles * tile;
      for (std::int64_t h = 0; h < tile; ++h) {
        std::copy_n(args.q_lat.row<float>(t) + (first + h) * rank, rank, query + h * key_dim);
        std::copy_n(args.q_pe.row<float>(t) + (first + h) * rope_dim, rope_dim,
                    query + h * key_dim + rank);
      }
      attend(kernels, KeyRange::of_row(*args.metadata, t, args.cache.shape(0)), rows, rows, key_dim,
             {.query = query,
              .heads = tile,
              .key_dim = key_dim,
              .value_dim = rank,
              .scale = args.scale,
              .out = args.out.row<float>(t) + first * rank});
    }
  });
}

void fast_gqa_attention(const simd::Kernels& kernels, const GqaAttentionArgs& args,
                        ThreadPool& pool) {
  const std::int64_t num_heads = args.q.shape(1), head_dim = args.q.shape(2);
  const std::int64_t row_size = args.k_cache.shape(2);
  if (head_dim % 16 != 0) return gqa_attention(args, pool);
  const std::int64_t group = num_heads / (row_size / head_dim);
  COPPICE_CHECK_EQ(group * row_size, num_heads * head_dim);
  const std::int32_t* const positions = args.positions.data<std::int32_t>();
  const std::int64_t tile = head_tile(group, args.q.shape(0), num_heads, pool);
  const std::int64_t tiles = num_heads / tile;
  pool.parallel_for(args.q.shape(0) * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t t = item / tiles, first = item % tiles * tile;
      const std::int64_t kv_offset = first / group * head_dim;
      KeyRange range = KeyRange::of_row(*args.metadata, t, args.k_cache.shape(0));
      if (args.causal) range.limit_to_position(positions[t]);
      range.limit_to_window(positions[t], args.sliding_window);
      attend(kernels, range, args.k_cache.data<float>() + kv_offset,
             args.v_cache.data<float>() + kv_offset, row_size,
             {.query = args.q.row<float>(t) + first * head_dim,
              .heads = tile,
              .key_dim = head_dim,
              .value_dim = head_dim,
              .scale = args.scale,
              .out = args.out.row<float>(t) + first * head_dim});
    }
  });
}

}  // namespace coppice::cpu
