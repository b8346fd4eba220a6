// Sixteen lanes of AVX-512 with VNNI. Included by kernels_avx512.cpp only.
#pragma once

// GCC 12 takes the intrinsics' own undefined operands for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace coppice::cpu::simd {
namespace {

using F = __m512;   // 16 x f32
using I = __m512i;  // 16 x i32

constexpr int kQuantTile = 8;  // rows that share one pass over quantised weights
constexpr int kFloatTile = 4;  // the same for float weights, four sums each
constexpr int kKeyTile = 4;    // keys scored together
constexpr int kQ8Zero = 128;   // what dot_q8 leaves in the sum, per unit of activation

inline F f_zero() {
  return _mm512_setzero_ps();
}
inline F f_set(float x) {
  return _mm512_set1_ps(x);
}
inline F f_load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void f_store(float* p, F x) {
  _mm512_storeu_ps(p, x);
}
inline F f_add(F a, F b) {
  return _mm512_add_ps(a, b);
}
inline F f_sub(F a, F b) {
  return _mm512_sub_ps(a, b);
}
inline F f_mul(F a, F b) {
  return _mm512_mul_ps(a, b);
}
inline F f_div(F a, F b) {
  return _mm512_div_ps(a, b);
}
inline F f_fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
// The second operand wins when either is NaN.
inline F f_max(F a, F b) {
  return _mm512_max_ps(a, b);
}
inline F f_min(F a, F b) {
  return _mm512_min_ps(a, b);
}
inline F f_abs(F a) {
  return _mm512_abs_ps(a);
}
inline F f_round(F a) {
  return _mm512_roundscale_ps(a, 0);
}
// x where a >= b or either is NaN, else 0.
inline F f_keep_unless_less(F a, F b, F x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), x);
}
// out[i] = scale * sum of the lanes of the i-th vector, all four by the same tree of additions.
inline void f_sum4(F a, F b, F c, F d, float scale, float* out) {
  const F ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const F cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const F abcd = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  _mm_storeu_ps(out, _mm_mul_ps(four, _mm_set1_ps(scale)));
}
inline float f_sum(F a) {
  float sums[4];
  f_sum4(a, a, a, a, 1.0f, sums);
  return sums[0];
}
inline float f_largest(F a) {
  return _mm512_reduce_max_ps(a);
}

inline F f_from_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline F f_from_bf16(const void* p) {
  const __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline I i_set(std::int32_t x) {
  return _mm512_set1_epi32(x);
}
inline I i_load(const void* p) {
  return _mm512_loadu_si512(p);
}
inline I i_and(I a, I b) {
  return _mm512_and_si512(a, b);
}
template <int kBits>
inline I i_shift_right(I a) {
  return _mm512_srli_epi32(a, kBits);
}
template <int kBits>
inline I i_shift_left(I a) {
  return _mm512_slli_epi32(a, kBits);
}
inline I i_add(I a, I b) {
  return _mm512_add_epi32(a, b);
}
inline std::int32_t i_sum(I a) {
  return _mm512_reduce_add_epi32(a);
}
inline F f_from_i(I a) {
  return _mm512_cvtepi32_ps(a);
}
inline I i_from_f(F a) {
  return _mm512_cvtps_epi32(a);
}
inline F f_cast(I a) {
  return _mm512_castsi512_ps(a);
}

// Per lane: sum + four unsigned bytes (at most 15) times four signed bytes.
inline I dot_u4(I sum, I weights, I x) {
  return _mm512_dpbusd_epi32(sum, weights, x);
}
// The same for bytes stored + 128; leaves kQ8Zero times the sum of x too much.
inline I dot_q8(I sum, I weights, I x) {
  return _mm512_dpbusd_epi32(sum, weights, x);
}
// Per lane: sum + two int16 times two int16.
inline I dot_s16(I sum, I weights, I x) {
  return _mm512_dpwssd_epi32(sum, weights, x);
}

inline void store_s8(void* p, I a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a));
}
inline void store_s16(void* p, I a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a));
}

}  // namespace
}  // namespace coppice::cpu::simd
