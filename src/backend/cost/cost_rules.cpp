// One cost rule for every op of backend.h. Launches are those of the CUDA backend.
#include <algorithm>

#include "backend/cost/cost_backend.h"
#include "backend/cost/cost_weights.h"

namespace coppice {
namespace {

double bytes_of(const Tensor& tensor) {
  return tensor.empty() ? 0.0
                        : static_cast<double>(tensor.num_elements()) *
                              static_cast<double>(size_of(tensor.dtype()));
}

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

void CostBackend::embed(const EmbedArgs& args) {
  const double row =
      as_double(args.table.shape(1)) * static_cast<double>(size_of(args.table.dtype()));
  count({.op = "embed",
         .rows = args.out.shape(0),
         .weight_bytes = row * as_double(args.out.shape(0)),
         .activation_bytes = bytes_of(args.out)});
}

void CostBackend::rms_norm(const RmsNormArgs& args) {
  count({.op = "rms_norm",
         .rows = args.x.shape(0),
         .inputs = args.x.shape(1),
         .activation_bytes = bytes_of(args.x) + bytes_of(args.weight) + bytes_of(args.out),
         .flops = 4 * as_double(args.x.num_elements())});
}

void CostBackend::add_rms_norm(const AddRmsNormArgs& args) {
  count({.op = "add_rms_norm",
         .rows = args.out.shape(0),
         .inputs = args.out.shape(1),
         .activation_bytes = 2 * bytes_of(args.residual) + bytes_of(args.delta) +
                             bytes_of(args.weight) + bytes_of(args.out),
         .flops = 5 * as_double(args.out.num_elements())});
}

void CostBackend::product(const char* op, const Tensor& x, const LinearWeight& weight,
                          const Tensor& out, std::int64_t num_heads) {
  const std::int64_t rows = x.shape(0);
  count({.op = op,
         .kind = CostKind::kDense,
         .rows = rows,
         .outputs = weight.out_features,
         .inputs = weight.in_features,
         .heads = num_heads,
         .weight_bytes = static_cast<const CostMatrix*>(weight.packed.get())->bytes,
         .activation_bytes = bytes_of(x) + bytes_of(out),
         .flops = 2.0 * as_double(rows) * as_double(weight.out_features) *
                  as_double(weight.in_features)});
}

void CostBackend::linear(const LinearArgs& args) {
  product("linear", args.x, *args.weight, args.out, 1);
}

void CostBackend::head_linear(const HeadLinearArgs& args) {
  product("head_linear", args.x, *args.weight, args.out, args.x.shape(1));
}

void CostBackend::silu_mul(const SiluMulArgs& args) {
  count({.op = "silu_mul",
         .rows = args.out.shape(0),
         .inputs = args.out.shape(1),
         .activation_bytes = bytes_of(args.gate_up) + bytes_of(args.out),
         .flops = 5 * as_double(args.out.num_elements())});
}

void CostBackend::moe_route(const MoeRouteArgs& args) {
  count({.op = "moe_route",
         .rows = args.logits.shape(0),
         .inputs = args.logits.shape(1),
         .activation_bytes =
             bytes_of(args.logits) + bytes_of(args.topk_ids) + bytes_of(args.topk_weights),
         .flops = 4 * as_double(args.logits.num_elements())});
}

// Weights of every expert that any row chose are read once; each row multiplies with its own.
void CostBackend::moe_experts(const MoeExpertsArgs& args) {
  const ExpertWeights& experts = *args.experts;
  const auto& stored = *static_cast<const CostExperts*>(experts.packed.get());
  const double rows = live_rows(args.x.shape(0));
  const std::int64_t top_k = args.topk_ids.shape(1);
  const double distinct =
      distinct_experts(experts.num_experts, top_k, rows, scenario_.expert_overlap);
  const double weights = 3 * as_double(experts.hidden_size) * as_double(experts.intermediate_size);
  const double between = rows * as_double(top_k * experts.intermediate_size) * 2;  // bf16
  count({.op = "moe_experts",
         .kind = CostKind::kExperts,
         .rows = args.x.shape(0),
         .outputs = experts.intermediate_size,
         .inputs = experts.hidden_size,
         .weight_bytes = distinct * stored.bytes_per_expert,
         .activation_bytes =
             bytes_of(args.x) + bytes_of(args.shared) + bytes_of(args.out) + 2 * between,
         .flops = 2 * rows * as_double(top_k) * weights,
         .packed_weights = stored.is_int4 ? distinct * weights : 0,
         .distinct_experts = distinct,
         .launches = 2});
}

void CostBackend::all_reduce(const AllReduceArgs& args) {
  if (options_.num_ranks == 1) return;
  count({.op = "all_reduce",
         .kind = CostKind::kCollective,
         .rows = args.x.shape(0),
         .inputs = args.x.shape(1),
         .activation_bytes = 2 * bytes_of(args.x),
         .message_bytes = bytes_of(args.x)});
}

void CostBackend::all_gather(const AllGatherArgs& args) {
  count({.op = "all_gather",
         .kind = CostKind::kCollective,
         .rows = args.x.shape(0),
         .inputs = args.x.shape(1),
         .activation_bytes = bytes_of(args.x) + bytes_of(args.out),
         .message_bytes = bytes_of(args.x)});
}

void CostBackend::gather_rows(const GatherRowsArgs& args) {
  count({.op = "gather_rows",
         .rows = args.rows.shape(0),
         .inputs = args.out.row_size(),
         .activation_bytes = 2 * bytes_of(args.out)});
}

// ---- Attention

void CostBackend::mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) {
  const double written = live_rows(args.kv_a.shape(0)) * as_double(args.kv_a.row_size()) *
                         static_cast<double>(size_of(kv_dtype()));
  count({.op = "mla_rope_and_write_kv",
         .rows = args.kv_a.shape(0),
         .heads = args.q_pe.shape(1),
         .kv_bytes = written,
         .activation_bytes = 2 * bytes_of(args.q_pe) + bytes_of(args.kv_a),
         .flops = 6 * as_double(args.q_pe.num_elements() + args.kv_a.num_elements())});
}

void CostBackend::plan_mla_attention(const PlanMlaAttentionArgs& args) {
  count({.op = "plan_mla_attention",
         .rows = args.metadata->seq_of_row.shape(0),
         .sequences = scenario_.batch});
}

// A sequence's context is read once for all its rows, and every row's own key once.
void CostBackend::mla_attention(const MlaAttentionArgs& args) {
  const double rows = live_rows(args.q_lat.shape(0));
  const std::int64_t rank = args.q_lat.shape(2), width = args.cache.shape(2);
  const auto batch = as_double(scenario_.batch), context = as_double(scenario_.context_len);
  count({.op = "mla_attention",
         .kind = CostKind::kAttention,
         .rows = args.q_lat.shape(0),
         .inputs = width,
         .heads = args.q_lat.shape(1),
         .sequences = scenario_.batch,
         .context = batch * context,
         .kv_bytes = (batch * context + rows) * as_double(width) *
                     static_cast<double>(size_of(args.cache.dtype())),
         .activation_bytes = bytes_of(args.q_lat) + bytes_of(args.q_pe) + bytes_of(args.out),
         .flops = 2 * rows * (context + 1) * as_double(args.q_lat.shape(1) * (width + rank)),
         .launches = 2});
}

void CostBackend::gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) {
  const double written = live_rows(args.k.shape(0)) * as_double(2 * args.k.row_size()) *
                         static_cast<double>(size_of(kv_dtype()));
  count({.op = "gqa_rope_and_write_kv",
         .rows = args.k.shape(0),
         .heads = args.q.empty() ? 0 : args.q.shape(1),
         .kv_bytes = written,
         .activation_bytes = 2 * bytes_of(args.q) + 2 * bytes_of(args.k) + bytes_of(args.v),
         .flops = 10 * as_double(args.k.num_elements())});
}

void CostBackend::gqa_attention(const GqaAttentionArgs& args) {
  const double rows = live_rows(args.q.shape(0));
  const std::int64_t kv_width = args.k_cache.shape(2), head_dim = args.q.shape(2);
  const std::int64_t context = args.sliding_window > 0
                                   ? std::min(scenario_.context_len, args.sliding_window)
                                   : scenario_.context_len;
  const auto batch = as_double(scenario_.batch);
  count({.op = "gqa_attention",
         .kind = CostKind::kAttention,
         .rows = args.q.shape(0),
         .inputs = kv_width,
         .heads = args.q.shape(1),
         .sequences = scenario_.batch,
         .context = batch * as_double(context),
         .kv_bytes = (batch * as_double(context) + rows) * 2 * as_double(kv_width) *
                     static_cast<double>(size_of(args.k_cache.dtype())),
         .activation_bytes = bytes_of(args.q) + bytes_of(args.out),
         .flops = 4 * rows * as_double(context + 1) * as_double(args.q.shape(1) * head_dim),
         .launches = 2});
}

// ---- Trees, sampling, commit

void CostBackend::compile_draft(const CompileDraftArgs& args) {
  is_verifying_ = false;
  count({.op = "compile_draft",
         .kind = CostKind::kTree,
         .rows = args.token_ids.shape(0),
         .sequences = args.anchors.shape(0),
         .activation_bytes = 6 * bytes_of(args.token_ids)});
}

void CostBackend::top_k_log_probs(const TopKLogProbsArgs& args) {
  count({.op = "top_k_log_probs",
         .kind = CostKind::kVocab,
         .rows = args.logits.shape(0),
         .outputs = args.ids.shape(1),
         .inputs = args.logits.shape(1),
         .activation_bytes = bytes_of(args.logits) + 2 * bytes_of(args.ids),
         .flops = 3 * as_double(args.logits.num_elements()),
         .launches = 2});
}

void CostBackend::build_tree(const BuildTreeArgs& args) {
  count({.op = "build_tree",
         .kind = CostKind::kTree,
         .rows = nodes_per_tree(),
         .sequences = args.anchors.shape(0),
         .context = as_double(args.anchors.shape(0)),
         .activation_bytes = 2 * bytes_of(args.ids) + 4 * bytes_of(args.trees.tokens),
         .serial_steps = as_double(nodes_per_tree())});
}

void CostBackend::ngram_propose(const NgramProposeArgs& args) {
  count({.op = "ngram_propose",
         .kind = CostKind::kTree,
         .sequences = args.anchors.shape(0),
         .activation_bytes = bytes_of(args.history)});
}

void CostBackend::compile_tree(const CompileTreeArgs& args) {
  is_verifying_ = true;
  count({.op = "compile_tree",
         .kind = CostKind::kTree,
         .rows = nodes_per_tree(),
         .sequences = args.context_len.shape(0),
         .context = as_double(args.context_len.shape(0)),
         .activation_bytes =
             4 * bytes_of(args.trees.tokens) + 7 * bytes_of(args.token_ids) + bytes_of(args.path)});
}

void CostBackend::sample_rows(const SampleRowsArgs& args) {
  count({.op = "sample_rows",
         .kind = CostKind::kVocab,
         .rows = args.logits.shape(0),
         .inputs = args.logits.shape(1),
         .activation_bytes = bytes_of(args.logits) + 3 * bytes_of(args.choices),
         .flops = as_double(args.logits.num_elements()),
         .launches = args.greedy ? 1 : 3});
}

void CostBackend::accept_path(const AcceptPathArgs& args) {
  is_verifying_ = false;
  count({.op = "accept_path",
         .kind = CostKind::kCommit,
         .rows = args.anchors.shape(0),
         .sequences = args.anchors.shape(0),
         .activation_bytes = bytes_of(args.emitted) + 5 * bytes_of(args.move_src)});
}

// Accepted rows move, read and written; the root is where it belongs already.
void CostBackend::move_kv(const MoveKvArgs& args) {
  double row_bytes = 0;
  for (const Tensor& plane : args.planes)
    row_bytes += as_double(plane.shape(2)) * static_cast<double>(size_of(plane.dtype()));
  const double moved = std::max(0.0, scenario_.tokens_per_round - 1) * as_double(scenario_.batch);
  count({.op = "move_kv",
         .kind = CostKind::kCommit,
         .rows = scenario_.batch,
         .kv_bytes = 2 * moved * row_bytes,
         .activation_bytes = 2 * bytes_of(args.src)});
}

}  // namespace coppice
