// A network on paper: the real model, drafter and decode round enqueued on the counting backend,
// for one tensor-parallel rank.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cost/cost_backend.h"
#include "cache/paged_kv_cache.h"
#include "engine/engine_config.h"
#include "model/model_config.h"
#include "model/model_options.h"

namespace coppice {

class ModelRunner;
struct EngineParts;

// The verbs of a round (engine/decode_round.h), verify by what it spends its time on, as in
// docs/bench.md: attention has its plan, rotation and cache write; experts the routing, the router
// and the shared expert; dense the other projections and the activations between them.
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
  std::int64_t fc_ranks = 1;  // more: the drafter's fc is split, though everything else is whole
  WeightFormat expert_format = WeightFormat::kInt4Group32;
  DType kv_dtype = DType::kBF16;
  std::int64_t max_batch = 64;
  std::int64_t max_budget = 64;  // nodes of a tree without its root
  std::int64_t max_model_len = 8192;
  std::int64_t prefill_rows = 512;  // max_num_batched_tokens
  std::int64_t num_kv_blocks = 0;   // 0: for max_batch sequences of max_model_len
  bool pads_rows = true;            // steps have a bucket's rows; a benchmark's have their own
  bool fuses_blocks = true;         // false: router and shared expert count as dense
};

// How the rows of a verify step choose experts.
struct Routing {
  double overlap = 0;         // see distinct_experts (backend/cost/op_cost.h)
  std::vector<double> loads;  // counted (expert_loads, there): then without `overlap`
};

// Bytes of one rank.
struct MemoryUse {
  double target_weights = 0, drafter_weights = 0;
  double target_kv_per_token = 0, drafter_kv_per_token = 0;
  double buffers = 0;  // activations, logits, round buffers, rope tables
  // What the driver takes: weights with their activations and tables, and caches with the buffers
  // of rounds.
  double reserved_target = 0, reserved_drafter = 0, reserved_round = 0;

  double reserved() const { return reserved_target + reserved_drafter + reserved_round; }
};

// Device memory that captured rounds of so many launches in all take beyond what the driver has at
// hand, measured (graph_bytes in docs/bench.md).
double graph_bytes(double launches);

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

  // The largest that ops of the rounds so far asked for, by kernel family.
  const std::map<std::string, std::int64_t>& workspaces() const;
  // Rounds that an engine captures at its start.
  std::int64_t num_graphs() const;

  // One round of `batch` sequences with trees of `budget` nodes each; 0: plain decoding.
  CountedRound round(std::int64_t batch, std::int64_t context_len, std::int64_t budget,
                     double tokens_per_round, const Routing& routing);
  // One forward pass of `rows` rows, a sequence each, and its choices: a plain decode step.
  CountedRound step(std::int64_t rows, std::int64_t context_len, const Routing& routing) {
    return round(rows, context_len, 0, 1, routing);
  }

 private:
  void add_target(const ModelConfig& config, const ModelOptions& model, EngineParts& parts);
  void add_drafter(DflashConfig drafter, const ModelConfig& target, const ModelOptions& model,
                   EngineParts& parts);
  double kv_per_token(const KvLayout& layout) const;

  PaperOptions options_;
  EngineConfig engine_;
  bool has_drafter_ = false;
  std::int64_t block_size_ = 0, head_rows_ = 0;  // of this rank's lm_head
  MemoryUse memory_;
  CostBackend* backend_ = nullptr;  // the runner's
  std::unique_ptr<ModelRunner> runner_;
};

// Kimi K2's published DFlash drafter (block 8, six layers), for plans without its files.
DflashConfig kimi_k2_dflash_config(const ModelConfig& target);

}  // namespace coppice
