// Check, bit test and timing of the norm and rope kernels.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/norm/rms_norm.h"
#include "kernels/rope/gqa_rope.h"
#include "kernels/rope/mla_rope.h"

using namespace coppice::kernels;
using bf16 = __nv_bfloat16;

#define CK(x)                                                             \
  do {                                                                    \
    cudaError_t err_ = (x);                                               \
    if (err_ != cudaSuccess) {                                            \
      printf("%s: %s line %d\n", #x, cudaGetErrorString(err_), __LINE__); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

std::mt19937 rng(3);
std::normal_distribution<float> normal;

template <class T>
T* device(const std::vector<T>& v) {
  T* p;
  CK(cudaMalloc(&p, std::max<size_t>(v.size(), 1) * sizeof(T)));
  CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
template <class T>
std::vector<T> host(const T* p, size_t n) {
  std::vector<T> v(n);
  CK(cudaDeviceSynchronize());
  CK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return v;
}
std::vector<bf16> random_bf16(size_t n, float scale = 1) {
  std::vector<bf16> v(n);
  for (auto& x : v) x = __float2bfloat16(normal(rng) * scale);
  return v;
}
std::vector<float> random_f32(size_t n) {
  std::vector<float> v(n);
  for (auto& x : v) x = 1 + 0.3f * normal(rng);
  return v;
}
float f(bf16 x) {
  return __bfloat162float(x);
}
int wrong = 0;
void expect(bool ok, const char* what, double value) {
  if (!ok) wrong++;
  if (!ok) printf("  WRONG %s %g\n", what, value);
}
bool same(const bf16* a, const bf16* b, size_t n) {
  return memcmp(a, b, n * 2) == 0;
}

void check_norm(int rows, int hidden) {
  auto x = random_bf16(size_t(rows) * hidden, 3), d = random_bf16(size_t(rows) * hidden);
  auto w = random_f32(hidden);
  bf16 *dx = device(x), *dd = device(d), *dr = device(x), *o1 = device(x), *o2 = device(x),
       *o3 = device(x);
  float* dw = device(w);
  RmsNormParams p;
  p.x = dx, p.weight = dw, p.out = o1, p.num_rows = rows, p.hidden_size = hidden, p.eps = 1e-5f;
  p.x_row_stride = p.delta_row_stride = p.residual_row_stride = p.out_row_stride = hidden;
  CK(rms_norm(p, 0));
  auto got = host(o1, x.size());
  double e = 0, m = 0;
  for (int r = 0; r < rows; r++) {
    double s = 0;
    for (int c = 0; c < hidden; c++)
      s += double(f(x[size_t(r) * hidden + c])) * f(x[size_t(r) * hidden + c]);
    s = 1 / std::sqrt(s / hidden + 1e-5);
    for (int c = 0; c < hidden; c++) {
      const double want = f(x[size_t(r) * hidden + c]) * s * w[c];
      e += std::pow(f(got[size_t(r) * hidden + c]) - want, 2), m += want * want;
    }
  }
  expect(std::sqrt(e / m) < 3e-3, "norm error", std::sqrt(e / m));
  // Fused against composed.
  p.delta = dd, p.residual = dr, p.out = o2;
  CK(rms_norm(p, 0));
  auto fused = host(o2, x.size()), residual = host(dr, x.size());
  for (size_t i = 0; i < x.size(); i++)
    if (f(residual[i]) != f(__float2bfloat16(f(x[i]) + f(d[i])))) {
      expect(false, "residual", i);
      break;
    }
  p.delta = nullptr, p.x = dr, p.out = o3;
  CK(rms_norm(p, 0));
  auto composed = host(o3, x.size());
  expect(same(fused.data(), composed.data(), x.size()), "fused != composed, hidden", hidden);
  // A row alone.
  p.x = dr + size_t(rows - 1) * hidden, p.num_rows = 1;
  CK(rms_norm(p, 0));
  auto alone = host(o3, hidden);
  expect(same(alone.data(), &composed[size_t(rows - 1) * hidden], hidden), "row alone, hidden",
         hidden);
  for (void* q : {(void*)dx, (void*)dd, (void*)dr, (void*)o1, (void*)o2, (void*)o3, (void*)dw})
    cudaFree(q);
}

std::vector<float> table(int positions, int dim) {
  std::vector<float> t(size_t(positions) * dim);
  for (int p = 0; p < positions; p++)
    for (int i = 0; i < dim / 2; i++) {
      const double a = p * std::pow(50000.0, -2.0 * i / dim);
      t[size_t(p) * dim + i] = std::cos(a), t[size_t(p) * dim + dim / 2 + i] = std::sin(a);
    }
  return t;
}

void check_mla_rope(int rows, int heads, int rank, int rope) {
  const int width = rank + rope, nope = 128, positions = 500, slots = 4096;
  auto q = random_bf16(size_t(rows) * heads * (nope + rope)),
       kv = random_bf16(size_t(rows) * width);
  auto w = random_f32(rank), t = table(positions, rope);
  std::vector<int> pos(rows), slot(rows);
  for (int r = 0; r < rows; r++) pos[r] = rng() % positions, slot[r] = (r * 37 + 5) % slots;
  if (rows > 2) slot[1] = -1;
  std::vector<bf16> cache(size_t(slots) * width, __float2bfloat16(NAN));
  bf16 *dq = device(q), *dkv = device(kv), *dc = device(cache);
  float *dw = device(w), *dt = device(t);
  int *dp = device(pos), *ds = device(slot);
  MlaRopeParams p;
  p.q_pe = dq + nope, p.q_pe_row_stride = heads * (nope + rope), p.q_pe_head_stride = nope + rope;
  p.kv_a = dkv, p.kv_a_row_stride = width, p.kv_norm = dw, p.eps = 1e-6f, p.cos_sin = dt;
  p.positions = dp, p.slots = ds, p.cache = dc, p.num_rows = rows, p.num_heads = heads;
  p.kv_lora_rank = rank, p.rope_dim = rope;
  CK(mla_rope_and_write_kv(p, 0));
  auto gq = host(dq, q.size());
  auto gc = host(dc, cache.size());
  RmsNormParams n;
  bf16* dn = device(kv);
  n.x = dkv, n.x_row_stride = width, n.out = dn, n.out_row_stride = width, n.weight = dw;
  n.num_rows = rows, n.hidden_size = rank, n.eps = 1e-6f;
  CK(rms_norm(n, 0));
  auto gn = host(dn, kv.size());
  double worst = 0;
  for (int r = 0; r < rows; r++) {
    if (slot[r] < 0) continue;  // rotated like the others, but nothing is written
    const bf16* c = &gc[size_t(slot[r]) * width];
    expect(same(c, &gn[size_t(r) * width], rank), "latent bits against rms_norm, row", r);
    for (int i = 0; i < rope / 2; i++) {
      const double cs = t[size_t(pos[r]) * rope + i], sn = t[size_t(pos[r]) * rope + rope / 2 + i];
      const bf16* k = &kv[size_t(r) * width + rank + 2 * i];
      worst = std::max(worst, std::fabs(f(c[rank + 2 * i]) - (f(k[0]) * cs - f(k[1]) * sn)));
      worst = std::max(worst, std::fabs(f(c[rank + 2 * i + 1]) - (f(k[0]) * sn + f(k[1]) * cs)));
      for (int h = 0; h < heads; h++) {
        const size_t at = (size_t(r) * heads + h) * (nope + rope) + nope + 2 * i;
        worst = std::max(worst, std::fabs(f(gq[at]) - (f(q[at]) * cs - f(q[at + 1]) * sn)));
        worst = std::max(worst, std::fabs(f(gq[at + 1]) - (f(q[at]) * sn + f(q[at + 1]) * cs)));
      }
    }
    for (int h = 0; h < heads; h++)
      expect(same(&gq[(size_t(r) * heads + h) * (nope + rope)],
                  &q[(size_t(r) * heads + h) * (nope + rope)], nope),
             "q_nope untouched", r);
  }
  size_t written = 0;
  for (int s = 0; s < slots; s++) written += !std::isnan(f(gc[size_t(s) * width]));
  expect(written == size_t(rows - (rows > 2)), "slots written", written);
  expect(worst < 0.02, "rotation error", worst);
  for (void* x :
       {(void*)dq, (void*)dkv, (void*)dc, (void*)dw, (void*)dt, (void*)dp, (void*)ds, (void*)dn})
    cudaFree(x);
}

void check_gqa_rope(int rows, int heads, int kv_heads, int dim, bool norm, bool interleaved) {
  const int positions = 300, slots = 1024, all = (heads + 2 * kv_heads) * dim;
  auto qkv = random_bf16(size_t(rows) * all);
  auto wq = random_f32(dim), wk = random_f32(dim), t = table(positions, dim);
  std::vector<int> pos(rows), slot(rows);
  for (int r = 0; r < rows; r++) pos[r] = rng() % positions, slot[r] = (r * 37 + 5) % slots;
  std::vector<bf16> cache(size_t(slots) * kv_heads * dim, __float2bfloat16(NAN));
  bf16 *d = device(qkv), *dk = device(cache), *dv = device(cache);
  GqaRopeParams p;
  p.q = d, p.k = d + heads * dim, p.v = d + (heads + kv_heads) * dim;
  p.q_row_stride = p.k_row_stride = p.v_row_stride = all;
  p.q_norm = norm ? device(wq) : nullptr, p.k_norm = norm ? device(wk) : nullptr, p.eps = 1e-6f;
  p.interleaved = interleaved, p.cos_sin = device(t), p.positions = device(pos),
  p.slots = device(slot);
  p.k_cache = dk, p.v_cache = dv, p.num_rows = rows, p.num_heads = heads;
  p.num_kv_heads = kv_heads, p.head_dim = dim;
  CK(gqa_rope_and_write_kv(p, 0));
  auto got = host(d, qkv.size());
  auto gk = host(dk, cache.size()), gv = host(dv, cache.size());
  double worst = 0;
  for (int r = 0; r < rows; r++)
    for (int h = 0; h < heads + kv_heads; h++) {
      const bf16* x = &qkv[size_t(r) * all + h * dim];
      const bf16* y = h < heads ? &got[size_t(r) * all + h * dim]
                                : &gk[(size_t(slot[r]) * kv_heads + h - heads) * dim];
      double s = 0;
      for (int c = 0; c < dim; c++) s += double(f(x[c])) * f(x[c]);
      s = norm ? 1 / std::sqrt(s / dim + 1e-6) : 1;
      const auto& w = h < heads ? wq : wk;
      for (int i = 0; i < dim / 2; i++) {
        const int ia = interleaved ? 2 * i : i, ib = interleaved ? 2 * i + 1 : i + dim / 2;
        const double a = f(x[ia]) * s * (norm ? w[ia] : 1), b = f(x[ib]) * s * (norm ? w[ib] : 1);
        const double cs = t[size_t(pos[r]) * dim + i], sn = t[size_t(pos[r]) * dim + dim / 2 + i];
        worst = std::max(worst, std::fabs(f(y[ia]) - (a * cs - b * sn)));
        worst = std::max(worst, std::fabs(f(y[ib]) - (a * sn + b * cs)));
      }
    }
  for (int r = 0; r < rows; r++)
    expect(same(&gv[size_t(slot[r]) * kv_heads * dim],
                &qkv[size_t(r) * all + (heads + kv_heads) * dim], kv_heads * dim),
           "values", r);
  expect(worst < 0.04, "gqa rotation error", worst);
  for (void* x : {(void*)d, (void*)dk, (void*)dv}) cudaFree(x);
}

template <class F>
double time_us(F&& call) {
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  cudaGraph_t g;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 50; i++) call(s, i);
  CK(cudaStreamEndCapture(s, &g));
  cudaGraphExec_t e;
  CK(cudaGraphInstantiate(&e, g, 0));
  cudaEvent_t a, b;
  CK(cudaEventCreate(&a));
  CK(cudaEventCreate(&b));
  std::vector<float> t;
  for (int i = 0; i < 11; i++) {
    CK(cudaEventRecord(a, s));
    CK(cudaGraphLaunch(e, s));
    CK(cudaEventRecord(b, s));
    CK(cudaStreamSynchronize(s));
    float ms;
    CK(cudaEventElapsedTime(&ms, a, b));
    t.push_back(ms * 20);
  }
  std::sort(t.begin(), t.end());
  return t[5];
}

int main() {
  for (int rows : {1, 2, 17, 65})
    for (int hidden : {128, 256, 512, 576, 1024, 1536, 2048, 4096, 7168, 18432})
      check_norm(rows, hidden);
  for (int rows : {1, 5, 64})
    for (int heads : {8, 64}) check_mla_rope(rows, heads, 512, 64);
  check_mla_rope(9, 8, 128, 32);
  for (int dim : {64, 128, 256})
    for (bool norm : {false, true})
      for (bool interleaved : {false, true}) {
        check_gqa_rope(1, 9, 3, dim, norm, interleaved);
        check_gqa_rope(17, 32, 8, dim, norm, interleaved);
      }
  printf("norm and rope: %d wrong\n", wrong);
  printf("%-40s %5s %8s %8s\n", "kernel", "rows", "us", "GB/s");
  for (int rows : {1, 8, 17, 64, 256, 1024}) {
    const int hidden = 7168;
    bf16* x = device(random_bf16(size_t(rows) * hidden));
    bf16* o = device(random_bf16(size_t(rows) * hidden));
    float* w = device(random_f32(hidden));
    RmsNormParams p;
    p.x = x, p.weight = w, p.out = o, p.num_rows = rows, p.hidden_size = hidden, p.eps = 1e-5f;
    p.x_row_stride = p.delta_row_stride = p.residual_row_stride = p.out_row_stride = hidden;
    double us = time_us([&](cudaStream_t s, int) { rms_norm(p, s); });
    printf("%-40s %5d %8.2f %8.0f\n", "rms_norm 7168", rows, us, rows * hidden * 4.0 / us / 1e3);
    p.delta = o, p.residual = x;
    us = time_us([&](cudaStream_t s, int) { rms_norm(p, s); });
    printf("%-40s %5d %8.2f %8.0f\n", "add_rms_norm 7168", rows, us,
           rows * hidden * 8.0 / us / 1e3);
    for (int heads : {8, 64}) {
      MlaRopeParams m;
      bf16* q = device(random_bf16(size_t(rows) * heads * 192));
      bf16* kv = device(random_bf16(size_t(rows) * 576));
      bf16* c = device(random_bf16(4096 * 576));
      std::vector<int> pos(rows);
      for (int i = 0; i < rows; i++) pos[i] = i;
      int* dp = device(pos);
      float* t = device(table(2048, 64));
      m.q_pe = q + 128, m.q_pe_row_stride = heads * 192, m.q_pe_head_stride = 192;
      m.kv_a = kv, m.kv_a_row_stride = 576, m.kv_norm = w, m.eps = 1e-5f, m.cos_sin = t;
      m.positions = dp, m.slots = dp, m.cache = c, m.num_rows = rows, m.num_heads = heads;
      m.kv_lora_rank = 512, m.rope_dim = 64;
      us = time_us([&](cudaStream_t s, int) { mla_rope_and_write_kv(m, s); });
      printf("%-37s %2d %5d %8.2f %8.0f\n", "mla_rope_and_write_kv, heads", heads, rows, us,
             rows * (576 * 4.0 + heads * 256.0) / us / 1e3);
    }
  }
}
