#include "backend/cuda/cuda_backend.h"

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/cuda_weights.h"
#include "base/error.h"
#include "kernels/clock/write_time.h"
#include "kernels/moe/expert_blob.h"

namespace coppice {

// A group that has failed leaves kernels that wait for a peer: they are told to give up.
CudaBackend::~CudaBackend() {
  try {
    synchronize();
  } catch (const Error&) {  // whoever ran into it has said it
  }
}

// Copies of ordinary host memory may hold up the caller inside the driver until the stream has come
// to them. With several ranks it waits outside, where it notices that a peer has failed.
// Tables of weights go through the staging buffers; smaller copies the driver stages itself.
void CudaBackend::upload(const Tensor& dst, const void* src) {
  constexpr std::int64_t kLarge = std::int64_t{16} << 20;
  constexpr std::int64_t kTakenAtOnce = std::int64_t{64} << 10;
  if (dst.num_bytes() >= kLarge)
    return staging().copy(dst.raw(), src, static_cast<std::size_t>(dst.num_bytes()));
  if (peers_ != nullptr && dst.num_bytes() > kTakenAtOnce) synchronize();
  start_upload(dst, src);
}

void CudaBackend::start_upload(const Tensor& dst, const void* src) {
  if (dst.num_bytes() == 0) return;
  cuda_check(cudaMemcpyAsync(dst.raw(), src, static_cast<std::size_t>(dst.num_bytes()),
                             cudaMemcpyHostToDevice, stream()),
             "upload");
}

void CudaBackend::download(void* dst, const Tensor& src) {
  if (peers_ != nullptr) synchronize();
  cuda_check(cudaMemcpyAsync(dst, src.raw(), static_cast<std::size_t>(src.num_bytes()),
                             cudaMemcpyDeviceToHost, stream()),
             "download");
  synchronize();
}

LinearWeight CudaBackend::load_linear(std::span<const HostMatrix> parts) {
  std::int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  return {.out_features = rows,
          .in_features = parts[0].cols,
          .packed = upload_matrix(parts, staging())};
}

ExpertWeights CudaBackend::load_experts(std::span<const ExpertSource> experts) {
  return {.num_experts = std::ssize(experts),
          .hidden_size = experts[0].gate.cols,
          .intermediate_size = experts[0].gate.rows,
          .packed = upload_experts(experts, staging())};
}

std::string CudaBackend::expert_layout() const {
  return kernels::kExpertBlobLayout;
}

ExpertWeights CudaBackend::load_repacked_experts(const RepackedExperts& experts) {
  return {.num_experts = experts.num_experts,
          .hidden_size = experts.hidden_size,
          .intermediate_size = experts.intermediate_size,
          .packed = upload_repacked(experts, staging())};
}

StagedCopy& CudaBackend::staging() {
  if (staging_ == nullptr) staging_ = std::make_unique<StagedCopy>(stream());
  return *staging_;
}

std::int64_t CudaBackend::start_download(void* dst, const Tensor& src) {
  cuda_check(cudaMemcpyAsync(dst, src.raw(), static_cast<std::size_t>(src.num_bytes()),
                             cudaMemcpyDeviceToHost, stream()),
             "download");
  return tickets_.mark(stream());
}

void CudaBackend::wait_for(std::int64_t ticket) {
  const cudaEvent_t event = tickets_.event_of(ticket);
  if (peers_ != nullptr)
    peers_->wait_for(event);
  else
    cuda_check(cudaEventSynchronize(event), "wait for a round");
}

void CudaBackend::synchronize() {
  if (peers_ != nullptr)
    peers_->synchronize(stream());
  else
    cuda_check(cudaStreamSynchronize(stream()), "synchronize");
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

int num_cuda_devices() {
  try {
    open_cuda_device(0);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return 0;
  }
  int count = 0;
  cuda_check(cudaGetDeviceCount(&count), "number of GPUs");
  return count;
}

void load_cuda_kernels_early() {
  static const int failed = setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  COPPICE_CHECK_EQ(failed, 0);
}

std::unique_ptr<Backend> make_cuda_backend(int device_index, Communicator* communicator) {
  return std::make_unique<CudaBackend>(device_index, communicator);
}

}  // namespace coppice
