#include "tests/engine/support/round_simulator.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/ops.h"
#include "tests/spec/support/host_tensors.h"

namespace coppice::testing {
namespace {

// splitmix64: one draw from [0, 1) for each state.
double draw(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

}  // namespace

RoundSimulator::RoundSimulator(const World& world, std::int64_t budget, PlanFault fault)
    : world_(world),
      controller_({.method = SpeculativeMethod::kDdtree,
                   .ddtree_budget = budget,
                   .max_ddtree_budget = kSimulatedNodes},
                  kSimulatedDepth, 512),
      budget_(budget),
      fault_(std::move(fault)),
      positions_(static_cast<std::size_t>(world.batch), 0) {
  for (std::int64_t rows = 1; rows <= 512; rows *= 2)
    controller_.expect_cost(rows, world.expected * world.verify_ms(rows));
}

RoundSimulator::Total RoundSimulator::play_rounds(std::int64_t rounds) {
  Total total;
  while (round_ < rounds) play_round(total);
  return total;
}

double RoundSimulator::play_tokens(std::int64_t tokens) {
  Total total;
  while (total.tokens < tokens) play_round(total);
  return total.ms * static_cast<double>(tokens) / static_cast<double>(total.tokens);
}

// A slot's probabilities fall geometrically; the truth is drawn from them, scaled.
RoundSimulator::Draft RoundSimulator::draft_at(std::int64_t sequence, std::int64_t position) const {
  Draft draft;
  auto state = static_cast<std::uint64_t>(sequence * 1'000'003 + position) * 64;
  for (std::int64_t d = 0; d < kSimulatedDepth; ++d) {
    const double spread = draw(state) + draw(state) + draw(state) - 1.5;  // deviation 0.5
    const double top = std::clamp(world_.sharpness(position) + 0.4 * spread, 0.05, 0.98);
    const double truth = draw(state) / world_.calibration;
    double p = top, sum = 0;
    std::int32_t rank = -1;
    for (std::int32_t r = 0; r < kSimulatedNodes; ++r) {
      draft.log_probs.push_back(static_cast<float>(std::log(p)));
      sum += p;
      if (rank < 0 && truth < sum) rank = r;
      p *= 1 - top;
    }
    draft.true_rank.push_back(rank);
  }
  return draft;
}

double RoundSimulator::measured(double ms) {
  const double outlier = draw(noise_state_) < 0.005 ? 4 : 1;
  return ms * (1 + world_.noise * (2 * draw(noise_state_) - 1)) * (world_.noise > 0 ? outlier : 1);
}

void RoundSimulator::play_round(Total& total) {
  const std::int64_t batch = world_.batch;
  std::vector<BudgetDemand> demands;
  for (std::int64_t b = 0; b < batch; ++b)
    demands.push_back({.place = b, .setting = budget_, .tokens_left = 1000});
  RoundBudgets plan = controller_.plan(demands, batch, num_behind_);
  if (fault_) fault_(plan, round_);
  ++round_;
  if (plan.drafting && num_behind_ > 0) {
    const double ms = world_.catch_up_ms * static_cast<double>(num_behind_);
    controller_.observe_catch_up(num_behind_, ms);
    total.ms += ms;
    num_behind_ = 0;
  }
  std::int64_t rows = batch;
  std::vector<std::int64_t> gained(static_cast<std::size_t>(batch), 1);
  if (plan.drafting) gained = play_plan(plan, rows);
  std::int64_t tokens = 0;
  for (std::size_t b = 0; b < gained.size(); ++b) {
    positions_[b] += gained[b];
    tokens += gained[b];
  }
  const double draft_ms = plan.drafting ? world_.draft_ms : 0;
  const double verify_ms = world_.verify_ms(rows) + world_.surplus_ms;
  controller_.observe_round({.num_sequences = batch,
                             .num_tokens = tokens,
                             .rows = rows,
                             .drafted = plan.drafting,
                             .automatic = plan.automatic,
                             .draft_ms = measured(draft_ms),
                             .verify_ms = measured(verify_ms)});
  total.ms += draft_ms + verify_ms;
  total.tokens += tokens;
  total.drafted_rounds += plan.drafting ? 1 : 0;
  if (!plan.drafting) num_behind_ += tokens;
}

// Drafts, builds and cuts the trees; tokens each sequence gains.
std::vector<std::int64_t> RoundSimulator::play_plan(const RoundBudgets& plan, std::int64_t& rows) {
  const std::int64_t batch = world_.batch;
  HostTensors pool;
  std::vector<Draft> drafts;
  std::vector<float> log_probs;
  std::vector<std::int32_t> ids;
  for (std::int64_t b = 0; b < batch; ++b) {
    drafts.push_back(draft_at(b, positions_[static_cast<std::size_t>(b)]));
    log_probs.insert(log_probs.end(), drafts.back().log_probs.begin(),
                     drafts.back().log_probs.end());
    for (std::int64_t i = 0; i < kSimulatedDepth * kSimulatedNodes; ++i)
      ids.push_back(static_cast<std::int32_t>(i % kSimulatedNodes));
  }
  CompileTreeArgs compile;
  compile.trees = make_trees(pool, batch, kSimulatedNodes);
  const std::initializer_list<std::int64_t> shape = {batch, kSimulatedDepth, kSimulatedNodes};
  cpu::build_tree({.ids = pool.of<std::int32_t>(shape, ids),
                   .log_probs = pool.of<float>(shape, log_probs),
                   .anchors = pool.make<std::int32_t>({batch}, 1),
                   .budgets = pool.of<std::int32_t>({batch}, plan.budgets),
                   .min_scores = pool.of<float>({batch}, plan.min_scores),
                   .trees = compile.trees},
                  threads_);
  compile.context_len = pool.make<std::int32_t>({batch});
  compile.block_tables = pool.make<std::int32_t>({batch, 4});
  if (plan.cut_by_cost) {
    compile.cost_ms = pool.of<float>({kNumRowBuckets}, controller_.cost_ms());
    compile.bucket_rows =
        pool.of<std::int32_t>({kNumRowBuckets}, {kRowBuckets.begin(), kRowBuckets.end()});
    compile.calibration = pool.of<float>({kSimulatedDepth + 1}, controller_.calibration());
  }
  for (Tensor* tensor :
       {&compile.token_ids, &compile.positions, &compile.slots, &compile.seq_of_row,
        &compile.node_of_row, &compile.kv_len, &compile.path_len})
    *tensor = pool.make<std::int32_t>({plan.max_rows});
  compile.path = pool.make<std::int32_t>({plan.max_rows, kSimulatedDepth + 1});
  compile.row_offsets = pool.make<std::int32_t>({batch + 1});
  cpu::compile_tree(compile, threads_);
  rows = compile.row_offsets.data<std::int32_t>()[batch];
  std::vector<std::int64_t> gained;
  for (std::int64_t b = 0; b < batch; ++b)
    gained.push_back(judge(compile.trees, b, drafts[static_cast<std::size_t>(b)], plan.drafting));
  return gained;
}

// Tokens a sequence gains: the accepted nodes and the bonus.
std::int64_t RoundSimulator::judge(const TreeBuffers& trees, std::int64_t b, const Draft& draft,
                                   bool drafting) {
  const std::int32_t count = trees.counts.data<std::int32_t>()[b];
  std::vector<float> predicted(kSimulatedDepth + 1, 0.0f);
  for (std::int32_t n = 1; n <= count; ++n)
    predicted[static_cast<std::size_t>(trees.depths.row<std::int32_t>(b)[n])] +=
        std::exp(trees.scores.row<float>(b)[n]);
  std::int32_t node = 0;
  std::int64_t accepted = 0;
  for (std::int32_t n = 1; n <= count; ++n) {
    if (trees.parents.row<std::int32_t>(b)[n] != node) continue;
    if (trees.tokens.row<std::int32_t>(b)[n] != draft.true_rank[static_cast<std::size_t>(accepted)])
      continue;
    node = n;
    ++accepted;
  }
  if (drafting) controller_.observe_outcome({.predicted = predicted, .accepted_depth = accepted});
  return accepted + 1;
}

}  // namespace coppice::testing
