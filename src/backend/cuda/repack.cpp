// The host side of repacked experts; needs no toolkit.
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/repack_on_host.h"

namespace coppice {
namespace {

std::size_t blob_bytes(std::int64_t outputs, std::int64_t inputs) {
  return static_cast<std::size_t>(kernels::expert_blob_bytes(
      kernels::expert_blob_shape(static_cast<int>(outputs), static_cast<int>(inputs))));
}

kernels::HostExpertMatrix host_matrix(const HostMatrix& matrix, const HostMatrix* up) {
  const auto words = [](const HostMatrix& m) { return static_cast<const std::int32_t*>(m.data); };
  const auto scales = [](const HostMatrix& m) {
    return static_cast<const std::uint16_t*>(m.scales);
  };
  return {.packed = words(matrix),
          .scale = scales(matrix),
          .packed_up = up == nullptr ? nullptr : words(*up),
          .scale_up = up == nullptr ? nullptr : scales(*up),
          .rows = static_cast<int>(matrix.rows),
          .inputs = static_cast<int>(matrix.cols)};
}

RepackedBlobs repack(std::span<const ExpertSource> experts, ThreadPool& threads) {
  for (const ExpertSource& expert : experts)
    for (const HostMatrix* const matrix : {&expert.gate, &expert.up, &expert.down})
      if (matrix->format != WeightFormat::kInt4Group32)
        throw Error(ErrorKind::kUnsupported,
                    "cuda: routed experts must be INT4 group 32 (coppice quantize makes them)");
  const std::int64_t hidden = experts[0].gate.cols, intermediate = experts[0].gate.rows;
  const std::size_t w13 = blob_bytes(2 * intermediate, hidden);
  const std::size_t w2 = blob_bytes(hidden, intermediate);
  RepackedBlobs blobs = {.w13 = std::vector<std::byte>(experts.size() * w13),
                         .w2 = std::vector<std::byte>(experts.size() * w2)};
  threads.parallel_for(std::ssize(experts), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto e = static_cast<std::size_t>(begin); e < static_cast<std::size_t>(end); ++e) {
      kernels::repack_on_host(host_matrix(experts[e].gate, &experts[e].up),
                              reinterpret_cast<std::uint8_t*>(blobs.w13.data() + e * w13));
      kernels::repack_on_host(host_matrix(experts[e].down, nullptr),
                              reinterpret_cast<std::uint8_t*>(blobs.w2.data() + e * w2));
    }
  });
  return blobs;
}

}  // namespace

ExpertRepacker make_cuda_repacker(int num_threads) {
  return {
      .layout = kernels::kExpertBlobLayout,
      .repack = [threads = std::make_shared<ThreadPool>(num_threads)](
                    std::span<const ExpertSource> experts) { return repack(experts, *threads); }};
}

}  // namespace coppice
