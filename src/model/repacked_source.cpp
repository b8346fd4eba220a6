#include "model/repacked_source.h"

#include <algorithm>

#include "base/checksum.h"

namespace coppice {
namespace {

constexpr int kMostThreads = 8;  // several ranks may load at once

bool is_routed_expert(const WeightSpec& spec) {
  return spec.name.find(".mlp.experts.") != std::string::npos;
}

}  // namespace

std::uint64_t checksum_of_experts(std::span<const std::byte> bytes, std::int64_t num_experts,
                                  ThreadPool& threads) {
  const auto count = static_cast<std::size_t>(num_experts);
  const std::size_t size = bytes.size() / count;
  std::vector<std::uint64_t> sums(count);
  threads.parallel_for(num_experts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      sums[i] = checksum_of(bytes.subspan(i * size, size));
  });
  return checksum_of(std::as_bytes(std::span(sums)));
}

RepackedSource::RepackedSource(const Checkpoint& checkpoint, CheckpointNaming naming,
                               RepackHeader header, const ModelConfig& config)
    : CheckpointSource(checkpoint, std::move(naming)),
      header_(std::move(header)),
      config_(config) {}

void RepackedSource::check_suits(const std::string& backend, const std::string& layout,
                                 const ParallelConfig& parallel) {
  const std::string file =
      printable((checkpoint().directory() / kRepackHeaderName).string()) + ": field ";
  if (layout.empty())
    throw Error(ErrorKind::kUnsupported, file + "'layout': " + backend +
                                             " takes models as they are published; give the folder "
                                             "that this one was made from");
  if (header_.layout != layout)
    throw Error(ErrorKind::kUnsupported, file + "'layout': is '" + printable(header_.layout) +
                                             "', this version takes '" + layout +
                                             "': repack the model again");
  if (header_.num_ranks != parallel.size)
    throw Error(ErrorKind::kUnsupported, file + "'tensor_parallel_size': is " +
                                             std::to_string(header_.num_ranks) + ", asked for " +
                                             std::to_string(parallel.size) + ": repack with -tp " +
                                             std::to_string(parallel.size));
  parallel_ = parallel;
}

// INT4 in groups of 32, as the published tensors count.
std::size_t RepackedSource::check(const WeightSpec& spec) {
  if (!is_routed_expert(spec)) return CheckpointSource::check(spec);
  constexpr std::int64_t kBytesPerGroup = 16 + 2, kGroup = 32;
  return static_cast<std::size_t>(spec.rows * spec.cols / kGroup * kBytesPerGroup);
}

void RepackedSource::check_unused() {
  for (const auto& [name, checksum] : header_.checksums) {
    const TensorInfo& info = find(name);
    if (info.type != StorageType::kU8 || info.shape.size() != 2 ||
        info.shape[0] != config_.n_routed_experts)
      checkpoint().fail(info, "is " + info.describe() + ", expected U8[" +
                                  std::to_string(config_.n_routed_experts) + ", bytes]");
  }
  CheckpointSource::check_unused();
}

std::span<const std::byte> RepackedSource::blob(const std::string& prefix, const char* which) {
  const std::string name = repacked_name(prefix, parallel_.rank, which);
  const TensorInfo& info = find(name);
  const auto stated = header_.checksums.find(name);
  const std::span<const std::byte> bytes = bytes_of(info);
  if (threads_ == nullptr)
    threads_ = std::make_unique<ThreadPool>(std::min(available_cpus(), kMostThreads));
  if (stated == header_.checksums.end() ||
      stated->second != checksum_of_experts(bytes, config_.n_routed_experts, *threads_))
    checkpoint().fail(info, std::string("does not match its checksum in ") + kRepackHeaderName +
                                ": repack the model again");
  return bytes;
}

std::optional<RepackedExperts> RepackedSource::repacked_experts(const std::string& prefix) {
  return RepackedExperts{.num_experts = config_.n_routed_experts,
                         .hidden_size = config_.hidden_size,
                         .intermediate_size = config_.moe_intermediate_size / parallel_.size,
                         .w13 = blob(prefix, "w13"),
                         .w2 = blob(prefix, "w2")};
}

}  // namespace coppice
