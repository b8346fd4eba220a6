// What config.json, generation_config.json or GGUF metadata say about a network. Fields keep the
// published names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/op_args.h"

namespace coppice {

enum class Architecture { kDeepseek, kLlama };  // kLlama: Llama, Qwen3, SmolLM2

struct RopeConfig {
  double theta = 10000;
  double factor = 1;  // YaRN if > 1
  double beta_fast = 32;
  double beta_slow = 1;
  std::int64_t original_max_position_embeddings = 0;
  double mscale = 1;
  double mscale_all_dim = 0;
  bool has_attention_factor =
      false;                    // attention_factor given in the file, or overridden by the user
  double attention_factor = 1;  // multiplies cos and sin
  bool interleaved = false;     // pairs (2i, 2i+1); otherwise (i, i + dim/2)
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
  std::vector<std::int64_t>
      eos_token_ids;  // generation_config.json first, then config.json; all of them stop

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
  bool sample_from_anchor =
      false;  // slot 0 predicts too (speculators); refused where not supported
};

// Cosine and sine table [num_positions, dim]: dim/2 cosines, then dim/2 sines, YaRN amplitude
// included. fp32, angles in fp64.
std::vector<float> rope_table(const RopeConfig& rope, std::int64_t dim, std::int64_t num_positions);

// Reads DIR/config.json and DIR/generation_config.json. Throws Error naming file and field.
ModelConfig load_model_config(const std::string& dir);
DflashConfig load_dflash_config(const std::string& dir);

}  // namespace coppice
