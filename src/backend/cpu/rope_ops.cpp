#include <cstring>

#include "backend/cpu/ops.h"
#include "backend/cpu/vector_math.h"

namespace coppice::cpu {
namespace {

// Rotates `dim` values in place. cos_sin: dim/2 cosines, then as many sines.
void rotate(float* x, const float* cos_sin, std::int64_t dim, bool interleaved) {
  const std::int64_t half = dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    float& a = interleaved ? x[2 * i] : x[i];
    float& b = interleaved ? x[2 * i + 1] : x[i + half];
    const float cosine = cos_sin[i], sine = cos_sin[half + i];
    const float rotated = a * cosine - b * sine;
    b = a * sine + b * cosine;
    a = rotated;
  }
}

// The cache row of a slot, or null for a row that writes nothing.
float* cache_row(const Tensor& cache, std::int32_t slot) {
  if (slot < 0) return nullptr;
  COPPICE_CHECK_LT(slot, cache.shape(0) * kBlockSize);
  return cache.data<float>() + slot * cache.shape(2);
}

// cos_sin row of a position. Rows that write nothing may be padding with any position: row 0.
const float* table_row(const Tensor& cos_sin, std::int32_t position, std::int32_t slot) {
  const bool inside = position >= 0 && position < cos_sin.shape(0);
  COPPICE_CHECK(inside || slot < 0, "position ", position, " of ", cos_sin.shape(0));
  return cos_sin.row<float>(inside ? position : 0);
}

}  // namespace

void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args, ThreadPool& pool) {
  const std::int64_t num_heads = args.q_pe.shape(1), rope_dim = args.q_pe.shape(2);
  const std::int64_t rank = args.kv_a.shape(1) - rope_dim;
  COPPICE_CHECK_EQ(args.kv_norm.shape(0), rank);
  COPPICE_CHECK_EQ(args.cache.shape(2), rank + rope_dim);
  const std::int32_t* const positions = args.positions.data<std::int32_t>();
  const std::int32_t* const slots = args.slots.data<std::int32_t>();
  pool.parallel_for(
      args.q_pe.shape(0), kMinRowsPerThread, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const float* const cos_sin = table_row(args.cos_sin, positions[t], slots[t]);
          for (std::int64_t h = 0; h < num_heads; ++h)
            rotate(args.q_pe.row<float>(t) + h * rope_dim, cos_sin, rope_dim, true);
          float* const out = cache_row(args.cache, slots[t]);
          if (out == nullptr) continue;
          const float* const kv_a = args.kv_a.row<float>(t);
          normalize(kv_a, args.kv_norm.data<float>(), args.eps, rank, out);
          std::memcpy(out + rank, kv_a + rank, static_cast<std::size_t>(rope_dim) * sizeof(float));
          rotate(out + rank, cos_sin, rope_dim, true);
        }
      });
}

void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args, ThreadPool& pool) {
  const std::int64_t num_kv_heads = args.k.shape(1), head_dim = args.k.shape(2);
  const std::int64_t num_heads = args.q.empty() ? 0 : args.q.shape(1);
  const std::size_t head_bytes = static_cast<std::size_t>(head_dim) * sizeof(float);
  COPPICE_CHECK_EQ(args.k_cache.shape(2), num_kv_heads * head_dim);
  const std::int32_t* const positions = args.positions.data<std::int32_t>();
  const std::int32_t* const slots = args.slots.data<std::int32_t>();
  const float* const q_norm = args.q_norm.empty() ? nullptr : args.q_norm.data<float>();
  const float* const k_norm = args.k_norm.empty() ? nullptr : args.k_norm.data<float>();
  pool.parallel_for(args.k.shape(0), kMinRowsPerThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* const cos_sin = table_row(args.cos_sin, positions[t], slots[t]);
      for (std::int64_t h = 0; h < num_heads; ++h) {
        float* const q = args.q.row<float>(t) + h * head_dim;
        if (q_norm != nullptr) normalize(q, q_norm, args.eps, head_dim, q);
        rotate(q, cos_sin, head_dim, args.interleaved);
      }
      float* k_out = cache_row(args.k_cache, slots[t]);
      float* v_out = cache_row(args.v_cache, slots[t]);
      if (k_out == nullptr) continue;
      for (std::int64_t h = 0; h < num_kv_heads; ++h, k_out += head_dim) {
        const float* const k = args.k.row<float>(t) + h * head_dim;
        if (k_norm != nullptr)
          normalize(k, k_norm, args.eps, head_dim, k_out);
        else
          std::memcpy(k_out, k, head_bytes);
        rotate(k_out, cos_sin, head_dim, args.interleaved);
      }
      std::memcpy(v_out, args.v.row<float>(t), static_cast<std::size_t>(num_kv_heads) * head_bytes);
    }
  });
}

}  // namespace coppice::cpu
