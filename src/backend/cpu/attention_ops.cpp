// Reference attention. Keys are reduced in absolutely aligned steps of 64 positions, in position
// order, one running softmax per (row, head). A key's place in that order is its position, whether
// it is found through the block table or through the row's path, so both give the same bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/key_range.h"
#include "backend/cpu/ops.h"
#include "backend/cpu/vector_math.h"

namespace coppice::cpu {
namespace {

// Keys and values of one head.
struct HeadCache {
  const float* keys;    // row of slot s at s * row_size
  const float* values;  // the same
  std::int64_t row_size;
};

// One running softmax; out [value_dim] holds the unnormalised sum between steps.
class RunningSoftmax {
 public:
  RunningSoftmax(float* out, std::int64_t value_dim) : out_(out), value_dim_(value_dim) {
    std::fill_n(out_, value_dim_, 0.0f);
  }

  // scores: those of one step in position order; value_rows: their value vectors.
  void add_step(const float* scores, const float* const* value_rows, std::int64_t count) {
    float step_max = max_;
    for (std::int64_t i = 0; i < count; ++i) step_max = std::max(step_max, scores[i]);
    // A NaN score would vanish in std::max: it must reach the row's output.
    for (std::int64_t i = 0; i < count; ++i)
      if (std::isnan(scores[i])) step_max = scores[i];
    const float keep = std::exp(max_ - step_max);
    max_ = step_max;
    sum_ *= keep;
    for (std::int64_t d = 0; d < value_dim_; ++d) out_[d] *= keep;
    for (std::int64_t i = 0; i < count; ++i) {
      const float weight = std::exp(scores[i] - max_);
      sum_ += weight;
      for (std::int64_t d = 0; d < value_dim_; ++d) out_[d] += weight * value_rows[i][d];
    }
  }

  void finish() {
    if (sum_ == 0.0f) return;  // no key at all
    const float inverse = 1.0f / sum_;
    for (std::int64_t d = 0; d < value_dim_; ++d) out_[d] *= inverse;
  }

 private:
  float* out_;
  std::int64_t value_dim_;
  float max_ = -std::numeric_limits<float>::infinity();
  float sum_ = 0.0f;
};

// score(key_row) -> scaled score.
template <typename Score>
void attend(const KeyRange& range, const HeadCache& cache, std::int64_t value_dim,
            const Score& score, float* out) {
  RunningSoftmax softmax(out, value_dim);
  float scores[kAttentionStep];
  const float* values[kAttentionStep];
  for (std::int64_t step = range.first_step(); step < range.end; step += kAttentionStep) {
    std::int64_t count = 0;
    const std::int64_t step_end = std::min(step + kAttentionStep, range.end);
    for (std::int64_t p = std::max(step, range.begin); p < step_end; ++p, ++count) {
      const std::int64_t offset = range.slot(p) * cache.row_size;
      scores[count] = score(cache.keys + offset);
      values[count] = cache.values + offset;
    }
    softmax.add_step(scores, values, count);
  }
  softmax.finish();
}

}  // namespace

void mla_attention(const MlaAttentionArgs& args, ThreadPool& pool) {
  const std::int64_t num_heads = args.q_lat.shape(1), rank = args.q_lat.shape(2);
  const std::int64_t rope_dim = args.q_pe.shape(2);
  COPPICE_CHECK_EQ(args.cache.shape(2), rank + rope_dim);
  const float* const rows = args.cache.data<float>();
  const HeadCache cache{.keys = rows, .values = rows, .row_size = rank + rope_dim};
  pool.parallel_for(args.q_lat.shape(0) * num_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t t = item / num_heads, h = item % num_heads;
      const float* const q_lat = args.q_lat.row<float>(t) + h * rank;
      const float* const q_pe = args.q_pe.row<float>(t) + h * rope_dim;
      const auto score = [&](const float* key) {
        return (dot(q_lat, key, rank) + dot(q_pe, key + rank, rope_dim)) * args.scale;
      };
      attend(KeyRange::of_row(*args.metadata, t, args.cache.shape(0)), cache, rank, score,
             args.out.row<float>(t) + h * rank);
    }
  });
}

void gqa_attention(const GqaAttentionArgs& args, ThreadPool& pool) {
  const std::int64_t num_heads = args.q.shape(1), head_dim = args.q.shape(2);
  const std::int64_t row_size = args.k_cache.shape(2);
  const std::int64_t group = num_heads / (row_size / head_dim);
  COPPICE_CHECK_EQ(group * row_size, num_heads * head_dim);
  const std::int32_t* const positions = args.positions.data<std::int32_t>();
  pool.parallel_for(args.q.shape(0) * num_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t t = item / num_heads, h = item % num_heads;
      const std::int64_t kv_offset = h / group * head_dim;
      const HeadCache cache{.keys = args.k_cache.data<float>() + kv_offset,
                            .values = args.v_cache.data<float>() + kv_offset,
                            .row_size = row_size};
      const float* const q = args.q.row<float>(t) + h * head_dim;
      const auto score = [&](const float* key) { return dot(q, key, head_dim) * args.scale; };
      KeyRange range = KeyRange::of_row(*args.metadata, t, args.k_cache.shape(0));
      if (args.causal) range.limit_to_position(positions[t]);
      range.limit_to_window(positions[t], args.sliding_window);
      attend(range, cache, head_dim, score, args.out.row<float>(t) + h * head_dim);
    }
  });
}

}  // namespace coppice::cpu
