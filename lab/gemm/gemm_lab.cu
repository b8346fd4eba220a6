// Checks and times the skinny dense GEMM. Usage: gemm_lab check [quick] | stress | time | sweep |
// prefill
#include <cmath>
#include <cstring>
#include <string>

#include "../common.h"
#include "backend/cuda/cublas_lt.h"
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
// Kimi-K2.6 on one of eight ranks and whole, then shapes of the small model.
constexpr Shape kShapes[] = {{"q_a+kv_a", 1, 2112, 7168, false},
                             {"q_a", 1, 1536, 7168, false},
                             {"kv_a", 1, 576, 7168, false},
                             {"q_b TP8", 1, 1536, 1536, false},
                             {"q_b TP1", 1, 12288, 1536, false},
                             {"o_proj TP8", 1, 7168, 1024, false},
                             {"o_proj TP1", 1, 7168, 8192, false},
                             {"gate_up TP8", 1, 512, 7168, false},
                             {"gate_up TP1", 1, 4096, 7168, false},
                             {"down TP8", 1, 7168, 256, false},
                             {"down TP1", 1, 7168, 2048, false},
                             {"router", 1, 384, 7168, true},
                             {"W_UK TP8", 8, 512, 128, false},
                             {"W_UK TP1", 64, 512, 128, false},
                             {"W_UV TP8", 8, 128, 512, false},
                             {"W_UV TP1", 64, 128, 512, false},
                             {"dense layer's gate_up TP8", 1, 4608, 7168, false},
                             {"dense layer's down TP8", 1, 7168, 2304, false},
                             {"lm_head TP8", 1, 20480, 7168, true},
                             {"lm_head TP1", 1, 163840, 7168, true},
                             {"tiny hidden", 1, 192, 384, false},
                             {"tiny wide", 1, 2048, 128, true},
                             {"odd", 3, 48, 576, true}};
constexpr SkinnyGemmDevice kH200 = {.num_sms = 132, .max_shared_bytes = 232448};
constexpr int kTimed = 20;
constexpr int kTimedRows[] = {1, 8, 17, 24, 33, 64, 96, 128, 136, 256};

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
};

Buffers make_buffers(const Shape& s, int tokens) {
  Buffers b;
  b.x = device_array<__nv_bfloat16>(size_t(tokens) * s.heads * s.inputs);
  b.out = device_array<float>(size_t(tokens) * s.heads * s.outputs);
  lab::fill_normal<<<264, 256>>>(b.x, size_t(tokens) * s.heads * s.inputs, 11ull << 40, 1.0f);
  return b;
}

void run(const Shape& s, const Buffers& b, const __nv_bfloat16* weight, int first, int tokens,
         void* out, bool as_float, cudaStream_t stream) {
  CHECK_CUDA(skinny_gemm({.x = b.x + size_t(first) * s.heads * s.inputs,
                          .weight = weight,
                          .out = out,
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
  const bool large = s.outputs > 100'000;
  const int kMost = quick || large ? 130 : 1025;
  const int kReference = large ? 2 : 20;
  Buffers b = make_buffers(s, kMost);
  const size_t weights = size_t(s.heads) * s.outputs * s.inputs, row = size_t(s.heads) * s.outputs;
  auto* weight = device_array<__nv_bfloat16>(weights);
  lab::fill_normal<<<1320, 256>>>(weight, weights, 21ull << 40, 0.02f);
  auto* alone = device_array<float>(kMost * row);
  const auto poison = [&] { CHECK_CUDA(cudaMemset(b.out, 0xFF, kMost * row * 4)); };
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
  for (int m : {18, 23, 24,  25,  31,  32,  33,  40,  41,   48,   49,  63,
                64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025}) {
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
  std::printf("check %-25s segments %d: rel. error %.2e, %zu row counts, failures %d\n", s.name,
              skinny_gemm_segments(s.heads, s.outputs, s.inputs), error, sweep.size(), failures);
  for (void* p : std::initializer_list<void*>{b.x, b.out, weight, alone, want}) {
    CHECK_CUDA(cudaFree(p));
  }
}

void time_shape(const Shape& s, double ceiling) {
  const size_t weights = size_t(s.heads) * s.outputs * s.inputs;
  const size_t copies = std::max<size_t>(1, 400'000'000 / (weights * 2));
  auto* weight = device_array<__nv_bfloat16>(copies * weights);
  lab::fill_normal<<<1320, 256>>>(weight, copies * weights, 21ull << 40, 0.02f);
  std::printf("%-25s", s.name);
  for (int m : kTimedRows) {
    Buffers b = make_buffers(s, m);
    const int calls = static_cast<int>(std::clamp<size_t>(copies, 3, 100));
    const float us = lab::time_graph(
        [&](cudaStream_t stream) {
          for (int i = 0; i < calls; ++i) {
            run(s, b, weight + i % copies * weights, 0, m, b.out, s.out_is_float, stream);
          }
        },
        calls, 9);
    const double bytes = 2.0 * weights + 2.0 * m * s.heads * s.inputs +
                         (s.out_is_float ? 4.0 : 2.0) * m * s.heads * s.outputs;
    std::printf(" | %6.2f %4.2fx", us, us / (1.67 + bytes / ceiling * 1e-6));
    CHECK_CUDA(cudaFree(b.x));
    CHECK_CUDA(cudaFree(b.out));
  }
  std::printf("\n");
  std::fflush(stdout);
  CHECK_CUDA(cudaFree(weight));
}

// The same product many times: equal bits every time.
void stress(const Shape& s, int m) {
  const size_t weights = size_t(s.heads) * s.outputs * s.inputs, row = size_t(s.heads) * s.outputs;
  auto* weight = device_array<__nv_bfloat16>(weights);
  lab::fill_normal<<<1320, 256>>>(weight, weights, 21ull << 40, 0.02f);
  Buffers b = make_buffers(s, m);
  auto* want = device_array<float>(m * row);
  auto* different = device_array<unsigned long long>(1);
  CHECK_CUDA(cudaMemset(different, 0, 8));
  run(s, b, weight, 0, m, want, true, nullptr);
  for (int i = 0; i < 300; ++i) {
    run(s, b, weight, 0, m, b.out, true, nullptr);
    lab::count_different_words<<<64, 256>>>(static_cast<const uint32_t*>(b.out),
                                            reinterpret_cast<const uint32_t*>(want), m * row,
                                            different);
  }
  unsigned long long count = 0;
  CHECK_CUDA(cudaMemcpy(&count, different, 8, cudaMemcpyDeviceToHost));
  if (count != 0) ++failures;
  std::printf("%s M=%d: %llu; ", s.name, m, count);
  for (void* p : std::initializer_list<void*>{b.x, b.out, weight, want, different})
    CHECK_CUDA(cudaFree(p));
}

// Times every tile that the kernel has, and checks that its bits are those of the choice.
void sweep(const Shape& s, int m) {
  const size_t weights = size_t(s.heads) * s.outputs * s.inputs, row = size_t(s.heads) * s.outputs;
  const size_t copies = std::max<size_t>(1, 400'000'000 / (weights * 2));
  auto* weight = device_array<__nv_bfloat16>(copies * weights);
  lab::fill_normal<<<1320, 256>>>(weight, copies * weights, 21ull << 40, 0.02f);
  Buffers b = make_buffers(s, m);
  auto* want = device_array<float>(m * row);
  run(s, b, weight, 0, m, want, s.out_is_float, nullptr);
  const int segments = skinny_gemm_segments(s.heads, s.outputs, s.inputs);
  const int calls = static_cast<int>(std::clamp<size_t>(copies, 3, 20));
  const auto enqueue = [&](const SkinnyGemmTiles& t, int copy, cudaStream_t stream) {
    CHECK_CUDA(skinny_gemm_with({.x = b.x,
                                 .weight = weight + copy % copies * weights,
                                 .out = b.out,
                                 .num_tokens = m,
                                 .num_heads = s.heads,
                                 .outputs = s.outputs,
                                 .inputs = s.inputs,
                                 .x_stride = s.heads * s.inputs,
                                 .out_stride = s.heads * s.outputs,
                                 .out_is_float = s.out_is_float},
                                t, stream));
  };
  std::printf("%-12s M=%d:", s.name, m);
  const auto measure = [&](const SkinnyGemmTiles& t, bool alone) {
    enqueue(t, 0, nullptr);
    const auto bits = lab::different_words(b.out, want, m * row * (s.out_is_float ? 4 : 2) / 4);
    if (bits != 0) ++failures;
    const float us = lab::time_graph(
        [&](cudaStream_t stream) {
          for (int i = 0; i < calls; ++i) enqueue(t, i, stream);
        },
        calls, 5);
    std::printf(" %dx%d/%d%s%s %.2f%s", t.columns, t.outputs, t.stages,
                t.pushed_at > 0 ? " pushed" : "", alone ? " alone" : "", us, bits ? " WRONG" : "");
  };
  int narrow = 0;
  for (const int columns : kSkinnyColumns) {
    if (columns < 128 && (columns < m || ++narrow > 2)) continue;
    if (columns >= 128 && columns > 2 * std::max(m, 32)) continue;
    for (const int outputs : {64, 72, 80, 96, 112, 128, 136, 144, 160}) {
      for (const bool alone : {false, true}) {
        for (const bool pushes : {false, true}) {
          if (outputs > 128 && columns > 128) continue;
          if (outputs > s.outputs || (pushes && (segments == 1 || columns > kSkinnyMostPushed)))
            continue;
          const SkinnyGemmTiles t = skinny_gemm_tiles_of({columns, outputs, alone, pushes}, m,
                                                         s.heads, s.outputs, s.inputs, kH200);
          if (t.stages > 0) measure(t, alone);
        }
      }
    }
  }
  std::printf("\n");
  std::fflush(stdout);
  for (void* p : std::initializer_list<void*>{b.x, b.out, weight, want}) CHECK_CUDA(cudaFree(p));
}

// Prompt rows: cuBLASLt's bits over the number of rows, its time and that of the decode form.
void prefill(const Shape& s, coppice::CublasLt& lt) {
  constexpr int kMost = 8192;
  Buffers b = make_buffers(s, kMost);
  const size_t weights = size_t(s.heads) * s.outputs * s.inputs, row = size_t(s.heads) * s.outputs;
  auto* weight = device_array<__nv_bfloat16>(weights);
  lab::fill_normal<<<1320, 256>>>(weight, weights, 21ull << 40, 0.02f);
  auto* whole = device_array<float>(kMost * row);
  const size_t element = s.out_is_float ? 4 : 2;
  const auto multiply = [&](int first, int tokens, void* out, cudaStream_t stream) {
    return lt.multiply({.x = b.x + size_t(first) * s.heads * s.inputs,
                        .weight = weight,
                        .out = out,
                        .tokens = tokens,
                        .heads = s.heads,
                        .outputs = s.outputs,
                        .inputs = s.inputs,
                        .x_stride = s.heads * s.inputs,
                        .out_stride = s.heads * s.outputs,
                        .out_is_f32 = s.out_is_float},
                       stream);
  };
  CHECK_CUDA(cudaMemset(whole, 0xFF, kMost * row * 4));
  if (!multiply(0, kMost, whole, nullptr)) {
    std::printf("prefill %-12s: no algorithm\n", s.name);
    return;
  }
  // Against the decode form, whose own error is known.
  run(s, b, weight, 0, kMost, b.out, s.out_is_float, nullptr);
  const auto apart = lab::different_words(whole, b.out, kMost * row * element / 4);
  int failures_here = 0;
  for (int m : {1, 2, 5, 16, 17, 64, 100, 127, 128, 129, 255, 257, 511, 1000, 2048, 5000}) {
    for (int first : {0, 1111}) {
      CHECK_CUDA(cudaMemset(b.out, 0xFF, (m + 1) * row * 4));
      multiply(first, m, b.out, nullptr);
      const auto bits = lab::different_words(
          b.out, reinterpret_cast<uint8_t*>(whole) + first * row * element, m * row * element / 4);
      if (bits != 0) {
        ++failures_here;
        std::printf("FAIL %s rows %d at %d: %llu words differ\n", s.name, m, first, bits);
      }
    }
  }
  failures += failures_here;
  std::printf("prefill %-12s: %5.2f %% of words differ from decode, failures %d", s.name,
              100.0 * apart / (kMost * row * element / 4.0), failures_here);
  for (int m : {2048, 8192}) {
    const float us =
        lab::time_graph([&](cudaStream_t stream) { multiply(0, m, b.out, stream); }, 1, 7);
    const float own = lab::time_graph(
        [&](cudaStream_t stream) { run(s, b, weight, 0, m, b.out, s.out_is_float, stream); }, 1, 7);
    const double flops = 2.0 * m * weights;
    std::printf(" | %4d rows: Lt %7.1f us %4.0f TFLOP/s, own %7.1f us %4.0f", m, us,
                flops / us * 1e-6, own, flops / own * 1e-6);
  }
  std::printf("\n");
  std::fflush(stdout);
  for (void* p : std::initializer_list<void*>{b.x, b.out, weight, whole}) CHECK_CUDA(cudaFree(p));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "time") {
    uint8_t* data = device_array<uint8_t>(4ull << 30);
    lab::fill_words<<<1320, 256>>>(reinterpret_cast<uint32_t*>(data), 1ull << 30, 5);
    const double ceiling = lab::read_ceiling(data, 4ull << 30);
    std::printf(
        "read ceiling %.3f TB/s; us and multiple of the reachable floor at M = 1 8 17 24 33 64 96 "
        "128 136 256\n",
        ceiling);
    for (int i = 0; i < kTimed; ++i) time_shape(kShapes[i], ceiling);
  } else if (argc > 1 && std::string(argv[1]) == "stress") {
    std::printf("words that differ in 300 runs: ");
    for (const Shape& s : kShapes) {
      for (int m : {1, 17, 64}) {
        if (s.outputs < 100'000) stress(s, m);
      }
    }
    std::printf("\n");
  } else if (argc > 1 && std::string(argv[1]) == "sweep") {
    for (int m : {1, 8, 17, 33, 64, 128, 136, 256}) {
      for (const Shape& s : kShapes) {
        if (s.outputs < 100'000 && s.heads * s.outputs > 192) sweep(s, m);
      }
    }
  } else if (argc > 1 && std::string(argv[1]) == "prefill") {
    const auto lt = coppice::CublasLt::load();
    if (!lt) return std::printf("no cuBLASLt\n"), 1;
    std::printf("cuBLASLt %zu\n", lt->version());
    for (const Shape& s : kShapes) {
      if (s.outputs < 20000) prefill(s, *lt);
    }
  } else {
    for (const Shape& s : kShapes) {
      if (argc > 2 && int64_t{s.heads} * s.outputs * s.inputs > 3'000'000) continue;
      check(s, argc > 2);
    }
  }
  return failures != 0;
}
