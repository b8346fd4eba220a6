#include "backend/cpu/cpu_backend.h"

#include <algorithm>
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

void CpuBackendBase::all_reduce(const AllReduceArgs& args) {
  if (communicator_ == nullptr) return;
  COPPICE_CHECK(args.x.is_dense());
  all_reduce_sum(*communicator_,
                 {args.x.data<float>(), static_cast<std::size_t>(args.x.num_elements())},
                 rank_workspace_);
}

void CpuBackendBase::all_gather(const AllGatherArgs& args) {
  const std::int64_t size = communicator_ == nullptr ? 1 : communicator_->size();
  const std::int64_t rows = args.x.shape(0), columns = args.x.row_size();
  COPPICE_CHECK_EQ(args.out.row_size(), size * columns);
  COPPICE_CHECK(args.x.is_dense());
  const std::span<const float> mine(args.x.data<float>(),
                                    static_cast<std::size_t>(args.x.num_elements()));
  rank_workspace_.resize(static_cast<std::size_t>(size) * mine.size());
  if (communicator_ == nullptr)
    std::copy(mine.begin(), mine.end(), rank_workspace_.begin());
  else
    communicator_->all_gather(std::as_bytes(mine),
                              std::as_writable_bytes(std::span(rank_workspace_)));
  const float* from = rank_workspace_.data();  // [num_ranks, T, n]
  for (std::int64_t rank = 0; rank < size; ++rank)
    for (std::int64_t t = 0; t < rows; ++t, from += columns)
      std::copy(from, from + columns, args.out.row<float>(t) + rank * columns);
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

std::unique_ptr<Backend> make_cpu_backend(CpuPath path, int num_threads,
                                          Communicator* communicator) {
  const cpu::simd::Kernels* const avx2 = cpu::simd::avx2_kernels();
  const cpu::simd::Kernels* const avx512 = cpu::simd::avx512_kernels();
  const cpu::simd::Kernels* kernels = nullptr;
  switch (path) {
    case CpuPath::kReference:
      return cpu::make_reference_backend(num_threads, communicator);
    case CpuPath::kFast:
      kernels = avx512 != nullptr ? avx512 : avx2;
      if (kernels == nullptr) return cpu::make_reference_backend(num_threads, communicator);
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
  return cpu::make_fast_backend(*kernels, num_threads, communicator);
}

}  // namespace coppice
