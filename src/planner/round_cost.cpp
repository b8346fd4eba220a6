#include "planner/round_cost.h"

#include <algorithm>

#include "engine/graph_capture.h"
#include "engine/model_runner.h"
#include "engine/row_buckets.h"
#include "model/build_model.h"
#include "model/load_model.h"
#include "model/shape_source.h"
#include "model/weight_loader.h"

namespace coppice {
namespace {

std::int64_t divide_up(std::int64_t total, std::int64_t parts) {
  return (total + parts - 1) / parts;
}

// A round's verbs follow each other; the ops that begin one are never part of another.
class PartTracker {
 public:
  PartTracker(std::int64_t head_rows, bool drafts)
      : head_rows_(head_rows), verb_(drafts ? Part::kDraft : Part::kTreeBuild) {}

  Part part_of(const OpCost& cost) {
    const std::string_view op = cost.op;
    if (op == "build_tree" || op == "ngram_propose") verb_ = Part::kTreeBuild;
    if (op == "accept_path") verb_ = Part::kCommit;
    if (op == "compile_tree") {
      verb_ = Part::kDense;  // whatever follows belongs to verify
      return Part::kTreeCompile;
    }
    return verb_ == Part::kDense ? part_of_verify(cost) : verb_;
  }

 private:
  Part part_of_verify(const OpCost& cost) const {
    const std::string_view op = cost.op;
    if (cost.in_moe_block || op == "moe_route") return Part::kExperts;
    if (cost.in_mla_queries) return Part::kDense;
    if (op == "silu_mul") return Part::kDense;
    if (op == "plan_mla_attention" || op.ends_with("rope_and_write_kv")) return Part::kAttention;
    switch (cost.kind) {
      case CostKind::kDense:
        return cost.outputs == head_rows_ ? Part::kLmHead : Part::kDense;
      case CostKind::kExperts:
        return Part::kExperts;
      case CostKind::kAttention:
        return Part::kAttention;
      case CostKind::kVocab:
        return Part::kSample;
      case CostKind::kCollective:
        return Part::kAllReduce;
      case CostKind::kRows:
      case CostKind::kTree:
      case CostKind::kCommit:
        break;
    }
    return Part::kNorms;
  }

  std::int64_t head_rows_;
  Part verb_;
};

// Shapes of one rank's share where widths are already those of one rank: but for the drafter's fc.
class ShareSource final : public ShapeSource {
 public:
  explicit ShareSource(const PaperOptions& options)
      : ShapeSource(options.expert_format), fc_ranks_(options.fc_ranks) {}

  HostMatrix matrix(const WeightSpec& spec) override {
    HostMatrix matrix = ShapeSource::matrix(spec);
    if (spec.name == "fc") matrix.cols /= fc_ranks_;
    return matrix;
  }

 private:
  std::int64_t fc_ranks_;
};

EngineConfig engine_config(bool drafts, const PaperOptions& options) {
  EngineConfig engine;
  engine.max_num_seqs = options.max_batch;
  engine.max_num_batched_tokens = options.prefill_rows;
  const std::int64_t most_rows = options.max_batch * (options.max_budget + 1);
  engine.max_verify_rows = options.pads_rows ? bucket_at_least(most_rows) : most_rows;
  engine.num_kv_blocks =
      options.num_kv_blocks > 0
          ? options.num_kv_blocks
          : options.max_batch * (divide_up(options.max_model_len, kBlockSize) + 4);
  engine.speculative.method = drafts ? SpeculativeMethod::kDdtree : SpeculativeMethod::kNone;
  engine.speculative.max_ddtree_budget = std::max<std::int64_t>(options.max_budget, 1);
  return engine;
}

ModelOptions model_options(const EngineConfig& engine, const std::optional<DflashConfig>& drafter,
                           const PaperOptions& options) {
  ModelOptions model;
  model.max_rows = std::max(engine.max_num_batched_tokens, engine.max_verify_rows);
  if (drafter) model.max_rows = std::max(model.max_rows, options.max_batch * drafter->block_size);
  model.max_positions = options.max_model_len;
  model.parallel = {.rank = 0, .size = options.num_ranks};
  model.max_batch = options.max_batch;
  model.draft_window = engine.speculative.draft_window_size;
  return model;
}

}  // namespace

double graph_bytes(double launches) {
  constexpr double kOfLaunch = 3100, kAtHand = 5e6;
  return std::max(0.0, kOfLaunch * launches - kAtHand);
}

const char* name_of(Part part) {
  switch (part) {
    case Part::kDraft:
      return "draft";
    case Part::kTreeBuild:
      return "tree build";
    case Part::kTreeCompile:
      return "tree compile";
    case Part::kAttention:
      return "attention";
    case Part::kExperts:
      return "experts";
    case Part::kDense:
      return "dense";
    case Part::kLmHead:
      return "lm_head";
    case Part::kAllReduce:
      return "all-reduce";
    case Part::kNorms:
      return "norms";
    case Part::kSample:
      return "sample";
    case Part::kCommit:
      return "commit";
    case Part::kHost:
      return "host";
  }
  return "?";
}

CostTotals CountedRound::totals() const {
  CostTotals totals;
  for (const RoundOp& op : ops) totals.add(op.cost);
  return totals;
}

CostTotals CountedRound::totals(Part part) const {
  CostTotals totals;
  for (const RoundOp& op : ops)
    if (op.part == part) totals.add(op.cost);
  return totals;
}

NetworkOnPaper::NetworkOnPaper(const ModelConfig& target,
                               const std::optional<DflashConfig>& drafter,
                               const PaperOptions& options)
    : options_(options),
      engine_(engine_config(drafter.has_value(), options)),
      has_drafter_(drafter.has_value()) {
  ModelConfig config = target;
  head_rows_ = divide_up(target.vocab_size, options.num_ranks);
  config.vocab_size = head_rows_ * options.num_ranks;
  auto owned =
      std::make_unique<CostBackend>(CostBackend::Options{.kv_dtype = options.kv_dtype,
                                                         .num_ranks = options.num_ranks,
                                                         .fuses_blocks = options.fuses_blocks});
  backend_ = owned.get();
  EngineParts parts;
  static const SteadyClock kClock;
  parts.clock = &kClock;
  const ModelOptions model = model_options(engine_, drafter, options);
  add_target(config, model, parts);
  if (drafter) add_drafter(*drafter, config, model, parts);
  parts.backend = std::move(owned);
  runner_ = std::make_unique<ModelRunner>(engine_, std::move(parts), options.max_model_len);
  const double cache = (memory_.target_kv_per_token + memory_.drafter_kv_per_token) *
                       static_cast<double>(engine_.num_kv_blocks * kBlockSize);
  memory_.reserved_round = static_cast<double>(backend_->reserved_bytes()) -
                           memory_.reserved_target - memory_.reserved_drafter;
  memory_.buffers = static_cast<double>(backend_->allocated_bytes()) - memory_.target_weights -
                    memory_.drafter_weights - cache;
}

void NetworkOnPaper::add_target(const ModelConfig& config, const ModelOptions& model,
                                EngineParts& parts) {
  ShareSource source(options_);
  // Weights as the backend holds them, and the tables and norms beside them.
  parts.model = build_model(*backend_, config, source, model, {});
  const double rows_of_embedding = static_cast<double>(config.vocab_size * config.hidden_size) * 2;
  memory_.target_weights = static_cast<double>(backend_->weight_bytes()) + rows_of_embedding;
  memory_.reserved_target = static_cast<double>(backend_->reserved_bytes());
  memory_.target_kv_per_token = kv_per_token(parts.model->kv_layout());
}

void NetworkOnPaper::add_drafter(DflashConfig drafter, const ModelConfig& target,
                                 const ModelOptions& model, EngineParts& parts) {
  ShareSource source(options_);
  const auto before = static_cast<double>(backend_->weight_bytes());
  block_size_ = drafter.block_size;
  drafter.network.vocab_size = target.vocab_size;
  parts.model->set_feature_layers(drafter.target_layer_ids);
  parts.drafter_model = make_dflash_model(
      *backend_, drafter, load_dflash_weights(*backend_, source, drafter, model.parallel, {}),
      *parts.model, model);
  memory_.drafter_weights = static_cast<double>(backend_->weight_bytes()) - before;
  memory_.reserved_drafter =
      static_cast<double>(backend_->reserved_bytes()) - memory_.reserved_target;
  memory_.drafter_kv_per_token = kv_per_token(parts.drafter_model->kv_layout());
}

double NetworkOnPaper::kv_per_token(const KvLayout& layout) const {
  return static_cast<double>(bytes_per_block(layout, options_.kv_dtype)) / kBlockSize;
}

const std::map<std::string, std::int64_t>& NetworkOnPaper::workspaces() const {
  return backend_->workspaces();
}

std::int64_t NetworkOnPaper::num_graphs() const {
  return std::ssize(shapes_to_capture(*runner_, engine_, false));
}

NetworkOnPaper::~NetworkOnPaper() = default;
NetworkOnPaper::NetworkOnPaper(NetworkOnPaper&&) noexcept = default;

CountedRound NetworkOnPaper::round(std::int64_t batch, std::int64_t context_len,
                                   std::int64_t budget, double tokens_per_round,
                                   const Routing& routing) {
  COPPICE_CHECK(batch >= 1 && batch <= options_.max_batch, batch);
  COPPICE_CHECK(budget >= 0 && budget <= options_.max_budget, budget);
  COPPICE_CHECK(budget == 0 || has_drafter_, "a tree needs a drafter");
  const std::int64_t rows = batch * (budget + 1);
  backend_->set_scenario({.batch = batch,
                          .context_len = context_len,
                          .verify_rows = rows,
                          .tokens_per_round = tokens_per_round,
                          .expert_overlap = routing.overlap,
                          .expert_loads = routing.loads});
  backend_->reset_ops();
  RoundBudgets budgets;
  budgets.drafting = budget > 0;
  budgets.max_rows =
      options_.pads_rows ? std::min(bucket_at_least(rows), runner_->max_verify_rows()) : rows;
  budgets.budgets.assign(static_cast<std::size_t>(batch), static_cast<std::int32_t>(budget));
  budgets.min_scores.assign(static_cast<std::size_t>(batch), 0);
  const BudgetController controller({}, 1, 1);
  const RoundShape shape{.batch = batch,
                         .max_rows = budgets.max_rows,
                         .drafting = budgets.drafting,
                         .sample = {.greedy = true}};
  runner_->finish(runner_->launch(shape, budgets, controller));
  runner_->forget_behind();
  CountedRound cost;
  PartTracker tracker(head_rows_, budgets.drafting);
  for (const OpCost& op : backend_->ops()) cost.ops.push_back({tracker.part_of(op), op});
  cost.num_graphs = backend_->num_graphs();
  cost.num_waits = backend_->num_downloads();
  return cost;
}

DflashConfig kimi_k2_dflash_config(const ModelConfig& target) {
  DflashConfig drafter;
  ModelConfig& network = drafter.network;
  network = target;
  network.architecture = Architecture::kLlama;
  network.num_hidden_layers = 6;
  network.intermediate_size = 18432;
  network.num_attention_heads = 64;
  network.num_key_value_heads = 8;
  network.head_dim = 128;
  network.n_routed_experts = network.n_shared_experts = 0;
  network.qk_norm = true;
  network.rope = {};
  drafter.block_size = 8;
  drafter.mask_token_id = 163838;
  drafter.target_layer_ids = {1, 12, 24, 35, 47, 58};
  drafter.num_target_layers = target.num_hidden_layers;
  drafter.layer_is_sliding.assign(6, false);
  return drafter;
}

}  // namespace coppice
