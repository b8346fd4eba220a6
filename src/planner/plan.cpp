#include "planner/plan.h"

#include <algorithm>

#include "base/error.h"
#include "engine/row_buckets.h"
#include "model/load_model.h"

namespace coppice {
namespace {

constexpr double kContextBytes = 0.6e9;  // CUDA context and kernels
constexpr double kLinkBytes = 0.4e9;     // communicators and exchange buffers

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

std::int64_t smallest(const std::vector<std::int64_t>& values) {
  return *std::min_element(values.begin(), values.end());
}

// What of a network does not depend on the GPU.
struct FixedMemory {
  double workspaces = 0, graphs = 0;
};

MemoryPlan plan_memory(const PlanRequest& request, const MemoryUse& use, const FixedMemory& fixed,
                       const DeviceSpec& device) {
  MemoryPlan memory;
  memory.usable = device.memory_gib * 1073741824.0 * request.memory_utilization;
  memory.target_weights = use.target_weights;
  memory.drafter_weights = use.drafter_weights;
  memory.buffers = use.buffers + fixed.workspaces;
  memory.graphs = fixed.graphs;
  memory.runtime = kContextBytes + (request.num_ranks > 1 ? kLinkBytes : 0);
  memory.kv_bytes = memory.usable - memory.taken();
  memory.kv_per_token = use.target_kv_per_token + use.drafter_kv_per_token;
  memory.kv_tokens =
      memory.kv_bytes > 0 ? static_cast<std::int64_t>(memory.kv_bytes / memory.kv_per_token) : 0;
  memory.fits = memory.kv_tokens >= smallest(request.batches) * smallest(request.contexts);
  return memory;
}

// A given budget that no round could have, rather than a smaller one in silence.
void check_budget(const PlanRequest& request) {
  if (request.budget == kAutoBudget || request.budget == 0) return;
  if (!request.drafter_config)
    throw Error(ErrorKind::kInvalidArgument, "--budget " + std::to_string(request.budget) +
                                                 ": trees need --drafter (or kimi-k2-dflash)");
  const std::int64_t batch = largest(request.batches), most = kRowBuckets.back() / batch - 1;
  if (request.budget > most)
    throw Error(ErrorKind::kInvalidArgument,
                "--budget " + std::to_string(request.budget) + ": a step has at most " +
                    std::to_string(kRowBuckets.back()) + " rows, so that --batch " +
                    std::to_string(batch) + " leaves " +
                    std::to_string(std::max<std::int64_t>(most, 0)) + " nodes");
}

// As the engine refuses them.
void check_contexts(const PlanRequest& request) {
  const std::int64_t most = request.target.max_position_embeddings;
  if (largest(request.contexts) > most)
    throw Error(ErrorKind::kInvalidArgument,
                "--context " + std::to_string(largest(request.contexts)) +
                    ": the model's max_position_embeddings is " + std::to_string(most));
}

class Planner {
 public:
  Planner(const PlanRequest& request, const RoundTimes& times)
      : request_(request),
        times_(times),
        network_(request.target, request.drafter_config, paper_options(request)) {
    max_budget_ = network_.has_drafter() ? network_.options().max_budget : 0;
    acceptance_ =
        acceptance_model(request.acceptance, std::max<std::int64_t>(network_.block_size() - 1, 0));
    tokens_ = tokens_per_round(acceptance_, max_budget_);
  }

  Plan run() {
    Plan plan{.request = request_,
              .acceptance = acceptance_,
              .times_source = times_.source(),
              .times_device = std::string(times_.device().title),
              .use = network_.memory()};
    const FixedMemory fixed = fixed_memory();
    for (const DeviceSpec& device : request_.devices)
      plan.devices.push_back(
          {.device = device, .memory = plan_memory(request_, plan.use, fixed, device)});
    for (const std::int64_t context : request_.contexts)
      for (const std::int64_t batch : request_.batches) plan_point(plan, batch, context);
    return plan;
  }

 private:
  // Of the largest round; every captured one has about its launches.
  FixedMemory fixed_memory() {
    const CountedRound largest_round =
        network_.round(largest(request_.batches), largest(request_.contexts), max_budget_, 1, {});
    FixedMemory fixed{.graphs = graph_bytes(static_cast<double>(largest_round.totals().launches *
                                                                network_.num_graphs()))};
    for (const auto& [family, bytes] : network_.workspaces())
      fixed.workspaces += static_cast<double>(reserved_for(bytes));
    return fixed;
  }

  static PaperOptions paper_options(const PlanRequest& request) {
    PaperOptions options;
    options.num_ranks = request.num_ranks;
    options.expert_format = request.expert_format;
    options.kv_dtype = request.kv_dtype;
    options.max_batch = largest(request.batches);
    const std::int64_t most = kRowBuckets.back() / options.max_batch - 1;
    options.max_budget = std::clamp<std::int64_t>(
        request.budget == kAutoBudget ? 63 : request.budget, 0, std::max<std::int64_t>(most, 0));
    options.max_model_len = largest(request.contexts) + 1024;
    return options;
  }

  // The ops are the same on every GPU, so they are counted once.
  void plan_point(Plan& plan, std::int64_t batch, std::int64_t context) {
    for (DevicePlan& device : plan.devices)
      device.points.push_back(
          {.fits = device.memory.kv_tokens >= batch * context && device.memory.fits});
    for (const std::int64_t budget : budgets()) {
      const double tokens = tokens_[static_cast<std::size_t>(budget)];
      const CountedRound cost = network_.round(
          batch, context, budget, tokens,
          {.overlap = request_.expert_overlap.at(static_cast<double>(batch * (budget + 1)))});
      double distinct = 0;
      for (const RoundOp& op : cost.ops) distinct = std::max(distinct, op.cost.distinct_experts);
      for (DevicePlan& device : plan.devices) {
        PlannedPoint& point = device.points.back();
        point.rounds.push_back(
            {.batch = batch,
             .context = context,
             .budget = budget,
             .tokens_per_round = tokens,
             .time = times_.time(cost, device.device, request_.num_ranks, request_.host_us),
             .totals = cost.totals(),
             .distinct_experts = distinct});
        if (point.rounds.back().tokens_per_s() > point.best_round().tokens_per_s())
          point.best = point.rounds.size() - 1;
      }
    }
  }

  // A given budget is compared with plain decoding only.
  std::vector<std::int64_t> budgets() const {
    if (max_budget_ == 0) return {0};
    if (request_.budget != kAutoBudget) return {0, max_budget_};
    return candidate_budgets(max_budget_);
  }

  const PlanRequest& request_;
  const RoundTimes& times_;
  NetworkOnPaper network_;
  AcceptanceModel acceptance_;
  std::int64_t max_budget_ = 0;
  std::vector<double> tokens_;
};

}  // namespace

std::vector<std::int64_t> candidate_budgets(std::int64_t max_budget) {
  std::vector<std::int64_t> budgets;
  for (const std::int32_t bucket : kRowBuckets)
    if (bucket - 1 <= max_budget) budgets.push_back(bucket - 1);
  return budgets;
}

std::vector<Change> amdahl_table(const PlannedRound& round) {
  const OpTime total = round.time.total();
  const double host = round.time[Part::kHost].us();
  const double now = total.us();
  return {{"memory twice as fast", now - total.memory_us / 2},
          {"memory 4.5 times as fast", now - total.memory_us * (1 - 1 / 4.5)},
          {"products twice as fast", now - total.math_us / 2},
          {"links twice as fast", now - total.link_us / 2},
          {"no fixed time in kernels and collectives", now - (total.fixed_us - host)},
          {"no host time", now - host},
          {"all of it: bytes at the read rate of today", total.memory_us}};
}

std::string sums_note(const Plan& plan) {
  const std::int64_t ranks = plan.request.num_ranks;
  if (ranks == 1) return "";
  std::string measured, assumed;
  for (const DevicePlan& entry : plan.devices) {
    const std::int64_t on = entry.device.peer_sum.measured_ranks;
    std::string& list = on > 0 ? measured : assumed;
    list += (list.empty() ? "" : ", ") + std::string(entry.device.title);
    if (on > 0)
      list += ": measured on " + std::to_string(on) +
              (ranks == on ? "" : ", predicted for " + std::to_string(ranks));
  }
  if (!assumed.empty()) measured += (measured.empty() ? "" : "; ") + assumed + ": assumed";
  return "Sums over ranks: " + measured + ".";
}

Plan make_plan(const PlanRequest& request, const RoundTimes& times) {
  check_budget(request);
  check_contexts(request);
  if (request.drafter_config)
    check_fits_target(request.drafter, *request.drafter_config, request.target);
  return Planner(request, times).run();
}

}  // namespace coppice
