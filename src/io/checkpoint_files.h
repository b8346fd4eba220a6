// Which files make up a checkpoint directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace coppice {

struct CheckpointFiles {
  bool is_gguf = false;
  std::vector<std::filesystem::path> paths = {};  // in order of name
  // From the index: tensor name and the index of its file in `paths`; empty without an index.
  std::vector<std::pair<std::string, std::uint32_t>> weight_map = {};
  std::filesystem::path index_path = {};  // empty without an index
};

// Looks, in this order, for model.safetensors, model.safetensors.index.json, one *.safetensors and
// one *.gguf. `path` may also be a .safetensors or .gguf file. Names in the index must be plain
// file names. Throws kNotFound when there is no checkpoint, kBadFile when it is damaged.
CheckpointFiles find_checkpoint_files(const std::filesystem::path& path);

}  // namespace coppice
