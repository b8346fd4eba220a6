#include "backend/cuda/cuda_backend.h"

#include <nvtx3/nvToolsExt.h>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/cuda_weights.h"
#include "base/error.h"
#include "kernels/clock/write_time.h"

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

std::int64_t CudaBackend::start_download(void* dst, const Tensor& src) {
  cuda_check(cudaMemcpyAsync(dst, src.raw(), static_cast<std::size_t>(src.num_bytes()),
                             cudaMemcpyDeviceToHost, stream()),
             "download");
  return tickets_.mark(stream());
}

void CudaBackend::wait_for(std::int64_t ticket) {
  tickets_.wait_for(ticket);
}

void CudaBackend::write_time(const Tensor& out) {
  cuda_check(kernels::write_time(out.data<std::int64_t>(), stream()), "write_time");
}

void CudaBackend::push_range(const char* name) {
  nvtxRangePushA(name);
}

void CudaBackend::pop_range() {
  nvtxRangePop();
}

Backend::Memory CudaBackend::memory() const {
  Memory memory;
  cuda_check(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes), "free memory");
  return memory;
}

bool has_cuda() {
  try {
    open_cuda_device(0);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return false;
  }
  return true;
}

std::unique_ptr<Backend> make_cuda_backend(int device_index, Communicator* communicator) {
  if (communicator != nullptr)
    throw Error(ErrorKind::kUnsupported,
                "device 'cuda': the ranks of a tensor-parallel group run on the CPU only (--device "
                "cpu)");
  return std::make_unique<CudaBackend>(device_index);
}

}  // namespace coppice
