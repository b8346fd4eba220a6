// A network on paper: the real model, drafter and decode round enqueued on the counting backend,
// for one tensor-parallel rank.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/cost/cost_backend.h"
#include "model/model_config.h"

namespace coppice {

class ModelRunner;

// The verbs of a round (engine/decode_round.h), verify by what it spends its time on, as in
// docs/bench.md: attention has its plan, rotation and cache write; experts the routing; dense the
// activations between projections.
enum class Part : std::uint8_t {
  kDraft,
  kTreeBuild,
  kTreeCompile,
  kAttention,
  kExperts,
  kDense,
  kLmHead,
  kAllReduce,
  kNorms,  // embedding, norms, feature capture
  kSample,
  kCommit,
  kHost,  // graph launches, the wait, the scheduler: not an op
};
inline constexpr std::size_t kNumParts = 12;
const char* name_of(Part part);
// Of the verify step.
constexpr bool is_verify(Part part) {
  return part >= Part::kAttention && part <= Part::kSample;
}

struct RoundOp {
  Part part = Part::kNorms;
  OpCost cost;
};

struct CountedRound {
  std::vector<RoundOp> ops;
  std::int64_t num_graphs = 0, num_waits = 0;

  CostTotals totals() const;
  CostTotals totals(Part part) const;
};

struct PaperOptions {
  std::int64_t num_ranks = 1;
  WeightFormat expert_format = WeightFormat::kInt4Group32;
  DType kv_dtype = DType::kBF16;
  std::int64_t max_batch = 64;
  std::int64_t max_budget = 64;  // nodes of a tree without its root
  std::int64_t max_model_len = 8192;
  std::int64_t prefill_rows = 512;  // max_num_batched_tokens
};

// Bytes of one rank.
struct MemoryUse {
  double target_weights = 0, drafter_weights = 0;
  double target_kv_per_token = 0, drafter_kv_per_token = 0;
  double buffers = 0;  // activations, logits, round buffers, rope tables
};

class NetworkOnPaper {
 public:
  // One rank's share, as the loader splits it; a vocabulary that does not split is rounded up.
  // Throws Error where other widths do not split.
  NetworkOnPaper(const ModelConfig& target, const std::optional<DflashConfig>& drafter,
                 const PaperOptions& options);
  ~NetworkOnPaper();
  NetworkOnPaper(NetworkOnPaper&&) noexcept;

  const MemoryUse& memory() const { return memory_; }
  const PaperOptions& options() const { return options_; }
  bool has_drafter() const { return has_drafter_; }
  std::int64_t block_size() const { return block_size_; }  // of the drafter; 0: none

  // One round of `batch` sequences with trees of `budget` nodes each; 0: plain decoding.
  CountedRound round(std::int64_t batch, std::int64_t context_len, std::int64_t budget,
                     double tokens_per_round, double expert_overlap);
  // One forward pass of `rows` rows, a sequence each, and its choices: a plain decode step.
  CountedRound step(std::int64_t rows, std::int64_t context_len, double expert_overlap) {
    return round(rows, context_len, 0, 1, expert_overlap);
  }

 private:
  PaperOptions options_;
  bool has_drafter_ = false;
  std::int64_t block_size_ = 0, head_rows_ = 0;  // of this rank's lm_head
  MemoryUse memory_;
  CostBackend* backend_ = nullptr;  // the runner's
  std::unique_ptr<ModelRunner> runner_;
};

// Kimi K2's published DFlash drafter (block 8, six layers), for plans without its files.
DflashConfig kimi_k2_dflash_config(const ModelConfig& target);

}  // namespace coppice
