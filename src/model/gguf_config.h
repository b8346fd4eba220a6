// The configuration of a network from the metadata of a GGUF file, and the names of its tensors.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/model_config.h"

namespace coppice {

// `path` itself when it is a .gguf file, or the one such file of a folder without safetensors.
std::optional<std::filesystem::path> find_gguf(const std::filesystem::path& path);

// Architectures llama and qwen3. Throws Error "FILE: field 'x': cause".
ModelConfig load_gguf_config(const std::filesystem::path& path);

// From the name in a safetensors checkpoint to the one in a GGUF file:
// "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight".
std::string gguf_name(const std::string& name);

}  // namespace coppice
