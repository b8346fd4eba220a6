#include "backend/cpu/cpu_backend.h"

#include <cstring>

#include "backend/cpu/cpu_backend_base.h"
#include "base/error.h"

namespace coppice {
namespace cpu {

void CpuBackendBase::upload(const Tensor& dst, const void* src) {
  if (dst.num_elements() > 0)
    std::memcpy(dst.raw(), src, static_cast<std::size_t>(dst.num_bytes()));
}

void CpuBackendBase::download(void* dst, const Tensor& src) {
  if (src.num_elements() > 0)
    std::memcpy(dst, src.raw(), static_cast<std::size_t>(src.num_bytes()));
}

void CpuBackendBase::check_expert(const ExpertSource& source, const ExpertSource& first) {
  COPPICE_CHECK_EQ(source.gate.rows, first.gate.rows);
  COPPICE_CHECK_EQ(source.gate.cols, first.gate.cols);
  COPPICE_CHECK_EQ(source.up.rows, source.gate.rows);
  COPPICE_CHECK_EQ(source.up.cols, source.gate.cols);
  COPPICE_CHECK_EQ(source.down.rows, source.gate.cols);
  COPPICE_CHECK_EQ(source.down.cols, source.gate.rows);
}

ExpertWeights CpuBackendBase::describe_experts(std::span<const ExpertSource> sources,
                                               std::shared_ptr<const void> packed) {
  COPPICE_CHECK(!sources.empty());
  return {.num_experts = static_cast<std::int64_t>(sources.size()),
          .hidden_size = sources[0].gate.cols,
          .intermediate_size = sources[0].gate.rows,
          .packed = std::move(packed)};
}

}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(CpuPath path, int num_threads) {
  const cpu::simd::Kernels* const avx2 = cpu::simd::avx2_kernels();
  const cpu::simd::Kernels* const avx512 = cpu::simd::avx512_kernels();
  const cpu::simd::Kernels* kernels = nullptr;
  switch (path) {
    case CpuPath::kReference:
      return cpu::make_reference_backend(num_threads);
    case CpuPath::kFast:
      kernels = avx512 != nullptr ? avx512 : avx2;
      if (kernels == nullptr) return cpu::make_reference_backend(num_threads);
      break;
    case CpuPath::kAvx2:
      kernels = avx2;
      break;
    case CpuPath::kAvx512:
      kernels = avx512;
      break;
  }
  if (kernels == nullptr)
    throw Error(ErrorKind::kUnsupported, path == CpuPath::kAvx2
                                             ? "device 'cpu-avx2': this machine has no AVX2"
                                             : "device 'cpu-avx512': this machine has no AVX-512 "
                                               "with VNNI");
  return cpu::make_fast_backend(*kernels, num_threads);
}

}  // namespace coppice
