// Ops of a forward pass: rows, projections, experts, attention.
#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/cuda_weights.h"
#include "backend/cuda/kernel_args.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/mla/mla_queries.h"
#include "kernels/moe/moe_experts.h"
#include "kernels/moe/moe_prepare.h"
#include "kernels/moe/moe_route.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/gqa_rope.h"
#include "kernels/rope/mla_rope.h"
#include "kernels/rows/rows.h"

namespace coppice {

namespace {

kernels::MoeRouteParams route_params(const MoeRouteArgs& args) {
  return {.logits = floats(args.logits),
          .bias = floats(args.bias),
          .seq_of_row = int32s(args.seq_of_row),
          .topk_ids = int32s(args.topk_ids),
          .topk_weights = floats(args.topk_weights),
          .num_tokens = to_int(args.logits.shape(0)),
          .num_experts = to_int(args.logits.shape(1)),
          .top_k = to_int(args.topk_ids.shape(1)),
          .routed_scaling_factor = args.routed_scaling_factor,
          .norm_topk_prob = args.norm_topk_prob};
}

const void* matrix_of(const LinearWeight& weight) {
  return static_cast<const CudaMatrix*>(weight.packed.get())->data.data();
}

}  // namespace

void CudaBackend::embed(const EmbedArgs& args) {
  cuda_check(kernels::embed({.token_ids = int32s(args.token_ids),
                             .table = args.table.raw(),
                             .table_is_f32 = args.table.dtype() == DType::kF32,
                             .out = args.out.raw(),
                             .num_rows = args.out.shape(0),
                             .hidden_size = args.out.shape(1)},
                            stream()),
             "embed");
}

void CudaBackend::rms_norm(const RmsNormArgs& args) {
  cuda_check(kernels::rms_norm({.x = args.x.raw(),
                                .weight = floats(args.weight),
                                .out = args.out.raw(),
                                .x_row_stride = args.x.row_stride(),
                                .out_row_stride = args.out.row_stride(),
                                .num_rows = to_int(args.x.shape(0)),
                                .hidden_size = to_int(args.x.shape(1)),
                                .eps = args.eps},
                               stream()),
             "rms_norm");
}

void CudaBackend::add_rms_norm(const AddRmsNormArgs& args) {
  cuda_check(kernels::rms_norm(norm_params(args), stream()), "add_rms_norm");
}

bool CudaBackend::fits_tensor_cores(const Tensor& x, const Tensor& out, std::int64_t outputs,
                                    std::int64_t inputs) const {
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0;
  };
  return device_.compute_capability == 90 && outputs % 16 == 0 && inputs % 64 == 0 &&
         x.row_stride() % 8 == 0 && out.row_stride() % 4 == 0 && aligned(x) && aligned(out);
}

void CudaBackend::product(const Tensor& x, const LinearWeight& weight, const Tensor& out,
                          std::int64_t num_heads, Provenance provenance) {
  const std::int64_t outputs = weight.out_features / num_heads, inputs = weight.in_features;
  const void* const matrix = matrix_of(weight);
  const bool out_is_f32 = out.dtype() == DType::kF32;
  if (!fits_tensor_cores(x, out, outputs, inputs)) {
    cuda_check(kernels::row_product({.x = x.raw(),
                                     .weight = matrix,
                                     .out = out.raw(),
                                     .x_stride = x.row_stride(),
                                     .out_stride = out.row_stride(),
                                     .num_rows = x.shape(0),
                                     .num_heads = num_heads,
                                     .outputs = outputs,
                                     .inputs = inputs,
                                     .out_is_f32 = out_is_f32},
                                    stream()),
               "row_product");
    return;
  }
  if (provenance == Provenance::kPrompt && prompt_product(x, weight, out, num_heads)) return;
  cuda_check(kernels::skinny_gemm({.x = x.raw(),
                                   .weight = matrix,
                                   .out = out.raw(),
                                   .num_tokens = to_int(x.shape(0)),
                                   .num_heads = to_int(num_heads),
                                   .outputs = to_int(outputs),
                                   .inputs = to_int(inputs),
                                   .x_stride = x.row_stride(),
                                   .out_stride = out.row_stride(),
                                   .out_is_float = out_is_f32},
                                  stream()),
             "skinny_gemm");
}

bool CudaBackend::prompt_product(const Tensor& x, const LinearWeight& weight, const Tensor& out,
                                 std::int64_t num_heads) {
  const LtProduct wanted = {.x = x.raw(),
                            .weight = matrix_of(weight),
                            .out = out.raw(),
                            .tokens = x.shape(0),
                            .heads = num_heads,
                            .outputs = weight.out_features / num_heads,
                            .inputs = weight.in_features,
                            .x_stride = x.row_stride(),
                            .out_stride = out.row_stride(),
                            .out_is_f32 = out.dtype() == DType::kF32};
  const bool aligned =
      out.row_stride() % 8 == 0 && reinterpret_cast<std::uintptr_t>(out.raw()) % 16 == 0;
  if (!aligned) return false;
  const bool is_first = !cublas_lt_tried_ || (cublas_lt_ != nullptr && !cublas_lt_->knows(wanted));
  if (is_first) settle();
  if (!cublas_lt_tried_) cublas_lt_ = CublasLt::load();
  cublas_lt_tried_ = true;
  const bool done = cublas_lt_ != nullptr && cublas_lt_->multiply(wanted, stream());
  if (is_first) settle();
  return done;
}

void CudaBackend::linear(const LinearArgs& args) {
  product(args.x, *args.weight, args.out, 1, args.provenance);
}

void CudaBackend::head_linear(const HeadLinearArgs& args) {
  product(args.x, *args.weight, args.out, args.x.shape(1), args.provenance);
}

void CudaBackend::silu_mul(const SiluMulArgs& args) {
  cuda_check(kernels::silu_mul({.gate_up = args.gate_up.raw(),
                                .gate_up_stride = args.gate_up.row_stride(),
                                .out = args.out.raw(),
                                .out_stride = args.out.row_stride(),
                                .num_rows = args.out.shape(0),
                                .size = args.out.shape(1)},
                               stream()),
             "silu_mul");
}

void CudaBackend::moe_route(const MoeRouteArgs& args) {
  cuda_check(kernels::moe_route(route_params(args), stream()), "moe_route");
}

void CudaBackend::moe_experts(const MoeExpertsArgs& args) {
  const ExpertWeights& experts = *args.experts;
  const auto& blobs = *static_cast<const CudaExperts*>(experts.packed.get());
  const int tokens = to_int(args.x.shape(0)), top_k = to_int(args.topk_ids.shape(1));
  if (tokens == 0) return;
  const int num_experts = to_int(experts.num_experts);
  const int hidden = to_int(experts.hidden_size), intermediate = to_int(experts.intermediate_size);
  // Counters at the front are zero between calls of one layout; another's would find data there.
  CudaWorkspace& area =
      moe_workspaces_
          .try_emplace(kernels::moe_experts_counter_bytes(top_k, num_experts), make_workspace())
          .first->second;
  void* const workspace = area.get(
      kernels::moe_experts_workspace_bytes(tokens, top_k, num_experts, hidden, intermediate));
  cuda_check(kernels::moe_experts({.x = args.x.raw(),
                                   .topk_ids = int32s(args.topk_ids),
                                   .topk_weights = floats(args.topk_weights),
                                   .w13 = blobs.w13.data(),
                                   .w2 = blobs.w2.data(),
                                   .shared = args.shared.raw(),
                                   .out = args.out.raw(),
                                   .workspace = workspace,
                                   .num_tokens = tokens,
                                   .top_k = top_k,
                                   .num_experts = num_experts,
                                   .hidden_size = hidden,
                                   .intermediate_size = intermediate},
                                  stream()),
             "moe_experts");
}

void CudaBackend::moe_block(const MoeBlockArgs& args) {
  const std::int64_t hidden = args.x.shape(1);
  const bool fits =
      args.provenance == Provenance::kDecided && args.has_shared() &&
      fits_tensor_cores(args.x, args.router_logits, args.router->out_features, hidden) &&
      fits_tensor_cores(args.x, args.gate_up, args.shared_gate_up->out_features, hidden) &&
      kernels::moe_prepare_pays(to_int(args.x.shape(0)), to_int(hidden),
                                to_int(args.shared_down->in_features));
  if (!fits) return Backend::moe_block(args);
  const auto product = [&](const LinearWeight& weight, const Tensor& out) {
    return kernels::SkinnyGemmParams{.x = args.x.raw(),
                                     .weight = matrix_of(weight),
                                     .out = out.raw(),
                                     .num_tokens = to_int(args.x.shape(0)),
                                     .outputs = to_int(weight.out_features),
                                     .inputs = to_int(hidden),
                                     .x_stride = args.x.row_stride(),
                                     .out_stride = out.row_stride(),
                                     .out_is_float = out.dtype() == DType::kF32};
  };
  cuda_check(kernels::skinny_gemm_pair(product(*args.router, args.router_logits),
                                       product(*args.shared_gate_up, args.gate_up), stream()),
             "skinny_gemm_pair");
  cuda_check(kernels::moe_prepare(route_params({.logits = args.router_logits,
                                                .bias = args.bias,
                                                .seq_of_row = args.seq_of_row,
                                                .norm_topk_prob = args.norm_topk_prob,
                                                .routed_scaling_factor = args.routed_scaling_factor,
                                                .topk_ids = args.topk_ids,
                                                .topk_weights = args.topk_weights}),
                                  {.gate_up = args.gate_up.raw(),
                                   .down = matrix_of(*args.shared_down),
                                   .out = args.shared.raw(),
                                   .hidden_size = to_int(hidden),
                                   .intermediate_size = to_int(args.shared_down->in_features)},
                                  stream()),
             "moe_prepare");
  moe_experts({.x = args.x,
               .topk_ids = args.topk_ids,
               .topk_weights = args.topk_weights,
               .experts = args.experts,
               .shared = args.shared,
               .out = args.out,
               .provenance = args.provenance});
}

void CudaBackend::gather_rows(const GatherRowsArgs& args) {
  const auto element = static_cast<std::int64_t>(size_of(args.src.dtype()));
  cuda_check(kernels::gather_rows({.src = args.src.raw(),
                                   .rows = int32s(args.rows),
                                   .out = args.out.raw(),
                                   .num_rows = args.rows.shape(0),
                                   .row_bytes = args.src.row_size() * element,
                                   .src_stride_bytes = args.src.row_stride() * element,
                                   .out_stride_bytes = args.out.row_stride() * element},
                                  stream()),
             "gather_rows");
}

void CudaBackend::mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) {
  cuda_check(kernels::mla_rope_and_write_kv({.q_pe = args.q_pe.raw(),
                                             .q_pe_row_stride = args.q_pe.row_stride(),
                                             .q_pe_head_stride = args.q_pe.shape(2),
                                             .kv_a = args.kv_a.raw(),
                                             .kv_a_row_stride = args.kv_a.row_stride(),
                                             .kv_norm = floats(args.kv_norm),
                                             .eps = args.eps,
                                             .cos_sin = floats(args.cos_sin),
                                             .positions = int32s(args.positions),
                                             .slots = int32s(args.slots),
                                             .cache = args.cache.raw(),
                                             .num_rows = to_int(args.q_pe.shape(0)),
                                             .num_heads = to_int(args.q_pe.shape(1)),
                                             .kv_lora_rank = to_int(args.kv_norm.shape(0)),
                                             .rope_dim = to_int(args.q_pe.shape(2))},
                                            stream()),
             "mla_rope_and_write_kv");
}

void CudaBackend::mla_queries(const MlaQueriesArgs& args) {
  const bool fits =
      device_.compute_capability == 90 && args.provenance == Provenance::kDecided &&
      reinterpret_cast<std::uintptr_t>(args.qkv_a.raw()) % 16 == 0 &&
      kernels::mla_queries_fits(to_int(args.q_lat.shape(0)), to_int(args.num_heads()),
                                to_int(args.q_norm.shape(0)), to_int(args.kv_norm.shape(0)),
                                to_int(args.nope_dim()), to_int(args.rope_dim()));
  if (!fits) return Backend::mla_queries(args);
  const Tensor q_pe = args.q_pe();
  cuda_check(kernels::mla_queries({.qkv_a = args.qkv_a.raw(),
                                   .qkv_a_stride = args.qkv_a.row_stride(),
                                   .q_norm = floats(args.q_norm),
                                   .kv_norm = floats(args.kv_norm),
                                   .eps = args.eps,
                                   .q_b = matrix_of(*args.q_b),
                                   .k_absorbed = matrix_of(*args.k_absorbed),
                                   .cos_sin = floats(args.cos_sin),
                                   .positions = int32s(args.positions),
                                   .slots = int32s(args.slots),
                                   .cache = args.cache.raw(),
                                   .q_lat = args.q_lat.raw(),
                                   .q_pe = q_pe.raw(),
                                   .q_pe_row_stride = q_pe.row_stride(),
                                   .q_pe_head_stride = q_pe.shape(2),
                                   .num_rows = to_int(args.q_lat.shape(0)),
                                   .num_heads = to_int(args.num_heads())},
                                  stream()),
             "mla_queries");
}

kernels::MlaAttentionParams CudaBackend::mla_params(const AttentionMetadata& metadata,
                                                    std::int64_t num_heads) {
  const int rows = to_int(metadata.seq_of_row.shape(0)), max_path = to_int(metadata.path.shape(1));
  return {.seq_of_row = int32s(metadata.seq_of_row),
          .kv_len = int32s(metadata.kv_len),
          .path_len = int32s(metadata.path_len),
          .path = int32s(metadata.path),
          .block_tables = int32s(metadata.block_tables),
          .max_path = max_path,
          .max_blocks = to_int(metadata.block_tables.shape(1)),
          .num_rows = rows,
          .num_heads = to_int(num_heads),
          .prompt = metadata.provenance == Provenance::kPrompt,
          .workspace = mla_workspace_.get(kernels::mla_attention_workspace_bytes(rows, max_path))};
}

void CudaBackend::plan_mla_attention(const PlanMlaAttentionArgs& args) {
  kernels::MlaAttentionParams params = mla_params(*args.metadata, args.num_heads);
  params.kv_lora_rank = to_int(args.kv_lora_rank);
  params.qk_rope_head_dim = to_int(args.qk_rope_head_dim);
  cuda_check(kernels::mla_plan(params, stream()), "mla_plan");
}

void CudaBackend::mla_attention(const MlaAttentionArgs& args) {
  kernels::MlaAttentionParams params = mla_params(*args.metadata, args.q_lat.shape(1));
  params.q_lat = args.q_lat.raw();
  params.q_pe = args.q_pe.raw();
  params.q_pe_row_stride = args.q_pe.row_stride();
  params.q_pe_head_stride = args.q_pe.shape(2);
  params.cache = args.cache.raw();
  params.o_lat = args.out.raw();
  params.num_blocks = to_int(args.cache.shape(0));
  params.kv_lora_rank = to_int(args.q_lat.shape(2));
  params.qk_rope_head_dim = to_int(args.q_pe.shape(2));
  params.softmax_scale = args.scale;
  cuda_check(kernels::mla_attention(params, stream()), "mla_attention");
}

void CudaBackend::gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) {
  cuda_check(
      kernels::gqa_rope_and_write_kv({.q = args.q.raw(),
                                      .k = args.k.raw(),
                                      .v = args.v.raw(),
                                      .q_row_stride = args.q.row_stride(),
                                      .k_row_stride = args.k.row_stride(),
                                      .v_row_stride = args.v.row_stride(),
                                      .q_norm = floats(args.q_norm),
                                      .k_norm = floats(args.k_norm),
                                      .eps = args.eps,
                                      .interleaved = args.interleaved,
                                      .cos_sin = floats(args.cos_sin),
                                      .positions = int32s(args.positions),
                                      .slots = int32s(args.slots),
                                      .k_cache = args.k_cache.raw(),
                                      .v_cache = args.v_cache.raw(),
                                      .num_rows = to_int(args.k.shape(0)),
                                      .num_heads = args.q.empty() ? 0 : to_int(args.q.shape(1)),
                                      .num_kv_heads = to_int(args.k.shape(1)),
                                      .head_dim = to_int(args.k.shape(2))},
                                     stream()),
      "gqa_rope_and_write_kv");
}

void CudaBackend::gqa_attention(const GqaAttentionArgs& args) {
  const AttentionMetadata& metadata = *args.metadata;
  const int head_dim = to_int(args.q.shape(2)), max_kv_len = to_int(metadata.max_kv_len);
  // Tables of prompts have a row for every place of the batch, used or not.
  const bool one_each = metadata.provenance == Provenance::kDecided;
  cuda_check(
      kernels::gqa_attention({.q = args.q.raw(),
                              .q_row_stride = args.q.row_stride(),
                              .k_cache = args.k_cache.raw(),
                              .v_cache = args.v_cache.raw(),
                              .out = args.out.raw(),
                              .seq_of_row = int32s(metadata.seq_of_row),
                              .kv_len = int32s(metadata.kv_len),
                              .path_len = int32s(metadata.path_len),
                              .path = int32s(metadata.path),
                              .block_tables = int32s(metadata.block_tables),
                              .positions = int32s(args.positions),
                              .max_path = to_int(metadata.path.shape(1)),
                              .max_blocks = to_int(metadata.block_tables.shape(1)),
                              .max_kv_len = max_kv_len,
                              .num_seqs = one_each ? to_int(metadata.block_tables.shape(0)) : 1,
                              .sliding_window = to_int(args.sliding_window),
                              .causal = args.causal,
                              .num_rows = to_int(args.q.shape(0)),
                              .num_heads = to_int(args.q.shape(1)),
                              .num_kv_heads = to_int(args.k_cache.shape(2) / head_dim),
                              .head_dim = head_dim,
                              .softmax_scale = args.scale,
                              .workspace = gqa_workspace_.get(
                                  kernels::gqa_attention_workspace_bytes(max_kv_len, head_dim))},
                             stream()),
      "gqa_attention");
}

}  // namespace coppice
