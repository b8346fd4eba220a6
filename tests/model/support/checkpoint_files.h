// Writes networks with random weights as checkpoints, in the published names and formats.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/tensor_info.h"
#include "model/model_config.h"
#include "model/weight_source.h"

namespace coppice::test {

struct StoredTensor {
  StorageType type = StorageType::kF32;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

// By name. Tests change or remove entries before writing.
using StoredTensors = std::map<std::string, StoredTensor>;

// The tensors of `specs` with the values that RandomSource(seed) gives, under `prefix`. Routed
// experts are INT4, the rest BF16.
StoredTensors random_tensors(const std::vector<WeightSpec>& specs, std::uint64_t seed,
                             const std::string& prefix);

// Replaces the BF16 matrix NAME.weight by FP8 with one scale per 128x128 block.
void quantize_to_f8(StoredTensors& tensors, const std::string& name);
// The values of such a matrix as F32.
StoredTensor dequantized_f8(const StoredTensors& tensors, const std::string& name);

// Replaces the INT4 matrix NAME by NAME.weight in BF16.
void replace_int4_by_bf16(StoredTensors& tensors, const std::string& name);

// Writes FOLDER/model.safetensors.
void write_tensors(const StoredTensors& tensors, const std::string& folder);

// Small networks: a K2 one (one dense and one routed layer, 4 experts), a Qwen3 one, and a drafter
// of two layers for the K2 one.
ModelConfig small_k2_config();
ModelConfig small_qwen3_config();
DflashConfig small_dflash_config();

// config.json of the above.
std::string config_json(const ModelConfig& config);
std::string config_json(const DflashConfig& config);

}  // namespace coppice::test
