// Does a model fit a machine, how long does each stage of a round take there, what limits it, and
// what would change it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "io/json.h"
#include "planner/acceptance.h"
#include "planner/expert_overlap.h"
#include "planner/kernel_times.h"
#include "planner/round_cost.h"
#include "planner/round_times.h"

namespace coppice {

struct PlanRequest {
  std::string model;  // as the user gave it
  ModelConfig target;
  WeightFormat expert_format = WeightFormat::kInt4Group32;
  std::string drafter;  // "" for none
  std::optional<DflashConfig> drafter_config;
  std::vector<DeviceSpec> devices;
  std::int64_t num_ranks = 1;
  std::vector<std::int64_t> batches = {1, 8, 64};
  std::vector<std::int64_t> contexts = {8192};
  std::int64_t budget = kAutoBudget;
  std::string acceptance = "coding";
  ExpertOverlap expert_overlap;
  DType kv_dtype = DType::kBF16;
  double memory_utilization = 0.92;
  double host_us = -1;  // of a round; negative: from its graph launches and waits
};

// Bytes of one GPU.
struct MemoryPlan {
  double usable = 0;  // what the driver reports, times memory_utilization
  double target_weights = 0, drafter_weights = 0;
  double buffers = 0;   // activations, logits, round buffers, kernel workspaces
  double graphs = 0;    // captured
  double runtime = 0;   // CUDA context, communicators
  double kv_bytes = 0;  // what is left for the caches; negative: what is missing
  double kv_per_token = 0;
  std::int64_t kv_tokens = 0;
  bool fits = false;  // the smallest batch and context of the plan has room

  double taken() const { return target_weights + drafter_weights + buffers + graphs + runtime; }
};

struct PlannedRound {
  std::int64_t batch = 0, context = 0, budget = 0;
  double tokens_per_round = 1;  // of a sequence
  RoundTime time;
  CostTotals totals;            // of one GPU
  double distinct_experts = 0;  // a layer

  double tokens_per_s_user() const { return tokens_per_round / time.total().us() * 1e6; }
  double tokens_per_s() const { return static_cast<double>(batch) * tokens_per_s_user(); }
};

// What a round would take if one thing were better.
struct Change {
  std::string what;
  double us = 0;
};
std::vector<Change> amdahl_table(const PlannedRound& round);

// All budgets that were looked at, for one batch and context.
struct PlannedPoint {
  std::vector<PlannedRound> rounds;  // ascending budgets, plain decoding first
  std::size_t best = 0;              // most tokens a second
  bool fits = false;                 // the cache holds batch x context

  const PlannedRound& plain() const { return rounds.front(); }
  const PlannedRound& best_round() const { return rounds[best]; }
};

struct DevicePlan {
  DeviceSpec device;
  MemoryPlan memory;
  std::vector<PlannedPoint> points;  // batches within contexts
};

struct Plan {
  PlanRequest request;
  AcceptanceModel acceptance;
  std::string times_source;  // where kernel times are from
  std::string times_device;  // the GPU they were measured on
  MemoryUse use;
  std::vector<DevicePlan> devices;
};

// Throws Error where the network does not split over num_ranks, for a drafter of another target,
// for a budget that needs a drafter or more rows than a step has, and for contexts beyond the
// model's positions.
Plan make_plan(const PlanRequest& request, const RoundTimes& times);

// Budgets that a plan looks at: none, and those that fill a bucket of one sequence.
std::vector<std::int64_t> candidate_budgets(std::int64_t max_budget);

// What of the sums over ranks was measured; "" on one GPU.
std::string sums_note(const Plan& plan);

// Whether a GPU holds the model with the smallest batch and context.
std::string fits_note(const PlanRequest& request, const DevicePlan& device);
// What to try when none does.
std::string nothing_fits_note(const Plan& plan);

std::string plan_as_text(const Plan& plan);
Json plan_as_json(const Plan& plan);
// One page that needs nothing else: figures are SVG, each says what is measured and what predicted.
std::string plan_as_html(const Plan& plan);

}  // namespace coppice
