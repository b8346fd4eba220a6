// Shapes that are timed, and what each case must reach on one H200.
#include <map>

#include "benchmark/kernel_case.h"

namespace coppice {

NetworkShape kimi_k2_shape(std::int64_t num_ranks) {
  NetworkShape shape;
  shape.name = "tp" + std::to_string(num_ranks);
  shape.num_heads /= num_ranks;
  shape.moe_intermediate_size /= num_ranks;
  shape.intermediate_size /= num_ranks;
  shape.vocab_size /= num_ranks;
  return shape;
}

NetworkShape tiny_shape() {
  return {.name = "tiny",
          .hidden_size = 384,
          .num_heads = 8,
          .q_lora_rank = 192,
          .kv_lora_rank = 128,
          .nope_dim = 32,
          .rope_dim = 32,
          .v_head_dim = 32,
          .n_routed_experts = 32,
          .num_experts_per_tok = 4,
          .moe_intermediate_size = 128,
          .intermediate_size = 1024,
          .vocab_size = 5376};
}

double target_us(const std::string& key) {
  static const std::map<std::string, double> targets = {{"experts tp8 M=1", 10},
                                                        {"experts tp8 M=8", 46},
                                                        {"experts tp8 M=17", 86},
                                                        {"experts tp8 M=64", 207},
                                                        {"experts tp8 M=256", 285},
                                                        {"experts tp8 M=512", 300},
                                                        {"experts tp8 M=1024", 420},
                                                        {"experts tp1 M=1", 50},
                                                        {"experts tp1 M=17", 660},
                                                        {"experts tp1 M=64", 1610},
                                                        {"experts tp1 M=1024", 2600},
                                                        {"attention block tp8 L=4096 M=1", 20},
                                                        {"ffn block tp8 M=1", 14},
                                                        {"ffn block tp8 M=8", 50},
                                                        {"ffn block tp8 M=17", 90},
                                                        {"mla tp8 B=1 L=8192 T=1", 12},
                                                        {"mla tp8 B=1 L=8192 T=17", 12},
                                                        {"mla tp8 B=1 L=8192 T=33", 12},
                                                        {"mla tp8 B=1 L=8192 T=64", 19},
                                                        {"mla tp8 B=8 L=32768 T=17", 120},
                                                        {"mla tp8 B=8 L=131072 T=17", 480},
                                                        {"top_k rows=7", 8},
                                                        {"top_k rows=15", 8},
                                                        {"top_k rows=120", 20},
                                                        {"top_k rows=960", 110},
                                                        {"trees B=1 budget=16", 5},
                                                        {"trees B=8 budget=16", 6},
                                                        {"trees B=64 budget=16", 10},
                                                        {"trees B=1 budget=64", 10},
                                                        {"trees B=8 budget=64", 11},
                                                        {"trees B=64 budget=64", 15},
                                                        {"commit B=1", 5},
                                                        {"commit B=64", 15}};
  const auto found = targets.find(key);
  return found == targets.end() ? 0 : found->second;
}

}  // namespace coppice
