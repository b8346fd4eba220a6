#include "tests/model/support/checkpoint_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/dequantize.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/host_matrix.h"
#include "model/random_source.h"

namespace coppice::test {
namespace {

std::string bytes_of(const void* data, std::size_t num_bytes) {
  return {static_cast<const char*>(data), num_bytes};
}

void add_int4(StoredTensors& tensors, const std::string& name, const HostMatrix& matrix) {
  const auto elements = static_cast<std::size_t>(matrix.rows * matrix.cols);
  tensors[name + ".weight_packed"] = {
      StorageType::kI32, {matrix.rows, matrix.cols / 8}, bytes_of(matrix.data, elements / 2)};
  tensors[name + ".weight_scale"] = {StorageType::kBF16,
                                     {matrix.rows, matrix.cols / 32},
                                     bytes_of(matrix.scales, elements / 32 * sizeof(bf16))};
  const std::int32_t shape[] = {static_cast<std::int32_t>(matrix.rows),
                                static_cast<std::int32_t>(matrix.cols)};
  tensors[name + ".weight_shape"] = {StorageType::kI32, {2}, bytes_of(shape, sizeof shape)};
}

// The nearest E4M3 code of a value, by search.
std::uint8_t to_f8(float value) {
  std::uint8_t best = 0;
  for (int code = 0; code < 256; ++code) {
    const float candidate = f8e4m3_to_float(static_cast<std::uint8_t>(code));
    if (std::isfinite(candidate) &&
        std::abs(candidate - value) < std::abs(f8e4m3_to_float(best) - value))
      best = static_cast<std::uint8_t>(code);
  }
  return best;
}

}  // namespace

StoredTensors random_tensors(const std::vector<WeightSpec>& specs, std::uint64_t seed,
                             const std::string& prefix) {
  StoredTensors tensors;
  RandomSource source(seed);
  for (const WeightSpec& spec : specs) {
    if (spec.cols == 0) {
      const std::vector<float> values = source.vector(spec);
      tensors[prefix + spec.name] = {
          StorageType::kF32, {spec.rows}, bytes_of(values.data(), values.size() * sizeof(float))};
      continue;
    }
    const HostMatrix matrix = source.matrix(spec);
    if (matrix.format == WeightFormat::kInt4Group32)
      add_int4(tensors, prefix + spec.name, matrix);
    else
      tensors[prefix + spec.name + ".weight"] = {
          StorageType::kBF16, {spec.rows, spec.cols}, bytes_of(matrix.data, num_bytes(matrix))};
  }
  return tensors;
}

void quantize_to_f8(StoredTensors& tensors, const std::string& name) {
  constexpr std::int64_t kBlock = 128;
  constexpr float kLargest = 448;
  StoredTensor& stored = tensors.at(name + ".weight");
  const std::int64_t rows = stored.shape[0], cols = stored.shape[1];
  const std::int64_t block_rows = (rows + kBlock - 1) / kBlock;
  const std::int64_t block_cols = (cols + kBlock - 1) / kBlock;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    bf16 value;
    std::memcpy(&value, stored.bytes.data() + i * sizeof value, sizeof value);
    values[i] = to_float(value);
  }
  std::vector<float> scales(static_cast<std::size_t>(block_rows * block_cols), 1e-6f);
  const auto scale_of = [&](std::int64_t row, std::int64_t col) -> float& {
    return scales[static_cast<std::size_t>(row / kBlock * block_cols + col / kBlock)];
  };
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col)
      scale_of(row, col) =
          std::max(scale_of(row, col),
                   std::abs(values[static_cast<std::size_t>(row * cols + col)]) / kLargest);
  std::string codes(values.size(), '\0');
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto i = static_cast<std::size_t>(row * cols + col);
      codes[i] = static_cast<char>(to_f8(values[i] / scale_of(row, col)));
    }
  stored = {StorageType::kF8E4M3, {rows, cols}, codes};
  tensors[name + ".weight_scale_inv"] = {StorageType::kF32,
                                         {block_rows, block_cols},
                                         bytes_of(scales.data(), scales.size() * sizeof(float))};
}

StoredTensor dequantized_f8(const StoredTensors& tensors, const std::string& name) {
  const StoredTensor& stored = tensors.at(name + ".weight");
  const HostMatrix matrix{.format = WeightFormat::kF8Block128,
                          .rows = stored.shape[0],
                          .cols = stored.shape[1],
                          .data = stored.bytes.data(),
                          .scales = tensors.at(name + ".weight_scale_inv").bytes.data()};
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    dequantize_row(matrix, row, values.data() + row * matrix.cols);
  return {StorageType::kF32, stored.shape, bytes_of(values.data(), values.size() * sizeof(float))};
}

void replace_int4_by_bf16(StoredTensors& tensors, const std::string& name) {
  const StoredTensor& packed = tensors.at(name + ".weight_packed");
  const HostMatrix matrix{.format = WeightFormat::kInt4Group32,
                          .rows = packed.shape[0],
                          .cols = packed.shape[1] * 8,
                          .data = packed.bytes.data(),
                          .scales = tensors.at(name + ".weight_scale").bytes.data()};
  HostStorage storage;
  const HostMatrix plain = to_plain(matrix, storage);
  tensors[name + ".weight"] = {
      StorageType::kBF16, {matrix.rows, matrix.cols}, bytes_of(plain.data, num_bytes(plain))};
  for (const char* part : {".weight_packed", ".weight_scale", ".weight_shape"})
    tensors.erase(name + part);
}

void write_tensors(const StoredTensors& tensors, const std::string& folder) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.type, tensor.shape});
  SafetensorsWriter writer(folder + "/model.safetensors", specs);
  for (const auto& [name, tensor] : tensors)
    writer.write(std::as_bytes(std::span(tensor.bytes.data(), tensor.bytes.size())));
  writer.finish();
}

ModelConfig small_k2_config() {
  ModelConfig config;
  config.architecture = Architecture::kDeepseek;
  config.tensor_prefix = "language_model.";
  config.hidden_size = 128;
  config.num_hidden_layers = 2;
  config.vocab_size = 300;
  config.intermediate_size = 256;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 48;
  config.max_position_embeddings = 512;
  config.rms_norm_eps = 1e-5;
  config.rope = {.type = RopeType::kYarn,
                 .theta = 50000,
                 .factor = 4,
                 .original_max_position_embeddings = 128,
                 .interleaved = true,
                 .mscale_all_dim = 1};
  config.q_lora_rank = 64;
  config.kv_lora_rank = 64;
  config.qk_nope_head_dim = 32;
  config.qk_rope_head_dim = 16;
  config.v_head_dim = 32;
  config.n_routed_experts = 4;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 64;
  config.first_k_dense_replace = 1;
  config.routed_scaling_factor = 2.5;
  return config;
}

ModelConfig small_qwen3_config() {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.hidden_size = 96;
  config.num_hidden_layers = 2;
  config.vocab_size = 300;
  config.intermediate_size = 160;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  config.max_position_embeddings = 512;
  config.rms_norm_eps = 1e-6;
  config.qk_norm = true;
  config.rope = {.theta = 1e6};
  return config;
}

DflashConfig small_dflash_config() {
  DflashConfig config;
  config.network = small_qwen3_config();
  config.network.hidden_size = small_k2_config().hidden_size;
  config.block_size = 4;
  config.mask_token_id = 299;
  config.target_layer_ids = {0, 1};
  config.num_target_layers = 2;
  config.layer_is_sliding = {false, false};
  return config;
}

namespace {

Json common_fields(const ModelConfig& c) {
  return Json::object({{"hidden_size", c.hidden_size},
                       {"num_hidden_layers", c.num_hidden_layers},
                       {"vocab_size", c.vocab_size},
                       {"intermediate_size", c.intermediate_size},
                       {"num_attention_heads", c.num_attention_heads},
                       {"num_key_value_heads", c.num_key_value_heads},
                       {"max_position_embeddings", c.max_position_embeddings},
                       {"rms_norm_eps", c.rms_norm_eps},
                       {"tie_word_embeddings", c.tie_word_embeddings},
                       {"rope_theta", c.rope.theta}});
}

}  // namespace

std::string config_json(const ModelConfig& c) {
  Json config = common_fields(c);
  if (c.architecture == Architecture::kLlama) {
    config["architectures"] = Json::array({c.qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM"});
    config["head_dim"] = c.head_dim;
    return write_json(config);
  }
  config["architectures"] = Json::array({"DeepseekV3ForCausalLM"});
  config["rope_scaling"] =
      Json::object({{"type", "yarn"},
                    {"factor", c.rope.factor},
                    {"original_max_position_embeddings", c.rope.original_max_position_embeddings},
                    {"mscale_all_dim", c.rope.mscale_all_dim}});
  const std::pair<const char*, std::int64_t> fields[] = {
      {"q_lora_rank", c.q_lora_rank},
      {"kv_lora_rank", c.kv_lora_rank},
      {"qk_nope_head_dim", c.qk_nope_head_dim},
      {"qk_rope_head_dim", c.qk_rope_head_dim},
      {"v_head_dim", c.v_head_dim},
      {"n_routed_experts", c.n_routed_experts},
      {"num_experts_per_tok", c.num_experts_per_tok},
      {"n_shared_experts", c.n_shared_experts},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"first_k_dense_replace", c.first_k_dense_replace}};
  for (const auto& [name, value] : fields) config[name] = value;
  config["routed_scaling_factor"] = c.routed_scaling_factor;
  Json outer = Json::object({{"architectures", Json::array({"KimiK25ForConditionalGeneration"})}});
  outer["text_config"] = config;
  return write_json(outer);
}

std::string config_json(const DflashConfig& drafter) {
  Json config = common_fields(drafter.network);
  config["architectures"] = Json::array({"DFlashDraftModel"});
  config["head_dim"] = drafter.network.head_dim;
  config["block_size"] = drafter.block_size;
  config["num_target_layers"] = drafter.num_target_layers;
  Json inner = Json::object({{"mask_token_id", drafter.mask_token_id}});
  Json layers = Json::array();
  for (const std::int64_t layer : drafter.target_layer_ids) layers.push_back(layer);
  inner["target_layer_ids"] = layers;
  config["dflash_config"] = inner;
  return write_json(config);
}

}  // namespace coppice::test
