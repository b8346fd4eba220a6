// A model folder that `coppice repack` wrote: experts as blobs of a backend's layout, the rest as
// published.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "model/checkpoint_source.h"
#include "model/model_config.h"
#include "model/parallel_config.h"
#include "model/repack_header.h"

namespace coppice {

// One expert after the other, by several threads; the same whatever their number.
std::uint64_t checksum_of_experts(std::span<const std::byte> bytes, std::int64_t num_experts,
                                  ThreadPool& threads);

class RepackedSource : public CheckpointSource {
 public:
  RepackedSource(const Checkpoint& checkpoint, CheckpointNaming naming, RepackHeader header,
                 const ModelConfig& config);

  // Throws, naming the field, unless the blobs are for this layout (Backend::expert_layout()) and
  // number of ranks. To be called before repacked_experts.
  void check_suits(const std::string& backend, const std::string& layout,
                   const ParallelConfig& parallel);

  std::size_t check(const WeightSpec& spec) override;
  void check_unused() override;
  // Throws kBadFile when the bytes do not match their checksum.
  std::optional<RepackedExperts> repacked_experts(const std::string& prefix) override;

 private:
  std::span<const std::byte> blob(const std::string& prefix, const char* which);

  RepackHeader header_;
  ModelConfig config_;
  ParallelConfig parallel_;
  std::unique_ptr<ThreadPool> threads_;
};

}  // namespace coppice
