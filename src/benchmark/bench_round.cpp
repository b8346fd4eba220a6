#include "benchmark/bench_round.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/round_args.h"
#include "engine/scheduler.h"

namespace coppice {
namespace {

constexpr std::int64_t kMaxRanks = 64;      // candidates of a depth
constexpr std::int64_t kHistory = 64;       // tokens that sampling knows of a sequence
constexpr std::int64_t kMaxHistory = 8192;  // with what the rounds add

std::int64_t blocks_of(const RoundPoint& point) {
  return (point.context + kRoundSlack) / kBlockSize + 1;
}

std::int64_t feature_size(const DflashModel* drafter) {
  return drafter == nullptr ? 0 : drafter->config().feature_size();
}

// Rows of a prefill step whose logits the engine wants at most.
std::int64_t most_outputs(const RoundPoint& point) {
  return point.batch + kMaxScoredRows;
}

RoundSizes sizes_of(const RoundPoint& point, const Drafter& drafter,
                    const DflashModel* drafter_model) {
  return {.max_num_seqs = point.batch,
          .max_rows = point.rows,
          .max_verify_rows = point.rows,
          .max_nodes = std::max<std::int64_t>(1, point.budget()),
          .max_path = drafter.max_depth() + 1,
          .max_blocks = blocks_of(point),
          .num_buckets = 1,
          .max_outputs = most_outputs(point),
          .feature_size = feature_size(drafter_model)};
}

}  // namespace

BenchRound::BenchRound(Backend& backend, DeviceMeter& meter, Model& model,
                       DflashModel* drafter_model, const Tensor& context_features,
                       const RoundPoint& point)
    : backend_(backend),
      point_(point),
      num_blocks_(point.batch * blocks_of(point)),
      cache_(backend, model.kv_layout(), num_blocks_),
      drafter_cache_(
          drafter_model == nullptr
              ? nullptr
              : std::make_unique<PagedKvCache>(backend, drafter_model->kv_layout(), num_blocks_)),
      drafter_model_(drafter_model),
      drafter_(point.drafting() ? make_dflash_drafter(backend, *drafter_model, *drafter_cache_,
                                                      model.config().vocab_size, point.batch,
                                                      std::min(point.budget(), kMaxRanks))
                                : make_no_drafter(backend, point.batch)),
      sampling_(backend, point.batch, kMaxHistory),
      buffers_(backend, sizes_of(point, *drafter_, drafter_model)),
      backlog_(drafter_model == nullptr ? nullptr
                                        : std::make_unique<ContextBacklog>(
                                              backend, feature_size(drafter_model), point.rows)),
      verifier_(backend, model, cache_, point.rows, std::max(point.rows, most_outputs(point)),
                feature_size(drafter_model)),
      choices_(verifier_.outputs(point.rows, point.rows)) {
  if (!context_features.empty() && drafter_model != nullptr)
    buffers_.context_features = context_features.rows(0, buffers_.context_features.shape(0));
  std::uint64_t seed = 77;
  for (const Tensor& plane : cache_.planes()) meter.fill(plane, seed++, 1);
  if (drafter_cache_ != nullptr)
    for (const Tensor& plane : drafter_cache_->planes()) meter.fill(plane, seed++, 1);
  const auto places = static_cast<std::size_t>(point.batch);
  std::vector<std::int32_t> tables(static_cast<std::size_t>(num_blocks_));
  std::iota(tables.begin(), tables.end(), 0);
  const std::vector<std::int32_t> budgets(places, static_cast<std::int32_t>(point.budget()));
  const std::vector<float> no_limit(places, -std::numeric_limits<float>::infinity());
  backend.upload(buffers_.block_tables, tables.data());
  backend.upload(buffers_.budgets, budgets.data());
  backend.upload(buffers_.min_scores, no_limit.data());
  backend.synchronize();
  reset();
}

void BenchRound::reset() {
  const auto places = static_cast<std::size_t>(point_.batch);
  const std::vector<std::int32_t> context(places, static_cast<std::int32_t>(point_.context));
  std::vector<std::int32_t> anchors(places);
  std::iota(anchors.begin(), anchors.end(), 100);
  backend_.upload(buffers_.context_len, context.data());
  backend_.upload(buffers_.anchors, anchors.data());
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = std::int64_t{1} << 30;
  const std::vector<std::int32_t> history(kHistory, 9);
  for (std::int64_t place = 0; place < point_.batch; ++place)
    sampling_.set(place, params, place, {}, history, kHistory);
  backend_.synchronize();
}

void BenchRound::run() {
  const std::int64_t batch = point_.batch, rows = point_.rows;
  drafter_->draft(draft_args(buffers_, sampling_, batch));
  drafter_->build_tree(draft_args(buffers_, sampling_, batch));
  backend_.compile_tree(compile_args(buffers_, batch, rows, /*cut_by_cost=*/false));
  verifier_.forward(verify_args(buffers_, batch, rows), choices_);
  verifier_.sample(choices_, buffers_.positions, buffers_.seq_of_row, buffers_.node_of_row,
                   buffers_.results.trees, sampling_.view(batch),
                   {.greedy = true, .log_probs = false, .top_log_probs = false});
  backend_.accept_path(accept_args(buffers_, sampling_, batch, choices_, buffers_.slots));
  backend_.move_kv(move_args(buffers_, batch, cache_.planes()));
  // As in the engine, features wait while nothing is drafted.
  if (drafter_model_ != nullptr && point_.drafting())
    append_features(backend_, buffers_, batch, choices_.features, *drafter_model_, *drafter_cache_);
}

std::int64_t BenchRound::rows_used() {
  std::int32_t rows = 0;
  backend_.download(&rows, buffers_.results.row_offsets.rows(point_.batch, 1));
  return rows;
}

double BenchRound::committed_tokens() {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(point_.batch));
  backend_.download(tokens.data(), buffers_.results.num_emitted.rows(0, point_.batch));
  return std::reduce(tokens.begin(), tokens.end(), 0.0) / static_cast<double>(point_.batch);
}

}  // namespace coppice
