// Ops around a forward pass: drafts, trees, sampling, commit.
#include <algorithm>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/kernel_args.h"
#include "kernels/draft/draft.h"
#include "kernels/kv/move_kv.h"
#include "kernels/sample/sample_greedy.h"
#include "kernels/sample/top_k_log_probs.h"
#include "kernels/tree/build_tree.h"
#include "kernels/tree/compile_tree.h"

namespace coppice {

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
  if (args.greedy && args.allowed.empty()) {
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

}  // namespace coppice
