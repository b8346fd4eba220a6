// A drafter that knows what the target will say, and plants misses: at every position the true
// token stands at a drawn rank among wrong siblings, and at drawn positions it is missing. So
// accepted paths are scattered over the tree and of every length, whatever the target is, and how
// many rounds a request takes is known beforehand. Ops of the table only: it runs on every backend,
// inside captured rounds.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "backend/factory/make_backend.h"
#include "spec/drafter.h"

namespace coppice::testing {

// What the oracle proposes, for requests with seeds 0 .. num_scripts - 1. Outlives its drafter.
class Oracle {
 public:
  static constexpr std::int64_t kDepth = 7;

  // max_len: positions of the longest request. num_ranks: candidates for a position; 1: a chain.
  Oracle(std::int64_t num_scripts, std::int64_t max_len, std::int64_t vocab_size,
         std::int64_t num_ranks = 4, double miss_probability = 0.1)
      : num_scripts_(num_scripts),
        num_ranks_(num_ranks),
        num_blocks_((max_len + kDepth) / kBlockSize + 1),
        vocab_size_(vocab_size),
        miss_probability_(miss_probability),
        ids_(static_cast<std::size_t>(num_scripts * slots() * num_ranks_)),
        log_probs_(ids_.size()) {
    for (std::int64_t seed = 0; seed < num_scripts; ++seed) learn(seed, {});
  }

  // Prompt and continuation of the request with this seed; beyond them every proposal is wrong.
  void learn(std::int64_t seed, const std::vector<std::int32_t>& tokens) {
    std::mt19937 rng(static_cast<unsigned>(1000 + seed));
    for (std::int64_t at = 0; at < slots(); ++at) {
      const bool known = at + 1 < std::ssize(tokens);
      draw(rng, known ? tokens[static_cast<std::size_t>(at + 1)] : -1,
           static_cast<std::size_t>((seed * slots() + at) * num_ranks_));
    }
    if (backend_ != nullptr) send(seed);
  }

  struct Expected {
    std::int64_t rounds = 0, accepted = 0;
  };
  // Of a request alone in its rounds: `tokens` as given to learn, the first decided one at
  // prompt_len, every round with this budget.
  Expected expect(std::int64_t seed, const std::vector<std::int32_t>& tokens,
                  std::int64_t prompt_len, std::int64_t budget) const {
    const auto host = make_backend({.device = "cpu-reference", .num_threads = 1});
    const std::int64_t nodes = budget + 1;
    Buffer memory = Buffer::host(static_cast<std::size_t>(nodes * 16 + 64));
    const auto field = [&](DType dtype, std::int64_t i) {
      return memory.tensor(dtype, {1, nodes}, static_cast<std::size_t>(i * nodes * 4));
    };
    const TreeBuffers trees = {
        .tokens = field(DType::kI32, 0),
        .parents = field(DType::kI32, 1),
        .depths = field(DType::kI32, 2),
        .scores = field(DType::kF32, 3),
        .counts = memory.tensor(DType::kI32, {1}, static_cast<std::size_t>(nodes * 16))};
    Expected expected;
    for (std::int64_t at = prompt_len; at + 1 < std::ssize(tokens); ++expected.rounds) {
      std::int32_t anchor = tokens[static_cast<std::size_t>(at)],
                   limit = static_cast<std::int32_t>(budget);
      float lowest = -std::numeric_limits<float>::infinity();
      const std::int64_t row = (seed * slots() + at) * num_ranks_;
      host->build_tree({.ids = view(ids_, row, DType::kI32),
                        .log_probs = view(log_probs_, row, DType::kF32),
                        .anchors = Tensor(&anchor, DType::kI32, {1}),
                        .budgets = Tensor(&limit, DType::kI32, {1}),
                        .min_scores = Tensor(&lowest, DType::kF32, {1}),
                        .trees = trees});
      std::int32_t node = 0;
      std::int64_t path = 0;
      for (std::int32_t next = 1; next <= trees.counts.data<std::int32_t>()[0]; ++next) {
        if (trees.parents.data<std::int32_t>()[next] != node) continue;
        const std::size_t want = static_cast<std::size_t>(at + path + 1);
        if (want >= tokens.size() || trees.tokens.data<std::int32_t>()[next] != tokens[want])
          continue;
        node = next;
        ++path;
      }
      // The last token of the request is a bonus or ends the path; both count as emitted.
      const std::int64_t left = std::ssize(tokens) - 1 - at;
      expected.accepted += std::min(path, left - 1);
      at += path + 1;
    }
    return expected;
  }

  std::int64_t num_scripts() const { return num_scripts_; }
  std::int64_t num_ranks() const { return num_ranks_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t slots() const { return num_blocks_ * kBlockSize; }

  // The drafter's copies, [num_scripts * slots, num_ranks_].
  void attach(Backend* backend, const Tensor& ids, const Tensor& log_probs) {
    backend_ = backend;
    device_ids_ = ids;
    device_log_probs_ = log_probs;
    if (backend == nullptr) return;
    for (std::int64_t seed = 0; seed < num_scripts_; ++seed) send(seed);
  }

 private:
  void draw(std::mt19937& rng, std::int32_t truth, std::size_t at) {
    const auto chance = [&] { return static_cast<double>(rng()) / 4294967296.0; };
    const bool miss = chance() < miss_probability_;
    const double where = chance();
    const std::int64_t rank = std::min<std::int64_t>(where < 0.55   ? 0
                                                     : where < 0.8  ? 1
                                                     : where < 0.93 ? 2
                                                                    : 3,
                                                     num_ranks_ - 1);
    const auto wrong = static_cast<std::int64_t>(rng() % 1000);
    float log_prob = -0.2f - 0.4f * static_cast<float>(chance());
    for (std::int64_t r = 0; r < num_ranks_; ++r) {
      const std::int64_t other = (std::max(truth, 0) + 1 + wrong + r * 17) % vocab_size_;
      ids_[at + static_cast<std::size_t>(r)] =
          truth >= 0 && !miss && r == rank ? truth : static_cast<std::int32_t>(other);
      log_probs_[at + static_cast<std::size_t>(r)] = log_prob;
      log_prob -= 0.3f + 0.6f * static_cast<float>(chance());
    }
  }
  void send(std::int64_t seed) {
    const std::int64_t row = seed * slots();
    backend_->upload(device_ids_.rows(row, slots()),
                     &ids_[static_cast<std::size_t>(row * num_ranks_)]);
    backend_->upload(device_log_probs_.rows(row, slots()),
                     &log_probs_[static_cast<std::size_t>(row * num_ranks_)]);
    backend_->synchronize();
  }
  template <typename T>
  Tensor view(const std::vector<T>& values, std::int64_t begin, DType dtype) const {
    return Tensor(const_cast<T*>(values.data()) + begin, dtype, {1, kDepth, num_ranks_});
  }

  std::int64_t num_scripts_, num_ranks_, num_blocks_, vocab_size_;
  double miss_probability_;
  // Row seed * slots + p holds the candidates for position p + 1, best first.
  std::vector<std::int32_t> ids_;
  std::vector<float> log_probs_;
  Backend* backend_ = nullptr;
  Tensor device_ids_, device_log_probs_;
};

class OracleDrafter final : public Drafter {
 public:
  OracleDrafter(Backend& backend, std::shared_ptr<Oracle> oracle, std::int64_t max_num_seqs)
      : backend_(backend), oracle_(std::move(oracle)) {
    const std::int64_t scripts = oracle_->num_scripts(), blocks = oracle_->num_blocks();
    const std::int64_t rows = max_num_seqs * Oracle::kDepth;
    table_ids_ = make(DType::kI32, {scripts * oracle_->slots(), oracle_->num_ranks()});
    table_log_probs_ = make(DType::kF32, {scripts * oracle_->slots(), oracle_->num_ranks()});
    ids_ = make(DType::kI32, {rows, oracle_->num_ranks()});
    log_probs_ = make(DType::kF32, {rows, oracle_->num_ranks()});
    script_blocks_ = make(DType::kI32, {scripts, blocks});
    blocks_ = make(DType::kI32, {max_num_seqs, blocks});
    scripts_ = make(DType::kI32, {max_num_seqs, 1});
    iota_ = make(DType::kI32, {max_num_seqs});
    for (Tensor* tensor : {&token_ids_, &positions_, &slots_, &seq_of_row_, &kv_len_, &path_len_})
      *tensor = make(DType::kI32, {rows});
    std::vector<std::int32_t> numbers(
        static_cast<std::size_t>(std::max(max_num_seqs, scripts * blocks)));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i);
    backend.upload(script_blocks_, numbers.data());
    backend.upload(iota_, numbers.data());
    backend.synchronize();
    oracle_->attach(&backend, table_ids_, table_log_probs_);
  }
  ~OracleDrafter() override { oracle_->attach(nullptr, {}, {}); }

  const char* name() const override { return "oracle"; }
  std::int64_t max_depth() const override { return Oracle::kDepth; }

  // A request's seed names its script, and positions become rows of the tables the way positions
  // become slots of the cache.
  void draft(const DraftBatch& batch) override {
    const std::int64_t count = batch.anchors.shape(0), rows = count * Oracle::kDepth;
    const Tensor seeds(batch.sampling.seed.raw(), DType::kI32, {count, 2}, backend_.device());
    backend_.gather_rows(
        {.src = seeds.columns(0, 1), .rows = iota_.rows(0, count), .out = scripts_.rows(0, count)});
    backend_.gather_rows({.src = script_blocks_,
                          .rows = scripts_.rows(0, count).reshape({count}),
                          .out = blocks_.rows(0, count)});
    backend_.compile_draft({.anchors = batch.anchors,
                            .context_len = batch.context_len,
                            .block_tables = blocks_.rows(0, count),
                            .mask_token_id = 0,
                            .token_ids = token_ids_.rows(0, rows),
                            .positions = positions_.rows(0, rows),
                            .slots = slots_.rows(0, rows),
                            .seq_of_row = seq_of_row_.rows(0, rows),
                            .kv_len = kv_len_.rows(0, rows),
                            .path_len = path_len_.rows(0, rows)});
    const Tensor at = slots_.rows(0, rows);
    backend_.gather_rows({.src = table_ids_, .rows = at, .out = ids_.rows(0, rows)});
    backend_.gather_rows({.src = table_log_probs_, .rows = at, .out = log_probs_.rows(0, rows)});
  }

  void build_tree(const DraftBatch& batch) override {
    const std::int64_t count = batch.anchors.shape(0), rows = count * Oracle::kDepth;
    backend_.build_tree(
        {.ids = ids_.rows(0, rows).reshape({count, Oracle::kDepth, oracle_->num_ranks()}),
         .log_probs =
             log_probs_.rows(0, rows).reshape({count, Oracle::kDepth, oracle_->num_ranks()}),
         .anchors = batch.anchors,
         .budgets = batch.budgets,
         .min_scores = batch.min_scores,
         .trees = batch.trees});
  }

 private:
  Tensor make(DType dtype, std::initializer_list<std::int64_t> shape) {
    std::size_t bytes = size_of(dtype);
    for (const std::int64_t n : shape) bytes *= static_cast<std::size_t>(n);
    buffers_.push_back(backend_.allocate(bytes));
    return buffers_.back().tensor(dtype, shape);
  }

  Backend& backend_;
  std::shared_ptr<Oracle> oracle_;
  std::vector<Buffer> buffers_;
  Tensor table_ids_, table_log_probs_, ids_, log_probs_, script_blocks_, blocks_, scripts_, iota_;
  Tensor token_ids_, positions_, slots_, seq_of_row_, kv_len_, path_len_;
};

}  // namespace coppice::testing
