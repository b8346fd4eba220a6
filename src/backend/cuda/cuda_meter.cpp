// The device meter of one GPU: events, fill kernels, the bulk-copy read stream.
#include <algorithm>
#include <array>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/cuda_weights.h"
#include "kernels/measure/measure.h"

namespace coppice {
namespace {

constexpr int kNumStamps = 64;
constexpr std::int64_t kExpertsAtOnce = 32;  // staged at a time while random experts are made
constexpr std::int64_t kQuantGroup = 32;

class CudaMeter final : public DeviceMeter {
 public:
  explicit CudaMeter(CudaBackend& backend) : backend_(backend) {
    for (cudaEvent_t& event : events_) cuda_check(cudaEventCreate(&event), "create event");
    never_ = backend.allocate(sizeof(std::uint32_t));
  }
  ~CudaMeter() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  DeviceFacts facts() const override {
    const CudaDevice& device = backend_.cuda_device();
    int l2_bytes = 0;
    cuda_check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device.index), "L2 size");
    std::size_t free_bytes = 0, total_bytes = 0;
    cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory size");
    return {.name = device.name,
            .num_units = device.num_sms,
            .cache_bytes = l2_bytes,
            .memory_bytes = static_cast<std::int64_t>(device.total_bytes),
            .free_bytes = static_cast<std::int64_t>(free_bytes)};
  }

  void stamp(int index) override {
    cuda_check(cudaEventRecord(events_.at(static_cast<std::size_t>(index)), stream()), "stamp");
  }
  double microseconds(int from, int to) override {
    const cudaEvent_t end = events_.at(static_cast<std::size_t>(to));
    float ms = 0;
    cuda_check(cudaEventSynchronize(end), "stamp");
    cuda_check(cudaEventElapsedTime(&ms, events_.at(static_cast<std::size_t>(from)), end),
               "elapsed time");
    return static_cast<double>(ms) * 1e3;
  }

  void fill(const Tensor& dst, std::uint64_t seed, float amplitude) override {
    COPPICE_CHECK(dst.is_dense(), dst.describe());
    cuda_check(kernels::fill_uniform(dst.raw(), dst.dtype() == DType::kBF16,
                                     static_cast<std::size_t>(dst.num_elements()), seed, amplitude,
                                     stream()),
               "fill");
  }

  void fill_bell(const Tensor& dst, std::uint64_t seed, float deviation) override {
    cuda_check(
        kernels::fill_bell(dst.raw(), dst.dtype() == DType::kBF16,
                           static_cast<std::size_t>(dst.num_elements()), seed, deviation, stream()),
        "fill");
  }

  LinearWeight random_linear(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                             float amplitude) override {
    auto matrix = std::make_shared<CudaMatrix>();
    matrix->data = backend_.allocate(static_cast<std::size_t>(rows * cols) * size_of(DType::kBF16));
    fill(matrix->data.tensor(DType::kBF16, {rows, cols}), seed, amplitude);
    return {.out_features = rows, .in_features = cols, .packed = std::move(matrix)};
  }

  ExpertWeights random_experts(std::int64_t num_experts, std::int64_t hidden_size,
                               std::int64_t intermediate_size, std::uint64_t seed) override {
    auto experts = allocate_experts(static_cast<int>(num_experts), static_cast<int>(hidden_size),
                                    static_cast<int>(intermediate_size), stream());
    const std::int64_t weights = hidden_size * intermediate_size;  // of one matrix
    const std::int64_t at_once = std::min(num_experts, kExpertsAtOnce);
    std::array<Buffer, 3> packed, scales;
    for (std::size_t m = 0; m < 3; ++m) {
      packed[m] = backend_.allocate(static_cast<std::size_t>(at_once * weights / 2));
      scales[m] = backend_.allocate(static_cast<std::size_t>(at_once * weights / kQuantGroup * 2));
    }
    for (std::int64_t first = 0; first < num_experts; first += at_once) {
      const std::int64_t count = std::min(at_once, num_experts - first);
      for (std::size_t m = 0; m < 3; ++m) {
        const std::int64_t cols = m == 2 ? intermediate_size : hidden_size;
        fill_matrix(packed[m], scales[m], first * weights, count * weights, seed + 2 * m, cols);
      }
      repack_staged({.gate = {packed[0].data(), scales[0].data()},
                     .up = {packed[1].data(), scales[1].data()},
                     .down = {packed[2].data(), scales[2].data()},
                     .num_experts = static_cast<int>(count),
                     .hidden_size = static_cast<int>(hidden_size),
                     .intermediate_size = static_cast<int>(intermediate_size)},
                    static_cast<int>(first), *experts, stream());
    }
    backend_.synchronize();  // the staging buffers go
    return {.num_experts = num_experts,
            .hidden_size = hidden_size,
            .intermediate_size = intermediate_size,
            .packed = std::move(experts)};
  }

  std::int64_t count_launches(const std::function<void()>& body) override {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "begin capture");
    body();
    cuda_check(cudaStreamEndCapture(stream(), &graph), "end capture");
    std::size_t count = 0;
    const cudaError_t status = cudaGraphGetNodes(graph, nullptr, &count);
    cudaGraphDestroy(graph);
    cuda_check(status, "graph nodes");
    return static_cast<std::int64_t>(count);
  }

  void read(const Tensor& src) override {
    cuda_check(kernels::read_stream(src.raw(), static_cast<std::size_t>(src.num_bytes()),
                                    static_cast<std::uint32_t*>(never_.data()), stream()),
               "read stream");
  }
  void empty_step() override { cuda_check(kernels::empty_node(stream()), "empty step"); }

 private:
  cudaStream_t stream() const { return backend_.stream(); }

  // Weights first .. first + count - 1 of a stream of INT4 matrices.
  void fill_matrix(const Buffer& packed, const Buffer& scales, std::int64_t first,
                   std::int64_t count, std::uint64_t seed, std::int64_t cols) {
    cuda_check(kernels::fill_nibbles(static_cast<std::uint32_t*>(packed.data()),
                                     static_cast<std::size_t>(count / 8), seed,
                                     static_cast<std::size_t>(first / 8), stream()),
               "fill");
    cuda_check(kernels::fill_scales(scales.data(), static_cast<std::size_t>(count / kQuantGroup),
                                    seed + 1, static_cast<std::size_t>(first / kQuantGroup),
                                    expert_scale(cols), stream()),
               "fill");
  }

  CudaBackend& backend_;
  std::array<cudaEvent_t, kNumStamps> events_{};
  Buffer never_;
};

}  // namespace

std::unique_ptr<DeviceMeter> make_cuda_meter(Backend& backend) {
  return std::make_unique<CudaMeter>(dynamic_cast<CudaBackend&>(backend));
}

}  // namespace coppice
