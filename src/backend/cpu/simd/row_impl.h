// Row-wise ops over the 16-lane vectors of vector_*.h.
#pragma once

#include "backend/cpu/simd/kernels.h"

namespace coppice::cpu::simd {
namespace {

// exp(x), about 1 ulp; 0 below -87.3, NaN stays NaN. Range reduction by ln 2 in two parts, then the
// Taylor polynomial on [-ln2/2, ln2/2].
inline F f_exp(F x) {
  const F lowest = f_set(-87.3f);
  const F clamped = f_max(lowest, f_min(f_set(88.0f), x));
  const F n = f_round(f_mul(clamped, f_set(1.44269504f)));
  F r = f_fma(n, f_set(-0.693359375f), clamped);
  r = f_fma(n, f_set(2.12194440e-4f), r);
  F p = f_set(1.0f / 5040);
  p = f_fma(p, r, f_set(1.0f / 720));
  p = f_fma(p, r, f_set(1.0f / 120));
  p = f_fma(p, r, f_set(1.0f / 24));
  p = f_fma(p, r, f_set(1.0f / 6));
  p = f_fma(p, r, f_set(0.5f));
  p = f_fma(p, r, f_set(1.0f));
  p = f_fma(p, r, f_set(1.0f));
  const F power = f_cast(i_shift_left<23>(i_add(i_from_f(n), i_set(127))));
  return f_keep_unless_less(x, lowest, f_mul(p, power));
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t size, float* out) {
  F sums[4] = {f_zero(), f_zero(), f_zero(), f_zero()};
  std::int64_t i = 0;
  for (; i + 64 <= size; i += 64)
    for (int k = 0; k < 4; ++k) {
      const F v = f_load(x + i + 16 * k);
      sums[k] = f_fma(v, v, sums[k]);
    }
  for (; i + 16 <= size; i += 16) {
    const F v = f_load(x + i);
    sums[0] = f_fma(v, v, sums[0]);
  }
  float sum = f_sum(f_add(f_add(sums[0], sums[1]), f_add(sums[2], sums[3])));
  for (; i < size; ++i) sum += x[i] * x[i];
  const float inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(size) + eps);
  i = 0;
  for (; i + 16 <= size; i += 16)
    f_store(out + i, f_mul(f_mul(f_load(x + i), f_set(inverse)), f_load(weight + i)));
  for (; i < size; ++i) out[i] = x[i] * inverse * weight[i];
}

void add(float* x, const float* delta, std::int64_t size) {
  std::int64_t i = 0;
  for (; i + 16 <= size; i += 16) f_store(x + i, f_add(f_load(x + i), f_load(delta + i)));
  for (; i < size; ++i) x[i] += delta[i];
}

void weighted_sum(const float* weights, const float* const* rows, std::int64_t count,
                  const float* shared, std::int64_t size, float* out) {
  std::int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    F sum = f_zero();
    for (std::int64_t k = 0; k < count; ++k)
      sum = f_add(sum, f_mul(f_set(weights[k]), f_load(rows[k] + i)));
    if (shared != nullptr) sum = f_add(sum, f_load(shared + i));
    f_store(out + i, sum);
  }
  for (; i < size; ++i) {
    float sum = 0;
    for (std::int64_t k = 0; k < count; ++k) sum += weights[k] * rows[k][i];
    out[i] = shared != nullptr ? sum + shared[i] : sum;
  }
}

inline F f_silu(F x) {
  const F one = f_set(1.0f);
  return f_div(x, f_add(one, f_exp(f_sub(f_zero(), x))));
}

void silu_mul(const float* gate, const float* up, std::int64_t size, float* out) {
  std::int64_t i = 0;
  for (; i + 16 <= size; i += 16) f_store(out + i, f_mul(f_silu(f_load(gate + i)), f_load(up + i)));
  for (; i < size; ++i) {
    // One lane of the same vector code, so that a column's bits do not depend on the width.
    float lanes[16];
    f_store(lanes, f_mul(f_silu(f_set(gate[i])), f_set(up[i])));
    out[i] = lanes[0];
  }
}

}  // namespace
}  // namespace coppice::cpu::simd
