// Fused ops as their steps: what backends without a kernel of their own do, and what those with one
// must equal.
#include "backend/backend.h"
#include "base/error.h"

namespace coppice {

ExpertWeights Backend::load_repacked_experts(const RepackedExperts&) {
  throw Error(ErrorKind::kUnsupported, name() + " takes experts as they are published only");
}

void Backend::moe_block(const MoeBlockArgs& args) {
  linear({.x = args.x,
          .weight = args.router,
          .out = args.router_logits,
          .provenance = args.provenance});
  moe_route({.logits = args.router_logits,
             .bias = args.bias,
             .seq_of_row = args.seq_of_row,
             .norm_topk_prob = args.norm_topk_prob,
             .routed_scaling_factor = args.routed_scaling_factor,
             .topk_ids = args.topk_ids,
             .topk_weights = args.topk_weights});
  if (args.has_shared()) {
    linear({.x = args.x,
            .weight = args.shared_gate_up,
            .out = args.gate_up,
            .provenance = args.provenance});
    silu_mul({.gate_up = args.gate_up, .out = args.act});
    linear({.x = args.act,
            .weight = args.shared_down,
            .out = args.shared,
            .provenance = args.provenance});
  }
  moe_experts({.x = args.x,
               .topk_ids = args.topk_ids,
               .topk_weights = args.topk_weights,
               .experts = args.experts,
               .shared = args.has_shared() ? args.shared : Tensor(),
               .out = args.out,
               .provenance = args.provenance});
}

void Backend::mla_queries(const MlaQueriesArgs& args) {
  const std::int64_t q_lora_rank = args.q_norm.shape(0);
  rms_norm({.x = args.qkv_a.columns(0, q_lora_rank),
            .weight = args.q_norm,
            .eps = args.eps,
            .out = args.c_q});
  linear({.x = args.c_q, .weight = args.q_b, .out = args.q, .provenance = args.provenance});
  head_linear({.x = args.q_nope(),
               .weight = args.k_absorbed,
               .out = args.q_lat,
               .provenance = args.provenance});
  mla_rope_and_write_kv({.q_pe = args.q_pe(),
                         .kv_a = args.kv_a(),
                         .kv_norm = args.kv_norm,
                         .eps = args.eps,
                         .cos_sin = args.cos_sin,
                         .positions = args.positions,
                         .slots = args.slots,
                         .cache = args.cache});
}

void Backend::sum_add_rms_norm(const AddRmsNormArgs& args) {
  all_reduce({.x = args.delta});
  add_rms_norm(args);
}

}  // namespace coppice
