// Check, bit test and timing of grouped-query attention.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/gqa/gqa_attention.h"

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

std::mt19937 rng(11);
int wrong = 0;

template <class T>
T* device(size_t n) {
  T* p;
  CK(cudaMalloc(&p, std::max<size_t>(n, 1) * sizeof(T)));
  return p;
}
template <class T>
T* device(const std::vector<T>& v) {
  T* p = device<T>(v.size());
  CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

__device__ float noise(uint64_t i, uint32_t seed) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  float sum = 0;
  for (int k = 0; k < 4; k++) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    sum += (z >> 40) * (1.f / 16777216.f) - 0.5f;
  }
  return sum * 1.73f;
}

__global__ void fill(bf16* p, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x)
    p[i] = __float2bfloat16(noise(i, seed));
}
__global__ void fill_queries(bf16* q, int per_row, const uint32_t* query) {
  for (int c = threadIdx.x; c < per_row; c += blockDim.x)
    q[size_t(blockIdx.x) * per_row + c] = __float2bfloat16(noise(c, query[blockIdx.x]) * 1.5f);
}
__global__ void poison(bf16* cache, const uint8_t* live, size_t slots, int width) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < slots * width;
       i += size_t(gridDim.x) * blockDim.x)
    if (!live[i / width]) cache[i] = __ushort_as_bfloat16(0x7FFF);
}
__global__ void copy_rows(bf16* cache, const int2* moves, int n, int width) {
  for (int i = blockIdx.x; i < n; i += gridDim.x)
    for (int c = threadIdx.x; c < width; c += blockDim.x)
      cache[size_t(moves[i].y) * width + c] = cache[size_t(moves[i].x) * width + c];
}

__global__ void reference(GqaAttentionParams p, float* out) {
  const int row = blockIdx.x, head = blockIdx.y, tid = threadIdx.x, dim = p.head_dim;
  const int seq = p.seq_of_row[row], kv = seq < 0 ? 0 : p.kv_len[row];
  int len = seq < 0 ? 0 : kv + p.path_len[row], begin = 0;
  if (p.sliding_window) begin = max(0, p.positions[row] - p.sliding_window + 1);
  if (p.causal) len = min(len, p.positions[row] + 1);
  __shared__ float score[128];
  const bf16* q = (const bf16*)p.q + row * p.q_row_stride + head * dim;
  const int kvh = head / (p.num_heads / p.num_kv_heads);
  auto at = [&](int i) {
    const size_t slot =
        i < kv ? size_t(p.block_tables[size_t(seq) * p.max_blocks + i / 64]) * 64 + i % 64
               : size_t(p.path[size_t(row) * p.max_path + i - kv]);
    return (slot * p.num_kv_heads + kvh) * dim;
  };
  double o = 0, sum = 0;
  float top = -INFINITY;
  for (int pass = 0; pass < 2; pass++)
    for (int base = begin; base < len; base += 128) {
      const int i = base + tid;
      double s = 0;
      if (i < len)
        for (int c = 0; c < dim; c++)
          s += double(__bfloat162float(q[c])) *
               __bfloat162float(((const bf16*)p.k_cache)[at(i) + c]);
      score[tid] = i < len ? float(s * p.softmax_scale) : -INFINITY;
      __syncthreads();
      for (int k = 0; k < 128 && base + k < len; k++) {
        if (pass == 0) {
          top = fmaxf(top, score[k]);
        } else {
          const double w = exp(double(score[k]) - top);
          sum += w;
          if (tid < dim) o += w * __bfloat162float(((const bf16*)p.v_cache)[at(base + k) + tid]);
        }
      }
      __syncthreads();
    }
  if (tid < dim) out[(size_t(row) * p.num_heads + head) * dim + tid] = sum > 0 ? o / sum : 0;
}

struct Shape {
  int heads, kv_heads, dim, window = 0;
  bool causal = false;
};
struct Row {
  int seq, kv_len, position;
  std::vector<int> path;
  uint32_t query;
};
struct World {
  Shape s;
  int num_blocks = 0, max_len = 0;
  bf16 *k = nullptr, *v = nullptr;
  std::vector<Row> rows;
  std::vector<std::vector<int>> tables;
  std::vector<int> spare;
  ~World() { cudaFree(k), cudaFree(v); }
};

void make(World& w, Shape s, std::vector<int> contexts, int nodes, bool block) {
  w.s = s;
  int total = 8;
  for (int c : contexts) total += (c + nodes) / 64 + 1;
  w.num_blocks = total;
  const int width = s.kv_heads * s.dim;
  w.k = device<bf16>(size_t(total) * 64 * width), w.v = device<bf16>(size_t(total) * 64 * width);
  fill<<<512, 256>>>(w.k, size_t(total) * 64 * width, rng());
  fill<<<512, 256>>>(w.v, size_t(total) * 64 * width, rng());
  std::vector<int> order(total);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<uint8_t> live(size_t(total) * 64, 0);
  size_t at = 0;
  for (int q = 0; q < int(contexts.size()); q++) {
    const int c = contexts[q];
    w.max_len = std::max(w.max_len, c + nodes);
    std::vector<int> table(order.begin() + at, order.begin() + at + (c + nodes) / 64 + 1);
    at += table.size();
    auto slot = [&](int i) { return table[i / 64] * 64 + i % 64; };
    for (int i = 0; i < c + nodes; i++) live[slot(i)] = 1;
    std::vector<int> parent(nodes, -1);
    for (int i = 1; i < nodes; i++) parent[i] = rng() % 3 ? i - 1 : rng() % i;
    for (int i = 0; i < nodes; i++) {
      std::vector<int> path;
      for (int j = i; j >= 0; j = parent[j]) path.push_back(slot(c + j));
      std::reverse(path.begin(), path.end());
      if (block)
        w.rows.push_back({q, c + nodes, c + i, {}, uint32_t(rng())});
      else
        w.rows.push_back({q, c, c + int(path.size()) - 1, path, uint32_t(rng())});
    }
    w.tables.push_back(table);
  }
  w.spare.assign(order.begin() + at, order.end());
  uint8_t* dl = device(live);
  poison<<<512, 256>>>(w.k, dl, size_t(total) * 64, width);
  poison<<<512, 256>>>(w.v, dl, size_t(total) * 64, width);
  CK(cudaDeviceSynchronize());
  cudaFree(dl);
}

struct Device {
  GqaAttentionParams p;
  std::vector<void*> owned;
  ~Device() {
    for (void* x : owned) cudaFree(x);
  }
};

void upload(Device& d, const World& w, const std::vector<Row>& rows,
            const std::vector<std::vector<int>>& all_tables) {
  std::vector<int> seq, kv, plen, path, pos, tables;
  std::vector<uint32_t> query;
  int max_path = 1, max_blocks = 1;
  for (auto& r : rows) max_path = std::max<int>(max_path, r.path.size());
  for (auto& t : all_tables) max_blocks = std::max<int>(max_blocks, t.size());
  for (auto& r : rows) {
    seq.push_back(r.seq), kv.push_back(r.kv_len), plen.push_back(r.path.size());
    pos.push_back(r.position), query.push_back(r.query);
    for (int i = 0; i < max_path; i++)
      path.push_back(i < int(r.path.size()) ? r.path[i] : -1234567);
  }
  for (auto& t : all_tables)
    for (int i = 0; i < max_blocks; i++) tables.push_back(i < int(t.size()) ? t[i] : -1234567);
  auto keep = [&](auto* x) { return d.owned.push_back(x), x; };
  GqaAttentionParams& p = d.p;
  const int n = rows.size(), per_row = w.s.heads * w.s.dim;
  bf16* q = keep(device<bf16>(size_t(n) * per_row));
  uint32_t* dq = keep(device(query));
  fill_queries<<<n, 256>>>(q, per_row, dq);
  p.q = q, p.q_row_stride = per_row, p.k_cache = w.k, p.v_cache = w.v;
  p.out = keep(device<bf16>(size_t(n) * per_row));
  CK(cudaMemset(p.out, 0xFF, size_t(n) * per_row * 2));
  p.seq_of_row = keep(device(seq)), p.kv_len = keep(device(kv)), p.path_len = keep(device(plen));
  p.path = keep(device(path)), p.block_tables = keep(device(tables));
  p.positions = keep(device(pos));
  p.max_path = max_path, p.max_blocks = max_blocks, p.max_kv_len = w.max_len;
  p.num_seqs = all_tables.size();
  p.sliding_window = w.s.window, p.causal = w.s.causal, p.num_rows = n;
  p.num_heads = w.s.heads, p.num_kv_heads = w.s.kv_heads, p.head_dim = w.s.dim;
  p.softmax_scale = 1 / std::sqrt(float(w.s.dim));
  const size_t bytes = gqa_attention_workspace_bytes(w.max_len, w.s.dim);
  p.workspace = keep(device<char>(bytes));
  CK(cudaMemset(p.workspace, 0xFF, bytes));
}

std::vector<uint16_t> run(Device& d) {
  CK(gqa_attention(d.p, 0));
  CK(cudaDeviceSynchronize());
  std::vector<uint16_t> o(size_t(d.p.num_rows) * d.p.num_heads * d.p.head_dim);
  CK(cudaMemcpy(o.data(), d.p.out, o.size() * 2, cudaMemcpyDeviceToHost));
  return o;
}

void check(const char* name, World& w) {
  std::vector<Row> rows = w.rows;
  rows.insert(rows.begin(), {-1, 3, 0, {}, 1});
  rows.push_back({-1, 3, 0, {}, 1});
  Device d;
  upload(d, w, rows, w.tables);
  auto got = run(d);
  float* dr = device<float>(got.size());
  reference<<<dim3(rows.size(), w.s.heads), 128>>>(d.p, dr);
  std::vector<float> want(got.size());
  CK(cudaDeviceSynchronize());
  CK(cudaMemcpy(want.data(), dr, want.size() * 4, cudaMemcpyDeviceToHost));
  cudaFree(dr);
  double e = 0, m = 0;
  size_t nan = 0;
  for (size_t i = 0; i < got.size(); i++) {
    uint32_t u = uint32_t(got[i]) << 16;
    float x;
    memcpy(&x, &u, 4);
    nan += !std::isfinite(x);
    e += (x - want[i]) * (x - want[i]), m += want[i] * want[i];
  }
  const bool ok = std::sqrt(e / m) < 5e-3 && nan == 0;
  if (!ok) wrong++;
  printf("  %-60s error %.2e, %zu not finite %s\n", name, std::sqrt(e / m), nan,
         ok ? "" : " <-- WRONG");
}

__global__ void leave_in_shared(int value, int words) {
  extern __shared__ int shared[];
  for (int i = threadIdx.x; i < words; i += blockDim.x)
    *static_cast<volatile int*>(shared + i) = value + static_cast<int>(blockIdx.x % 4);
}

// A round whose rows are all inert, with and without a split, whatever lies in shared memory: its
// output is zero, and it ends.
void inert(int rows, int max_len, int left, int num_seqs) {
  World w;
  make(w, {8, 4, 64}, {20}, rows, true);
  for (Row& row : w.rows) row = {-1, 0, 0, {}, 1};
  w.max_len = max_len;
  Device d;
  upload(d, w, w.rows, w.tables);
  d.p.num_seqs = num_seqs;
  constexpr int kBytes = 227 * 1024;
  CK(cudaFuncSetAttribute(leave_in_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  leave_in_shared<<<132 * 8, 1024, kBytes>>>(left, kBytes / 4);
  CK(cudaDeviceSynchronize());
  const auto got = run(d);
  const bool ok = std::all_of(got.begin(), got.end(), [](uint16_t x) { return x == 0; });
  if (!ok) wrong++;
  printf("  %d inert rows alone of %d sequences, at most %d keys, %11d in shared memory %s\n", rows,
         num_seqs, max_len, left, ok ? "" : " <-- WRONG");
  fflush(stdout);
}

size_t rows_bad = 0, rows_seen = 0;
void bits(World& w) {
  const int per_row = w.s.heads * w.s.dim;
  Device d;
  upload(d, w, w.rows, w.tables);
  auto tree = run(d);
  for (int k = 0; k < 5; k++) {
    const int r = rng() % w.rows.size();
    const Row& row = w.rows[r];
    const int length = row.kv_len + row.path.size();
    std::vector<int> table(w.tables[row.seq].begin(), w.tables[row.seq].begin() + row.kv_len / 64);
    std::vector<int2> moves;
    size_t spare = 0;
    for (int i = row.kv_len / 64 * 64; i < length; i++) {
      if (i % 64 == 0) table.push_back(w.spare[spare++]);
      const int from =
          i < row.kv_len ? w.tables[row.seq][i / 64] * 64 + i % 64 : row.path[i - row.kv_len];
      moves.push_back(make_int2(from, table.back() * 64 + i % 64));
    }
    int2* dm = device(moves);
    copy_rows<<<64, 128>>>(w.k, dm, moves.size(), w.s.kv_heads * w.s.dim);
    copy_rows<<<64, 128>>>(w.v, dm, moves.size(), w.s.kv_heads * w.s.dim);
    CK(cudaDeviceSynchronize());
    cudaFree(dm);
    Device plain, alone;
    upload(plain, w, {{0, length, row.position, {}, row.query}}, {table});
    upload(alone, w, {row}, w.tables);
    auto a = run(plain), b = run(alone);
    bool bad = false;
    for (int i = 0; i < per_row; i++) {
      bad |= a[i] != tree[size_t(r) * per_row + i];
      bad |= b[i] != tree[size_t(r) * per_row + i];
    }
    rows_seen++, rows_bad += bad;
  }
  if (run(d) != tree) printf("  NOT REPEATABLE\n");
}

double time_us(Device& d, const std::vector<bf16*>& ks, const std::vector<bf16*>& vs) {
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  cudaGraph_t g;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 24; i++) {
    d.p.k_cache = ks[i % ks.size()], d.p.v_cache = vs[i % ks.size()];
    CK(gqa_attention(d.p, s));
  }
  CK(cudaStreamEndCapture(s, &g));
  cudaGraphExec_t e;
  CK(cudaGraphInstantiate(&e, g, 0));
  cudaEvent_t a, b;
  CK(cudaEventCreate(&a));
  CK(cudaEventCreate(&b));
  std::vector<float> t;
  for (int i = 0; i < 9; i++) {
    CK(cudaEventRecord(a, s));
    CK(cudaGraphLaunch(e, s));
    CK(cudaEventRecord(b, s));
    CK(cudaStreamSynchronize(s));
    float ms;
    CK(cudaEventElapsedTime(&ms, a, b));
    t.push_back(ms * 1000 / 24);
  }
  std::sort(t.begin(), t.end());
  return t[4];
}

int main() {
  printf("== grouped-query attention against fp64, unused slots NaN\n");
  struct {
    int heads, kv;
  } groups[] = {{4, 4}, {16, 8}, {9, 3}, {32, 8}, {16, 2}, {16, 1}};
  for (auto g : groups)
    for (int dim : {64, 128})
      for (int context : {0, 63, 1000, 2600})
        for (int nodes : {1, 17}) {
          World w;
          make(w, {g.heads, g.kv, dim}, {context, context / 2 + 3}, nodes, false);
          char name[96];
          snprintf(name, 96, "heads %d/%d x %d, context %d, nodes %d", g.heads, g.kv, dim, context,
                   nodes);
          check(name, w);
        }
  for (int window : {0, 100, 700})
    for (bool causal : {false, true})
      for (bool block : {false, true}) {
        World w;
        make(w, {32, 8, 128, window, causal}, {1500, 40, 0}, 16, block);
        char name[96];
        snprintf(name, 96, "window %d, causal %d, %s", window, causal,
                 block ? "block of 16" : "tree");
        check(name, w);
      }
  for (int max_len : {264, 4160})
    for (int rows : {1, 8, 300})
      for (int left : {0, 7, -5, -1000, -1140850688, -1 << 29})
        for (int num_seqs : {1, rows}) inert(rows, max_len, left, num_seqs);
  {
    World w;
    std::vector<int> c;
    for (int i = 0; i < 70; i++) c.push_back(rng() % 1500);
    make(w, {32, 8, 128}, c, 1, false);
    check("70 sequences, one row each", w);
  }
  for (auto g : groups)
    for (int dim : {64, 128})
      for (int batch : {1, 7, 40})
        for (int context : {500, 1020, 4090}) {
          std::vector<int> c(batch, context);
          for (int& x : c) x += int(rng() % 31) - 15;
          World w;
          make(w, {g.heads, g.kv, dim, context == 1020 ? 700 : 0}, c, batch == 7 ? 17 : 9, false);
          bits(w);
        }
  printf("bits: %zu rows compared with plain decoding and alone, %zu differ; %d checks wrong\n",
         rows_seen, rows_bad, wrong);
  printf("%-16s %3s %7s %3s %5s | %9s %9s %8s\n", "heads", "B", "L", "T", "", "us", "floor us",
         "x floor");
  struct Case {
    int heads, kv, dim, batch, context, nodes;
    bool block = false;
  };
  std::vector<Case> cases = {
      {32, 8, 128, 1, 1024, 1},  {32, 8, 128, 1, 8192, 1},  {32, 8, 128, 1, 8192, 17},
      {32, 8, 128, 1, 32768, 1}, {32, 8, 128, 8, 8192, 1},  {32, 8, 128, 8, 8192, 17},
      {32, 8, 128, 64, 2048, 1}, {16, 8, 128, 1, 4096, 17}, {9, 3, 64, 1, 1024, 1},
      {9, 3, 64, 1, 1024, 17},   {32, 8, 128, 1, 8192, 65}};
  // Blocks of a drafter of Kimi K2.6 on one of eight ranks.
  for (int batch : {1, 8})
    for (int context : {1024, 4096, 8192, 32768})
      for (int rows : {8, 16}) cases.push_back({8, 1, 128, batch, context, rows, true});
  for (auto& c : cases) {
    World w;
    make(w, {c.heads, c.kv, c.dim}, std::vector<int>(c.batch, c.context), c.nodes, c.block);
    Device d;
    upload(d, w, w.rows, w.tables);
    const size_t n = size_t(w.num_blocks) * 64 * c.kv * c.dim;
    std::vector<bf16*> ks, vs;
    for (size_t i = 0; i < std::clamp<size_t>((size_t(100) << 20) / (n * 2) + 1, 2, 24); i++) {
      ks.push_back(device<bf16>(n)), vs.push_back(device<bf16>(n));
      CK(cudaMemcpy(ks.back(), w.k, n * 2, cudaMemcpyDeviceToDevice));
      CK(cudaMemcpy(vs.back(), w.v, n * 2, cudaMemcpyDeviceToDevice));
    }
    const double us = time_us(d, ks, vs);
    const double bytes = double(c.batch) * (c.context + c.nodes) * c.kv * c.dim * 4;
    printf("%4d/%d x %-8d %3d %7d %3d %5s | %9.1f %9.1f %8.2f\n", c.heads, c.kv, c.dim, c.batch,
           c.context, c.nodes, c.block ? "block" : "tree", us, bytes / 4.61e6,
           us / (bytes / 4.61e6));
    for (auto* x : ks) cudaFree(x);
    for (auto* x : vs) cudaFree(x);
  }
}
