// Times vLLM's Marlin MoE (w13, SiLU * mul, w2, weighted sum; the two launches of
// moe_align_block_size are left out, in its favour) on Kimi K2.6's experts and writes the JSON that
// `coppice bench kernels --peers` reads. Built by build_marlin.sh.
//   marlin_moe OUT.json
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/random_values.h"
#include "peer.h"
// clang-format off
#include "marlin_launch.inc"
#include "marlin_template.h"
// clang-format on

namespace marlin_moe_wna16 {
#include "instances.inc"
}

namespace {

using peer::device;
using peer::to_device;

constexpr int kExperts = 384, kTopK = 8, kHidden = 7168, kRoutings = 8;

// Expert e's weights are all nibble_of(e) - 8 with one scale: a layout-free check. Timed with
// random nibbles.
__host__ __device__ int nibble_of(int expert) {
  return 1 + expert * 5 % 15;
}

__global__ void fill_expert_constant(uint32_t* words, size_t words_per_expert, int experts) {
  const size_t count = words_per_expert * experts;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    words[i] = 0x11111111u * nibble_of(static_cast<int>(i / words_per_expert));
}
__global__ void fill_random(uint32_t* words, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    words[i] = coppice::random_word(seed, i);
}
__global__ void fill_bf16(__nv_bfloat16* to, size_t count, uint64_t seed, float middle,
                          float noise) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    to[i] = __float2bfloat16(middle + coppice::random_uniform(seed, i, noise));
}

union Pack {
  uint4 words;
  __nv_bfloat16 values[8];
};

__global__ void silu_and_mul(const __nv_bfloat16* gate_up, __nv_bfloat16* out, int width,
                             int rows) {
  const int packs = width / 8;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * packs;
       i += gridDim.x * blockDim.x) {
    const int row = i / packs, column = i % packs * 8;
    Pack gate, up, result;
    gate.words = *reinterpret_cast<const uint4*>(gate_up + size_t(row) * 2 * width + column);
    up.words = *reinterpret_cast<const uint4*>(gate_up + size_t(row) * 2 * width + width + column);
    for (int j = 0; j < 8; ++j) {
      const float g = __bfloat162float(gate.values[j]);
      result.values[j] = __float2bfloat16(g / (1 + __expf(-g)) * __bfloat162float(up.values[j]));
    }
    *reinterpret_cast<uint4*>(out + size_t(row) * width + column) = result.words;
  }
}

__global__ void sum_top_k(const __nv_bfloat16* in, __nv_bfloat16* out, int rows) {
  constexpr int kPacks = kHidden / 8;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * kPacks;
       i += gridDim.x * blockDim.x) {
    const int row = i / kPacks, column = i % kPacks * 8;
    float sum[8] = {};
    for (int k = 0; k < kTopK; ++k) {
      Pack pack;
      pack.words =
          *reinterpret_cast<const uint4*>(in + (size_t(row) * kTopK + k) * kHidden + column);
      for (int j = 0; j < 8; ++j) sum[j] += __bfloat162float(pack.values[j]);
    }
    Pack result;
    for (int j = 0; j < 8; ++j) result.values[j] = __float2bfloat16(sum[j]);
    *reinterpret_cast<uint4*>(out + size_t(row) * kHidden + column) = result.words;
  }
}

// What moe_align_block_size gives.
struct Routing {
  int32_t* sorted_ids = nullptr;
  int32_t* expert_ids = nullptr;
  int32_t* num_padded = nullptr;
  std::vector<int> experts;  // [rows * kTopK]
};

Routing make_routing(int rows, int block, uint64_t seed) {
  Routing routing;
  uint64_t draw = 0;
  for (int row = 0; row < rows; ++row) {
    std::set<int> own;
    while (own.size() < kTopK) {
      const int expert = coppice::random_word(seed, draw++) % kExperts;
      if (own.insert(expert).second) routing.experts.push_back(expert);
    }
  }
  const int pairs = rows * kTopK;
  std::vector<int32_t> sorted, experts;
  for (int expert = 0; expert < kExperts; ++expert) {
    const size_t begin = sorted.size();
    for (int pair = 0; pair < pairs; ++pair)
      if (routing.experts[pair] == expert) sorted.push_back(pair);
    while ((sorted.size() - begin) % block != 0) sorted.push_back(pairs);
    experts.resize(sorted.size() / block, expert);
  }
  routing.num_padded = to_device(std::vector<int32_t>{static_cast<int32_t>(sorted.size())});
  sorted.resize(sorted.size() + size_t(block) * 16, pairs);
  routing.sorted_ids = to_device(sorted);
  routing.expert_ids = to_device(experts);
  return routing;
}

struct Layer {
  uint32_t *w13, *w2;
  __nv_bfloat16 *scales13, *scales2;
};

struct Experts {
  int width;  // intermediate_size
  std::vector<Layer> layers;
  int sms, device_index;
  int* locks;
  float* reduce;

  size_t words13() const { return size_t(kHidden) * 2 * width / 8; }
  size_t words2() const { return size_t(kHidden) * width / 8; }
};

Experts make_experts(int width, int num_layers) {
  Experts e;
  e.width = width;
  CHECK(cudaGetDevice(&e.device_index));
  CHECK(cudaDeviceGetAttribute(&e.sms, cudaDevAttrMultiProcessorCount, e.device_index));
  e.locks = device<int>(size_t(e.sms) * 4);
  e.reduce = device<float>(size_t(e.sms) * 4 * 64 * 256);
  for (int i = 0; i < num_layers; ++i) {
    Layer layer = {device<uint32_t>(e.words13() * kExperts),
                   device<uint32_t>(e.words2() * kExperts),
                   device<__nv_bfloat16>(e.words13() / 4 * kExperts),
                   device<__nv_bfloat16>(e.words2() / 4 * kExperts)};
    fill_random<<<2048, 256>>>(layer.w13, e.words13() * kExperts, 10 + i);
    fill_random<<<2048, 256>>>(layer.w2, e.words2() * kExperts, 20 + i);
    fill_bf16<<<2048, 256>>>(layer.scales13, e.words13() / 4 * kExperts, 30 + i, 0.0025f, 0.0015f);
    fill_bf16<<<2048, 256>>>(layer.scales2, e.words2() / 4 * kExperts, 40 + i, 0.0025f, 0.0015f);
    e.layers.push_back(layer);
  }
  CHECK(cudaDeviceSynchronize());
  return e;
}

struct Step {
  int rows, block;
  __nv_bfloat16 *x, *gate_up, *act, *down, *out;
  float* weights;
  std::vector<Routing> routings;
};

// vLLM's choice of the rows of a block.
int block_size(int rows) {
  for (const int block : {8, 16, 32, 48, 64})
    if (static_cast<double>(rows) * kTopK / kExperts / block < 0.9) return block;
  return 64;
}

Step make_step(int rows, int width) {
  const size_t pairs = size_t(rows) * kTopK;
  Step s = {rows, block_size(rows)};
  s.x = device<__nv_bfloat16>(size_t(rows) * kHidden);
  fill_bf16<<<256, 256>>>(s.x, size_t(rows) * kHidden, 1, 0, 1);
  s.gate_up = device<__nv_bfloat16>(pairs * 2 * width);
  s.act = device<__nv_bfloat16>(pairs * width);
  s.down = device<__nv_bfloat16>(pairs * kHidden);
  s.out = device<__nv_bfloat16>(size_t(rows) * kHidden);
  s.weights = to_device(std::vector<float>(pairs, 0.35f));
  for (int i = 0; i < kRoutings; ++i) s.routings.push_back(make_routing(rows, s.block, 900 + i));
  return s;
}

void product(const Experts& e, const Step& s, const Routing& r, const void* a, const void* b,
             const void* scales, void* c, int top_k, bool weigh, int m, int n, int k,
             cudaStream_t stream) {
  marlin_moe_wna16::marlin_mm(a, b, c, e.reduce, nullptr, nullptr, const_cast<void*>(scales),
                              nullptr, nullptr, nullptr, nullptr, nullptr, r.sorted_ids,
                              r.expert_ids, r.num_padded, s.weights, s.block, kExperts, top_k,
                              weigh, m, n, k, e.locks, vllm::kBFloat16, vllm::kU4B8,
                              vllm::kBFloat16, vllm::kBFloat16, false, false, true, false, k / 32,
                              32, e.device_index, stream, -1, -1, e.sms, -1, false, true, false);
}

void run(const Experts& e, const Step& s, int call, cudaStream_t stream) {
  const Layer& layer = e.layers[call % e.layers.size()];
  const Routing& r = s.routings[call % s.routings.size()];
  const int pairs = s.rows * kTopK;
  product(e, s, r, s.x, layer.w13, layer.scales13, s.gate_up, kTopK, false, s.rows, 2 * e.width,
          kHidden, stream);
  silu_and_mul<<<std::min(1056, (pairs * e.width / 8 + 255) / 256), 256, 0, stream>>>(
      s.gate_up, s.act, e.width, pairs);
  product(e, s, r, s.act, layer.w2, layer.scales2, s.down, 1, true, pairs, kHidden, e.width,
          stream);
  sum_top_k<<<std::min(1056, (s.rows * kHidden / 8 + 255) / 256), 256, 0, stream>>>(s.down, s.out,
                                                                                    s.rows);
}

// Layer 0 with constant experts against the same sums on the host; then random nibbles again.
double check(const Experts& e, const Step& s, cudaStream_t stream) {
  const Layer& layer = e.layers[0];
  fill_expert_constant<<<2048, 256, 0, stream>>>(layer.w13, e.words13(), kExperts);
  fill_expert_constant<<<2048, 256, 0, stream>>>(layer.w2, e.words2(), kExperts);
  fill_bf16<<<2048, 256, 0, stream>>>(layer.scales13, e.words13() / 4 * kExperts, 0, 0.0078125f, 0);
  fill_bf16<<<2048, 256, 0, stream>>>(layer.scales2, e.words2() / 4 * kExperts, 0, 0.0078125f, 0);
  run(e, s, 0, stream);
  CHECK(cudaStreamSynchronize(stream));
  const int row = s.rows - 1;
  std::vector<__nv_bfloat16> x(kHidden), out(kHidden);
  CHECK(cudaMemcpy(x.data(), s.x + size_t(row) * kHidden, kHidden * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(out.data(), s.out + size_t(row) * kHidden, kHidden * 2, cudaMemcpyDeviceToHost));
  double sum = 0, expected = 0, worst = 0;
  for (const __nv_bfloat16 value : x) sum += __bfloat162float(value);
  for (int k = 0; k < kTopK; ++k) {
    const double weight = (nibble_of(s.routings[0].experts[row * kTopK + k]) - 8) * 0.0078125;
    const double gate = weight * sum;
    expected += 0.35 * weight * e.width * gate / (1 + std::exp(-gate)) * gate;
  }
  for (const __nv_bfloat16 value : out)
    worst = std::max(worst, std::fabs(__bfloat162float(value) - expected) / std::fabs(expected));
  fill_random<<<2048, 256, 0, stream>>>(layer.w13, e.words13() * kExperts, 10);
  fill_random<<<2048, 256, 0, stream>>>(layer.w2, e.words2() * kExperts, 20);
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  peer::Report report("Marlin MoE", argc < 2 ? nullptr : argv[1]);
  for (const int ranks : {8, 1}) {
    const Experts experts = make_experts(2048 / ranks, ranks == 8 ? 8 : 1);
    for (const int rows : {1, 2, 4, 8, 17, 33, 64, 128, 256, 512, 1024, 2048, 8192}) {
      const Step step = make_step(rows, experts.width);
      const double error = check(experts, step, stream);
      const std::string key = std::string(rows < 2048 ? "experts tp" : "prompt experts tp") +
                              std::to_string(ranks) + " M=" + std::to_string(rows);
      if (!report.accept(key, error, 3e-2)) return 1;
      const auto one = [&](int call) { run(experts, step, call, stream); };
      report.add(key, peer::time_us(16, stream, one), error);
    }
  }
  return 0;
}
