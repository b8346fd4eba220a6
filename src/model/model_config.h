// What config.json, generation_config.json or GGUF metadata say about a network. Fields keep the
// published names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coppice {

enum class Architecture { kDeepseek, kLlama };  // kLlama: Llama, Qwen3, SmolLM2

enum class RopeType { kDefault, kYarn, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double factor = 1;
  std::int64_t original_max_position_embeddings = 0;
  bool interleaved = false;  // pairs (2i, 2i+1); otherwise (i, i + dim/2)

  // YaRN
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
  // Multiplies cos and sin. Given in the file or by the user; otherwise it follows from mscale and
  // mscale_all_dim.
  std::optional<double> attention_factor = {};

  // Llama 3
  double low_freq_factor = 1;
  double high_freq_factor = 4;

  // GGUF files of Llama 3 carry the scaling as one divisor per pair, [dim / 2]; empty: none.
  std::vector<float> frequency_divisors = {};
};

struct ModelConfig {
  Architecture architecture = Architecture::kDeepseek;
  std::string tensor_prefix;  // "language_model." for KimiK25ForConditionalGeneration

  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t vocab_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qk_norm = false;  // Qwen3: per-head RMS norm of q and k
  RopeConfig rope;

  // MLA
  std::int64_t q_lora_rank = 0;
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;

  // Mixture of experts
  std::int64_t n_routed_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t n_shared_experts = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t first_k_dense_replace = 0;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;

  std::int64_t bos_token_id = -1;
  // generation_config.json first, then config.json; all of them stop.
  std::vector<std::int64_t> eos_token_ids;

  // MLA: 1/sqrt(q head dim) times YaRN's m^2; GQA: 1/sqrt(head_dim).
  double softmax_scale() const;
};

struct DflashConfig {
  ModelConfig network;          // kLlama with qk_norm: the drafter's own stack
  std::int64_t block_size = 0;  // anchor and masks
  std::int64_t mask_token_id = -1;
  std::vector<std::int64_t> target_layer_ids;  // 0-based: the output of layer l
  std::int64_t num_target_layers = 0;
  std::int64_t sliding_window = 0;     // 0: full attention
  std::vector<bool> layer_is_sliding;  // one per layer
  bool causal_sliding_layers = false;  // trained causal inside the block in sliding layers

  // Columns of what it reads of the target, the outputs of all target layers side by side: the
  // inputs of `fc`.
  std::int64_t feature_size() const { return std::ssize(target_layer_ids) * network.hidden_size; }
};

// Angle per position of every pair, [dim / 2], in radians.
std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t dim);

// What multiplies cos and sin: attention_factor, or YaRN's m(mscale) / m(mscale_all_dim), or 1.
double rope_amplitude(const RopeConfig& rope);

// Cosine and sine table [num_positions, dim]: dim/2 cosines, then dim/2 sines, amplitude included.
// Frequencies and angles are rounded to fp32 as in the code that the published models were trained
// with; cosines and sines of those angles are exact to fp32.
std::vector<float> rope_table(const RopeConfig& rope, std::int64_t dim, std::int64_t num_positions);

// Reads config.json, generation_config.json and the named end tokens of tokenizer_config.json in
// the folder `path`, or the metadata of a .gguf file (or of a folder that holds one and no
// config.json). Throws Error "FILE: field 'x': cause".
ModelConfig load_model_config(const std::string& path);
DflashConfig load_dflash_config(const std::string& dir);

}  // namespace coppice
