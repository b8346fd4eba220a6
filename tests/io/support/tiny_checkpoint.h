// A small checkpoint of Kimi-K2.6's form in memory, for tests that damage it before or after it is
// written: two layers (one dense, one with four INT4 experts), two shards, index and config.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/tensor_info.h"

namespace coppice::test {

struct TinyTensor {
  std::string name;
  StorageType type = StorageType::kF32;
  std::vector<std::int64_t> shape = {};
  std::string bytes = {};
};

struct TinyCheckpoint {
  std::vector<std::vector<TinyTensor>> shards;
  Json config;
  Json index;  // weight_map of the shards

  TinyTensor& find(const std::string& name);
  void erase(const std::string& name);  // from its shard and the index
  // Writes model-0.safetensors ..., model.safetensors.index.json and config.json.
  void write(const std::filesystem::path& directory) const;
};

// Every value is finite; INT4 scales are 0.5.
TinyCheckpoint make_tiny_checkpoint();

// The header of a .safetensors file over these tensors, and its whole bytes.
std::string tiny_header(const std::vector<TinyTensor>& tensors);
std::string tiny_shard(const std::vector<TinyTensor>& tensors);
std::string tiny_shard_name(std::size_t shard);

}  // namespace coppice::test
