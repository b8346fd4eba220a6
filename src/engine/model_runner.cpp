#include "engine/model_runner.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "sampling/token_mask.h"

namespace coppice {
namespace {

constexpr std::int64_t kDefaultNgramTokens = 8;
constexpr std::int64_t kDefaultCacheBytes = std::int64_t{1} << 30;

}  // namespace

ModelRunner::ModelRunner(const EngineConfig& config, EngineParts parts, std::int64_t max_model_len)
    : config_(config), parts_(std::move(parts)), max_model_len_(max_model_len) {
  Backend& backend = *parts_.backend;
  const std::int64_t num_blocks = choose_num_blocks();
  cache_ = std::make_unique<PagedKvCache>(backend, parts_.model->kv_layout(), num_blocks);
  if (has_drafter_model())
    drafter_cache_ =
        std::make_unique<PagedKvCache>(backend, parts_.drafter_model->kv_layout(), num_blocks);
  no_drafter_ = make_no_drafter(backend, config.max_num_seqs);
  sampling_ = std::make_unique<SamplingState>(backend, config.max_num_seqs, max_model_len + 1);
  set_speculative(config.speculative);
}

std::int64_t ModelRunner::choose_num_blocks() const {
  if (config_.num_kv_blocks > 0) return config_.num_kv_blocks;
  const DType dtype = parts_.backend->kv_dtype();
  std::int64_t block_bytes = bytes_per_block(parts_.model->kv_layout(), dtype);
  if (has_drafter_model()) block_bytes += bytes_per_block(parts_.drafter_model->kv_layout(), dtype);
  if (config_.kv_cache_bytes > 0) return config_.kv_cache_bytes / block_bytes;
  const std::int64_t sequence = max_model_len_ / kBlockSize + kSpareBlocks;
  return std::min(config_.max_num_seqs * sequence,
                  std::max(kDefaultCacheBytes / block_bytes, config_.max_num_seqs * kSpareBlocks));
}

std::unique_ptr<Drafter> ModelRunner::make_drafter(const SpeculativeConfig& speculative) {
  Backend& backend = *parts_.backend;
  if (parts_.make_drafter) return parts_.make_drafter(backend);
  switch (speculative.method) {
    case SpeculativeMethod::kNone:
      return make_no_drafter(backend, config_.max_num_seqs);
    case SpeculativeMethod::kNgram: {
      const std::int64_t tokens = speculative.num_speculative_tokens > 0
                                      ? speculative.num_speculative_tokens
                                      : kDefaultNgramTokens;
      return make_ngram_drafter(backend, speculative.prompt_lookup_min,
                                speculative.prompt_lookup_max, tokens);
    }
    case SpeculativeMethod::kChain:
    case SpeculativeMethod::kDdtree:
      break;
  }
  if (!has_drafter_model())
    throw Error(ErrorKind::kInvalidArgument, std::string("speculative method ") +
                                                 name_of(speculative.method) +
                                                 " needs a drafter: give speculative_model");
  const std::int64_t top_k =
      speculative.method == SpeculativeMethod::kChain ? 1 : max_nodes_of(speculative);
  return make_dflash_drafter(backend, *parts_.drafter_model, *drafter_cache_,
                             parts_.model->config().vocab_size, config_.max_num_seqs, top_k);
}

// A tree of N nodes reaches rank N - 1 at most.
std::int64_t ModelRunner::max_nodes_of(const SpeculativeConfig& speculative) const {
  const bool fixed = speculative.ddtree_budget != kAutoBudget;
  return std::max<std::int64_t>(1,
                                fixed ? speculative.ddtree_budget : speculative.max_ddtree_budget);
}

RoundSizes ModelRunner::sizes_of(const SpeculativeConfig& speculative) const {
  const bool tree = speculative.method == SpeculativeMethod::kDdtree || parts_.make_drafter;
  const std::int64_t max_nodes =
      tree ? max_nodes_of(speculative) : std::max<std::int64_t>(1, drafter_->max_depth());
  const std::int64_t max_verify_rows =
      std::max(config_.max_num_seqs,
               std::min(config_.max_verify_rows, config_.max_num_seqs * (max_nodes + 1)));
  const std::int64_t max_path = drafter_->max_depth() + 1;
  const std::int64_t longest =
      max_model_len_ + 2 * max_path + std::max(drafter_->lookahead(), max_nodes + 1);
  return {.max_num_seqs = config_.max_num_seqs,
          .max_rows = std::max(config_.max_num_batched_tokens, max_verify_rows),
          .max_verify_rows = max_verify_rows,
          .max_nodes = max_nodes,
          .max_path = max_path,
          .max_blocks = longest / kBlockSize + 1,
          .num_buckets = kNumRowBuckets,
          .max_outputs = config_.max_num_seqs + kMaxScoredRows,
          .feature_size = has_drafter_model() ? parts_.drafter_model->config().feature_size() : 0};
}

void ModelRunner::set_speculative(const SpeculativeConfig& speculative) {
  Backend& backend = *parts_.backend;
  backend.synchronize();  // rounds whose results nobody wants may still run
  backend.forget_graphs();
  round_.reset();
  results_ = nullptr;
  drafter_ = make_drafter(speculative);
  const RoundSizes sizes = sizes_of(speculative);
  buffers_ = std::make_unique<RoundBuffers>(backend, sizes);
  verifier_ = std::make_unique<Verifier>(backend, *parts_.model, *cache_, sizes.max_rows,
                                         std::max(sizes.max_verify_rows, sizes.max_outputs),
                                         sizes.feature_size);
  batch_builder_ = std::make_unique<BatchBuilder>(backend, *buffers_, *sampling_);
  if (has_drafter_model())
    backlog_ = std::make_unique<ContextBacklog>(backend, sizes.feature_size, sizes.max_verify_rows);
  round_ = std::make_unique<DecodeRound>(RoundParts{.backend = backend,
                                                    .buffers = *buffers_,
                                                    .sampling = *sampling_,
                                                    .verifier = *verifier_,
                                                    .cache = *cache_,
                                                    .drafter = *drafter_,
                                                    .no_drafter = *no_drafter_,
                                                    .drafter_model = parts_.drafter_model.get(),
                                                    .drafter_cache = drafter_cache_.get(),
                                                    .backlog = backlog_.get(),
                                                    .clock = *parts_.clock});
}

std::int64_t ModelRunner::reserve() const {
  return 2 * max_path() + std::max(drafter_->lookahead(), max_nodes() + 1);
}

void ModelRunner::prefill(std::span<const PrefillChunk> chunks, Provenance provenance,
                          std::int64_t batch, const SampleOptions& options,
                          const PrefillMaskSource& fill_masks) {
  RoundBuffers& b = *buffers_;
  Backend& backend = *parts_.backend;
  const BatchBuilder::PrefillRows rows = batch_builder_->build_prefill(chunks, provenance, batch);
  prompt_scores_.clear();
  prefill_choices_ =
      verifier_->outputs(rows.batch.num_rows(), rows.num_outputs + std::ssize(rows.scored_tokens));
  verifier_->forward(rows.batch, prefill_choices_);
  if (has_drafter_model())
    parts_.drafter_model->append_context(prefill_choices_.features, rows.batch.positions,
                                         rows.batch.slots, *drafter_cache_, provenance);
  if (!rows.scored_tokens.empty()) score_prompt(rows, batch);
  if (rows.num_outputs == 0) return;
  prefill_choices_ = verifier_->outputs(rows.batch.num_rows(), rows.num_outputs);
  const std::int64_t outputs = rows.num_outputs;
  if (options.masked) {
    std::vector<std::int32_t> masks(
        static_cast<std::size_t>(outputs * prefill_choices_.allowed.shape(1)), -1);
    fill_masks(masks);
    backend.upload(prefill_choices_.allowed, masks.data());
    backend.synchronize();
  }
  const TreeBuffers& trees = b.results.trees;
  verifier_->sample(prefill_choices_, b.output_positions.rows(0, outputs),
                    b.output_seqs.rows(0, outputs), b.output_nodes.rows(0, outputs), trees,
                    sampling_->view(batch), options);
  round_->accept(batch, prefill_choices_, b.output_slots);
  round_->gather_log_probs(batch, prefill_choices_, options);
  results_ = &b.finish_results(b.start_results(options.log_probs));
}

// Each scored row is made to choose the token that follows it, by a mask of that token alone: the
// choice's log-probability is that of the raw logits.
void ModelRunner::score_prompt(const BatchBuilder::PrefillRows& rows, std::int64_t batch) {
  Backend& backend = *parts_.backend;
  const RoundBuffers& b = *buffers_;
  const std::int64_t first = rows.num_outputs, count = std::ssize(rows.scored_tokens);
  const Verifier::Choices out = verifier_->outputs_from(first, count);
  const auto words = static_cast<std::size_t>(out.allowed.shape(1));
  std::vector<std::int32_t> masks(rows.scored_tokens.size() * words, 0);
  for (std::size_t row = 0; row < rows.scored_tokens.size(); ++row)
    set_in_mask(std::span(masks).subspan(row * words, words), rows.scored_tokens[row], true);
  backend.upload(out.allowed, masks.data());
  verifier_->sample(out, b.output_positions.rows(first, count), b.output_seqs.rows(first, count),
                    b.output_nodes.rows(first, count), b.results.trees, sampling_->view(batch),
                    {.log_probs = true, .top_log_probs = true, .masked = true});
  std::vector<float> log_probs(static_cast<std::size_t>(count));
  std::vector<std::int32_t> top_ids(static_cast<std::size_t>(count * kMaxLogprobs));
  std::vector<float> top_log_probs(top_ids.size());
  backend.download(log_probs.data(), out.log_probs);
  backend.download(top_ids.data(), out.top_ids);
  backend.download(top_log_probs.data(), out.top_log_probs);
  for (std::size_t row = 0; row < log_probs.size(); ++row) {
    TokenLogprob score{.logprob = log_probs[row], .top = {}};
    for (std::size_t i = row * kMaxLogprobs; i < (row + 1) * kMaxLogprobs; ++i)
      score.top.emplace_back(top_ids[i], top_log_probs[i]);
    prompt_scores_.push_back(std::move(score));
  }
}

double ModelRunner::catch_up() {
  if (num_behind() == 0) return 0;
  const std::int64_t start = parts_.clock->now_ns();
  backlog_->project(*parts_.drafter_model, *drafter_cache_);
  parts_.backend->synchronize();
  return static_cast<double>(parts_.clock->now_ns() - start) / 1e6;
}

std::int64_t ModelRunner::launch(const RoundShape& shape, const RoundBudgets& budgets,
                                 const BudgetController& controller) {
  RoundBuffers::Control control = {.budgets = budgets.budgets,
                                   .min_scores = budgets.min_scores,
                                   .cost_ms = {},
                                   .calibration = {}};
  if (shape.cut_by_cost) {
    control.cost_ms = controller.cost_ms();
    control.calibration = controller.calibration();
  }
  buffers_->send(control);
  COPPICE_CHECK(!shape.drafting || num_behind() == 0, num_behind(), " tokens behind");
  if (backlog_ && !shape.drafting && !backlog_->has_room(shape.max_rows)) catch_up();
  return round_->launch(shape);
}

void ModelRunner::finish(std::int64_t round) {
  results_ = &buffers_->finish_results(round);
}

std::int64_t ModelRunner::batch_bucket(std::int64_t batch) const {
  // Rounds that run at once have the sequences there are; captured ones are few.
  if (parts_.backend->device() == Device::kCpu) return batch;
  return std::min(bucket_at_least(batch), config_.max_num_seqs);
}

void ModelRunner::capture(const RoundShape& shape) {
  buffers_->send({.budgets = {}, .min_scores = {}, .cost_ms = {}, .calibration = {}});
  round_->launch(shape);
  forget_behind();
}

// Rows of one sequence without context: each sees itself only, at its own slot of the first blocks.
// Their token ids are the caller's to set.
ForwardBatch ModelRunner::lone_rows(std::int64_t rows) {
  const auto count = static_cast<std::size_t>(rows),
             path_size = static_cast<std::size_t>(max_path());
  std::vector<std::int32_t> positions(count), zeros(count, 0), ones(count, 1);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<std::int32_t> path(count * path_size, -1);
  for (std::size_t i = 0; i < count; ++i) path[i * path_size] = positions[i];
  RoundBuffers& b = *buffers_;
  const auto upload = [&](const Tensor& tensor, const std::vector<std::int32_t>& values) {
    parts_.backend->upload(tensor.rows(0, rows), values.data());
    return tensor.rows(0, rows);
  };
  return {.token_ids = b.token_ids.rows(0, rows),
          .positions = upload(b.positions, positions),
          .slots = upload(b.slots, positions),
          .attention = {.seq_of_row = upload(b.seq_of_row, zeros),
                        .kv_len = upload(b.kv_len, zeros),
                        .path_len = upload(b.path_len, ones),
                        .path = upload(b.path, path),
                        .block_tables = b.block_tables.rows(0, 1),
                        .max_kv_len = kBlockSize,
                        .provenance = Provenance::kDecided},
          .output_rows = {}};
}

double ModelRunner::measure_verify_ms(std::int64_t rows) {
  const ForwardBatch batch = lone_rows(rows);
  const auto body = [&] { verifier_->forward(batch, verifier_->outputs(rows, rows)); };
  const auto vocab_size = static_cast<std::size_t>(parts_.model->config().vocab_size);
  std::vector<std::int32_t> token_ids(static_cast<std::size_t>(rows));
  std::array<double, 5> times{};
  for (std::size_t repeat = 0; repeat < times.size(); ++repeat) {
    // Other tokens each time: experts that were just read would be in the processor's cache.
    for (std::size_t i = 0; i < token_ids.size(); ++i)
      token_ids[i] = static_cast<std::int32_t>((i * 7919 + repeat * 1013) % vocab_size);
    parts_.backend->upload(batch.token_ids, token_ids.data());
    parts_.backend->synchronize();
    const std::int64_t start = parts_.clock->now_ns();
    if (config_.enforce_eager)
      body();
    else
      parts_.backend->run_graph({.kind = static_cast<std::int32_t>(GraphKind::kMeasure),
                                 .batch = 1,
                                 .rows = static_cast<std::int32_t>(rows)},
                                body);
    parts_.backend->synchronize();
    times[repeat] = static_cast<double>(parts_.clock->now_ns() - start) / 1e6;
  }
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  return times[times.size() / 2];
}

}  // namespace coppice
