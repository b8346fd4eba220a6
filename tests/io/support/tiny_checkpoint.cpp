#include "tests/io/support/tiny_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "tests/io/support/files.h"

namespace coppice::test {
namespace {

constexpr std::int64_t kHidden = 64, kWidth = 32, kExperts = 4, kVocab = 48;

TinyTensor bf16_tensor(std::string name, std::vector<std::int64_t> shape, float value) {
  TinyTensor tensor{std::move(name), StorageType::kBF16, std::move(shape)};
  const std::uint64_t num_bytes = *storage_bytes(tensor.type, tensor.shape);
  const bf16 element = to_bf16(value);
  tensor.bytes.resize(num_bytes);
  for (std::uint64_t at = 0; at < num_bytes; at += 2)
    std::memcpy(tensor.bytes.data() + at, &element, 2);
  return tensor;
}

void add_int4(std::vector<TinyTensor>& shard, const std::string& prefix, std::int64_t rows,
              std::int64_t cols) {
  TinyTensor packed{prefix + ".weight_packed", StorageType::kI32, {rows, cols / 8}};
  packed.bytes.assign(*storage_bytes(packed.type, packed.shape), '\x97');
  TinyTensor shape{prefix + ".weight_shape", StorageType::kI32, {2}};
  const std::int32_t values[2] = {static_cast<std::int32_t>(rows), static_cast<std::int32_t>(cols)};
  shape.bytes.assign(reinterpret_cast<const char*>(values), sizeof(values));
  shard.push_back(std::move(packed));
  shard.push_back(bf16_tensor(prefix + ".weight_scale", {rows, cols / 32}, 0.5f));
  shard.push_back(std::move(shape));
}

void add_layer(std::vector<TinyTensor>& shard, const std::string& layer, bool dense) {
  for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
    shard.push_back(bf16_tensor(layer + norm, {kHidden}, 1.0f));
  for (const char* name : {"q_a_proj", "kv_a_proj_with_mqa", "o_proj"})
    shard.push_back(
        bf16_tensor(layer + "self_attn." + name + ".weight", {kHidden, kHidden}, 0.25f));
  const auto add_mlp = [&](const std::string& prefix) {
    shard.push_back(bf16_tensor(prefix + "gate_proj.weight", {kWidth, kHidden}, 0.5f));
    shard.push_back(bf16_tensor(prefix + "up_proj.weight", {kWidth, kHidden}, 0.5f));
    shard.push_back(bf16_tensor(prefix + "down_proj.weight", {kHidden, kWidth}, 0.5f));
  };
  if (dense) return add_mlp(layer + "mlp.");
  add_mlp(layer + "mlp.shared_experts.");
  shard.push_back(bf16_tensor(layer + "mlp.gate.weight", {kExperts, kHidden}, 0.5f));
  for (int expert = 0; expert < kExperts; ++expert) {
    const std::string prefix = layer + "mlp.experts." + std::to_string(expert) + ".";
    add_int4(shard, prefix + "gate_proj", kWidth, kHidden);
    add_int4(shard, prefix + "up_proj", kWidth, kHidden);
    add_int4(shard, prefix + "down_proj", kHidden, kWidth);
  }
}

const char* const kConfig = R"({
  "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
  "text_config": {"model_type": "kimi_k2", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 32,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "vocab_size": 48, "max_position_embeddings": 4096},
  "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null,
      "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
        "group_size": 32, "actorder": null}}}}
})";

}  // namespace

TinyTensor& TinyCheckpoint::find(const std::string& name) {
  for (std::vector<TinyTensor>& shard : shards)
    for (TinyTensor& tensor : shard)
      if (tensor.name == name) return tensor;
  COPPICE_CHECK(false, name);
  return shards[0][0];
}

void TinyCheckpoint::erase(const std::string& name) {
  for (std::vector<TinyTensor>& shard : shards)
    std::erase_if(shard, [&](const TinyTensor& tensor) { return tensor.name == name; });
  index["weight_map"].erase(name);
}

TinyCheckpoint make_tiny_checkpoint() {
  TinyCheckpoint checkpoint;
  checkpoint.shards.resize(2);
  const std::string model = "language_model.model.";
  add_layer(checkpoint.shards[0], model + "layers.0.", true);
  add_layer(checkpoint.shards[1], model + "layers.1.", false);
  checkpoint.shards[0].push_back(
      bf16_tensor(model + "embed_tokens.weight", {kVocab, kHidden}, 0.5f));
  checkpoint.shards[1].push_back(bf16_tensor(model + "norm.weight", {kHidden}, 1.0f));
  checkpoint.shards[1].push_back(
      bf16_tensor("language_model.lm_head.weight", {kVocab, kHidden}, 0.5f));
  checkpoint.config = parse_json(kConfig, "config.json");
  for (std::size_t shard = 0; shard < checkpoint.shards.size(); ++shard)
    for (const TinyTensor& tensor : checkpoint.shards[shard])
      checkpoint.index["weight_map"][tensor.name] = tiny_shard_name(shard);
  return checkpoint;
}

std::string tiny_shard_name(std::size_t shard) {
  return "model-" + std::to_string(shard) + ".safetensors";
}

std::string tiny_header(const std::vector<TinyTensor>& tensors) {
  Json header = Json::object();
  std::uint64_t end = 0;
  for (const TinyTensor& tensor : tensors) {
    Json shape = Json::array();
    for (const std::int64_t size : tensor.shape) shape.push_back(size);
    const std::uint64_t begin = end;
    end += tensor.bytes.size();
    // Not operator[]: a test may want a name twice.
    header.as_object().emplace_back(tensor.name,
                                    Json::object({{"dtype", name_of(tensor.type)},
                                                  {"shape", std::move(shape)},
                                                  {"data_offsets", Json::array({begin, end})}}));
  }
  return write_json(header);
}

std::string tiny_shard(const std::vector<TinyTensor>& tensors) {
  std::string data;
  for (const TinyTensor& tensor : tensors) data += tensor.bytes;
  std::string header = tiny_header(tensors);
  while (header.size() % 8 != 0) header += ' ';
  return safetensors_bytes(header, data);
}

void TinyCheckpoint::write(const std::filesystem::path& directory) const {
  for (std::size_t shard = 0; shard < shards.size(); ++shard)
    write_file(directory / tiny_shard_name(shard), tiny_shard(shards[shard]));
  write_file(directory / "model.safetensors.index.json", write_json(index));
  write_file(directory / "config.json", write_json(config));
}

}  // namespace coppice::test
