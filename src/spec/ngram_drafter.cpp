// The drafters without a network.
#include "spec/drafter.h"

namespace coppice {
namespace {

class NoDrafter final : public Drafter {
 public:
  NoDrafter(Backend& backend, std::int64_t max_num_seqs)
      : backend_(backend),
        buffer_(backend.allocate(static_cast<std::size_t>(max_num_seqs) * 8)),
        ids_(buffer_.tensor(DType::kI32, {max_num_seqs, 1, 1})),
        log_probs_(buffer_.tensor(DType::kF32, {max_num_seqs, 1, 1},
                                  static_cast<std::size_t>(max_num_seqs) * 4)) {}

  const char* name() const override { return "none"; }
  std::int64_t max_depth() const override { return 0; }
  void draft(const DraftBatch&) override {}
  void build_tree(const DraftBatch& batch) override {
    const std::int64_t count = batch.anchors.shape(0);
    backend_.build_tree({.ids = ids_.rows(0, count),
                         .log_probs = log_probs_.rows(0, count),
                         .anchors = batch.anchors,
                         .budgets = batch.budgets,
                         .min_scores = batch.min_scores,
                         .trees = batch.trees});
  }

 private:
  Backend& backend_;
  Buffer buffer_;
  Tensor ids_, log_probs_;  // [max_num_seqs, 1, 1], never read: budgets are 0
};

class NgramDrafter final : public Drafter {
 public:
  NgramDrafter(Backend& backend, std::int64_t min_ngram, std::int64_t max_ngram,
               std::int64_t max_depth)
      : backend_(backend),
        min_ngram_(static_cast<std::int32_t>(min_ngram)),
        max_ngram_(static_cast<std::int32_t>(max_ngram)),
        max_depth_(max_depth) {}

  const char* name() const override { return "ngram"; }
  std::int64_t max_depth() const override { return max_depth_; }
  void draft(const DraftBatch&) override {}
  void build_tree(const DraftBatch& batch) override {
    backend_.ngram_propose({.history = batch.sampling.history,
                            .history_len = batch.sampling.history_len,
                            .anchors = batch.anchors,
                            .budgets = batch.budgets,
                            .min_ngram = min_ngram_,
                            .max_ngram = max_ngram_,
                            .trees = batch.trees});
  }

 private:
  Backend& backend_;
  std::int32_t min_ngram_, max_ngram_;
  std::int64_t max_depth_;
};

}  // namespace

std::unique_ptr<Drafter> make_no_drafter(Backend& backend, std::int64_t max_num_seqs) {
  return std::make_unique<NoDrafter>(backend, max_num_seqs);
}

std::unique_ptr<Drafter> make_ngram_drafter(Backend& backend, std::int64_t min_ngram,
                                            std::int64_t max_ngram, std::int64_t max_depth) {
  return std::make_unique<NgramDrafter>(backend, min_ngram, max_ngram, max_depth);
}

}  // namespace coppice
