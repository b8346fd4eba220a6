#include "benchmark/kernel_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"

namespace coppice {

Tensor BenchSide::zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  buffers_.push_back(backend_.allocate(count * size_of(dtype)));
  return buffers_.back().tensor(dtype, shape);
}

Tensor BenchSide::act(std::initializer_list<std::int64_t> shape, std::uint64_t seed,
                      float amplitude) {
  const Tensor tensor = zeros(backend_.activation_dtype(), shape);
  meter_.fill(tensor, seed, amplitude);
  round_to_bf16(tensor);
  return tensor;
}

Tensor BenchSide::f32(std::initializer_list<std::int64_t> shape, std::uint64_t seed,
                      float amplitude) {
  const Tensor tensor = zeros(DType::kF32, shape);
  meter_.fill(tensor, seed, amplitude);
  return tensor;
}

Tensor BenchSide::logits(DType dtype, std::initializer_list<std::int64_t> shape, std::uint64_t seed,
                         float deviation) {
  const Tensor tensor = zeros(dtype, shape);
  meter_.fill_bell(tensor, seed, deviation);
  return tensor;
}

Tensor BenchSide::kv(std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  const Tensor tensor = zeros(backend_.kv_dtype(), shape);
  fill_kv(tensor, seed);
  return tensor;
}

void BenchSide::fill_kv(const Tensor& tensor, std::uint64_t seed) {
  meter_.fill(tensor, seed, 1);
  round_to_bf16(tensor);
}

// The CPU computes in fp32, but from the values a GPU has.
void BenchSide::round_to_bf16(const Tensor& tensor) {
  if (tensor.dtype() == DType::kBF16) return;
  float* const values = tensor.data<float>();
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) values[i] = to_float(to_bf16(values[i]));
}

Tensor BenchSide::ints(std::initializer_list<std::int64_t> shape,
                       const std::vector<std::int32_t>& values) {
  const Tensor tensor = zeros(DType::kI32, shape);
  COPPICE_CHECK_EQ(tensor.num_elements(), std::ssize(values));
  backend_.upload(tensor, values.data());
  backend_.synchronize();
  return tensor;
}

Tensor BenchSide::floats(std::initializer_list<std::int64_t> shape,
                         const std::vector<float>& values) {
  const Tensor tensor = zeros(DType::kF32, shape);
  COPPICE_CHECK_EQ(tensor.num_elements(), std::ssize(values));
  backend_.upload(tensor, values.data());
  backend_.synchronize();
  return tensor;
}

std::vector<float> BenchSide::read(const Tensor& tensor) {
  if (tensor.is_dense()) return read_dense(tensor);
  std::vector<float> values;
  for (std::int64_t i = 0; i < tensor.shape(0); ++i) {
    const auto begin = static_cast<std::size_t>(i * tensor.row_stride()) * size_of(tensor.dtype());
    const Tensor row(static_cast<std::byte*>(tensor.raw()) + begin, tensor.dtype(),
                     {tensor.row_size()}, tensor.device());
    const std::vector<float> of_row = read_dense(row);
    values.insert(values.end(), of_row.begin(), of_row.end());
  }
  return values;
}

std::vector<float> BenchSide::read_dense(const Tensor& tensor) {
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  std::vector<float> values(count);
  const auto convert = [&]<typename T>(T) {
    std::vector<T> raw(count);
    backend_.download(raw.data(), tensor);
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, coppice::bf16>)
        values[i] = to_float(raw[i]);
      else
        values[i] = static_cast<float>(raw[i]);
    }
  };
  switch (tensor.dtype()) {
    case DType::kBF16:
      convert(coppice::bf16{});
      break;
    case DType::kI32:
      convert(std::int32_t{});
      break;
    default:
      convert(float{});
  }
  return values;
}

std::int64_t copies_past_cache(BenchSide& side, double bytes) {
  constexpr double kCaches = 4;
  constexpr std::int64_t kMaxCopies = 512;
  // The reference computes copy 0 only; a CPU's caches hold the small model anyway.
  if (side.backend().device() == Device::kCpu) return 1;
  const double wanted = kCaches * static_cast<double>(side.meter().facts().cache_bytes);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(wanted / bytes)), 2,
                                  kMaxCopies);
}

double row_error(const std::vector<float>& values, const std::vector<float>& expected,
                 std::int64_t row_size) {
  COPPICE_CHECK_EQ(values.size(), expected.size());
  double worst = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += static_cast<std::size_t>(row_size)) {
    double difference = 0, magnitude = 0;
    for (std::size_t i = begin; i < begin + static_cast<std::size_t>(row_size); ++i) {
      if (values[i] == expected[i]) {
        magnitude = std::max(magnitude, std::isfinite(values[i]) ? std::fabs(values[i]) : 0.0);
        continue;
      }
      if (!std::isfinite(values[i]) || !std::isfinite(expected[i]))
        return std::numeric_limits<double>::infinity();
      difference = std::max(difference, std::fabs(double{values[i]} - double{expected[i]}));
      magnitude = std::max(magnitude, std::fabs(double{expected[i]}));
    }
    worst = std::max(worst, difference / std::max(magnitude, 1e-30));
  }
  return worst;
}

}  // namespace coppice
