// Networks with random weights, and the published shapes to make them of.
#include <algorithm>

#include "model/build_model.h"
#include "model/load_model.h"
#include "model/random_source.h"
#include "model/weight_loader.h"

namespace coppice {

std::unique_ptr<Model> make_random_model(Backend& backend, const ModelConfig& config,
                                         std::uint64_t seed, const ModelOptions& options) {
  RandomSource source(seed);
  return build_model(backend, config, source, options, {});
}

std::unique_ptr<DflashModel> make_random_dflash_model(Backend& backend, const DflashConfig& config,
                                                      std::uint64_t seed, Model& target,
                                                      const ModelOptions& options) {
  RandomSource source(seed);
  target.set_feature_layers(config.target_layer_ids);
  return make_dflash_model(backend, config,
                           load_dflash_weights(backend, source, config, options.parallel, {}),
                           target, options);
}

ModelConfig kimi_k2_config(std::int64_t num_hidden_layers, std::int64_t n_routed_experts,
                           std::int64_t num_ranks) {
  ModelConfig config;
  config.architecture = Architecture::kDeepseek;
  config.tensor_prefix = "language_model.";
  config.hidden_size = 7168;
  config.num_hidden_layers = num_hidden_layers;
  config.vocab_size = 163840 / num_ranks;
  config.intermediate_size = 18432 / num_ranks;
  config.num_attention_heads = 64 / num_ranks;
  config.num_key_value_heads = 64 / num_ranks;
  config.head_dim = 192;
  config.max_position_embeddings = 262144;
  config.rms_norm_eps = 1e-5;
  config.rope = {.type = RopeType::kYarn,
                 .theta = 50000,
                 .factor = 64,
                 .original_max_position_embeddings = 4096,
                 .interleaved = true,
                 .mscale = 1,
                 .mscale_all_dim = 1};
  config.q_lora_rank = 1536;
  config.kv_lora_rank = 512;
  config.qk_nope_head_dim = 128;
  config.qk_rope_head_dim = 64;
  config.v_head_dim = 128;
  config.n_routed_experts = n_routed_experts;
  config.num_experts_per_tok = std::min<std::int64_t>(8, n_routed_experts);
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 2048 / num_ranks;
  config.first_k_dense_replace = 1;
  config.routed_scaling_factor = 2.827;
  config.bos_token_id = 163584;
  config.eos_token_ids = {163586, 163585, 163593};
  return config;
}

}  // namespace coppice
