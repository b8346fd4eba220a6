// The device meter of the CPU: the steady clock, and the same random contents.
#include <unistd.h>

#include <array>
#include <chrono>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/random_values.h"

namespace coppice {
namespace {

constexpr std::int64_t kQuantGroup = 32;

class CpuMeter final : public DeviceMeter {
 public:
  CpuMeter(Backend& backend, int num_threads) : backend_(backend), pool_(num_threads) {}

  DeviceFacts facts() const override {
    const auto size = [](int name) { return static_cast<std::int64_t>(sysconf(name)); };
    const std::int64_t page = size(_SC_PAGESIZE);
    return {.name = backend_.name(),
            .num_units = pool_.num_threads(),
            .cache_bytes = std::max<std::int64_t>(size(_SC_LEVEL3_CACHE_SIZE), 0),
            .memory_bytes = size(_SC_PHYS_PAGES) * page,
            .free_bytes = size(_SC_AVPHYS_PAGES) * page};
  }

  void stamp(int index) override {
    stamps_.at(static_cast<std::size_t>(index)) = std::chrono::steady_clock::now();
  }
  double microseconds(int from, int to) override {
    return std::chrono::duration<double, std::micro>(stamps_.at(static_cast<std::size_t>(to)) -
                                                     stamps_.at(static_cast<std::size_t>(from)))
        .count();
  }

  void fill(const Tensor& dst, std::uint64_t seed, float amplitude) override {
    set(dst, [=](std::uint64_t i) { return random_uniform(seed, i, amplitude); });
  }
  void fill_bell(const Tensor& dst, std::uint64_t seed, float deviation) override {
    set(dst, [=](std::uint64_t i) { return random_bell(seed, i, deviation); });
  }

  LinearWeight random_linear(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                             float amplitude) override {
    const Buffer data = Buffer::host(static_cast<std::size_t>(rows * cols) * sizeof(bf16));
    fill(data.tensor(DType::kBF16, {rows, cols}), seed, amplitude);
    const HostMatrix part = {
        .format = WeightFormat::kBF16, .rows = rows, .cols = cols, .data = data.data()};
    return backend_.load_linear({&part, 1});
  }

  ExpertWeights random_experts(std::int64_t num_experts, std::int64_t hidden_size,
                               std::int64_t intermediate_size, std::uint64_t seed) override {
    const std::int64_t weights = hidden_size * intermediate_size;
    std::array<Buffer, 3> packed, scales;
    for (std::size_t m = 0; m < 3; ++m)
      fill_matrix(packed[m], scales[m], num_experts * weights, seed + 2 * m,
                  m == 2 ? intermediate_size : hidden_size);
    std::vector<ExpertSource> sources;
    for (std::int64_t e = 0; e < num_experts; ++e) {
      const auto matrix = [&](std::size_t m, std::int64_t rows, std::int64_t cols) {
        return HostMatrix{
            .format = WeightFormat::kInt4Group32,
            .rows = rows,
            .cols = cols,
            .data = static_cast<std::byte*>(packed[m].data()) + e * weights / 2,
            .scales = static_cast<std::byte*>(scales[m].data()) + e * weights / kQuantGroup * 2};
      };
      sources.push_back({.gate = matrix(0, intermediate_size, hidden_size),
                         .up = matrix(1, intermediate_size, hidden_size),
                         .down = matrix(2, hidden_size, intermediate_size)});
    }
    return backend_.load_experts(sources);
  }

  std::int64_t count_launches(const std::function<void()>&) override { return 0; }
  void read(const Tensor& src) override {
    const auto* words = static_cast<const std::uint64_t*>(src.raw());
    pool_.parallel_for(src.num_bytes() / 8, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      std::uint64_t sum[8] = {};
      for (std::int64_t i = begin; i + 8 <= end; i += 8) {
        __builtin_prefetch(words + i + 512);
        for (std::int64_t lane = 0; lane < 8; ++lane) sum[lane] ^= words[i + lane];
      }
      for (int lane = 1; lane < 8; ++lane) sum[0] ^= sum[lane];
      asm volatile("" ::"r"(sum[0]));
    });
  }
  void empty_step() override {}

 private:
  template <typename Value>
  void set(const Tensor& dst, const Value& value) {
    const bool is_bf16 = dst.dtype() == DType::kBF16;
    pool_.parallel_for(dst.num_elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (is_bf16)
          dst.data<bf16>()[i] = to_bf16(value(static_cast<std::uint64_t>(i)));
        else
          dst.data<float>()[i] = value(static_cast<std::uint64_t>(i));
      }
    });
  }

  void fill_matrix(Buffer& packed, Buffer& scales, std::int64_t count, std::uint64_t seed,
                   std::int64_t cols) {
    packed = Buffer::host(static_cast<std::size_t>(count / 2));
    scales = Buffer::host(static_cast<std::size_t>(count / kQuantGroup * 2));
    auto* const words = static_cast<std::uint32_t*>(packed.data());
    auto* const values = static_cast<bf16*>(scales.data());
    pool_.parallel_for(count / 8, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        words[i] = random_nibbles(seed, static_cast<std::uint64_t>(i));
    });
    pool_.parallel_for(count / kQuantGroup, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        values[i] =
            to_bf16(random_scale(seed + 1, static_cast<std::uint64_t>(i), expert_scale(cols)));
    });
  }

  Backend& backend_;
  ThreadPool pool_;
  std::array<std::chrono::steady_clock::time_point, 64> stamps_{};
};

}  // namespace

std::unique_ptr<DeviceMeter> make_cpu_meter(Backend& backend, int num_threads) {
  return std::make_unique<CpuMeter>(backend, num_threads);
}

}  // namespace coppice
