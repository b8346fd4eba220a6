// Checks and times the skinny dense GEMM. Usage: gemm_lab check|time
#include <cmath>
#include <cstring>
#include <string>

#include "../common.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gemm/skinny_gemm_config.h"

using namespace coppice::kernels;
using lab::device_array;

namespace {

struct Shape {
  const char* name;
  int heads, outputs, inputs;
  bool out_is_float;
};
// Kimi-K2.6 on one of eight ranks, then shapes of the small model.
constexpr Shape kShapes[] = {
    {"q_a", 1, 1536, 7168, false},        {"q_a+kv_a", 1, 2112, 7168, false},
    {"kv_a", 1, 576, 7168, false},        {"q_b", 1, 1536, 1536, false},
    {"o_proj", 1, 7168, 1024, false},     {"shared gate_up", 1, 512, 7168, false},
    {"shared down", 1, 7168, 256, false}, {"router", 1, 384, 7168, true},
    {"W_UK absorb", 8, 512, 128, false},  {"W_UV up", 8, 128, 512, false},
    {"lm_head", 1, 20480, 7168, true},    {"tiny hidden", 1, 192, 384, false},
    {"tiny wide", 1, 2048, 128, true},    {"odd", 3, 48, 576, true}};
constexpr int kTimed = 11;

__global__ void reference(const __nv_bfloat16* x, const __nv_bfloat16* w, Shape s, double* out) {
  const int token = blockIdx.y;
  for (int row = blockIdx.x; row < s.heads * s.outputs; row += gridDim.x) {
    double sum = 0;
    for (int k = threadIdx.x; k < s.inputs; k += 32) {
      sum +=
          double(__bfloat162float(x[(int64_t{token} * s.heads + row / s.outputs) * s.inputs + k])) *
          double(__bfloat162float(w[int64_t{row} * s.inputs + k]));
    }
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (threadIdx.x == 0) out[int64_t{token} * s.heads * s.outputs + row] = sum;
  }
}

struct Buffers {
  __nv_bfloat16* x;
  void* out;
  uint8_t* workspace;
  size_t workspace_bytes;
};

Buffers make_buffers(const Shape& s, int tokens) {
  Buffers b;
  b.x = device_array<__nv_bfloat16>(size_t(tokens) * s.heads * s.inputs);
  b.out = device_array<float>(size_t(tokens) * s.heads * s.outputs);
  b.workspace_bytes = skinny_gemm_workspace_bytes(tokens, s.heads, s.outputs, s.inputs);
  b.workspace = device_array<uint8_t>(b.workspace_bytes);
  CHECK_CUDA(cudaMemset(b.workspace, 0, skinny_gemm_counter_bytes()));
  lab::fill_normal<<<264, 256>>>(b.x, size_t(tokens) * s.heads * s.inputs, 11ull << 40, 1.0f);
  return b;
}

void run(const Shape& s, const Buffers& b, const __nv_bfloat16* weight, int first, int tokens,
         void* out, bool as_float, cudaStream_t stream) {
  CHECK_CUDA(skinny_gemm({.x = b.x + size_t(first) * s.heads * s.inputs,
                          .weight = weight,
                          .out = out,
                          .workspace = b.workspace,
                          .num_tokens = tokens,
                          .num_heads = s.heads,
                          .outputs = s.outputs,
                          .inputs = s.inputs,
                          .x_stride = s.heads * s.inputs,
                          .out_stride = s.heads * s.outputs,
                          .out_is_float = as_float},
                         stream));
}

int failures = 0;

void check(const Shape& s, bool quick) {
  const int kMost = quick ? 130 : 1025;
  constexpr int kReference = 40;
  Buffers b = make_buffers(s, kMost);
  const size_t weights = size_t(s.heads) * s.outputs * s.inputs, row = size_t(s.heads) * s.outputs;
  auto* weight = device_array<__nv_bfloat16>(weights);
  lab::fill_normal<<<1320, 256>>>(weight, weights, 21ull << 40, 0.02f);
  auto* alone = device_array<float>(kMost * row);
  const auto poison = [&] {
    const size_t counters = skinny_gemm_counter_bytes();
    CHECK_CUDA(cudaMemset(b.workspace + counters, 0xFF, b.workspace_bytes - counters));
    CHECK_CUDA(cudaMemset(b.out, 0xFF, kMost * row * 4));
  };
  poison();
  for (int t = 0; t < kMost; ++t) run(s, b, weight, t, 1, alone + t * row, true, nullptr);
  double* want = device_array<double>(kReference * row);
  reference<<<dim3(256, kReference), 32>>>(b.x, weight, s, want);
  std::vector<double> want_host(kReference * row);
  std::vector<float> got(kReference * row);
  CHECK_CUDA(cudaMemcpy(want_host.data(), want, want_host.size() * 8, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(got.data(), alone, got.size() * 4, cudaMemcpyDeviceToHost));
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want_host[i]) * (got[i] - want_host[i]);
    norm += want_host[i] * want_host[i];
  }
  const double error = std::sqrt(difference / norm);
  if (!(error < 1e-4)) ++failures;
  std::vector<int> sweep;
  for (int m = 0; m <= 17; ++m) sweep.push_back(m);
  for (int m : {31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025}) {
    if (m <= kMost) sweep.push_back(m);
  }
  for (int m : sweep) {
    poison();
    run(s, b, weight, 0, m, b.out, true, nullptr);
    CHECK_CUDA(cudaDeviceSynchronize());
    const auto bits = lab::different_words(b.out, alone, m * row);
    if (bits != 0) {
      ++failures;
      std::printf("FAIL %s M=%d: %llu words differ from M=1\n", s.name, m, bits);
    }
  }
  const SkinnyGemmSplit split = skinny_gemm_split(s.heads, s.outputs, s.inputs);
  std::printf("check %-15s warps_k %d segments %2d steps %2d: rel. error %.2e, failures %d\n",
              s.name, split.warps_k, split.segments, split.steps, error, failures);
  for (void* p : std::initializer_list<void*>{b.x, b.out, b.workspace, weight, alone, want}) {
    CHECK_CUDA(cudaFree(p));
  }
}

void time_shape(const Shape& s, double ceiling) {
  const size_t weights = size_t(s.heads) * s.outputs * s.inputs;
  const size_t copies = std::max<size_t>(2, 400'000'000 / (weights * 2));
  auto* weight = device_array<__nv_bfloat16>(copies * weights);
  lab::fill_normal<<<1320, 256>>>(weight, copies * weights, 21ull << 40, 0.02f);
  std::printf("%-15s", s.name);
  for (int m : {1, 8, 17, 33, 64, 256}) {
    Buffers b = make_buffers(s, m);
    const int calls = static_cast<int>(std::min<size_t>(copies, 40));
    const float us = lab::time_graph(
        [&](cudaStream_t stream) {
          for (int i = 0; i < calls; ++i) {
            run(s, b, weight + i * weights, 0, m, b.out, s.out_is_float, stream);
          }
        },
        calls, 9);
    const double bytes = 2.0 * weights + 2.0 * m * s.heads * s.inputs +
                         (s.out_is_float ? 4.0 : 2.0) * m * s.heads * s.outputs;
    std::printf(" | %6.2f %5.2fx", us, us / (1.67 + bytes / ceiling * 1e-6));
    CHECK_CUDA(cudaFree(b.x));
    CHECK_CUDA(cudaFree(b.out));
    CHECK_CUDA(cudaFree(b.workspace));
  }
  std::printf("\n");
  std::fflush(stdout);
  CHECK_CUDA(cudaFree(weight));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "time") {
    uint8_t* data = device_array<uint8_t>(4ull << 30);
    lab::fill_words<<<1320, 256>>>(reinterpret_cast<uint32_t*>(data), 1ull << 30, 5);
    const double ceiling = lab::read_ceiling(data, 4ull << 30);
    std::printf(
        "read ceiling %.3f TB/s; us and multiple of the reachable floor at M = 1 8 17 33 64 256\n",
        ceiling);
    for (int i = 0; i < kTimed; ++i) time_shape(kShapes[i], ceiling);
  } else {
    for (const Shape& s : kShapes) check(s, argc > 2);
  }
  return failures != 0;
}
