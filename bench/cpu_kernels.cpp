// CPU kernels against the read bandwidth of this machine, measured in the same run.
//   bench_cpu_kernels [threads] [device] [bandwidth]
// "bandwidth" stops after the read bandwidth.
// Weights rotate through more memory than the caches hold. Times are the best and the median of
// the repetitions; GB/s counts weight bytes once per step, however many rows share them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/factory/make_backend.h"
#include "base/rng.h"
#include "base/thread_pool.h"

namespace {

using namespace coppice;

constexpr std::size_t kRotateBytes = std::size_t{160} << 20;
constexpr int kRepetitions = 15;

struct Times {
  double best, median;  // seconds
};

template <typename Body>
Times measure(const Body& body) {
  std::vector<double> seconds;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body(i);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

// Words [0, count) combined; prefetched, as the kernels do.
std::uint64_t read_all(const std::uint64_t* words, std::int64_t count) {
  std::uint64_t sum[8] = {};
  for (std::int64_t i = 0; i < count; i += 8) {
    __builtin_prefetch(words + i + 512);
    for (std::int64_t lane = 0; lane < 8; ++lane) sum[lane] ^= words[i + lane];
  }
  for (int lane = 1; lane < 8; ++lane) sum[0] ^= sum[lane];
  return sum[0];
}

// Reads all of a buffer with every thread; returns GB/s.
double read_bandwidth(ThreadPool& pool, std::size_t bytes) {
  const Buffer buffer = Buffer::host(bytes);
  const auto* const words = static_cast<const std::uint64_t*>(buffer.data());
  std::vector<std::uint64_t> sums(1024);
  const auto chunk = static_cast<std::int64_t>(bytes / 8 / sums.size());
  const Times times = measure([&](int) {
    pool.parallel_for(1024, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part)
        sums[static_cast<std::size_t>(part)] = read_all(words + part * chunk, chunk);
    });
  });
  return static_cast<double>(bytes) / times.best / 1e9;
}

struct Format {
  WeightFormat format;
  const char* name;
  double bytes_per_weight;
};

constexpr Format kFormats[] = {{WeightFormat::kBF16, "bf16", 2},
                               {WeightFormat::kInt4Group32, "int4", 0.5625},
                               {WeightFormat::kQ4_0, "q4_0", 0.5625},
                               {WeightFormat::kQ4_1, "q4_1", 0.625},
                               {WeightFormat::kQ8_0, "q8_0", 1.0625}};

std::vector<std::uint8_t> random_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes(count + 16);
  for (std::size_t i = 0; i < count; i += 16) {
    auto words = philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, 1);
    // Keep every 16-bit half a small finite number, whatever it is read as.
    for (std::uint32_t& word : words) word &= 0xbfffbfffu & 0xaf7faf7fu;
    std::memcpy(&bytes[i], words.data(), 16);
  }
  return bytes;
}

Tensor floats(Backend& backend, std::vector<Buffer>& buffers, std::int64_t rows,
              std::int64_t cols) {
  buffers.push_back(backend.allocate(static_cast<std::size_t>(rows * cols) * 4));
  const Tensor tensor = buffers.back().tensor(DType::kF32, {rows, cols});
  float* const values = tensor.data<float>();
  for (std::int64_t i = 0; i < rows * cols; ++i)
    values[i] = uniform_open(philox4x32({static_cast<std::uint32_t>(i), 1, 0, 0}, 1)[0]) - 0.5f;
  return tensor;
}

void bench_linear(Backend& backend, double ceiling, std::int64_t rows, std::int64_t cols) {
  std::printf("\nlinear %ld x %ld: us (best / median) and GB/s of the best\n", rows, cols);
  for (const Format& format : kFormats) {
    const double bytes = static_cast<double>(rows * cols) * format.bytes_per_weight;
    const std::vector<std::uint8_t> data = random_bytes(static_cast<std::size_t>(bytes));
    const std::vector<std::uint8_t> scales =
        random_bytes(static_cast<std::size_t>(rows * cols / 16));
    const HostMatrix matrix{format.format, rows, cols, data.data(), scales.data()};
    std::vector<LinearWeight> weights;
    for (std::size_t used = 0; used < kRotateBytes; used += static_cast<std::size_t>(bytes))
      weights.push_back(backend.load_linear({&matrix, 1}));
    std::printf("  %-5s", format.name);
    double alone = 0;
    for (const std::int64_t count : {1, 2, 4, 8, 17, 33, 65}) {
      std::vector<Buffer> buffers;
      const Tensor x = floats(backend, buffers, count, cols);
      const Tensor out = floats(backend, buffers, count, rows);
      std::size_t next = 0;
      constexpr int kSteps = 20;
      Times times = measure([&](int) {
        for (int step = 0; step < kSteps; ++step)
          backend.linear({.x = x, .weight = &weights[next++ % weights.size()], .out = out});
      });
      times.best /= kSteps;
      times.median /= kSteps;
      if (count == 1) {
        alone = times.best;
        std::printf(" 1: %.0f / %.0f us, %.1f GB/s (%.0f %%)", times.best * 1e6, times.median * 1e6,
                    bytes / times.best / 1e9, 100 * bytes / times.best / 1e9 / ceiling);
      } else {
        std::printf(" | %ld: %.0f (%.2fx)", count, times.best * 1e6, times.best / alone);
      }
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::string device = argc > 2 ? argv[2] : "cpu";
  const auto backend = make_backend({.device = device, .num_threads = threads});
  ThreadPool pool(threads);
  std::printf("%s, %d threads\n", backend->name().c_str(), pool.num_threads());
  const double ceiling = read_bandwidth(pool, std::size_t{256} << 20);
  std::printf("read bandwidth %.1f GB/s from memory, %.1f GB/s from 8 MiB, %.1f GB/s from 1 MiB\n",
              ceiling, read_bandwidth(pool, std::size_t{8} << 20),
              read_bandwidth(pool, std::size_t{1} << 20));
  if (argc > 3 && std::string(argv[3]) == "bandwidth") return 0;
  bench_linear(*backend, ceiling, 1536, 576);
  bench_linear(*backend, ceiling, 8192, 1536);
  return 0;
}
