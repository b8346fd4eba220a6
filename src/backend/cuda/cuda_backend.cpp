#include "backend/cuda/cuda_backend.h"

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/cuda_weights.h"

namespace coppice {

LinearWeight CudaBackend::load_linear(std::span<const HostMatrix> parts) {
  std::int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  return {
      .out_features = rows, .in_features = parts[0].cols, .packed = upload_matrix(parts, stream())};
}

ExpertWeights CudaBackend::load_experts(std::span<const ExpertSource> experts) {
  return {.num_experts = std::ssize(experts),
          .hidden_size = experts[0].gate.cols,
          .intermediate_size = experts[0].gate.rows,
          .packed = upload_experts(experts, stream())};
}

std::unique_ptr<Backend> make_cuda_backend(int device_index) {
  return std::make_unique<CudaBackend>(device_index);
}

}  // namespace coppice
