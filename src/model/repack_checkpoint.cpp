#include "model/repack_checkpoint.h"

#include <cstdio>
#include <utility>

#include "io/json.h"
#include "io/model_folder.h"
#include "io/safetensors_writer.h"
#include "model/load_model.h"
#include "model/repack_header.h"
#include "model/repacked_source.h"
#include "model/weight_loader.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

class Repacker {
 public:
  Repacker(const fs::path& source, const fs::path& destination, const RepackOptions& options)
      : config_(checked_config(source)),
        checkpoint_(source),
        source_(checkpoint_, safetensors_naming(config_.tensor_prefix)),
        source_folder_(source),
        destination_(destination),
        options_(options),
        threads_(options.num_threads) {
    header_ = {.layout = options.repacker.layout, .num_ranks = options.num_ranks, .checksums = {}};
    result_.source_bytes = checkpoint_.total_bytes();
  }

  RepackResult run() {
    for (std::int64_t rank = 0; rank < options_.num_ranks; ++rank)
      check_parallel(config_, {.rank = rank, .size = options_.num_ranks});
    prepare_destination(destination_);
    copy_others();
    for (std::int64_t i = config_.first_k_dense_replace; i < config_.num_hidden_layers; ++i) {
      repack_layer(i);
      ++result_.layers;
    }
    copy_small_files(source_folder_, destination_);
    fs::copy_file(source_folder_ / "config.json", destination_ / "config.json");
    Json index = Json::object({{"metadata", Json::object({{"total_size", result_.written_bytes}})},
                               {"weight_map", std::move(weight_map_)}});
    write_text_file(destination_ / "model.safetensors.index.json",
                    write_json(index, {.indent = 1}) + "\n");
    write_repack_header(destination_, header_, config_);
    return result_;
  }

 private:
  static ModelConfig checked_config(const fs::path& source) {
    const std::string name = printable(source.string());
    if (!fs::is_directory(source) || !fs::exists(source / "config.json"))
      throw Error(ErrorKind::kUnsupported,
                  name + ": only model folders in safetensors are repacked");
    if (fs::exists(source / kRepackHeaderName))
      throw Error(ErrorKind::kUnsupported, name + ": is repacked already");
    check_loadable(source.string());
    ModelConfig config = load_model_config(source.string());
    if (config.n_routed_experts == 0)
      throw Error(ErrorKind::kUnsupported, name + ": has no routed experts, nothing to repack");
    return config;
  }

  bool is_repacked(const TensorInfo& info) const {
    for (std::int64_t i = config_.first_k_dense_replace; i < config_.num_hidden_layers; ++i)
      if (info.name.starts_with(config_.tensor_prefix + expert_prefix(i))) return true;
    return false;
  }

  void count(std::uint64_t done) {
    done_bytes_ += done;
    if (options_.progress)
      options_.progress(static_cast<std::int64_t>(done_bytes_),
                        static_cast<std::int64_t>(result_.source_bytes));
  }

  void add(const TensorSpec& spec, const std::string& file) {
    result_.written_bytes += *storage_bytes(spec.type, spec.shape);
    weight_map_.emplace_back(spec.name, file);
  }

  void copy_others() {
    std::vector<std::vector<const TensorInfo*>> shards(1);
    std::uint64_t shard_bytes = 0;
    for (const TensorInfo& info : checkpoint_.tensors()) {
      if (is_repacked(info)) continue;
      if (shard_bytes > 0 && shard_bytes + info.num_bytes > options_.shard_bytes) {
        shards.emplace_back();
        shard_bytes = 0;
      }
      shard_bytes += info.num_bytes;
      shards.back().push_back(&info);
    }
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string file = shard_name(i, shards.size());
      std::vector<TensorSpec> specs;
      for (const TensorInfo* info : shards[i]) {
        specs.push_back({info->name, info->type, info->shape});
        add(specs.back(), file);
      }
      SafetensorsWriter writer(destination_ / file, specs, {{"format", "pt"}});
      for (const TensorInfo* info : shards[i]) {
        writer.write(checkpoint_.bytes(*info));
        checkpoint_.dont_need(*info);
        count(info->num_bytes);
      }
      writer.finish();
    }
  }

  // The experts of one rank as the loader would hand them to a backend.
  RepackedBlobs blobs_of(const std::string& prefix, std::int64_t rank) {
    HostStorage storage;
    const ParallelConfig parallel = {.rank = rank, .size = options_.num_ranks};
    return options_.repacker.repack(
        expert_sources(prefix, config_, [&](const WeightSpec& spec, Split split) {
          return shard_matrix(source_.matrix(spec), split, parallel, spec.name, storage);
        }));
  }

  void repack_layer(std::int64_t layer) {
    const std::string prefix = expert_prefix(layer), stored = config_.tensor_prefix + prefix;
    char file[64];
    std::snprintf(file, sizeof file, "experts-%05lld.safetensors", static_cast<long long>(layer));
    RepackedBlobs blobs = blobs_of(prefix, 0);  // tells the sizes of all
    std::vector<TensorSpec> specs;
    const std::int64_t experts = config_.n_routed_experts;
    for (std::int64_t rank = 0; rank < options_.num_ranks; ++rank)
      for (const auto& [which, bytes] :
           {std::pair("w13", &blobs.w13), std::pair("w2", &blobs.w2)}) {
        specs.push_back({repacked_name(stored, rank, which),
                         StorageType::kU8,
                         {experts, std::ssize(*bytes) / experts}});
        add(specs.back(), file);
      }
    SafetensorsWriter writer(destination_ / file, specs, {{"format", "pt"}});
    for (std::int64_t rank = 0; rank < options_.num_ranks; ++rank) {
      if (rank > 0) blobs = blobs_of(prefix, rank);
      for (const auto& [which, bytes] :
           {std::pair("w13", &blobs.w13), std::pair("w2", &blobs.w2)}) {
        header_.checksums[repacked_name(prefix, rank, which)] =
            checksum_of_experts(*bytes, experts, threads_);
        writer.write(*bytes);
      }
    }
    writer.finish();
    source_.release();
    for (const TensorInfo& info : checkpoint_.tensors())
      if (info.name.starts_with(stored)) count(info.num_bytes);
  }

  ModelConfig config_;
  Checkpoint checkpoint_;
  CheckpointSource source_;
  fs::path source_folder_, destination_;
  const RepackOptions& options_;
  ThreadPool threads_;
  RepackHeader header_;
  RepackResult result_;
  Json::Object weight_map_;
  std::uint64_t done_bytes_ = 0;
};

}  // namespace

RepackResult repack_checkpoint(const fs::path& source, const fs::path& destination,
                               const RepackOptions& options) {
  return Repacker(source, destination, options).run();
}

}  // namespace coppice
