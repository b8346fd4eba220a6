#include "kernels/clock/write_time.h"

namespace coppice::kernels {
namespace {

__global__ void write_time_kernel(std::int64_t* out) {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  *out = static_cast<std::int64_t>(now);
}

}  // namespace

cudaError_t write_time(std::int64_t* out, cudaStream_t stream) {
  write_time_kernel<<<1, 1, 0, stream>>>(out);
  return cudaGetLastError();
}

}  // namespace coppice::kernels
