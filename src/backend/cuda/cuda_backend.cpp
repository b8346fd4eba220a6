// The op table on one GPU: each op turns its tensors into a kernel's params. One stream; nothing
// waits.
#include "backend/cuda/cuda_backend.h"

#include <algorithm>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_weights.h"
#include "backend/cuda/graph_cache.h"
#include "backend/cuda/kernel_args.h"
#include "kernels/draft/draft.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gqa/gqa_attention.h"
#include "kernels/kv/move_kv.h"
#include "kernels/mla/mla_attention.h"
#include "kernels/moe/moe_experts.h"
#include "kernels/moe/moe_route.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/gqa_rope.h"
#include "kernels/rope/mla_rope.h"
#include "kernels/rows/rows.h"
#include "kernels/sample/sample_greedy.h"
#include "kernels/sample/sample_rows.h"
#include "kernels/sample/top_k_log_probs.h"
#include "kernels/tree/accept_path.h"
#include "kernels/tree/build_tree.h"
#include "kernels/tree/compile_tree.h"

namespace coppice {
namespace {

// Kernels with a workspace that counts rows are sized for this many once, so that the counters at
// its front stay in place.
constexpr int kMaxSampleRows = 4096;

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index) : device_(open_cuda_device(index)), stream_(make_stream()) {}
  ~CudaBackend() override { cudaStreamSynchronize(stream_.get()); }

  std::string name() const override {
    return "cuda sm_" + std::to_string(device_.compute_capability) + " " + device_.name;
  }
  Device device() const override { return Device::kCuda; }
  DType activation_dtype() const override { return DType::kBF16; }
  DType kv_dtype() const override { return DType::kBF16; }

  Buffer allocate(std::size_t num_bytes) override { return allocate_device(num_bytes, stream()); }
  void upload(const Tensor& dst, const void* src) override {
    if (dst.num_bytes() == 0) return;
    cuda_check(cudaMemcpyAsync(dst.raw(), src, static_cast<std::size_t>(dst.num_bytes()),
                               cudaMemcpyHostToDevice, stream()),
               "upload");
  }
  void download(void* dst, const Tensor& src) override {
    cuda_check(cudaMemcpyAsync(dst, src.raw(), static_cast<std::size_t>(src.num_bytes()),
                               cudaMemcpyDeviceToHost, stream()),
               "download");
    synchronize();
  }
  void synchronize() override { cuda_check(cudaStreamSynchronize(stream()), "synchronize"); }

  LinearWeight load_linear(std::span<const HostMatrix> parts) override;
  ExpertWeights load_experts(std::span<const ExpertSource> experts) override;

  void run_graph(const GraphKey& key, const std::function<void()>& body) override {
    graphs_.run(key, stream(), body);
  }
  void forget_graphs() override { graphs_.clear(); }

  void embed(const EmbedArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void add_rms_norm(const AddRmsNormArgs& args) override;
  void linear(const LinearArgs& args) override;
  void head_linear(const HeadLinearArgs& args) override;
  void silu_mul(const SiluMulArgs& args) override;
  void moe_route(const MoeRouteArgs& args) override;
  void moe_experts(const MoeExpertsArgs& args) override;
  void all_reduce(const AllReduceArgs&) override {}  // one rank
  void gather_rows(const GatherRowsArgs& args) override;

  void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) override;
  void plan_mla_attention(const PlanMlaAttentionArgs& args) override;
  void mla_attention(const MlaAttentionArgs& args) override;
  void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) override;
  void gqa_attention(const GqaAttentionArgs& args) override;

  void compile_draft(const CompileDraftArgs& args) override;
  void top_k_log_probs(const TopKLogProbsArgs& args) override;
  void build_tree(const BuildTreeArgs& args) override;
  void ngram_propose(const NgramProposeArgs& args) override;
  void compile_tree(const CompileTreeArgs& args) override;
  void sample_rows(const SampleRowsArgs& args) override;
  void accept_path(const AcceptPathArgs& args) override;
  void move_kv(const MoveKvArgs& args) override;

 private:
  struct StreamDeleter {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;

  static Stream make_stream() {
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
    return Stream(stream);
  }
  cudaStream_t stream() const { return stream_.get(); }

  // out[t, h] = W[h] x[t, h]; x and out [T, num_heads * n].
  void product(const Tensor& x, const LinearWeight& weight, const Tensor& out,
               std::int64_t num_heads);
  kernels::MlaAttentionParams mla_params(const AttentionMetadata& metadata, std::int64_t num_heads);

  CudaDevice device_;
  Stream stream_;
  // Each kernel family keeps counters at the front of its own workspace, zero between calls.
  CudaWorkspace gemm_workspace_{stream()}, moe_workspace_{stream()}, mla_workspace_{stream()},
      gqa_workspace_{stream()}, top_k_workspace_{stream()}, greedy_workspace_{stream()},
      counts_workspace_{stream()}, ticket_workspace_{stream()};
  GraphCache graphs_;
};

LinearWeight CudaBackend::load_linear(std::span<const HostMatrix> parts) {
  std::int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  return {
      .out_features = rows, .in_features = parts[0].cols, .packed = upload_matrix(parts, stream())};
}

ExpertWeights CudaBackend::load_experts(std::span<const ExpertSource> experts) {
  return {.num_experts = std::ssize(experts),
          .hidden_size = experts[0].gate.cols,
          .intermediate_size = experts[0].gate.rows,
          .packed = upload_experts(experts, stream())};
}

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
  cuda_check(kernels::rms_norm({.x = args.residual.raw(),
                                .delta = args.delta.raw(),
                                .residual = args.residual.raw(),
                                .weight = floats(args.weight),
                                .out = args.out.raw(),
                                .x_row_stride = args.residual.row_stride(),
                                .delta_row_stride = args.delta.row_stride(),
                                .residual_row_stride = args.residual.row_stride(),
                                .out_row_stride = args.out.row_stride(),
                                .num_rows = to_int(args.out.shape(0)),
                                .hidden_size = to_int(args.out.shape(1)),
                                .eps = args.eps},
                               stream()),
             "add_rms_norm");
}

void CudaBackend::product(const Tensor& x, const LinearWeight& weight, const Tensor& out,
                          std::int64_t num_heads) {
  const std::int64_t outputs = weight.out_features / num_heads, inputs = weight.in_features;
  const void* const matrix = static_cast<const CudaMatrix*>(weight.packed.get())->data.data();
  const bool out_is_f32 = out.dtype() == DType::kF32;
  const bool fits_tensor_cores =
      outputs % 16 == 0 && inputs % 64 == 0 && x.row_stride() % 8 == 0 && out.row_stride() % 2 == 0;
  if (!fits_tensor_cores) {
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
  const int tokens = to_int(x.shape(0)), heads = to_int(num_heads);
  void* const workspace = gemm_workspace_.get(
      kernels::skinny_gemm_workspace_bytes(tokens, heads, to_int(outputs), to_int(inputs)));
  cuda_check(kernels::skinny_gemm({.x = x.raw(),
                                   .weight = matrix,
                                   .out = out.raw(),
                                   .workspace = workspace,
                                   .num_tokens = tokens,
                                   .num_heads = heads,
                                   .outputs = to_int(outputs),
                                   .inputs = to_int(inputs),
                                   .x_stride = x.row_stride(),
                                   .out_stride = out.row_stride(),
                                   .out_is_float = out_is_f32},
                                  stream()),
             "skinny_gemm");
}

void CudaBackend::linear(const LinearArgs& args) {
  product(args.x, *args.weight, args.out, 1);
}

void CudaBackend::head_linear(const HeadLinearArgs& args) {
  product(args.x, *args.weight, args.out, args.x.shape(1));
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
  cuda_check(kernels::moe_route({.logits = floats(args.logits),
                                 .bias = floats(args.bias),
                                 .seq_of_row = int32s(args.seq_of_row),
                                 .topk_ids = int32s(args.topk_ids),
                                 .topk_weights = floats(args.topk_weights),
                                 .num_tokens = to_int(args.logits.shape(0)),
                                 .num_experts = to_int(args.logits.shape(1)),
                                 .top_k = to_int(args.topk_ids.shape(1)),
                                 .routed_scaling_factor = args.routed_scaling_factor,
                                 .norm_topk_prob = args.norm_topk_prob},
                                stream()),
             "moe_route");
}

void CudaBackend::moe_experts(const MoeExpertsArgs& args) {
  const ExpertWeights& experts = *args.experts;
  const auto& blobs = *static_cast<const CudaExperts*>(experts.packed.get());
  const int tokens = to_int(args.x.shape(0)), top_k = to_int(args.topk_ids.shape(1));
  if (tokens == 0) {
    if (!args.distinct_experts.empty())
      cuda_check(cudaMemsetAsync(args.distinct_experts.raw(), 0, sizeof(std::int32_t), stream()),
                 "moe_experts");
    return;
  }
  const int num_experts = to_int(experts.num_experts);
  const int hidden = to_int(experts.hidden_size), intermediate = to_int(experts.intermediate_size);
  void* const workspace = moe_workspace_.get(
      kernels::moe_experts_workspace_bytes(tokens, top_k, num_experts, hidden, intermediate));
  cuda_check(kernels::moe_experts({.x = args.x.raw(),
                                   .topk_ids = int32s(args.topk_ids),
                                   .topk_weights = floats(args.topk_weights),
                                   .w13 = blobs.w13.data(),
                                   .w2 = blobs.w2.data(),
                                   .shared = args.shared.raw(),
                                   .out = args.out.raw(),
                                   .num_active_experts = int32s(args.distinct_experts),
                                   .workspace = workspace,
                                   .num_tokens = tokens,
                                   .top_k = top_k,
                                   .num_experts = num_experts,
                                   .hidden_size = hidden,
                                   .intermediate_size = intermediate},
                                  stream()),
             "moe_experts");
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

void CudaBackend::compile_draft(const CompileDraftArgs& args) {
  const int num_seqs = to_int(args.anchors.shape(0));
  cuda_check(kernels::compile_draft(
                 {.anchors = int32s(args.anchors),
                  .context_len = int32s(args.context_len),
                  .block_tables = int32s(args.block_tables),
                  .token_ids = int32s(args.token_ids),
                  .positions = int32s(args.positions),
                  .slots = int32s(args.slots),
                  .seq_of_row = int32s(args.seq_of_row),
                  .kv_len = int32s(args.kv_len),
                  .path_len = int32s(args.path_len),
                  .num_seqs = num_seqs,
                  .block_size = num_seqs > 0 ? to_int(args.token_ids.shape(0)) / num_seqs : 0,
                  .max_blocks = to_int(args.block_tables.shape(1)),
                  .mask_token_id = args.mask_token_id},
                 stream()),
             "compile_draft");
}

void CudaBackend::top_k_log_probs(const TopKLogProbsArgs& args) {
  const int rows = to_int(args.logits.shape(0)), vocab_size = to_int(args.logits.shape(1));
  COPPICE_CHECK_LE(rows, kMaxSampleRows);
  cuda_check(kernels::top_k_log_probs(
                 {.logits = args.logits.raw(),
                  .row_stride = args.logits.row_stride(),
                  .logits_are_bf16 = args.logits.dtype() == DType::kBF16,
                  .num_rows = rows,
                  .vocab_size = vocab_size,
                  .k = to_int(args.ids.shape(1)),
                  .max_rows = kMaxSampleRows,
                  .ids = int32s(args.ids),
                  .log_probs = floats(args.log_probs),
                  .workspace = top_k_workspace_.get(
                      kernels::top_k_log_probs_workspace_bytes(kMaxSampleRows, vocab_size))},
                 stream()),
             "top_k_log_probs");
}

void CudaBackend::build_tree(const BuildTreeArgs& args) {
  cuda_check(kernels::build_tree({.ids = int32s(args.ids),
                                  .log_probs = floats(args.log_probs),
                                  .anchors = int32s(args.anchors),
                                  .budgets = int32s(args.budgets),
                                  .min_scores = floats(args.min_scores),
                                  .num_seqs = to_int(args.ids.shape(0)),
                                  .depth = to_int(args.ids.shape(1)),
                                  .k = to_int(args.ids.shape(2)),
                                  .trees = tree_arrays(args.trees)},
                                 stream()),
             "build_tree");
}

void CudaBackend::ngram_propose(const NgramProposeArgs& args) {
  cuda_check(kernels::ngram_propose({.history = int32s(args.history),
                                     .history_len = int32s(args.history_len),
                                     .anchors = int32s(args.anchors),
                                     .budgets = int32s(args.budgets),
                                     .trees = tree_arrays(args.trees),
                                     .num_seqs = to_int(args.anchors.shape(0)),
                                     .history_stride = to_int(args.history.row_stride()),
                                     .min_ngram = args.min_ngram,
                                     .max_ngram = args.max_ngram},
                                    stream()),
             "ngram_propose");
}

void CudaBackend::compile_tree(const CompileTreeArgs& args) {
  const bool cut = !args.cost_ms.empty();
  cuda_check(
      kernels::compile_tree(
          {.trees = tree_arrays(args.trees),
           .context_len = int32s(args.context_len),
           .block_tables = int32s(args.block_tables),
           .cost_ms = floats(args.cost_ms),
           .bucket_rows = int32s(args.bucket_rows),
           .calibration = floats(args.calibration),
           .num_buckets = cut ? to_int(args.cost_ms.shape(0)) : 0,
           .num_seqs = to_int(args.context_len.shape(0)),
           .max_blocks = to_int(args.block_tables.shape(1)),
           .num_rows = to_int(args.token_ids.shape(0)),
           .max_path = to_int(args.path.shape(1)),
           .token_ids = int32s(args.token_ids),
           .positions = int32s(args.positions),
           .slots = int32s(args.slots),
           .seq_of_row = int32s(args.seq_of_row),
           .node_of_row = int32s(args.node_of_row),
           .kv_len = int32s(args.kv_len),
           .path_len = int32s(args.path_len),
           .path = int32s(args.path),
           .row_offsets = int32s(args.row_offsets),
           .ticket = static_cast<std::int32_t*>(ticket_workspace_.get(sizeof(std::int32_t)))},
          stream()),
      "compile_tree");
}

void CudaBackend::sample_rows(const SampleRowsArgs& args) {
  const int rows = to_int(args.logits.shape(0)), vocab_size = to_int(args.logits.shape(1));
  if (args.greedy) {
    COPPICE_CHECK_LE(rows, kMaxSampleRows);
    cuda_check(kernels::sample_greedy({.logits = floats(args.logits),
                                       .row_stride = args.logits.row_stride(),
                                       .seq_of_row = int32s(args.seq_of_row),
                                       .num_rows = rows,
                                       .vocab_size = vocab_size,
                                       .max_rows = kMaxSampleRows,
                                       .choices = int32s(args.choices),
                                       .finite = int32s(args.finite),
                                       .workspace = greedy_workspace_.get(
                                           kernels::sample_greedy_workspace_bytes(kMaxSampleRows))},
                                      stream()),
               "sample_greedy");
  } else {
    kernels::SampleRowsParams params = sample_params(args);
    params.token_counts = static_cast<std::uint32_t*>(counts_workspace_.get(
        static_cast<std::size_t>(params.num_seqs) * static_cast<std::size_t>(vocab_size) * 4));
    cuda_check(kernels::sample_rows(params, stream()), "sample_rows");
  }
  if (args.log_probs.empty()) return;
  cuda_check(kernels::choice_log_probs({.logits = floats(args.logits),
                                        .choices = int32s(args.choices),
                                        .log_probs = floats(args.log_probs),
                                        .row_stride = args.logits.row_stride(),
                                        .num_rows = rows,
                                        .vocab_size = vocab_size},
                                       stream()),
             "choice_log_probs");
}

void CudaBackend::accept_path(const AcceptPathArgs& args) {
  cuda_check(kernels::accept_path(accept_params(args), stream()), "accept_path");
}

void CudaBackend::move_kv(const MoveKvArgs& args) {
  kernels::MoveKvParams params = {
      .row_bytes = to_int(args.planes[0].shape(2) *
                          static_cast<std::int64_t>(size_of(args.planes[0].dtype()))),
      .src = int32s(args.src),
      .dst = int32s(args.dst),
      .num_pairs = to_int(args.src.shape(0))};
  // Planes that do not fit one launch go into further ones: planes are independent of each other.
  for (std::size_t begin = 0; begin < args.planes.size(); begin += kernels::kMoveKvMaxPlanes) {
    const std::size_t count =
        std::min<std::size_t>(kernels::kMoveKvMaxPlanes, args.planes.size() - begin);
    for (std::size_t i = 0; i < count; ++i) params.planes[i] = args.planes[begin + i].raw();
    params.num_planes = static_cast<int>(count);
    cuda_check(kernels::move_kv(params, stream()), "move_kv");
  }
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device_index) {
  return std::make_unique<CudaBackend>(device_index);
}

}  // namespace coppice
