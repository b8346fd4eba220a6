// Checks and times the routed-experts op. Usage: moe_lab check|time
// tp8|tp1|tp1e64|tiny|tiny4|odd|mini
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "../common.h"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts.h"
#include "kernels/moe/repack_experts.h"

using namespace coppice::kernels;
using lab::device_array;
using lab::device_copy;

namespace {

struct Shape {
  const char* name;
  int hidden, intermediate, experts, top_k;
};
constexpr Shape kShapes[] = {{"tp8", 7168, 256, 384, 8},    {"tp1", 7168, 2048, 384, 8},
                             {"tp1e64", 7168, 2048, 64, 8}, {"tiny", 384, 128, 32, 4},
                             {"tiny4", 384, 32, 32, 4},     {"odd", 1120, 1056, 24, 6},
                             {"mini", 1024, 128, 16, 4}};

// ------------------------------------------------------------------------------------- reference

struct Source {
  uint32_t *gate, *up, *down;
  __nv_bfloat16 *gate_scale, *up_scale, *down_scale;
};

__device__ double dot(const uint32_t* packed, const __nv_bfloat16* scale, int64_t row, int k,
                      const __nv_bfloat16* x) {
  double sum = 0;
  for (int word = threadIdx.x; word < k / 8; word += 32) {
    const uint32_t nibbles = packed[row * (k / 8) + word];
    const double s = __bfloat162float(scale[row * (k / 32) + word / 4]);
    for (int i = 0; i < 8; ++i) {
      const int value = static_cast<int>(nibbles >> (4 * i) & 15) - 8;
      sum += value * s * static_cast<double>(__bfloat162float(x[word * 8 + i]));
    }
  }
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  return sum;
}

__global__ void reference_w13(Source w, const __nv_bfloat16* x, const int* ids, Shape s,
                              __nv_bfloat16* activation) {
  const int pair = blockIdx.y, expert = ids[pair];
  if (expert < 0) return;
  for (int i = blockIdx.x; i < s.intermediate; i += gridDim.x) {
    const int64_t row = int64_t{expert} * s.intermediate + i;
    const auto* input = x + int64_t{pair / s.top_k} * s.hidden;
    const double gate = dot(w.gate, w.gate_scale, row, s.hidden, input);
    const double up = dot(w.up, w.up_scale, row, s.hidden, input);
    if (threadIdx.x == 0) {
      activation[int64_t{pair} * s.intermediate + i] =
          __double2bfloat16(gate / (1 + exp(-gate)) * up);
    }
  }
}

__global__ void reference_w2(Source w, const __nv_bfloat16* activation, const int* ids,
                             const float* weights, const __nv_bfloat16* shared, Shape s,
                             double* out) {
  const int token = blockIdx.y;
  for (int row = blockIdx.x; row < s.hidden; row += gridDim.x) {
    double sum = 0;
    for (int slot = 0; slot < s.top_k; ++slot) {
      const int pair = token * s.top_k + slot;
      if (ids[pair] < 0) continue;
      sum += weights[pair] * dot(w.down, w.down_scale, int64_t{ids[pair]} * s.hidden + row,
                                 s.intermediate, activation + int64_t{pair} * s.intermediate);
    }
    if (shared) sum += __bfloat162float(shared[int64_t{token} * s.hidden + row]);
    if (threadIdx.x == 0) out[int64_t{token} * s.hidden + row] = sum;
  }
}

// ------------------------------------------------------------------------------------------ setup

struct Layer {
  uint8_t *w13, *w2;
};

Layer repack(const Source& w, const Shape& s) {
  const ExpertBlobShape shape13 = expert_blob_shape(2 * s.intermediate, s.hidden);
  const ExpertBlobShape shape2 = expert_blob_shape(s.hidden, s.intermediate);
  Layer layer = {device_array<uint8_t>(s.experts * expert_blob_bytes(shape13)),
                 device_array<uint8_t>(s.experts * expert_blob_bytes(shape2))};
  CHECK_CUDA(repack_experts({.packed = reinterpret_cast<int32_t*>(w.gate),
                             .scale = w.gate_scale,
                             .packed_up = reinterpret_cast<int32_t*>(w.up),
                             .scale_up = w.up_scale,
                             .blob = layer.w13,
                             .num_experts = s.experts,
                             .rows = s.intermediate,
                             .inputs = s.hidden},
                            nullptr));
  CHECK_CUDA(repack_experts({.packed = reinterpret_cast<int32_t*>(w.down),
                             .scale = w.down_scale,
                             .blob = layer.w2,
                             .num_experts = s.experts,
                             .rows = s.hidden,
                             .inputs = s.intermediate},
                            nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
  return layer;
}

Source random_source(const Shape& s) {
  const size_t count = size_t(s.experts) * s.intermediate * s.hidden;
  Source w;
  uint32_t** words[] = {&w.gate, &w.up, &w.down};
  __nv_bfloat16** scales[] = {&w.gate_scale, &w.up_scale, &w.down_scale};
  for (int i = 0; i < 3; ++i) {
    *words[i] = device_array<uint32_t>(count / 8);
    *scales[i] = device_array<__nv_bfloat16>(count / 32);
    lab::fill_words<<<1320, 256>>>(*words[i], count / 8, uint64_t(i + 1) << 40);
    lab::fill_scales<<<1320, 256>>>(*scales[i], count / 32, uint64_t(i + 5) << 40);
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  return w;
}

// Distinct experts for each token; `pool` limits the choice to the first so many (skew).
std::vector<int> random_routing(const Shape& s, int tokens, int pool, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<int> ids;
  for (int t = 0; t < tokens; ++t) {
    std::vector<int> chosen;
    while (static_cast<int>(chosen.size()) < s.top_k) {
      const int e = rng() % pool;
      if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
    }
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

int distinct(const std::vector<int>& ids) {
  std::vector<int> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return static_cast<int>(sorted.size()) - (!sorted.empty() && sorted[0] < 0);
}

struct Workspace {
  uint8_t* data;
  size_t bytes, counter_bytes;
  explicit Workspace(const Shape& s, int tokens)
      : bytes(moe_experts_workspace_bytes(tokens, s.top_k, s.experts, s.hidden, s.intermediate)),
        counter_bytes(moe_experts_counter_bytes(s.top_k, s.experts)) {
    data = device_array<uint8_t>(bytes);
    CHECK_CUDA(cudaMemset(data, 0, counter_bytes));
  }
  // Everything but the counters becomes NaN.
  void poison() { CHECK_CUDA(cudaMemset(data + counter_bytes, 0xFF, bytes - counter_bytes)); }
};

// ------------------------------------------------------------------------------------------ check

int failures = 0;
void expect(bool ok, const char* what, int tokens, double value) {
  if (!ok) {
    ++failures;
    std::printf("FAIL %s M=%d value %g\n", what, tokens, value);
  }
}

struct Case {
  Shape s;
  Layer layer;
  __nv_bfloat16 *x, *shared;
  float* weights;
  int* ids;
  Workspace& workspace;
};

void run(const Case& c, int first, int tokens, float* out, int* active, const int* ids = nullptr) {
  const size_t row = size_t(first) * c.s.hidden, pair = size_t(first) * c.s.top_k;
  CHECK_CUDA(moe_experts({.x = c.x + row,
                          .topk_ids = (ids ? ids : c.ids) + pair,
                          .topk_weights = c.weights + pair,
                          .w13 = c.layer.w13,
                          .w2 = c.layer.w2,
                          .shared = c.shared ? c.shared + row : nullptr,
                          .out = out,
                          .num_active_experts = active,
                          .workspace = c.workspace.data,
                          .num_tokens = tokens,
                          .top_k = c.s.top_k,
                          .num_experts = c.s.experts,
                          .hidden_size = c.s.hidden,
                          .intermediate_size = c.s.intermediate,
                          .out_is_float = true},
                         nullptr));
}

double relative_error(const std::vector<float>& got, const std::vector<double>& want,
                      size_t count) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    const double d = got[i] - want[i];
    difference += d * d;
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

void check(const Shape& s, const char* routing_name, int pool, int max_tokens,
           int reference_tokens) {
  const Source source = random_source(s);
  Workspace workspace(s, max_tokens);
  const std::vector<int> ids = random_routing(s, max_tokens, pool, 7);
  std::vector<float> weights(ids.size());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.35f + 0.3f * lab::uniform(i + 99);
  Case c = {s,
            repack(source, s),
            device_array<__nv_bfloat16>(size_t(max_tokens) * s.hidden),
            device_array<__nv_bfloat16>(size_t(max_tokens) * s.hidden),
            device_copy(weights),
            device_copy(ids),
            workspace};
  const size_t count = size_t(max_tokens) * s.hidden;
  lab::fill_normal<<<264, 256>>>(c.x, count, 11ull << 40, 1.0f);
  lab::fill_normal<<<264, 256>>>(c.shared, count, 12ull << 40, 1.0f);
  float* out = device_array<float>(count);
  float* alone = device_array<float>(count);
  int* active = device_array<int>(1);

  // Every row by itself: what all other calls must reproduce bit for bit.
  workspace.poison();
  for (int t = 0; t < max_tokens; ++t) run(c, t, 1, alone + size_t(t) * s.hidden, active);
  CHECK_CUDA(cudaDeviceSynchronize());

  auto* activation = device_array<__nv_bfloat16>(ids.size() * s.intermediate);
  double* want = device_array<double>(size_t(reference_tokens) * s.hidden);
  reference_w13<<<dim3(64, reference_tokens * s.top_k), 32>>>(source, c.x, c.ids, s, activation);
  reference_w2<<<dim3(256, reference_tokens), 32>>>(source, activation, c.ids, c.weights, c.shared,
                                                    s, want);
  std::vector<double> want_host(size_t(reference_tokens) * s.hidden);
  CHECK_CUDA(cudaMemcpy(want_host.data(), want, want_host.size() * 8, cudaMemcpyDeviceToHost));
  std::vector<float> got(want_host.size());
  CHECK_CUDA(cudaMemcpy(got.data(), alone, got.size() * 4, cudaMemcpyDeviceToHost));
  const double error = relative_error(got, want_host, got.size());
  expect(error < 1e-3, "reference", 1, error);

  std::vector<int> sweep;
  for (int m = 0; m <= std::min(17, max_tokens); ++m) sweep.push_back(m);
  for (int m : {31,  32,  33,  63,  64,  65,  95,  97,   127,  128,  129,
                255, 256, 257, 511, 513, 768, 769, 1023, 1024, 1025, 2049}) {
    if (m <= max_tokens) sweep.push_back(m);
  }
  for (int m : sweep) {
    workspace.poison();
    CHECK_CUDA(cudaMemset(out, 0xFF, count * 4));
    run(c, 0, m, out, active);
    CHECK_CUDA(cudaDeviceSynchronize());
    const auto bits = lab::different_words(out, alone, size_t(m) * s.hidden);
    expect(bits == 0, "row independence", m, bits);
    if (m > 0) {
      int got_active = 0;
      CHECK_CUDA(cudaMemcpy(&got_active, active, 4, cudaMemcpyDeviceToHost));
      const int want_active =
          distinct(std::vector<int>(ids.begin(), ids.begin() + size_t(m) * s.top_k));
      expect(got_active == want_active, "active experts", m, got_active);
    }
  }

  // Rows 3, 6, 9 ... become padding: NaN inputs, no expert.
  const int padded_tokens = std::min(max_tokens, 130);
  std::vector<int> padded = ids;
  for (int t = 3; t < padded_tokens; t += 3) {
    for (int k = 0; k < s.top_k; ++k) padded[t * s.top_k + k] = k % 2 ? -1 : s.experts + 5;
    CHECK_CUDA(cudaMemset(c.x + size_t(t) * s.hidden, 0xFF, s.hidden * 2));
    CHECK_CUDA(cudaMemset(c.shared + size_t(t) * s.hidden, 0, s.hidden * 2));
    CHECK_CUDA(cudaMemset(alone + size_t(t) * s.hidden, 0, s.hidden * 4));
  }
  int* padded_ids = device_copy(padded);
  for (int m : {4, 17, 64, 130}) {
    if (m > padded_tokens) continue;
    workspace.poison();
    run(c, 0, m, out, active, padded_ids);
    CHECK_CUDA(cudaDeviceSynchronize());
    const auto bits = lab::different_words(out, alone, size_t(m) * s.hidden);
    expect(bits == 0, "padding", m, bits);
  }
  std::printf("check %s %s: rel. error %.2e (%d rows), sweep of %zu sizes to M=%d, failures %d\n",
              s.name, routing_name, error, reference_tokens, sweep.size(), max_tokens, failures);
  for (void* p : std::initializer_list<void*>{
           source.gate, source.up, source.down, source.gate_scale, source.up_scale,
           source.down_scale, c.layer.w13, c.layer.w2, c.x, c.shared, c.weights, c.ids, out, alone,
           active, activation, want, padded_ids, workspace.data}) {
    CHECK_CUDA(cudaFree(p));
  }
}

// ------------------------------------------------------------------------------------------- time

__global__ void fill_blob(uint32_t* blob, size_t words, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    const bool scale = i % (kCellBytes / 4) >= 256;
    blob[i] = scale ? 0x3B003B20u + (lab::hash(seed + i) & 0x000F000Fu) : lab::hash(seed + i);
  }
}

void time_shape(const Shape& s, const std::vector<int>& sizes, int layers, int calls) {
  const size_t bytes13 =
      s.experts * expert_blob_bytes(expert_blob_shape(2 * s.intermediate, s.hidden));
  const size_t bytes2 = s.experts * expert_blob_bytes(expert_blob_shape(s.hidden, s.intermediate));
  std::vector<Layer> all;
  for (int i = 0; i < layers; ++i) {
    all.push_back({device_array<uint8_t>(bytes13), device_array<uint8_t>(bytes2)});
    fill_blob<<<1320, 256>>>(reinterpret_cast<uint32_t*>(all[i].w13), bytes13 / 4,
                             uint64_t(i + 1) << 42);
    fill_blob<<<1320, 256>>>(reinterpret_cast<uint32_t*>(all[i].w2), bytes2 / 4,
                             uint64_t(i + 9) << 42);
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  const double ceiling = lab::read_ceiling(all[0].w13, std::min<size_t>(bytes13, 4ull << 30));
  std::printf("\n%s: read ceiling %.3f TB/s\n", s.name, ceiling);
  std::printf("%6s %8s %8s %9s %8s %8s %10s\n", "M", "experts", "MB", "us", "TB/s", "share",
              "x reachable");
  const double expert_bytes = double(bytes13 + bytes2) / s.experts;
  const int most = *std::max_element(sizes.begin(), sizes.end());
  Workspace workspace(s, most);
  auto* x = device_array<__nv_bfloat16>(size_t(most) * s.hidden);
  auto* shared = device_array<__nv_bfloat16>(size_t(most) * s.hidden);
  auto* out = device_array<__nv_bfloat16>(size_t(most) * s.hidden);
  lab::fill_normal<<<264, 256>>>(x, size_t(most) * s.hidden, 11ull << 40, 1.0f);
  lab::fill_normal<<<264, 256>>>(shared, size_t(most) * s.hidden, 12ull << 40, 1.0f);
  for (int m : sizes) {
    std::vector<int*> ids;
    double touched = 0;
    for (int i = 0; i < calls; ++i) {
      const auto host = random_routing(s, m, s.experts, 1000 * m + i);
      touched += distinct(host) / double(calls);
      ids.push_back(device_copy(host));
    }
    float* weights = device_copy(std::vector<float>(size_t(m) * s.top_k, 0.35f));
    const float us = lab::time_graph(
        [&](cudaStream_t stream) {
          for (int i = 0; i < calls; ++i) {
            CHECK_CUDA(moe_experts({.x = x,
                                    .topk_ids = ids[i],
                                    .topk_weights = weights,
                                    .w13 = all[i % layers].w13,
                                    .w2 = all[i % layers].w2,
                                    .shared = shared,
                                    .out = out,
                                    .workspace = workspace.data,
                                    .num_tokens = m,
                                    .top_k = s.top_k,
                                    .num_experts = s.experts,
                                    .hidden_size = s.hidden,
                                    .intermediate_size = s.intermediate},
                                   stream));
          }
        },
        calls, 11);
    const double bytes = touched * expert_bytes;
    std::printf("%6d %8.1f %8.0f %9.2f %8.3f %7.1f%% %10.2f\n", m, touched, bytes * 1e-6, us,
                bytes / us * 1e-6, bytes / us * 1e-4 / ceiling,
                us / (1.67 + bytes / ceiling * 1e-6));
    std::fflush(stdout);
    for (int* p : ids) CHECK_CUDA(cudaFree(p));
    CHECK_CUDA(cudaFree(weights));
  }
  for (Layer& layer : all) {
    CHECK_CUDA(cudaFree(layer.w13));
    CHECK_CUDA(cudaFree(layer.w2));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check", name = argc > 2 ? argv[2] : "tp8";
  for (const Shape& s : kShapes) {
    if (name != s.name) continue;
    if (mode == "check") {
      const int most = argc > 3 ? std::atoi(argv[3]) : name == "tp1e64" ? 257 : 1025;
      check(s, "uniform", s.experts, most, std::min(most, 64));
      check(s, "skewed", s.top_k, most, std::min(most, 16));
    } else {
      const int layers = name == "tp8" ? 4 : 1;
      std::vector<int> sizes = {1,  2,   4,   8,   16,  17,   32,   33,
                                64, 128, 256, 512, 768, 1024, 2048, 8192};
      if (argc > 3) sizes.clear();
      for (int i = 3; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
      time_shape(s, sizes, layers, name == "tp8" ? 24 : 8);
    }
  }
  return failures != 0;
}
