// The weights of each kind of network in a backend's own layout. Widths are those of this rank.
#pragma once

#include <deque>
#include <vector>

#include "backend/op_args.h"
#include "tensor/buffer.h"

namespace coppice {

// SwiGLU: down(silu(gate x) * up x).
struct MlpWeights {
  LinearWeight gate_up;  // [2 * width, hidden_size]: gate rows, then up rows
  LinearWeight down;     // [hidden_size, width]
};

struct DeepseekLayerWeights {
  Tensor input_layernorm;  // [hidden_size] f32
  LinearWeight qkv_a;      // [q_lora_rank + kv_lora_rank + rope_dim, hidden_size]
  Tensor q_a_layernorm;    // [q_lora_rank] f32
  LinearWeight q_b;        // [num_heads * (nope_dim + rope_dim), q_lora_rank]: the nope rows of all
                           // heads, then the rope rows of all heads
  Tensor kv_a_layernorm;   // [kv_lora_rank] f32
  LinearWeight k_absorbed;  // [num_heads * kv_lora_rank, nope_dim]: per head W_UK transposed
  LinearWeight v_absorbed;  // [num_heads * v_head_dim, kv_lora_rank]: per head W_UV
  LinearWeight o_proj;      // [hidden_size, num_heads * v_head_dim]
  Tensor post_attention_layernorm;  // [hidden_size] f32

  MlpWeights mlp;  // dense layers, or the shared experts of a routed layer

  bool is_routed = false;
  LinearWeight router;             // [n_routed_experts, hidden_size]
  Tensor e_score_correction_bias;  // [n_routed_experts] f32
  ExpertWeights experts;
};

struct DeepseekWeights {
  Tensor embed_tokens;  // [vocab_size, hidden_size]
  std::vector<DeepseekLayerWeights> layers;
  Tensor norm;                 // [hidden_size] f32
  LinearWeight lm_head;        // [vocab_size / num_ranks, hidden_size]
  std::deque<Buffer> buffers;  // behind the tensors
};

struct LlamaLayerWeights {
  Tensor input_layernorm;           // [hidden_size] f32
  LinearWeight qkv;                 // [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
  Tensor q_norm, k_norm;            // [head_dim] f32; empty without qk_norm
  LinearWeight o_proj;              // [hidden_size, num_heads * head_dim]
  Tensor post_attention_layernorm;  // [hidden_size] f32
  MlpWeights mlp;
};

struct LlamaWeights {
  Tensor embed_tokens;  // [vocab_size, hidden_size]
  std::vector<LlamaLayerWeights> layers;
  Tensor norm;           // [hidden_size] f32
  LinearWeight lm_head;  // [vocab_size / num_ranks, hidden_size]
  std::deque<Buffer> buffers;
};

struct DflashWeights {
  LinearWeight fc;          // [hidden_size, num_feature_layers * hidden_size / num_ranks]
  Tensor hidden_norm;       // [hidden_size] f32
  LinearWeight context_kv;  // [num_layers * 2 * num_kv_heads * head_dim, hidden_size]: K then V of
                            // layer 0, K then V of layer 1, ...
  std::vector<LlamaLayerWeights> layers;
  Tensor norm;  // [hidden_size] f32
  std::deque<Buffer> buffers;
};

}  // namespace coppice
