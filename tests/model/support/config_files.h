// Configurations as published models have them, for tests that change one field.
#pragma once

#include <functional>
#include <string>

#include "io/json.h"
#include "tests/io/support/files.h"

namespace coppice::test {

// The text model of Kimi-K2.5 and K2.6, without fields that only training or transformers reads.
inline Json kimi_text_config() {
  return parse_json(R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2",
    "vocab_size": 163840, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_shared_experts": 1, "n_routed_experts": 384,
    "num_experts_per_tok": 8, "routed_scaling_factor": 2.827, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1, "moe_layer_freq": 1,
    "first_k_dense_replace": 1, "norm_topk_prob": true, "scoring_func": "sigmoid",
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096,
      "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "attention_bias": false, "max_position_embeddings": 262144, "tie_word_embeddings": false,
    "bos_token_id": 163584, "eos_token_id": 163585})",
                    "kimi");
}

inline Json kimi_k25_config() {
  Json config = parse_json(R"({"architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25", "bos_token_id": 163584, "eos_token_id": 163585,
    "tie_word_embeddings": false, "vision_config": {"vt_hidden_size": 1152}})",
                           "kimi");
  config["text_config"] = kimi_text_config();
  return config;
}

inline Json qwen3_config() {
  return parse_json(R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "rope_theta": 1000000, "rope_scaling": null, "rms_norm_eps": 1e-06, "hidden_act": "silu",
    "attention_bias": false, "max_position_embeddings": 40960, "tie_word_embeddings": true,
    "bos_token_id": 151643, "eos_token_id": 151645, "sliding_window": null,
    "use_sliding_window": false})",
                    "qwen3");
}

inline Json smollm2_config() {
  return parse_json(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "rope_theta": 100000, "rope_scaling": null, "rope_interleaved": false, "rms_norm_eps": 1e-05,
    "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
    "max_position_embeddings": 8192, "tie_word_embeddings": true, "bos_token_id": 1,
    "eos_token_id": 2, "pretraining_tp": 1})",
                    "smollm2");
}

// Kimi-K2.5-DFlash.
inline Json kimi_dflash_config() {
  return parse_json(R"({"architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "model_type": "qwen3", "block_size": 8,
    "dflash_config": {"mask_token_id": 163838, "target_layer_ids": [1, 12, 24, 35, 47, 58]},
    "num_target_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 6, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 163840, "rms_norm_eps": 1e-05, "attention_bias": false, "hidden_act": "silu",
    "tie_word_embeddings": false, "max_position_embeddings": 262144,
    "rope_parameters": {"rope_theta": 50000.0, "rope_type": "yarn", "factor": 64.0,
      "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
      "mscale": 1.0, "mscale_all_dim": 1.0}})",
                    "dflash");
}

// Writes `config` as config.json into an empty folder that lives as long as the object.
struct ConfigFolder {
  explicit ConfigFolder(const Json& config) { write_file(dir / "config.json", write_json(config)); }
  std::string path() const { return dir.path().string(); }
  TempDir dir;
};

// `config` after `change`.
inline Json changed(Json config, const std::function<void(Json&)>& change) {
  change(config);
  return config;
}

}  // namespace coppice::test
