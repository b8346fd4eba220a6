#include "spec/drafter.h"

namespace coppice {
namespace {

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

std::unique_ptr<Drafter> make_ngram_drafter(Backend& backend, std::int64_t min_ngram,
                                            std::int64_t max_ngram, std::int64_t max_depth) {
  return std::make_unique<NgramDrafter>(backend, min_ngram, max_ngram, max_depth);
}

}  // namespace coppice
