// Sixteen lanes as two AVX2 vectors. Included by kernels_avx2.cpp only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace coppice::cpu::simd {
namespace {

struct F {  // 16 x f32
  __m256 lo, hi;
};
struct I {  // 16 x i32
  __m256i lo, hi;
};

constexpr int kQuantTile = 2;  // rows that share one pass over quantised weights
constexpr int kFloatTile = 1;  // the same for float weights, four sums each
constexpr int kKeyTile = 1;    // keys scored together
constexpr int kQ8Zero = 0;     // what dot_q8 leaves in the sum, per unit of activation

inline F f_zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline F f_set(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline F f_load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void f_store(float* p, F x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline F f_add(F a, F b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F f_sub(F a, F b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F f_mul(F a, F b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F f_div(F a, F b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F f_fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// The second operand wins when either is NaN.
inline F f_max(F a, F b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F f_min(F a, F b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F f_abs(F a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F f_round(F a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}
// x where a >= b or either is NaN, else 0.
inline F f_keep_unless_less(F a, F b, F x) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ), x.lo),
          _mm256_and_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ), x.hi)};
}
inline float f_sum(F a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
// out[i] = scale * sum of the lanes of the i-th vector.
inline void f_sum4(F a, F b, F c, F d, float scale, float* out) {
  out[0] = f_sum(a) * scale;
  out[1] = f_sum(b) * scale;
  out[2] = f_sum(c) * scale;
  out[3] = f_sum(d) * scale;
}
inline float f_largest(F a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

inline F f_from_f16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline __m256 widen_bf16(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline F f_from_bf16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {widen_bf16(_mm_loadu_si128(halves)), widen_bf16(_mm_loadu_si128(halves + 1))};
}

inline I i_set(std::int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline I i_load(const void* p) {
  const auto* halves = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline I i_and(I a, I b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
template <int kBits>
inline I i_shift_right(I a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
template <int kBits>
inline I i_shift_left(I a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
inline I i_add(I a, I b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline std::int32_t i_sum(I a) {
  const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline F f_from_i(I a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
inline I i_from_f(F a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
inline F f_cast(I a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}

inline __m256i add_byte_products(__m256i sum, __m256i unsigned_bytes, __m256i signed_bytes) {
  const __m256i pairs = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// Per lane: sum + four unsigned bytes (at most 15) times four signed bytes.
inline I dot_u4(I sum, I weights, I x) {
  return {add_byte_products(sum.lo, weights.lo, x.lo), add_byte_products(sum.hi, weights.hi, x.hi)};
}
// The sign moves to the activation: unsigned times signed pairs then fit 16 bits.
inline __m256i add_q8_products(__m256i sum, __m256i biased, __m256i x) {
  const __m256i weights = _mm256_xor_si256(biased, _mm256_set1_epi8(-128));
  return add_byte_products(sum, _mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
}
// The same for bytes stored + 128; leaves kQ8Zero times the sum of x too much.
inline I dot_q8(I sum, I weights, I x) {
  return {add_q8_products(sum.lo, weights.lo, x.lo), add_q8_products(sum.hi, weights.hi, x.hi)};
}
// Per lane: sum + two int16 times two int16.
inline I dot_s16(I sum, I weights, I x) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(weights.lo, x.lo)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(weights.hi, x.hi))};
}

inline __m256i pack_s16(I a) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
}
inline void store_s16(void* p, I a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), pack_s16(a));
}
inline void store_s8(void* p, I a) {
  const __m256i wide = pack_s16(a);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(wide),
                                                             _mm256_extracti128_si256(wide, 1)));
}

}  // namespace
}  // namespace coppice::cpu::simd
