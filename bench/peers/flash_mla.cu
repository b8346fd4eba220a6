// Times FlashMLA's dense decode (no tree mask: every row sees all context and tree keys) on the
// shapes of `coppice bench kernels` and writes the JSON that its --peers reads. Built by
// build_flash_mla.sh. The split plan is made once a step and is not timed, as ours is not.
//   flash_mla OUT.json [WORD ...]     only cases whose key contains a word
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <future>
#include <string>
#include <vector>

#include "base/random_values.h"
#include "params.h"
#include "peer.h"
#include "sm90/decode/dense/splitkv_mla.h"
#include "smxx/decode/combine/combine.h"
#include "smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.h"

namespace {

using peer::device;

constexpr int kWidth = 576, kRank = 512, kBlock = 64;
constexpr double kCacheBytes = 4.0 * 60 * 1024 * 1024;

__global__ void fill(__nv_bfloat16* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    to[i] = __float2bfloat16(coppice::random_uniform(seed, i, 1));
}

float value(uint64_t seed, uint64_t i) {
  return __bfloat162float(__float2bfloat16(coppice::random_uniform(seed, i, 1)));
}

struct Shape {
  int heads, batch, context, tree;
  int keys() const { return context + tree; }
  int blocks() const { return keys() / kBlock + 1; }
};

struct Attention {
  DenseAttnDecodeParams decode = {};
  std::vector<void*> caches;
  std::vector<void*> owned;

  void run(int call, cudaStream_t stream) {
    decode.k_ptr = caches[call % caches.size()];
    decode.stream = stream;
    sm90::run_flash_splitkv_mla_kernel<cutlass::bfloat16_t>(decode);
    const int rows = decode.q_seq_per_hk, heads = decode.h_q;
    CombineParams combine = {decode.b,
                             decode.s_q,
                             heads,
                             kRank,
                             decode.softmax_lse_ptr,
                             decode.o_ptr,
                             rows,
                             heads,
                             rows * kRank,
                             heads * kRank,
                             kRank,
                             decode.softmax_lseaccum_ptr,
                             decode.oaccum_ptr,
                             rows,
                             heads,
                             rows * kRank,
                             heads * kRank,
                             kRank,
                             decode.tile_scheduler_metadata_ptr,
                             decode.num_splits_ptr,
                             decode.num_sm_parts,
                             nullptr,
                             stream};
    smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(combine);
  }
  template <class T>
  T* own(size_t count) {
    owned.push_back(device<T>(count));
    return static_cast<T*>(owned.back());
  }
  ~Attention() {
    for (void* pointer : owned) cudaFree(pointer);
  }
};

void make(Attention& a, const Shape& s, cudaStream_t stream) {
  int sms = 0;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  DenseAttnDecodeParams& p = a.decode;
  const int rows = s.tree * s.heads;
  const size_t cache = size_t(s.batch) * s.blocks() * kBlock * kWidth;
  const int copies = std::clamp(static_cast<int>(kCacheBytes / (2.0 * cache)) + 1, 2, 512);
  for (int i = 0; i < copies; ++i) {
    a.caches.push_back(a.own<__nv_bfloat16>(cache));
    fill<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(a.caches.back()), cache, 11 + i);
  }
  auto* q = a.own<__nv_bfloat16>(size_t(s.batch) * rows * kWidth);
  fill<<<256, 256, 0, stream>>>(q, size_t(s.batch) * rows * kWidth, 5);
  std::vector<int> lengths(s.batch, s.keys()), table(s.batch * s.blocks());
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int>(i);
  int* const device_lengths = a.own<int>(s.batch);
  int* const device_table = a.own<int>(table.size());
  CHECK(cudaMemcpy(device_lengths, lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device_table, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
  p.b = s.batch, p.s_q = s.tree, p.q_seq_per_hk = rows, p.d = kWidth, p.d_v = kRank;
  p.h_q = p.q_head_per_hk = s.heads, p.h_k = 1, p.num_blocks = s.batch * s.blocks();
  p.scale_softmax = 1 / std::sqrt(192.0f), p.scale_softmax_log2 = p.scale_softmax * float(M_LOG2E);
  p.q_ptr = q, p.o_ptr = a.own<__nv_bfloat16>(size_t(s.batch) * rows * kRank);
  p.softmax_lse_ptr = a.own<float>(size_t(s.batch) * rows);
  p.q_batch_stride = int64_t(rows) * kWidth, p.q_row_stride = p.q_head_stride = kWidth;
  p.k_batch_stride = kBlock * kWidth, p.k_row_stride = p.k_head_stride = kWidth;
  p.o_batch_stride = int64_t(rows) * kRank, p.o_row_stride = kRank;
  p.o_head_stride = int64_t(rows) * kRank;
  p.block_table = device_table, p.block_table_batch_stride = s.blocks();
  p.page_block_size = kBlock, p.seqlens_k_ptr = device_lengths;
  p.num_sm_parts = std::max(sms / ((rows + 63) / 64), 1);
  p.tile_scheduler_metadata_ptr = a.own<DecodingSchedMeta>(p.num_sm_parts);
  p.num_splits_ptr = a.own<int>(s.batch + 1);
  p.total_num_splits = s.batch + p.num_sm_parts;
  p.softmax_lseaccum_ptr = a.own<float>(size_t(p.total_num_splits) * rows);
  p.oaccum_ptr = a.own<float>(size_t(p.total_num_splits) * rows * kRank);
  GetDecodeSchedMetaParams plan = {s.batch,
                                   s.tree,
                                   64,
                                   5,
                                   -1,
                                   -1,
                                   nullptr,
                                   nullptr,
                                   device_lengths,
                                   p.tile_scheduler_metadata_ptr,
                                   p.num_splits_ptr,
                                   p.num_sm_parts,
                                   stream};
  smxx::decode::run_get_decoding_sched_meta_kernel(plan);
  CHECK(cudaStreamSynchronize(stream));
}

// A row's head by a plain softmax over all its keys: of sequence `sequence`, `row` counting its
// rows and heads.
std::vector<double> reference(const Shape& s, int sequence, int row) {
  const double scale = 1 / std::sqrt(192.0);
  const uint64_t first_q = (uint64_t(sequence) * s.tree * s.heads + row) * kWidth;
  const uint64_t first_key = uint64_t(sequence) * s.blocks() * kBlock * kWidth;
  float q[kWidth], key[kWidth];
  for (int c = 0; c < kWidth; ++c) q[c] = value(5, first_q + c);
  std::vector<double> sum(kRank, 0);
  double total = 0;
  for (int position = 0; position < s.keys(); ++position) {
    float score = 0;
    for (int c = 0; c < kWidth; ++c) {
      key[c] = value(11, first_key + uint64_t(position) * kWidth + c);
      score += q[c] * key[c];
    }
    const double weight = std::exp(double(score) * scale);
    total += weight;
    for (int c = 0; c < kRank; ++c) sum[c] += weight * key[c];
  }
  for (double& x : sum) x /= total;
  return sum;
}

// What the first row's first head and the last sequence's last row and head must be.
struct Expected {
  std::future<std::vector<double>> first, last;

  explicit Expected(const Shape& s)
      : first(std::async(std::launch::async, reference, s, 0, 0)),
        last(std::async(std::launch::async, reference, s, s.batch - 1, s.tree * s.heads - 1)) {}
};

double error_of(const __nv_bfloat16* device_row, const std::vector<double>& expected) {
  std::vector<__nv_bfloat16> out(kRank);
  CHECK(cudaMemcpy(out.data(), device_row, kRank * 2, cudaMemcpyDeviceToHost));
  double worst = 0, largest = 0;
  for (int c = 0; c < kRank; ++c) {
    const double error = std::fabs(expected[c] - __bfloat162float(out[c]));
    if (!std::isfinite(error)) return INFINITY;
    worst = std::max(worst, error);
    largest = std::max(largest, std::fabs(expected[c]));
  }
  return worst / largest;
}

double check(Attention& a, const Shape& s, Expected& expected, cudaStream_t stream) {
  a.run(0, stream);
  CHECK(cudaStreamSynchronize(stream));
  const auto* const out = static_cast<const __nv_bfloat16*>(a.decode.o_ptr);
  const size_t last_row = size_t(s.batch) * s.tree * s.heads - 1;
  return std::max(error_of(out, expected.first.get()),
                  error_of(out + last_row * kRank, expected.last.get()));
}

std::string key_of(const Shape& s) {
  return "mla tp" + std::to_string(64 / s.heads) + " B=" + std::to_string(s.batch) +
         " L=" + std::to_string(s.context) + " T=" + std::to_string(s.tree);
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<Shape> shapes;
  for (const int heads : {8, 64}) {
    for (const int context : {1024, 8192, 32768, 131072})
      for (const int tree : {1, 17, 33, 64})
        if (heads == 8 || tree != 33) shapes.push_back({heads, 1, context, tree});
    for (const int context : {8192, 32768, 131072})
      for (const int tree : {1, 17}) shapes.push_back({heads, 8, context, tree});
    if (heads == 64) continue;
    // For merge.py's sums over a block and a step, and the longest context.
    for (const int tree : {1, 8, 17}) shapes.push_back({heads, 1, 4096, tree});
    for (const int tree : {1, 17}) shapes.push_back({heads, 1, 262144, tree});
  }
  const auto left_out = [&](const Shape& s) {
    const auto has = [&](const char* word) { return key_of(s).find(word) != std::string::npos; };
    return argc > 2 && std::none_of(argv + 2, argv + argc, has);
  };
  shapes.erase(std::remove_if(shapes.begin(), shapes.end(), left_out), shapes.end());
  std::deque<Expected> expected;  // all computed at once, on the host
  for (const Shape& s : shapes) expected.emplace_back(s);
  peer::Report report("FlashMLA", argc < 2 ? nullptr : argv[1]);
  for (const Shape& s : shapes) {
    Attention attention;
    make(attention, s, stream);
    const double error = check(attention, s, expected.front(), stream);
    expected.pop_front();
    if (!report.accept(key_of(s), error, 2e-2)) continue;  // has no time then
    const int calls = std::max<int>(16, std::min<int>(attention.caches.size(), 200));
    report.add(key_of(s), peer::time_us(calls, stream, [&](int i) { attention.run(i, stream); }),
               error);
  }
  return 0;
}
