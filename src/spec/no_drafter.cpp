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

}  // namespace

std::unique_ptr<Drafter> make_no_drafter(Backend& backend, std::int64_t max_num_seqs) {
  return std::make_unique<NoDrafter>(backend, max_num_seqs);
}

}  // namespace coppice
