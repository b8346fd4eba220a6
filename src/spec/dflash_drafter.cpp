#include "spec/drafter.h"
#include "tensor/arena.h"

namespace coppice {
namespace {

class DflashDrafter final : public Drafter {
 public:
  DflashDrafter(Backend& backend, DflashModel& model, PagedKvCache& cache, std::int64_t vocab_size,
                std::int64_t max_num_seqs, std::int64_t top_k)
      : backend_(backend),
        model_(model),
        cache_(cache),
        block_size_(model.config().block_size),
        top_k_(top_k),
        arena_(backend.allocate(bytes_needed(block_size_, vocab_size, max_num_seqs, top_k))) {
    const std::int64_t rows = max_num_seqs * block_size_;
    const std::int64_t predictions = max_num_seqs * (block_size_ - 1);
    for (Tensor* tensor : {&token_ids_, &positions_, &slots_, &seq_of_row_, &kv_len_, &path_len_})
      *tensor = arena_.allocate(DType::kI32, {rows});
    path_ = arena_.allocate(DType::kI32, {rows, 1});
    logits_ = arena_.allocate(DType::kF32, {predictions, vocab_size});
    ids_ = arena_.allocate(DType::kI32, {predictions, top_k});
    log_probs_ = arena_.allocate(DType::kF32, {predictions, top_k});
  }

  const char* name() const override { return top_k_ == 1 ? "chain" : "ddtree"; }
  std::int64_t max_depth() const override { return block_size_ - 1; }
  std::int64_t lookahead() const override { return block_size_; }

  void draft(const DraftBatch& batch) override {
    const std::int64_t count = batch.anchors.shape(0), rows = count * block_size_;
    const std::int64_t predictions = count * max_depth();
    backend_.compile_draft(
        {.anchors = batch.anchors,
         .context_len = batch.context_len,
         .block_tables = batch.block_tables,
         .mask_token_id = static_cast<std::int32_t>(model_.config().mask_token_id),
         .token_ids = token_ids_.rows(0, rows),
         .positions = positions_.rows(0, rows),
         .slots = slots_.rows(0, rows),
         .seq_of_row = seq_of_row_.rows(0, rows),
         .kv_len = kv_len_.rows(0, rows),
         .path_len = path_len_.rows(0, rows)});
    const ForwardBatch block = {
        .token_ids = token_ids_.rows(0, rows),
        .positions = positions_.rows(0, rows),
        .slots = slots_.rows(0, rows),
        .attention = {.seq_of_row = seq_of_row_.rows(0, rows),
                      .kv_len = kv_len_.rows(0, rows),
                      .path_len = path_len_.rows(0, rows),
                      .path = path_.rows(0, rows),
                      .block_tables = batch.block_tables,
                      .max_kv_len = batch.block_tables.shape(1) * kBlockSize,
                      .provenance = Provenance::kDecided},
        .output_rows = {}};
    model_.draft(block, cache_, logits_.rows(0, predictions));
    backend_.top_k_log_probs({.logits = logits_.rows(0, predictions),
                              .ids = ids_.rows(0, predictions),
                              .log_probs = log_probs_.rows(0, predictions)});
  }

  void build_tree(const DraftBatch& batch) override {
    const std::int64_t count = batch.anchors.shape(0), predictions = count * max_depth();
    backend_.build_tree(
        {.ids = ids_.rows(0, predictions).reshape({count, max_depth(), top_k_}),
         .log_probs = log_probs_.rows(0, predictions).reshape({count, max_depth(), top_k_}),
         .anchors = batch.anchors,
         .budgets = batch.budgets,
         .min_scores = batch.min_scores,
         .trees = batch.trees});
  }

 private:
  static std::size_t bytes_needed(std::int64_t block_size, std::int64_t vocab_size,
                                  std::int64_t max_num_seqs, std::int64_t top_k) {
    const std::int64_t numbers = 7 * block_size + (block_size - 1) * (vocab_size + 2 * top_k);
    return static_cast<std::size_t>(max_num_seqs * numbers * 4) + 10 * 256;  // and padding
  }

  Backend& backend_;
  DflashModel& model_;
  PagedKvCache& cache_;
  std::int64_t block_size_, top_k_;
  Arena arena_;
  // Rows of the block, [max_num_seqs * block_size]; path is never read: every path_len is 0.
  Tensor token_ids_, positions_, slots_, seq_of_row_, kv_len_, path_len_, path_;
  Tensor logits_;           // [max_num_seqs * (block_size - 1), vocab_size]
  Tensor ids_, log_probs_;  // [max_num_seqs * (block_size - 1), top_k]
};

}  // namespace

std::unique_ptr<Drafter> make_dflash_drafter(Backend& backend, DflashModel& model,
                                             PagedKvCache& cache, std::int64_t vocab_size,
                                             std::int64_t max_num_seqs, std::int64_t top_k) {
  return std::make_unique<DflashDrafter>(backend, model, cache, vocab_size, max_num_seqs, top_k);
}

}  // namespace coppice
