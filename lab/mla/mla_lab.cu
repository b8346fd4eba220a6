// Check, bit test and timing of the MLA attention kernels.
//   mla_lab check | bits | single | stress | small | time | quick | decode | prefill | profile
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/mla/mla_attention.h"

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

std::mt19937 rng(7);

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

__global__ void fill(bf16* p, size_t n, uint32_t seed, float scale) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x)
    p[i] = __float2bfloat16(noise(i, seed) * scale);
}

// Rows of slots in `list` keep their contents, everything else becomes NaN.
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

// fp64 sums over fp32 products, one block per (row, head): the reference.
__global__ void reference(MlaAttentionParams p, const int* rows, float* out) {
  const int row = rows[blockIdx.x], head = blockIdx.y, tid = threadIdx.x;
  const int rank = p.kv_lora_rank, rope = p.qk_rope_head_dim, width = rank + rope;
  const int seq = p.seq_of_row[row], kv = p.kv_len[row], len = kv + p.path_len[row];
  __shared__ float q[640], prob[256];
  __shared__ double red[256];
  const bf16* ql = (const bf16*)p.q_lat + (size_t(row) * p.num_heads + head) * rank;
  const bf16* qp = (const bf16*)p.q_pe + row * p.q_pe_row_stride + head * p.q_pe_head_stride;
  for (int c = tid; c < width; c += 256) q[c] = __bfloat162float(c < rank ? ql[c] : qp[c - rank]);
  __syncthreads();
  const bf16* cache = (const bf16*)p.cache;
  auto slot = [&](int i) {
    return i < kv ? size_t(p.block_tables[size_t(seq) * p.max_blocks + i / 64]) * 64 + i % 64
                  : size_t(p.path[size_t(row) * p.max_path + i - kv]);
  };
  auto score = [&](int i) {
    const bf16* k = cache + slot(i) * width;
    double s = 0;
    for (int c = 0; c < width; c++) s += q[c] * __bfloat162float(k[c]);
    return float(s * p.softmax_scale);
  };
  float top = -INFINITY;
  for (int i = tid; i < len; i += 256) top = fmaxf(top, score(i));
  red[tid] = top;
  __syncthreads();
  for (int d = 128; d > 0; d /= 2) {
    if (tid < d) red[tid] = fmax(red[tid], red[tid + d]);
    __syncthreads();
  }
  top = red[0];
  __syncthreads();
  double o[2] = {}, sum = 0;
  for (int base = 0; base < len; base += 256) {
    prob[tid] = base + tid < len ? expf(score(base + tid) - top) : 0;
    __syncthreads();
    for (int i = 0; i < 256 && base + i < len; i++) {
      sum += prob[i];
      const bf16* k = cache + slot(base + i) * width;
      if (tid < rank) o[0] += double(prob[i]) * __bfloat162float(k[tid]);
      if (tid + 256 < rank) o[1] += double(prob[i]) * __bfloat162float(k[tid + 256]);
    }
    __syncthreads();
  }
  float* dst = out + (size_t(blockIdx.x) * p.num_heads + head) * rank;
  if (tid < rank) dst[tid] = o[0] / sum;
  if (tid + 256 < rank) dst[tid + 256] = o[1] / sum;
}

struct Row {
  int seq, kv_len;
  std::vector<int> path;
  uint32_t query;  // which query vector: rows with equal numbers carry equal queries
};

// A batch ready to run: rows over one cache.
struct Batch {
  std::vector<Row> rows;
  std::vector<std::vector<int>> tables;
  bool prompt = false;
};

struct Shape {
  int heads, rank = 512, rope = 64;
  int width() const { return rank + rope; }
};

__global__ void fill_queries(bf16* q, int per_row, const uint32_t* query, uint32_t salt) {
  const int row = blockIdx.x;
  for (int c = threadIdx.x; c < per_row; c += blockDim.x)
    q[size_t(row) * per_row + c] = __float2bfloat16(noise(c, query[row] * 2 + salt) * 1.5f);
}

struct Device {
  MlaAttentionParams p;
  std::vector<void*> owned;
  ~Device() {
    for (void* x : owned) cudaFree(x);
  }
};

void upload(Device& d, const Batch& b, const Shape& s, bf16* cache, int num_blocks) {
  const int n = b.rows.size();
  std::vector<int> seq, kv, plen, path, tables;
  std::vector<uint32_t> query;
  int max_path = 1, max_blocks = 1;
  for (auto& r : b.rows) max_path = std::max<int>(max_path, r.path.size());
  for (auto& t : b.tables) max_blocks = std::max<int>(max_blocks, t.size());
  for (auto& r : b.rows) {
    seq.push_back(r.seq), kv.push_back(r.kv_len), plen.push_back(r.path.size());
    query.push_back(r.query);
    for (int i = 0; i < max_path; i++)
      path.push_back(i < int(r.path.size()) ? r.path[i] : -12345678);
  }
  for (auto& t : b.tables)
    for (int i = 0; i < max_blocks; i++) tables.push_back(i < int(t.size()) ? t[i] : -12345678);
  auto keep = [&](auto* x) { return d.owned.push_back(x), x; };
  MlaAttentionParams& p = d.p;
  bf16* ql = keep(device<bf16>(size_t(n) * s.heads * s.rank));
  bf16* qp = keep(device<bf16>(size_t(n) * s.heads * s.rope));
  uint32_t* dq = keep(device(query));
  fill_queries<<<n, 256>>>(ql, s.heads * s.rank, dq, 0);
  fill_queries<<<n, 256>>>(qp, s.heads * s.rope, dq, 1);
  p.q_lat = ql, p.q_pe = qp;
  p.q_pe_row_stride = s.heads * s.rope, p.q_pe_head_stride = s.rope;
  p.cache = cache, p.num_blocks = num_blocks;
  p.o_lat = keep(device<bf16>(size_t(n) * s.heads * s.rank));
  CK(cudaMemset(p.o_lat, 0xFF, size_t(n) * s.heads * s.rank * 2));
  p.seq_of_row = keep(device(seq)), p.kv_len = keep(device(kv));
  p.path_len = keep(device(plen)), p.path = keep(device(path));
  p.block_tables = keep(device(tables));
  p.max_path = max_path, p.max_blocks = max_blocks;
  p.num_rows = n, p.num_heads = s.heads;
  p.kv_lora_rank = s.rank, p.qk_rope_head_dim = s.rope;
  p.softmax_scale = 0.1446796f / 4;
  p.prompt = b.prompt;
  size_t bytes = mla_attention_workspace_bytes(n, max_path);
  p.workspace = keep(device<char>(bytes));
  CK(cudaMemset(p.workspace, 0xFF, bytes));
}

std::vector<uint16_t> run(Device& d) {
  CK(mla_plan(d.p, 0));
  CK(mla_attention(d.p, 0));
  CK(cudaDeviceSynchronize());
  std::vector<uint16_t> o(size_t(d.p.num_rows) * d.p.num_heads * d.p.kv_lora_rank);
  CK(cudaMemcpy(o.data(), d.p.o_lat, o.size() * 2, cudaMemcpyDeviceToHost));
  return o;
}

// Sequences with a context and a random tree each, over a pool of shuffled blocks; every slot that
// holds no key of some row is NaN.
struct World {
  Shape shape;
  int num_blocks;
  bf16* cache;
  Batch batch;
  std::vector<int> free_blocks;
  std::vector<std::vector<int>> parents;  // per sequence
  ~World() { cudaFree(cache); }
};

void make_world(World& w, Shape shape, std::vector<int> contexts, int nodes, int spare_blocks,
                bool deep) {
  w.shape = shape;
  int total = spare_blocks;
  for (int c : contexts) total += (c + nodes) / 64 + 1;
  w.num_blocks = total;
  w.cache = device<bf16>(size_t(total) * 64 * shape.width());
  fill<<<1024, 256>>>(w.cache, size_t(total) * 64 * shape.width(), rng(), 1.f);
  std::vector<int> order(total);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<uint8_t> live(size_t(total) * 64, 0);
  size_t at = 0;
  for (int s = 0; s < int(contexts.size()); s++) {
    const int c = contexts[s];
    std::vector<int> table(order.begin() + at, order.begin() + at + (c + nodes) / 64 + 1);
    at += table.size();
    auto slot = [&](int i) { return table[i / 64] * 64 + i % 64; };
    for (int i = 0; i < c + nodes; i++) live[slot(i)] = 1;
    std::vector<int> parent(nodes, -1);
    for (int i = 1; i < nodes; i++) {
      parent[i] = deep ? (rng() % 8 ? i - 1 : rng() % i) : rng() % i;
      if (!deep && i > 4 && rng() % 2) parent[i] = i - 1 - rng() % 4;
    }
    for (int i = 0; i < nodes; i++) {
      std::vector<int> path;
      for (int j = i; j >= 0; j = parent[j]) path.push_back(slot(c + j));
      std::reverse(path.begin(), path.end());
      w.batch.rows.push_back({s, c, path, uint32_t(rng())});
    }
    w.parents.push_back(parent);
    w.batch.tables.push_back(table);
  }
  w.free_blocks.assign(order.begin() + at, order.end());
  uint8_t* dl = device(live);
  poison<<<1024, 256>>>(w.cache, dl, size_t(total) * 64, shape.width());
  CK(cudaDeviceSynchronize());
  cudaFree(dl);
}

// The row as plain decoding would see it: its path moved into the block table, batch of one.
Batch plain_row(World& w, const Row& r) {
  std::vector<int> table(w.batch.tables[r.seq].begin(),
                         w.batch.tables[r.seq].begin() + r.kv_len / 64);
  std::vector<int2> moves;
  const int length = r.kv_len + r.path.size();
  size_t spare = 0;
  for (int i = r.kv_len / 64 * 64; i < length; i++) {
    if (i % 64 == 0) table.push_back(w.free_blocks[spare++]);
    const int from =
        i < r.kv_len ? w.batch.tables[r.seq][i / 64] * 64 + i % 64 : r.path[i - r.kv_len];
    moves.push_back(make_int2(from, table.back() * 64 + i % 64));
  }
  int2* dm = device(moves);
  copy_rows<<<64, 128>>>(w.cache, dm, moves.size(), w.shape.width());
  CK(cudaDeviceSynchronize());
  cudaFree(dm);
  Batch b;
  b.rows.push_back({0, length, {}, r.query});
  b.tables.push_back(table);
  return b;
}

double error_of(const std::vector<uint16_t>& got, const std::vector<float>& want,
                const std::vector<int>& rows, int per_row) {
  double e = 0, m = 0;
  for (size_t i = 0; i < rows.size(); i++)
    for (int c = 0; c < per_row; c++) {
      uint32_t u = uint32_t(got[size_t(rows[i]) * per_row + c]) << 16;
      float x;
      memcpy(&x, &u, 4);
      double w = want[i * per_row + c];
      e += (x - w) * (x - w), m += w * w;
    }
  return std::sqrt(e / m);
}

bool check_world(const char* what, World& w, int sample) {
  Device d;
  // An inert row in front, between and behind; their outputs must become zero.
  Batch b = w.batch;
  b.rows.insert(b.rows.begin(), {-1, 5, {}, 1});
  b.rows.push_back({-1, 5, {}, 1});
  upload(d, b, w.shape, w.cache, w.num_blocks);
  auto got = run(d);
  const int per_row = w.shape.heads * w.shape.rank;
  std::vector<int> rows;
  for (int i = 0; i < sample; i++) rows.push_back(1 + rng() % w.batch.rows.size());
  int* dr = device(rows);
  float* dref = device<float>(rows.size() * size_t(per_row));
  reference<<<dim3(rows.size(), w.shape.heads), 256>>>(d.p, dr, dref);
  CK(cudaDeviceSynchronize());
  std::vector<float> want(rows.size() * size_t(per_row));
  CK(cudaMemcpy(want.data(), dref, want.size() * 4, cudaMemcpyDeviceToHost));
  cudaFree(dr), cudaFree(dref);
  const double e = error_of(got, want, rows, per_row);
  size_t nan = 0, nonzero = 0;
  for (size_t i = 0; i < got.size(); i++) nan += (got[i] & 0x7F80) == 0x7F80;
  for (int i = 0; i < per_row; i++) nonzero += got[i] != 0 || got[got.size() - 1 - i] != 0;
  const bool ok = e < 5e-3 && nan == 0 && nonzero == 0;
  printf("  %-52s error %.2e, %zu not finite, %zu inert not zero %s\n", what, e, nan, nonzero,
         ok ? "" : "  <-- WRONG");
  fflush(stdout);
  return ok;
}

void check() {
  printf("== against fp64 sums, unused slots NaN\n");
  for (int heads : {8, 64, 16, 4, 12, 32})
    for (int context : {0, 1, 63, 64, 65, 1000, 4090, 8190, 20000}) {
      if (heads != 8 && heads != 64 && context != 1000 && context != 64) continue;
      for (int nodes : {1, 2, 17, 33, 70}) {
        World w;
        make_world(w, {heads}, {context}, nodes, 0, nodes == 33);
        char name[96];
        snprintf(name, 96, "heads %d, context %d, nodes %d", heads, context, nodes);
        check_world(name, w, 12);
      }
    }
  {
    World w;
    make_world(w, {8}, {3000, 17, 0, 5000, 129, 16380, 4095}, 17, 0, false);
    check_world("heads 8, 7 ragged sequences", w, 40);
  }
  {
    World w;
    std::vector<int> c;
    for (int i = 0; i < 64; i++) c.push_back(rng() % 3000);
    make_world(w, {8}, c, 9, 0, true);
    check_world("heads 8, 64 ragged sequences", w, 40);
  }
  {
    World w;
    make_world(w, {8}, {131072 + 30}, 17, 0, false);
    check_world("heads 8, context 131102", w, 3);
  }
  {
    World w;
    make_world(w, {8, 128, 32}, {300, 70}, 9, 0, false);
    check_world("tiny shape, rank 128, rope 32", w, 10);
  }
  // Prefill-like rows: kv_len = position + 1, no path.
  for (int heads : {8, 64}) {
    World w;
    make_world(w, {heads}, {700}, 1, 0, false);
    w.batch.rows.clear();
    for (int i = 300; i < 500; i++) w.batch.rows.push_back({0, i + 1, {}, uint32_t(rng())});
    check_world(heads == 8 ? "heads 8, 200 causal rows" : "heads 64, 200 causal rows", w, 30);
    w.batch.prompt = true;
    check_world("  the same as prompt rows", w, 30);
  }
  for (int heads : {8, 64, 16, 12})
    for (int first : {0, 61, 8190}) {
      World w;
      make_world(w, {heads}, {first + 150, 40}, 1, 0, false);
      w.batch.rows.clear(), w.batch.prompt = true;
      for (int i = first; i < first + 150; i++)
        w.batch.rows.push_back({0, i + 1, {}, uint32_t(rng())});
      for (int i = 0; i < 40; i++) w.batch.rows.push_back({1, i + 1, {}, uint32_t(rng())});
      char name[96];
      snprintf(name, 96, "heads %d, prompt rows from %d and 40 of another", heads, first);
      check_world(name, w, 30);
    }
}

size_t diff_row(const std::vector<uint16_t>& a, size_t ra, const std::vector<uint16_t>& b,
                size_t rb, int per_row) {
  size_t n = 0;
  for (int i = 0; i < per_row; i++) n += a[ra * per_row + i] != b[rb * per_row + i];
  return n;
}

void bits() {
  printf("== bits: a row verified in trees and batches against the same row decoded alone\n");
  size_t rows_seen = 0, rows_bad = 0;
  for (int heads : {8, 64})
    for (int nodes : {9, 17, 65})
      for (int batch : {1, 7, 64})
        for (int context : {1000, 4090, 8192 - 40, 8192 + 3, 8192 + 40, 16384 - 5, 33000, 65536 - 4,
                            131072 - 40, 131072 + 40}) {
          if (batch == 64 && context > 9000) continue;
          if (batch == 64 && (nodes == 65 || heads == 64) && context > 1000) continue;
          if (batch == 7 && context > 70000 && nodes != 17) continue;
          std::vector<int> contexts(batch, context);
          for (int i = 1; i < batch; i++) contexts[i] += int(rng() % 81) - 40;
          World w;
          make_world(w, {heads}, contexts, nodes, 4, nodes == 17);
          Device d;
          upload(d, w.batch, w.shape, w.cache, w.num_blocks);
          auto tree = run(d);
          const int per_row = heads * 512;
          size_t bad = 0, count = 0;
          for (int k = 0; k < 6; k++) {
            const int r = k == 0 ? 0 : k == 1 ? nodes - 1 : rng() % w.batch.rows.size();
            Batch b = plain_row(w, w.batch.rows[r]);
            Device dp;
            upload(dp, b, w.shape, w.cache, w.num_blocks);
            auto plain = run(dp);
            size_t n = diff_row(tree, r, plain, 0, per_row);
            // The same row through its path, alone.
            Batch one;
            one.rows = {w.batch.rows[r]};
            one.tables = w.batch.tables;
            Device d1;
            upload(d1, one, w.shape, w.cache, w.num_blocks);
            n += diff_row(tree, r, run(d1), 0, per_row);
            bad += n > 0, count++;
            if (n > 0 && bad < 3)
              printf("    heads %d nodes %d batch %d context %d row %d: %zu elements differ\n",
                     heads, nodes, batch, contexts[r / nodes], r, n);
          }
          auto again = run(d);
          if (again != tree)
            printf("    NOT REPEATABLE heads %d nodes %d batch %d context %d\n", heads, nodes,
                   batch, context);
          rows_seen += count, rows_bad += bad;
        }
  printf("  %zu rows compared twice, %zu with a difference\n", rows_seen, rows_bad);
}

// Prompt rows in one chunk against the same rows in chunks of other sizes.
void prompt_bits() {
  printf("== bits: prompt rows in chunks\n");
  for (int heads : {8, 64})
    for (int first : {0, 1000, 8190}) {
      const int total = 600;
      World w;
      make_world(w, {heads}, {first + total}, 1, 0, false);
      Batch whole;
      whole.tables = w.batch.tables, whole.prompt = true;
      for (int i = 0; i < total; i++) whole.rows.push_back({0, first + i + 1, {}, uint32_t(i + 7)});
      Device d;
      upload(d, whole, w.shape, w.cache, w.num_blocks);
      const auto want = run(d);
      size_t bad = 0, seen = 0;
      for (int chunk : {1, 3, 8, 17, 64, 100, 257}) {
        for (int begin = 0; begin < total; begin += chunk == 1 ? 37 : chunk) {
          Batch part;
          part.tables = whole.tables, part.prompt = true;
          part.rows.assign(whole.rows.begin() + begin,
                           whole.rows.begin() + std::min(begin + chunk, total));
          Device dp;
          upload(dp, part, w.shape, w.cache, w.num_blocks);
          const auto got = run(dp);
          for (size_t i = 0; i < part.rows.size(); i++, seen++)
            bad += diff_row(want, begin + i, got, i, heads * 512) > 0;
        }
      }
      printf("  heads %d, from %d: %zu rows compared, %zu differ\n", heads, first, seen, bad);
    }
}

__global__ void count_different(const uint32_t* a, const uint32_t* b, size_t n, unsigned* count) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x)
    if (a[i] != b[i]) atomicAdd(count, 1u);
}

// The same batch many times: equal bits every time.
void stress() {
  printf("== repeats\n");
  for (int nodes : {17, 1})
    for (int heads : {64, 8})
      for (int context : {984, 1007, 1015, 1023, 4090, 8190}) {
        World w;
        if (nodes == 1 && heads == 64) continue;
        make_world(w, {heads}, {context}, nodes, 0, true);
        Device d;
        upload(d, w.batch, w.shape, w.cache, w.num_blocks);
        run(d);
        const size_t words = size_t(d.p.num_rows) * heads * 256;
        auto* first = device<uint32_t>(words);
        auto* count = device<unsigned>(1);
        CK(cudaMemcpy(first, d.p.o_lat, words * 4, cudaMemcpyDeviceToDevice));
        CK(cudaMemset(count, 0, 4));
        for (int i = 0; i < 3000; i++) {
          if (i % 10 == 0) CK(mla_plan(d.p, 0));
          CK(mla_attention(d.p, 0));
          count_different<<<64, 256>>>(first, static_cast<uint32_t*>(d.p.o_lat), words, count);
        }
        unsigned bad = 0;
        CK(cudaMemcpy(&bad, count, 4, cudaMemcpyDeviceToHost));
        printf("  heads %d, context %d, nodes %d, 3000 runs: %u words differ\n", heads, context,
               nodes, bad);
        fflush(stdout);
        cudaFree(first), cudaFree(count);
      }
}

// A single token, which may run in clusters, against the same with inert rows, which does not.
void single() {
  printf("== bits: a single token in clusters and as others run\n");
  size_t rows_bad = 0, rows_seen = 0;
  for (int heads : {8, 3})
    for (int i = 0; i < 48; i++) {
      const int context = i < 16   ? i * 61
                          : i < 32 ? 4096 * (i % 2 + 1) - 66 + (i - 16) * 11
                                   : static_cast<int>(rng() % 9200);
      World w;
      make_world(w, {heads}, {context}, 1, 0, false);
      if (i % 3 == 0) w.batch.rows[0].kv_len++, w.batch.rows[0].path.clear();
      Batch many = w.batch;
      for (int k = 0; k < 9; k++) many.rows.push_back({-1, 5, {}, 1});
      Device d, dm;
      upload(d, w.batch, w.shape, w.cache, w.num_blocks);
      upload(dm, many, w.shape, w.cache, w.num_blocks);
      const auto got = run(d), want = run(dm), again = run(d);
      const size_t n = diff_row(want, 0, got, 0, heads * 512);
      rows_seen++, rows_bad += n > 0;
      if (n > 0) printf("    heads %d, context %d: %zu elements differ\n", heads, context, n);
      if (got != again) printf("    NOT REPEATABLE heads %d, context %d\n", heads, context);
    }
  printf("  %zu rows compared, %zu differ\n", rows_seen, rows_bad);
}

// Small batches for compute-sanitizer.
void small() {
  for (int heads : {8, 64})
    for (int nodes : {1, 5}) {
      World w;
      make_world(w, {heads}, {150}, nodes, 0, false);
      check_world("small", w, 1);
    }
  World w;
  make_world(w, {8}, {140}, 1, 0, false);
  w.batch.rows.clear(), w.batch.prompt = true;
  for (int i = 100; i < 140; i++) w.batch.rows.push_back({0, i + 1, {}, uint32_t(i)});
  check_world("small prompt", w, 1);
}

// SM clocks and nanoseconds; two stamps give the clock rate in between.
__global__ void stamp(unsigned long long* out) {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  out[0] = clock64(), out[1] = ns;
}

double clock_mhz = 0;  // during the latest median_us

float median_us(cudaGraphExec_t g, cudaStream_t s, int calls) {
  auto* stamps = device<unsigned long long>(4);
  cudaEvent_t a, b;
  CK(cudaEventCreate(&a));
  CK(cudaEventCreate(&b));
  std::vector<float> t;
  for (int i = 0; i < 9; i++) {
    if (i == 2) stamp<<<1, 1, 0, s>>>(stamps);
    CK(cudaEventRecord(a, s));
    CK(cudaGraphLaunch(g, s));
    CK(cudaEventRecord(b, s));
    if (i == 8) stamp<<<1, 1, 0, s>>>(stamps + 2);
    CK(cudaStreamSynchronize(s));
    float ms;
    CK(cudaEventElapsedTime(&ms, a, b));
    if (i > 1) t.push_back(ms * 1000 / calls);
  }
  unsigned long long h[4];
  CK(cudaMemcpy(h, stamps, sizeof h, cudaMemcpyDeviceToHost));
  cudaFree(stamps);
  clock_mhz = double(h[2] - h[0]) / (h[3] - h[1]) * 1e3;
  std::sort(t.begin(), t.end());
  return t[t.size() / 2];
}

__global__ void read_all(const uint4* p, size_t n, uint4* sink) {
  uint4 acc = {};
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x * 4) {
    uint4 v[4];
    for (int k = 0; k < 4; k++) {
      size_t j = i + k * size_t(gridDim.x) * blockDim.x;
      v[k] = j < n ? __ldcs(p + j) : uint4{};
    }
    for (int k = 0; k < 4; k++) acc.x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (acc.x == 0x12345) *sink = acc;
}

void time_all(bool quick, bool decode = false) {
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  double ceiling;
  {
    size_t n = size_t(decode ? 1 : 4) << 30;
    uint4* p = device<uint4>(n / 16);
    CK(cudaMemset(p, 1, n));
    cudaGraph_t g;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    read_all<<<132 * 8, 512, 0, s>>>(p, n / 16, p);
    CK(cudaStreamEndCapture(s, &g));
    cudaGraphExec_t e;
    CK(cudaGraphInstantiate(&e, g, 0));
    ceiling = n / median_us(e, s, 1) / 1e6;
    cudaFree(p);
  }
  printf("== time; read ceiling %.2f TB/s (plain loads)\n", ceiling);
  printf("%5s %3s %7s %3s | %9s %9s %8s %9s %9s %6s\n", "heads", "B", "L", "T", "us", "floor us",
         "x floor", "GB/s", "TFLOP/s", "MHz");
  struct Case {
    int heads, batch, context, nodes;
  };
  std::vector<Case> cases;
  if (quick)
    cases = {{8, 1, 1024, 17},  {8, 1, 8192, 1},   {8, 1, 8192, 17},   {8, 1, 8192, 33},
             {8, 1, 8192, 64},  {8, 1, 32768, 1},  {8, 1, 32768, 17},  {8, 1, 32768, 64},
             {8, 1, 131072, 1}, {8, 8, 8192, 17},  {8, 8, 8192, 64},   {8, 8, 32768, 1},
             {8, 8, 32768, 17}, {8, 8, 32768, 64}, {8, 8, 131072, 17}, {64, 1, 32768, 17},
             {64, 8, 8192, 17}};
  if (decode) {
    cases = {};
    for (int L : {512, 1024, 2048, 4095, 4096, 8190, 8192, 16000, 32768, 65000, 131072})
      cases.push_back({8, 1, L, 1});
    for (int L : {1024, 4096, 8192})
      for (int T : {4, 8, 17}) cases.push_back({8, 1, L, T});
    for (int B : {2, 4, 8})
      for (int L : {1024, 8192, 32768}) cases.push_back({8, B, L, 1});
  }
  for (int L : quick ? std::vector<int>{} : std::vector<int>{1024, 4096, 8192, 32768, 131072})
    for (int T : {1, 17, 33, 64}) cases.push_back({8, 1, L, T});
  for (int L : quick ? std::vector<int>{} : std::vector<int>{1024, 8192, 32768, 131072})
    for (int T : {1, 8, 17, 64}) cases.push_back({8, 8, L, T});
  for (int L : quick ? std::vector<int>{} : std::vector<int>{8192, 32768, 131072})
    for (int T : {1, 17, 33}) cases.push_back({64, 1, L, T});
  for (int L : quick ? std::vector<int>{} : std::vector<int>{8192, 32768})
    for (int T : {1, 17}) cases.push_back({64, 8, L, T});
  for (auto& c : cases) {
    World w;
    make_world(w, {c.heads}, std::vector<int>(c.batch, c.context), c.nodes, 0, false);
    Device d;
    const size_t bytes = size_t(w.num_blocks) * 64 * 1152;
    int copies = std::clamp<size_t>((size_t(200) << 20) / bytes + 1, 2, 24);
    bf16* caches = device<bf16>(bytes / 2 * copies);
    for (int i = 0; i < copies; i++)
      CK(cudaMemcpy(caches + bytes / 2 * i, w.cache, bytes, cudaMemcpyDeviceToDevice));
    upload(d, w.batch, w.shape, caches, w.num_blocks);
    CK(mla_plan(d.p, s));
    CK(mla_attention(d.p, s));
    CK(cudaStreamSynchronize(s));
    const int calls = 24;
    cudaGraph_t g;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < calls; i++) {
      d.p.cache = caches + bytes / 2 * (i % copies);
      CK(mla_attention(d.p, s));
    }
    CK(cudaStreamEndCapture(s, &g));
    cudaGraphExec_t e;
    CK(cudaGraphInstantiate(&e, g, 0));
    const double us = median_us(e, s, calls);
    CK(cudaGraphExecDestroy(e));
    cudaFree(caches);
    const double kv = double(c.batch) * (c.context + c.nodes) * 1152;
    const double io = double(c.batch) * c.nodes * c.heads * (576 + 512) * 2;
    const double flops = double(c.batch) * c.nodes * c.heads * (c.context + c.nodes) * 2.0 * 1088;
    const double floor = std::max((kv + io) / 4.61e6, flops / 793e6);
    printf("%5d %3d %7d %3d | %9.1f %9.1f %8.2f %9.0f %9.0f %6.0f\n", c.heads, c.batch, c.context,
           c.nodes, us, floor, us / floor, (kv + io) / us / 1e3, flops / us / 1e6, clock_mhz);
    fflush(stdout);
  }
}

// Prompt rows: a chunk at the end of a context, causal.
void time_prefill(bool prompt) {
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  printf("== prompt rows by the %s form\n", prompt ? "prompt" : "decode");
  for (auto [heads, context, rows] :
       {std::array{8, 0, 2048}, {8, 0, 8192}, {8, 32768, 2048}, {64, 0, 2048}, {64, 0, 8192}}) {
    World w;
    make_world(w, {heads}, {context + rows}, 1, 0, false);
    w.batch.rows.clear();
    w.batch.prompt = prompt;
    for (int i = 0; i < rows; i++)
      w.batch.rows.push_back({0, context + i + 1, {}, uint32_t(i + 1)});
    Device d;
    upload(d, w.batch, w.shape, w.cache, w.num_blocks);
    CK(mla_plan(d.p, s));
    CK(mla_attention(d.p, s));
    CK(cudaStreamSynchronize(s));
    cudaGraph_t g;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CK(mla_attention(d.p, s));
    CK(cudaStreamEndCapture(s, &g));
    cudaGraphExec_t e;
    CK(cudaGraphInstantiate(&e, g, 0));
    const double us = median_us(e, s, 1);
    CK(cudaGraphExecDestroy(e));
    const double pairs = double(rows) * heads * (context + rows / 2.0);
    printf(
        "heads %d, context %d, rows %d: %.0f us; %.0f TFLOP/s absorbed (%.0f us at 793), "
        "expanded would be %.0f us at 793\n",
        heads, context, rows, us, pairs * 2176 / us / 1e6, pairs * 2176 / 793e6,
        pairs * 640 / 793e6);
    fflush(stdout);
  }
}

// A few launches for the profiler.
void profile() {
  for (auto [heads, batch, context, nodes] : {std::array{8, 1, 8192, 1},
                                              {8, 1, 8192, 17},
                                              {8, 1, 8192, 33},
                                              {8, 1, 8192, 64},
                                              {8, 8, 32768, 17},
                                              {64, 1, 32768, 17}}) {
    World w;
    make_world(w, {heads}, std::vector<int>(batch, context), nodes, 0, false);
    Device d;
    upload(d, w.batch, w.shape, w.cache, w.num_blocks);
    run(d);
  }
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode == "check") check();
  if (mode == "bits") prompt_bits(), bits();
  if (mode == "time") time_all(false);
  if (mode == "quick") time_all(true);
  if (mode == "decode") time_all(true, true);
  if (mode == "single") single();
  if (mode == "prefill") time_prefill(true);
  if (mode == "prefill_decode") time_prefill(false);
  if (mode == "stress") stress();
  if (mode == "small") small();
  if (mode == "profile") profile();
}
