// coppice_repack.json: what the repacked experts of a model folder are, and for whom.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "model/model_config.h"

namespace coppice {

inline constexpr char kRepackHeaderName[] = "coppice_repack.json";

struct RepackHeader {
  std::string layout;  // Backend::expert_layout()
  std::int64_t num_ranks = 1;
  std::map<std::string, std::uint64_t> checksums;  // of every repacked tensor (checksum_of_experts)
};

// Nothing where the folder has no such file. Throws kBadFile when it is damaged, of another
// version, or not of the network that config.json describes.
std::optional<RepackHeader> read_repack_header(const std::filesystem::path& folder,
                                               const ModelConfig& config);
void write_repack_header(const std::filesystem::path& folder, const RepackHeader& header,
                         const ModelConfig& config);

// "model.layers.3.mlp.experts.rank0.w13", U8 [n_routed_experts, bytes of one].
std::string repacked_name(const std::string& prefix, std::int64_t rank, const char* which);

}  // namespace coppice
