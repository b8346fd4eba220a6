// Kernels around the two networks of a round: candidates, trees, choices, commit.
#include <numeric>

#include "base/random_values.h"
#include "benchmark/kernel_case.h"
#include "sampling/sampling_state.h"

namespace coppice {
namespace {

constexpr std::int64_t kMaxPath = 16;
constexpr std::int64_t kVocab = 163840, kPlanes = 61, kMlaRow = 576;

std::string text(std::int64_t value) {
  return std::to_string(value);
}

// ---- Candidates

BuiltCase build_top_k(BenchSide& side, std::int64_t rows, std::int64_t vocab) {
  constexpr std::int64_t kRanks = 64;
  const auto bytes = static_cast<double>(rows * vocab * 2);
  const std::int64_t copies = copies_past_cache(side, bytes);
  auto logits = std::make_shared<std::vector<Tensor>>();
  for (std::int64_t i = 0; i < copies; ++i)
    logits->push_back(
        side.logits(DType::kBF16, {rows, vocab}, 1 + static_cast<std::uint64_t>(i), 4));
  const Tensor ids = side.zeros(DType::kI32, {rows, kRanks});
  const Tensor log_probs = side.zeros(DType::kF32, {rows, kRanks});
  Backend& backend = side.backend();
  return {.num_copies = copies,
          .run =
              [=, &backend](std::int64_t i) {
                backend.top_k_log_probs({.logits = (*logits)[static_cast<std::size_t>(i)],
                                         .ids = ids,
                                         .log_probs = log_probs});
              },
          .outputs = {ids, log_probs},
          .bytes = bytes,
          .keep = logits};
}

// ---- Trees

struct TreeShape {
  std::int64_t batch, budget;
  std::int64_t depth() const { return budget <= 16 ? 7 : 15; }
  std::int64_t ranks() const { return budget; }
  std::int64_t rows() const { return batch * (budget + 1); }
};

TreeBuffers tree_buffers(BenchSide& side, std::int64_t batch, std::int64_t max_nodes) {
  const auto ints = [&] { return side.zeros(DType::kI32, {batch, max_nodes + 1}); };
  return {.tokens = ints(),
          .parents = ints(),
          .depths = ints(),
          .scores = side.zeros(DType::kF32, {batch, max_nodes + 1}),
          .counts = side.zeros(DType::kI32, {batch})};
}

BuildTreeArgs build_args(BenchSide& side, const TreeShape& s) {
  std::vector<std::int32_t> ids;
  std::vector<float> log_probs;
  for (std::int64_t row = 0; row < s.batch * s.depth(); ++row)
    for (std::int64_t rank = 0; rank < s.ranks(); ++rank) {
      ids.push_back(static_cast<std::int32_t>((row * 977 + rank * 31) % kVocab));
      // Steps of their own: equal scores, which are settled by rank, must stay rare.
      const float step = 0.8f + random_uniform(5, ids.size(), 0.6f);
      log_probs.push_back(rank == 0 ? -0.5f * step : log_probs.back() - step);
    }
  const auto count = static_cast<std::size_t>(s.batch);
  return {.ids = side.ints({s.batch, s.depth(), s.ranks()}, ids),
          .log_probs = side.floats({s.batch, s.depth(), s.ranks()}, log_probs),
          .anchors = side.ints({s.batch}, std::vector<std::int32_t>(count, 7)),
          .budgets = side.ints(
              {s.batch}, std::vector<std::int32_t>(count, static_cast<std::int32_t>(s.budget))),
          .min_scores = side.floats({s.batch}, std::vector<float>(count, -1e30f)),
          .trees = tree_buffers(side, s.batch, s.budget)};
}

BuiltCase build_trees(BenchSide& side, const TreeShape& s, bool compiles) {
  constexpr std::int64_t kBlocks = 8;
  const BuildTreeArgs build = build_args(side, s);
  std::vector<std::int32_t> tables(static_cast<std::size_t>(s.batch * kBlocks)), context;
  std::iota(tables.begin(), tables.end(), 0);
  for (std::int64_t b = 0; b < s.batch; ++b) context.push_back(static_cast<std::int32_t>(40 + b));
  const auto rows = [&] { return side.zeros(DType::kI32, {s.rows()}); };
  const CompileTreeArgs compile = {
      .trees = build.trees,
      .context_len = side.ints({s.batch}, context),
      .block_tables = side.ints({s.batch, kBlocks}, tables),
      .cost_ms = side.floats({4}, {4.0f, 5.5f, 7.0f, 9.0f}),
      .bucket_rows = side.ints(
          {4}, {static_cast<std::int32_t>(s.batch * 4), static_cast<std::int32_t>(s.batch * 8),
                static_cast<std::int32_t>(s.batch * 12), static_cast<std::int32_t>(s.rows())}),
      .calibration = side.floats({kMaxPath}, std::vector<float>(kMaxPath, 0.9f)),
      .token_ids = rows(),
      .positions = rows(),
      .slots = rows(),
      .seq_of_row = rows(),
      .node_of_row = rows(),
      .kv_len = rows(),
      .path_len = rows(),
      .path = side.zeros(DType::kI32, {s.rows(), kMaxPath}),
      .row_offsets = side.zeros(DType::kI32, {s.batch + 1})};
  Backend& backend = side.backend();
  return {
      .run =
          [=, &backend](std::int64_t) {
            backend.build_tree(build);
            if (compiles) backend.compile_tree(compile);
          },
      .outputs = {build.trees.tokens, build.trees.parents, build.trees.scores, build.trees.counts,
                  compile.token_ids, compile.positions, compile.slots, compile.seq_of_row,
                  compile.node_of_row, compile.path_len, compile.row_offsets}};
}

// ---- Drafts

BuiltCase build_draft_rows(BenchSide& side, std::int64_t batch) {
  constexpr std::int64_t kBlock = 8, kBlocks = 128;
  std::vector<std::int32_t> tables(static_cast<std::size_t>(batch * kBlocks)), anchors, context;
  std::iota(tables.begin(), tables.end(), 0);
  for (std::int64_t b = 0; b < batch; ++b) {
    anchors.push_back(static_cast<std::int32_t>(100 + b));
    context.push_back(static_cast<std::int32_t>(4000 + 7 * b));
  }
  const auto rows = [&] { return side.zeros(DType::kI32, {batch * kBlock}); };
  const CompileDraftArgs args = {.anchors = side.ints({batch}, anchors),
                                 .context_len = side.ints({batch}, context),
                                 .block_tables = side.ints({batch, kBlocks}, tables),
                                 .mask_token_id = 9,
                                 .token_ids = rows(),
                                 .positions = rows(),
                                 .slots = rows(),
                                 .seq_of_row = rows(),
                                 .kv_len = rows(),
                                 .path_len = rows()};
  Backend& backend = side.backend();
  return {.run = [=, &backend](std::int64_t) { backend.compile_draft(args); },
          .outputs = {args.token_ids, args.positions, args.slots, args.seq_of_row, args.kv_len,
                      args.path_len},
          .bytes = static_cast<double>(6 * args.token_ids.num_bytes())};
}

// The last four tokens of every history stood at a third of it: all of it is searched for the
// longest suffix, and a whole budget follows.
BuiltCase build_ngram(BenchSide& side, std::int64_t batch, std::int64_t length) {
  constexpr std::int64_t kSuffix = 4, kBudget = 16;
  std::vector<std::int32_t> history;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto begin = static_cast<std::int64_t>(history.size());
    for (std::int64_t i = 0; i < length - kSuffix; ++i)
      history.push_back(static_cast<std::int32_t>(
          random_word(7, static_cast<std::uint64_t>(b * length + i)) % kVocab));
    for (std::int64_t i = 0; i < kSuffix; ++i)
      history.push_back(history[static_cast<std::size_t>(begin + length / 3 + i)]);
  }
  const auto places = static_cast<std::size_t>(batch);
  std::vector<std::int32_t> anchors;
  for (std::int64_t b = 0; b < batch; ++b)
    anchors.push_back(history[static_cast<std::size_t>((b + 1) * length - 1)]);
  const NgramProposeArgs args = {
      .history = side.ints({batch, length}, history),
      .history_len =
          side.ints({batch}, std::vector<std::int32_t>(places, static_cast<std::int32_t>(length))),
      .anchors = side.ints({batch}, anchors),
      .budgets = side.ints({batch}, std::vector<std::int32_t>(places, kBudget)),
      .min_ngram = 2,
      .max_ngram = kSuffix,
      .trees = tree_buffers(side, batch, kBudget)};
  Backend& backend = side.backend();
  return {.run = [=, &backend](std::int64_t) { backend.ngram_propose(args); },
          .outputs = {args.trees.tokens, args.trees.parents, args.trees.depths, args.trees.counts},
          .bytes = static_cast<double>(args.history.num_bytes())};
}

// ---- Choices

std::shared_ptr<SamplingState> sampling_of(Backend& backend, std::int64_t batch,
                                           const SamplingParams& params) {
  auto state = std::make_shared<SamplingState>(backend, batch, 8192);
  for (std::int64_t b = 0; b < batch; ++b)
    state->set(b, params, 1000 + b, {}, std::vector<std::int32_t>(40, 3), 40);
  backend.synchronize();
  return state;
}

enum class Choice : std::uint8_t { kGreedy, kGreedyWithLogProbs, kTopP };

BuiltCase build_sample(BenchSide& side, std::int64_t rows, std::int64_t vocab, Choice choice) {
  const bool greedy = choice != Choice::kTopP;
  const auto bytes = static_cast<double>(rows * vocab * 4);
  const std::int64_t copies = copies_past_cache(side, bytes);
  auto logits = std::make_shared<std::vector<Tensor>>();
  for (std::int64_t i = 0; i < copies; ++i)
    logits->push_back(
        side.logits(DType::kF32, {rows, vocab}, 1 + static_cast<std::uint64_t>(i), 4));
  SamplingParams params;
  params.temperature = greedy ? 0 : 0.8;
  if (!greedy) params.top_p = 0.95;
  const auto state = sampling_of(side.backend(), 1, params);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
  std::iota(positions.begin(), positions.end(), 40);
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(rows), 0);
  const SampleRowsArgs args = {.logits = {},
                               .positions = side.ints({rows}, positions),
                               .seq_of_row = side.ints({rows}, zeros),
                               .node_of_row = side.ints({rows}, zeros),
                               .trees = tree_buffers(side, 1, rows),
                               .sampling = state->view(1),
                               .greedy = greedy,
                               .allowed = {},
                               .choices = side.zeros(DType::kI32, {rows}),
                               .finite = side.zeros(DType::kI32, {rows}),
                               .log_probs = choice == Choice::kGreedyWithLogProbs
                                                ? side.zeros(DType::kF32, {rows})
                                                : Tensor()};
  std::vector<Tensor> outputs = {args.choices, args.finite};
  if (!args.log_probs.empty()) outputs.push_back(args.log_probs);
  Backend& backend = side.backend();
  return {.num_copies = copies,
          .run =
              [=, &backend](std::int64_t i) {
                SampleRowsArgs call = args;
                call.logits = (*logits)[static_cast<std::size_t>(i)];
                backend.sample_rows(call);
                COPPICE_CHECK(state != nullptr);
              },
          .outputs = std::move(outputs),
          .bytes = bytes,
          .keep = logits};
}

// ---- Commit

// Nodes 2, 4, 6 of every tree are accepted below the root: their keys move next to each other.
AcceptPathArgs accept_args(BenchSide& side, std::int64_t batch, const SamplingState& state) {
  constexpr std::int64_t kNodes = 16, kRows = kNodes + 1, kBlocks = 64, kAccepted = 3;
  std::vector<std::int32_t> tokens, parents, depths, choices, slots, offsets = {0}, context, tables;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int32_t node = 0; node < kRows; ++node) {
      tokens.push_back(100 + node);
      parents.push_back(node == 0 ? -1 : std::max(node - 2, 0));
      depths.push_back((node + 1) / 2);
      choices.push_back(node % 2 == 0 && node < 2 * kAccepted ? 102 + node : 5);
      slots.push_back(static_cast<std::int32_t>(b * kBlocks * kBlockSize + 40 + node));
    }
    offsets.push_back(static_cast<std::int32_t>((b + 1) * kRows));
    context.push_back(40);
  }
  tables.resize(static_cast<std::size_t>(batch * kBlocks));
  std::iota(tables.begin(), tables.end(), 0);
  const auto places = static_cast<std::size_t>(batch);
  const auto paths = [&] { return side.zeros(DType::kI32, {batch * kMaxPath}); };
  return {.trees = {.tokens = side.ints({batch, kRows}, tokens),
                    .parents = side.ints({batch, kRows}, parents),
                    .depths = side.ints({batch, kRows}, depths),
                    .scores = side.zeros(DType::kF32, {batch, kRows}),
                    .counts = side.ints({batch}, std::vector<std::int32_t>(places, kNodes))},
          .row_offsets = side.ints({batch + 1}, offsets),
          .choices = side.ints({batch * kRows}, choices),
          .finite = side.ints({batch * kRows}, std::vector<std::int32_t>(
                                                   static_cast<std::size_t>(batch * kRows), 1)),
          .slots = side.ints({batch * kRows}, slots),
          .block_tables = side.ints({batch, kBlocks}, tables),
          .sampling = state.view(batch),
          .context_len = side.ints({batch}, context),
          .anchors = side.ints({batch}, std::vector<std::int32_t>(places, 100)),
          .accepted_rows = side.zeros(DType::kI32, {batch, kMaxPath}),
          .emitted = side.zeros(DType::kI32, {batch, kMaxPath}),
          .num_emitted = side.zeros(DType::kI32, {batch}),
          .finish_reason = side.zeros(DType::kI32, {batch}),
          .move_src = paths(),
          .move_dst = paths(),
          .feature_rows = paths(),
          .feature_positions = paths(),
          .feature_slots = paths()};
}

BuiltCase build_commit(BenchSide& side, std::int64_t batch) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 1 << 30;
  const auto state = sampling_of(side.backend(), batch, params);
  const AcceptPathArgs accept = accept_args(side, batch, *state);
  const std::int64_t blocks = accept.block_tables.num_elements();
  // The first plane is compared; the reference needs no others.
  const std::int64_t num_planes = side.backend().device() == Device::kCpu ? 1 : kPlanes;
  auto planes = std::make_shared<std::vector<Tensor>>();
  for (std::int64_t i = 0; i < num_planes; ++i)
    planes->push_back(side.zeros(side.backend().kv_dtype(), {blocks, kBlockSize, kMlaRow}));
  side.fill_kv((*planes)[0].rows(0, 2), 3);
  Backend& backend = side.backend();
  // Every call advances the sequences by four of the 4096 positions they have.
  return {
      .max_calls = 60,

      .run =
          [=, &backend](std::int64_t) {
            backend.accept_path(accept);
            backend.move_kv({.planes = *planes, .src = accept.move_src, .dst = accept.move_dst});
            COPPICE_CHECK(state != nullptr);
          },
      .outputs = {accept.accepted_rows, accept.emitted, accept.num_emitted, accept.finish_reason,
                  accept.feature_slots, accept.context_len, (*planes)[0].rows(0, 2)},
      .bytes = static_cast<double>(2 * batch * 3 * kPlanes * kMlaRow * 2),
      .keep = planes};
}

}  // namespace

void add_round_cases(std::vector<KernelCase>& cases, const NetworkShape& n) {
  const bool tiny = n.name == "tiny";
  const std::int64_t vocab = tiny ? n.vocab_size : kVocab;
  for (const std::int64_t rows : {7, 15, 56, 120, 448, 960}) {
    if (tiny && rows > 15) break;
    cases.push_back({.key = "top_k rows=" + text(rows),
                     .kernel = "top_k_log_probs",
                     .shape = Json::object({{"rows", rows}, {"vocab_size", vocab}}),
                     .bound = 1e-4,
                     .build = [=](BenchSide& side) { return build_top_k(side, rows, vocab); }});
  }
  for (const std::int64_t budget : {16, 64})
    for (const std::int64_t batch : {1, 8, 64}) {
      const TreeShape s = {batch, budget};
      for (const bool compiles : {false, true})
        cases.push_back({.key = (compiles ? "trees B=" : "tree build B=") + text(batch) +
                                " budget=" + text(budget),
                         .kernel = compiles ? "build_tree + compile_tree" : "build_tree",
                         .shape = Json::object({{"batch", batch}, {"budget", budget}}),
                         .bound = 0,
                         .build = [=](BenchSide& side) { return build_trees(side, s, compiles); }});
    }
  for (const std::int64_t batch : {1, 8, 64})
    cases.push_back({.key = "compile_draft B=" + text(batch),
                     .kernel = "compile_draft",
                     .shape = Json::object({{"batch", batch}}),
                     .bound = 0,
                     .build = [batch](BenchSide& side) { return build_draft_rows(side, batch); }});
  const auto add_ngram = [&](std::int64_t batch, std::int64_t length) {
    cases.push_back({.key = "ngram B=" + text(batch) + " L=" + text(length),
                     .kernel = "ngram_propose",
                     .shape = Json::object({{"batch", batch}, {"history", length}}),
                     .bound = 0,
                     .build = [=](BenchSide& side) { return build_ngram(side, batch, length); }});
  };
  for (const std::int64_t length : {1024, 8192, 32768}) add_ngram(1, length);
  add_ngram(64, 8192);
  const auto add_choice = [&](const char* name, Choice choice) {
    const bool has_log_probs = choice == Choice::kGreedyWithLogProbs;
    for (const std::int64_t rows : {1, 17, 64})
      cases.push_back(
          {.key = std::string(name) + " rows=" + text(rows),
           .kernel = has_log_probs ? "sample_rows + choice_log_probs" : "sample_rows",
           .shape = Json::object({{"rows", rows}, {"vocab_size", vocab}}),
           .bound = has_log_probs ? 1e-4 : 0,
           .build = [=](BenchSide& side) { return build_sample(side, rows, vocab, choice); }});
  };
  add_choice("greedy", Choice::kGreedy);
  add_choice("greedy with log_probs", Choice::kGreedyWithLogProbs);
  add_choice("sample top_p", Choice::kTopP);
  for (const std::int64_t batch : {1, 8, 64})
    cases.push_back({.key = "commit B=" + text(batch),
                     .kernel = "accept_path + move_kv",
                     .shape = Json::object({{"batch", batch}, {"planes", kPlanes}}),
                     .bound = 0,
                     .build = [batch](BenchSide& side) { return build_commit(side, batch); }});
}

}  // namespace coppice
