#include "backend/cuda/staged_copy.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_memory.h"

namespace coppice {
namespace {

constexpr std::size_t kStageBytes = std::size_t{8} << 20;
constexpr int kMostThreads = 8;  // several ranks may load at once
constexpr std::int64_t kPieceBytes = std::int64_t{256} << 10;

}  // namespace

StagedCopy::StagedCopy(cudaStream_t stream)
    : stream_(stream), threads_(std::min(available_cpus(), kMostThreads)) {
  for (Stage& stage : stages_) {
    stage.buffer = allocate_pinned(kStageBytes);
    cuda_check(cudaEventCreateWithFlags(&stage.copied, cudaEventDisableTiming), "create event");
  }
}

StagedCopy::~StagedCopy() {
  for (const Stage& stage : stages_) {
    cudaEventSynchronize(stage.copied);
    cudaEventDestroy(stage.copied);
  }
}

void StagedCopy::copy(void* dst, const void* src, std::size_t num_bytes) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  while (num_bytes > 0) {
    const std::size_t count = std::min(num_bytes, kStageBytes);
    const Stage& stage = stages_[next_++ % stages_.size()];
    cuda_check(cudaEventSynchronize(stage.copied), "wait for a copy");
    auto* const staged = static_cast<std::byte*>(stage.buffer.data());
    threads_.parallel_for(
        static_cast<std::int64_t>(count), kPieceBytes, [&](std::int64_t begin, std::int64_t end) {
          std::memcpy(staged + begin, from + begin, static_cast<std::size_t>(end - begin));
        });
    cuda_check(cudaMemcpyAsync(to, staged, count, cudaMemcpyHostToDevice, stream_), "weight copy");
    cuda_check(cudaEventRecord(stage.copied, stream_), "record event");
    to += count, from += count, num_bytes -= count;
  }
}

}  // namespace coppice
