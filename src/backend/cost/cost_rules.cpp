// One cost rule for every op of backend.h. Launches are those of the CUDA backend.
#include <algorithm>

#include "backend/cost/cost_backend.h"
#include "backend/cost/cost_weights.h"
#include "kernels/gqa/gqa_attention_config.h"
#include "kernels/mla/mla_attention_config.h"
#include "kernels/mla/mla_queries_config.h"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts_config.h"
#include "kernels/sample/top_k_log_probs_config.h"
#include "kernels/tree/build_tree_config.h"
#include "kernels/tree/compile_tree_config.h"

namespace coppice {
namespace {

constexpr int kMostSampleRows = 4096;  // that the CUDA backend sizes workspaces for

double bytes_of(const Tensor& tensor) {
  return tensor.empty() ? 0.0
                        : static_cast<double>(tensor.num_elements()) *
                              static_cast<double>(size_of(tensor.dtype()));
}

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

// Nodes of a tree one after the other, in the time of one node of a small tree: tables are read and
// results written beside the first few. Larger trees grow by rounds and take what their draft asks
// for. This is that of drafts whose best 64 tokens are about as likely, as a random network's: the
// root's children are one round, more rounds and longer lists follow (docs/results/tree-h200.md).
double steps_of_tree(std::int64_t nodes) {
  constexpr double kFew = 9.3, kRound = 22.3, kNode = 0.05, kListed = 0.67, kSorted = 0.0013;
  constexpr double kSiblings = 63;
  const double most = as_double(nodes);
  if (nodes <= kernels::kStepwiseBudget) return std::max(most, kFew);
  const double more = std::max(most - kSiblings, 0.0);
  return kRound + kNode * std::min(most, kSiblings) + more * (kListed + kSorted * more);
}

// One row whose gate and up are at most one block of outputs for each multiprocessor: the form that
// sums in its only kernel (kernels/moe/moe_single.h).
bool fits_one_kernel(const ExpertWeights& experts, std::int64_t top_k, std::int64_t num_sms) {
  const kernels::ExpertBlobShape gate_up = kernels::expert_blob_shape(
      static_cast<int>(2 * experts.intermediate_size), static_cast<int>(experts.hidden_size));
  return top_k <= kernels::kStepCells && gate_up.warps_k == kernels::kStepCells &&
         top_k * gate_up.blocks <= num_sms;
}

// Column tiles of a unit of rows.
int columns_of_units(std::int64_t rows, std::int64_t top_k, std::int64_t num_experts) {
  constexpr std::size_t kSharedBytes = 232448, kSharedBytesOfSm = 233472;  // sm_90 and sm_100
  return kernels::choose_moe_experts_config(static_cast<int>(rows), static_cast<int>(top_k),
                                            static_cast<int>(num_experts), false, kSharedBytes,
                                            kSharedBytesOfSm)
      .columns;
}

// Beyond the first pass in which the threads of one block write the paths of a tree's rows.
double steps_of_paths(std::int64_t sequences, std::int64_t nodes, std::int64_t max_path) {
  constexpr double kPass = 8.6, kNode = 0.08;
  const kernels::CompileTreeConfig config =
      kernels::choose_compile_tree(static_cast<int>(sequences), static_cast<int>(nodes));
  return kNode * as_double(nodes) +
         kPass * std::max(0.0, as_double((nodes + 1) * max_path) / config.threads - 1);
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
  double distinct = 0, units = 0, columns = 0;
  const std::vector<double>& loads =
      loads_of(experts.num_experts, top_k, static_cast<std::int64_t>(rows));
  const int unit_columns = columns_of_units(args.x.shape(0), top_k, experts.num_experts);
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const auto of_expert = static_cast<int>(i) + 1;
    const int units_of_expert = (of_expert + unit_columns - 1) / unit_columns;
    distinct += loads[i];
    units += loads[i] * units_of_expert;
    columns += loads[i] * of_expert;
  }
  const double weights = 3 * as_double(experts.hidden_size) * as_double(experts.intermediate_size);
  const double between = rows * as_double(top_k * experts.intermediate_size) * 2;  // bf16
  const double outputs = rows * as_double(top_k * experts.hidden_size) * 4;        // fp32
  const bool in_one_kernel =
      args.x.shape(0) == 1 && fits_one_kernel(experts, top_k, options_.num_sms);
  // A row's activation for each of its experts, what each adds to its output in fp32, and counters.
  constexpr std::int64_t kCounters = 4096;
  const std::int64_t pairs = args.x.shape(0) * top_k;
  need_workspace("moe_experts",
                 static_cast<std::size_t>(kCounters + pairs * (2 * experts.intermediate_size +
                                                               4 * experts.hidden_size)));
  count({.op = "moe_experts",
         .kind = CostKind::kExperts,
         .rows = args.x.shape(0),
         .outputs = experts.intermediate_size,
         .inputs = experts.hidden_size,
         .weight_bytes = distinct * stored.bytes_per_expert,
         .activation_bytes = bytes_of(args.x) + bytes_of(args.shared) + bytes_of(args.out) +
                             2 * between + (in_one_kernel ? 0 : outputs),
         .flops = 2 * rows * as_double(top_k) * weights,
         .packed_weights = stored.is_int4 ? distinct * weights : 0,
         .unit_weights = stored.is_int4 ? units * weights : 0,
         .column_weights = stored.is_int4 ? columns * weights : 0,
         .distinct_experts = distinct,
         .launches = in_one_kernel ? 1 : 2});
}

// Its steps. Few decided rows of a small shared expert take two launches before the routed ones:
// router with gate and up, choice with the rest (kernels/moe/moe_prepare.h).
void CostBackend::moe_block(const MoeBlockArgs& args) {
  constexpr std::int64_t kMostRows = 64, kMostWidth = 512;
  const std::size_t first = ops_.size();
  Backend::moe_block(args);
  if (!options_.fuses_blocks) return;
  const bool fused = args.provenance == Provenance::kDecided && args.has_shared() &&
                     args.x.shape(0) <= kMostRows && args.shared_down->in_features <= kMostWidth;
  for (std::size_t i = first; i < ops_.size(); ++i) {
    ops_[i].in_moe_block = true;
    // Router, choice, gate and up, activation, down, routed experts.
    if (fused && i >= first + 2 && i + 1 < ops_.size()) ops_[i].launches = 0;
  }
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

// One block searches for the cut while its other warps go over the passes of trees, which another
// kernel takes where there are many tiles. As measured alone, 38 plans of 8 and 64 heads
// (docs/results/planner-h200.md).
void CostBackend::plan_mla_attention(const PlanMlaAttentionArgs& args) {
  constexpr double kSingle = 162, kSingleTile = 2;  // serial steps
  constexpr double kFew = 166, kFewTile = 5.4;
  constexpr double kMany = 310, kManyTile = 0.5;
  const std::int64_t padded = kernels::mla_padded_heads(static_cast<int>(args.num_heads));
  const auto rows = static_cast<std::int64_t>(live_rows(args.metadata->seq_of_row.shape(0)));
  const std::int64_t batch = std::max<std::int64_t>(scenario_.batch, 1);
  const std::int64_t nodes = std::max<std::int64_t>(kernels::kMlaTileRows / padded, 1);
  const double tiles = as_double(batch * ((rows / batch + nodes - 1) / nodes));
  const bool few = rows * padded <= kernels::kMlaFewPlanTiles * kernels::kMlaTileRows;
  double steps = few ? kFew + kFewTile * tiles : kMany + kManyTile * tiles;
  if (rows <= batch) steps = kSingle + kSingleTile * tiles;
  count({.op = "plan_mla_attention",
         .rows = args.metadata->seq_of_row.shape(0),
         .sequences = scenario_.batch,
         .serial_steps = steps,
         .launches = few ? 1 : 2});
}

// Its steps; few decided rows of few heads take one launch (kernels/mla/mla_queries.cuh). What it
// does in turn: norm, both products and the exchange between them, with more than eight rows in one
// longer pass or else eight rows at a time. From docs/results/attention-block-h200.md.
void CostBackend::mla_queries(const MlaQueriesArgs& args) {
  constexpr double kChain = 40, kRow = 1.4, kPass = 50, kLongPass = 48;  // serial steps
  const std::size_t first = ops_.size();
  Backend::mla_queries(args);
  if (!options_.fuses_blocks) return;
  const std::int64_t rows = args.q_lat.shape(0);
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  const bool fused =
      args.provenance == Provenance::kDecided &&
      kernels::mla_queries_fits(narrow(rows), narrow(args.num_heads()),
                                narrow(args.q_norm.shape(0)), narrow(args.kv_norm.shape(0)),
                                narrow(args.nope_dim()), narrow(args.rope_dim()));
  for (std::size_t i = first; i < ops_.size(); ++i) {
    ops_[i].in_mla_queries = true;
    if (fused && i > first) ops_[i].launches = 0;
  }
  if (!fused) return;
  constexpr std::int64_t kAtOnce = kernels::kMlaQueriesPass;
  const bool together = kernels::mla_queries_cut(narrow(rows), narrow(args.num_heads())).together;
  ops_[first].serial_steps = kChain + kRow * as_double(std::min(rows, kAtOnce)) +
                             (together ? kLongPass : kPass * as_double((rows - 1) / kAtOnce));
}

// A sequence's context is read once for all its rows, and every row's own key once.
void CostBackend::mla_attention(const MlaAttentionArgs& args) {
  need_workspace(
      "mla_attention",
      kernels::mla_workspace_layout(
          static_cast<int>(args.q_lat.shape(0)),
          args.metadata->path.empty() ? 1 : static_cast<int>(args.metadata->path.shape(1)),
          static_cast<int>(options_.num_sms))
          .total);
  const double rows = live_rows(args.q_lat.shape(0));
  const std::int64_t rank = args.q_lat.shape(2), width = args.cache.shape(2);
  const auto batch = as_double(scenario_.batch), context = as_double(scenario_.context_len);
  count({.op = "mla_attention",
         .kind = CostKind::kAttention,
         .rows = args.q_lat.shape(0),
         .inputs = width,
         .heads = args.q_lat.shape(1),
         .sequences = scenario_.batch,
         .live_rows = rows,
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
  need_workspace("gqa_attention",
                 kernels::gqa_attention_workspace_bytes(static_cast<int>(args.metadata->max_kv_len),
                                                        static_cast<int>(args.q.shape(2))));
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
  need_workspace("top_k_log_probs", kernels::choose_top_k_log_probs(
                                        kMostSampleRows, static_cast<int>(args.logits.shape(1)))
                                        .workspace_bytes);
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
         .serial_steps = steps_of_tree(nodes_per_tree())});
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
             4 * bytes_of(args.trees.tokens) + 7 * bytes_of(args.token_ids) + bytes_of(args.path),
         .serial_steps =
             steps_of_paths(args.context_len.shape(0), nodes_per_tree(), args.path.shape(1))});
}

void CostBackend::sample_rows(const SampleRowsArgs& args) {
  constexpr std::size_t kBytesOfRow = 16;
  if (args.greedy) need_workspace("sample_greedy", kMostSampleRows * kBytesOfRow);
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
