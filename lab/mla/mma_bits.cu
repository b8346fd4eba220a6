// Are the tensor core instructions bit-equal to each other, and is a result independent of where
// its row and column lie in the tile? Prints the number of differing elements per question.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/common/wgmma.cuh"

using namespace coppice::kernels;
using bf16 = __nv_bfloat16;

constexpr int kQkDepth = 576;

__device__ __forceinline__ uint32_t smem_u32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Rows [rows][cols] into blocks of 64 columns, 128-byte swizzle.
__device__ void load_swizzled(char* smem, const bf16* src, int rows, int cols) {
  for (int i = threadIdx.x; i < rows * cols / 8; i += blockDim.x) {
    int r = i / (cols / 8), c = i % (cols / 8), block = c / 8, chunk = c % 8;
    *reinterpret_cast<uint4*>(smem + block * rows * 128 + r * 128 + ((chunk ^ (r & 7)) << 4)) =
        *reinterpret_cast<const uint4*>(src + r * cols + c * 8);
  }
}

// s [64, 64] = q [64, 576] k [64, 576]^T
__global__ void qk_wgmma(const bf16* q, const bf16* k, float* s) {
  extern __shared__ __align__(1024) char smem[];
  load_swizzled(smem, q, 64, kQkDepth);
  load_swizzled(smem + 73728, k, 64, kQkDepth);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[32];
  for (int i = 0; i < 32; i++) d[i] = 0;
  wgmma_fence();
  for (int b = 0; b < 9; b++)
    for (int j = 0; j < 4; j++)
      wgmma_m64n64_ss(d, wgmma_k_major(smem_u32(smem)).at(b * 8192 + 32 * j),
                      wgmma_k_major(smem_u32(smem) + 73728).at(b * 8192 + 32 * j), b + j > 0);
  wgmma_commit();
  wgmma_wait<0>();
  int w = threadIdx.x / 32, l = threadIdx.x % 32;
  for (int n = 0; n < 8; n++)
    for (int i = 0; i < 4; i++)
      s[(w * 16 + l / 4 + (i / 2) * 8) * 64 + n * 8 + (l % 4) * 2 + i % 2] = d[n * 4 + i];
}

__device__ __forceinline__ void mma16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ uint32_t pack(bf16 x, bf16 y) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(x)) |
         (static_cast<uint32_t>(__bfloat16_as_ushort(y)) << 16);
}

// c [M, N] = init + a [M, K] b, b element (k, n) at b[k * bk + n * bn]; M multiple of 16.
// One warp a 16 x 8 tile.
__global__ void mma_sync_chain(const bf16* a, int lda, const bf16* b, int bk, int bn,
                               const float* init, float* c, int ldc_m, int ldc_n, int depth) {
  int l = threadIdx.x, m0 = blockIdx.x * 16, n0 = blockIdx.y * 8;
  int r = l / 4, q = (l % 4) * 2;
  float d[4];
  for (int i = 0; i < 4; i++) {
    int m = m0 + r + (i / 2) * 8, n = n0 + q + i % 2;
    d[i] = init ? init[m * ldc_m + n * ldc_n] : 0.f;
  }
  for (int k = 0; k < depth; k += 16) {
    uint32_t f[4];
    for (int i = 0; i < 4; i++) {
      const bf16* p = a + (m0 + r + (i % 2) * 8) * lda + k + q + (i / 2) * 8;
      f[i] = pack(p[0], p[1]);
    }
    const bf16* p = b + (n0 + r) * bn;
    mma16816(d, f, pack(p[(k + q) * bk], p[(k + q + 1) * bk]),
             pack(p[(k + q + 8) * bk], p[(k + q + 9) * bk]));
  }
  for (int i = 0; i < 4; i++) c[(m0 + r + (i / 2) * 8) * ldc_m + (n0 + q + i % 2) * ldc_n] = d[i];
}

// o [64, 256] = init + p [64, 64] v [64, 256]; `mode` 0: A from shared memory, 1: from registers
__global__ void pv_wgmma(const bf16* p, const bf16* v, const float* init, float* o, int mode,
                         int groups) {
  extern __shared__ __align__(1024) char smem[];
  load_swizzled(smem, p, 64, 64);
  load_swizzled(smem + 8192, v, 64, 256);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  int w = threadIdx.x / 32, l = threadIdx.x % 32;
  float d[128];
  for (int n = 0; n < 32; n++)
    for (int i = 0; i < 4; i++)
      d[n * 4 + i] = init[(w * 16 + l / 4 + (i / 2) * 8) * 256 + n * 8 + (l % 4) * 2 + i % 2];
  wgmma_fence();
  for (int j = 0; j < groups; j++) {
    uint64_t bd = wgmma_n_major(smem_u32(smem) + 8192, 8192).at(2048 * j);
    if (mode == 0) {
      wgmma_m64n256_ss(d, wgmma_k_major(smem_u32(smem)).at(32 * j), bd, 1);
    } else {
      uint32_t a[4];
      for (int i = 0; i < 4; i++) {
        const bf16* s =
            p + (w * 16 + l / 4 + (i % 2) * 8) * 64 + j * 16 + (l % 4) * 2 + (i / 2) * 8;
        a[i] = pack(s[0], s[1]);
      }
      wgmma_m64n256_rs(d, a, bd, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
  for (int n = 0; n < 32; n++)
    for (int i = 0; i < 4; i++)
      o[(w * 16 + l / 4 + (i / 2) * 8) * 256 + n * 8 + (l % 4) * 2 + i % 2] = d[n * 4 + i];
}

#define CK(x)                                                             \
  do {                                                                    \
    cudaError_t err_ = (x);                                               \
    if (err_ != cudaSuccess) {                                            \
      printf("%s: %s line %d\n", #x, cudaGetErrorString(err_), __LINE__); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

template <class T>
T* to_device(const std::vector<T>& v) {
  T* p;
  CK(cudaMalloc(&p, v.size() * sizeof(T)));
  CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

std::vector<float> to_host(const float* p, size_t n) {
  std::vector<float> v(n);
  CK(cudaDeviceSynchronize());
  CK(cudaMemcpy(v.data(), p, n * 4, cudaMemcpyDeviceToHost));
  return v;
}

size_t count_diff(const std::vector<float>& a, const std::vector<float>& b) {
  size_t n = 0;
  for (size_t i = 0; i < a.size(); i++) n += memcmp(&a[i], &b[i], 4) != 0;
  return n;
}

std::mt19937 rng(1);
float draw(int dist) {
  std::normal_distribution<float> g;
  float x = g(rng);
  if (dist == 1) x = ldexpf(x, int(rng() % 41) - 20);
  if (dist == 2) x = fabsf(x);
  return x;
}

std::vector<bf16> random_bf16(size_t n, int dist) {
  std::vector<bf16> v(n);
  for (auto& x : v) x = __float2bfloat16(draw(dist));
  return v;
}

template <class T>
std::vector<T> rotate_rows(const std::vector<T>& v, int cols, int by) {
  std::vector<T> o(v.size());
  int rows = v.size() / cols;
  for (int r = 0; r < rows; r++)
    std::copy_n(&v[size_t(r) * cols], cols, &o[size_t((r + by) % rows) * cols]);
  return o;
}

int main() {
  CK(cudaFuncSetAttribute(qk_wgmma, cudaFuncAttributeMaxDynamicSharedMemorySize, 147456));
  CK(cudaFuncSetAttribute(pv_wgmma, cudaFuncAttributeMaxDynamicSharedMemorySize, 40960));
  float *ds, *dout;
  CK(cudaMalloc(&ds, 64 * 64 * 4));
  CK(cudaMalloc(&dout, 64 * 256 * 4));
  const char* names[] = {"normal", "wide exponents", "positive"};
  for (int dist = 0; dist < 3; dist++) {
    size_t bad[16] = {};
    double check = 0;
    for (int seed = 0; seed < 20; seed++) {
      auto q = random_bf16(64 * kQkDepth, dist), k = random_bf16(64 * kQkDepth, dist);
      bf16 *dq = to_device(q), *dk = to_device(k);
      qk_wgmma<<<1, 128, 147456>>>(dq, dk, ds);
      auto base = to_host(ds, 4096);
      double e = 0, m = 0;
      for (int r = 0; r < 64; r++)
        for (int c = 0; c < 64; c++) {
          double s = 0;
          for (int i = 0; i < kQkDepth; i++)
            s += double(__bfloat162float(q[r * kQkDepth + i])) *
                 __bfloat162float(k[c * kQkDepth + i]);
          e += (s - base[r * 64 + c]) * (s - base[r * 64 + c]), m += s * s;
        }
      check = fmax(check, sqrt(e / m));
      mma_sync_chain<<<dim3(4, 8), 32>>>(dq, kQkDepth, dk, 1, kQkDepth, nullptr, ds, 64, 1,
                                         kQkDepth);
      auto sync = to_host(ds, 4096);
      bad[0] += count_diff(base, sync);
      mma_sync_chain<<<dim3(4, 8), 32>>>(dk, kQkDepth, dq, 1, kQkDepth, nullptr, ds, 1, 64,
                                         kQkDepth);
      bad[1] += count_diff(sync, to_host(ds, 4096));
      bf16 *dq2 = to_device(rotate_rows(q, kQkDepth, 21)),
           *dk2 = to_device(rotate_rows(k, kQkDepth, 13));
      qk_wgmma<<<1, 128, 147456>>>(dq2, dk, ds);
      bad[2] += count_diff(rotate_rows(base, 64, 21), to_host(ds, 4096));
      qk_wgmma<<<1, 128, 147456>>>(dq, dk2, ds);
      auto rk = to_host(ds, 4096);
      for (int r = 0; r < 64; r++)
        for (int c = 0; c < 64; c++)
          bad[3] += memcmp(&rk[r * 64 + (c + 13) % 64], &base[r * 64 + c], 4) != 0;

      auto p = random_bf16(64 * 64, dist == 0 ? 2 : dist), v = random_bf16(64 * 256, dist);
      std::vector<float> init(64 * 256);
      for (auto& x : init) x = draw(dist) * 3;
      bf16 *dp = to_device(p), *dv = to_device(v);
      float* di = to_device(init);
      pv_wgmma<<<1, 128, 40960>>>(dp, dv, di, dout, 0, 4);
      auto o = to_host(dout, 64 * 256);
      e = m = 0;
      for (int r = 0; r < 64; r++)
        for (int c = 0; c < 256; c++) {
          double s = init[r * 256 + c];
          for (int i = 0; i < 64; i++)
            s += double(__bfloat162float(p[r * 64 + i])) * __bfloat162float(v[i * 256 + c]);
          e += (s - o[r * 256 + c]) * (s - o[r * 256 + c]), m += s * s;
        }
      check = fmax(check, sqrt(e / m));
      pv_wgmma<<<1, 128, 40960>>>(dp, dv, di, dout, 1, 4);
      bad[4] += count_diff(o, to_host(dout, 64 * 256));
      mma_sync_chain<<<dim3(4, 32), 32>>>(dp, 64, dv, 256, 1, di, dout, 256, 1, 64);
      bad[5] += count_diff(o, to_host(dout, 64 * 256));
      // Keys 37.. masked: weight zero over zeros, over large finite values, or groups left out.
      auto pz = p;
      auto vz = v, vg = v;
      for (int r = 0; r < 64; r++)
        for (int i = 37; i < 64; i++) pz[r * 64 + i] = __float2bfloat16(0.f);
      for (int i = 37; i < 64; i++)
        for (int c = 0; c < 256; c++) {
          vz[i * 256 + c] = __float2bfloat16(0.f);
          vg[i * 256 + c] = __float2bfloat16(ldexpf(draw(0), 100));
        }
      bf16 *dpz = to_device(pz), *dvz = to_device(vz), *dvg = to_device(vg);
      pv_wgmma<<<1, 128, 40960>>>(dpz, dvz, di, dout, 0, 4);
      auto oz = to_host(dout, 64 * 256);
      pv_wgmma<<<1, 128, 40960>>>(dpz, dvg, di, dout, 0, 4);
      bad[6] += count_diff(oz, to_host(dout, 64 * 256));
      pv_wgmma<<<1, 128, 40960>>>(dpz, dvz, di, dout, 0, 3);
      bad[7] += count_diff(oz, to_host(dout, 64 * 256));
      mma_sync_chain<<<dim3(4, 32), 32>>>(dpz, 64, dvg, 256, 1, di, dout, 256, 1, 64);
      bad[8] += count_diff(oz, to_host(dout, 64 * 256));
      // All weights zero: does the accumulator keep its bits, denormals included?
      auto small = init;
      for (size_t i = 0; i < small.size(); i += 3) small[i] = ldexpf(small[i], -128);
      float* dsm = to_device(small);
      std::vector<bf16> zero(64 * 64, __float2bfloat16(0.f));
      bf16* dzero = to_device(zero);
      pv_wgmma<<<1, 128, 40960>>>(dzero, dvg, dsm, dout, 0, 4);
      bad[9] += count_diff(small, to_host(dout, 64 * 256));
      mma_sync_chain<<<dim3(4, 32), 32>>>(dzero, 64, dvg, 256, 1, dsm, dout, 256, 1, 64);
      bad[10] += count_diff(small, to_host(dout, 64 * 256));
      // Keys permuted inside each group of 16.
      auto pp = p;
      auto vp = v;
      for (int i = 0; i < 64; i++) {
        int j = (i & ~15) | ((i * 7 + 3) & 15);
        for (int r = 0; r < 64; r++) pp[r * 64 + j] = p[r * 64 + i];
        std::copy_n(&v[i * 256], 256, &vp[j * 256]);
      }
      bf16 *dpp = to_device(pp), *dvp = to_device(vp);
      pv_wgmma<<<1, 128, 40960>>>(dpp, dvp, di, dout, 0, 4);
      bad[11] += count_diff(o, to_host(dout, 64 * 256));
      for (bf16* x : {dq, dk, dq2, dk2, dp, dv, dpz, dvz, dvg, dzero, dpp, dvp}) cudaFree(x);
      cudaFree(di), cudaFree(dsm);
    }
    CK(cudaGetLastError());
    printf("== %s (20 seeds; QK of 81920 elements, PV of 327680); worst error against fp64 %.2e\n",
           names[dist], check);
    const char* questions[] = {"QK: wgmma m64n64 vs mma.sync chain",
                               "QK: mma.sync, A and B exchanged",
                               "QK: wgmma, rows moved by 21",
                               "QK: wgmma, keys moved by 13",
                               "PV: wgmma A in registers vs in shared memory",
                               "PV: wgmma m64n256 vs mma.sync chain",
                               "PV: weight 0 over large finite values vs over zeros (wgmma)",
                               "PV: last group of zeros left out",
                               "PV: mma.sync, weight 0 over large values vs wgmma over zeros",
                               "PV: all weights 0, accumulator kept (wgmma)",
                               "PV: all weights 0, accumulator kept (mma.sync)",
                               "PV: keys permuted inside groups of 16"};
    for (int i = 0; i < 12; i++) printf("  %-64s %zu differ\n", questions[i], bad[i]);
  }
}
