// build_tree and compile_tree against the host, and the golden trees of tiny-k2.
#include <cstring>
#include <random>

#include "kernels/sample/top_k_log_probs.h"
#include "kernels/tree/build_tree.h"
#include "kernels/tree/compile_tree.h"
#include "tests/kernels/support/device_array.h"
#include "tests/kernels/support/golden.h"
#include "tests/kernels/support/tree_checks.h"
#include "tests/kernels/support/tree_reference.h"

namespace coppice::kernels::checks {
namespace {

struct DeviceTrees {
  DeviceTrees(int num_seqs, int nodes)
      : tokens(static_cast<size_t>(num_seqs) * static_cast<size_t>(nodes + 1)),
        parents(tokens.size()),
        depths(tokens.size()),
        scores(tokens.size()),
        counts(static_cast<size_t>(num_seqs)),
        max_nodes(nodes) {}
  TreeArrays arrays() const {
    return {tokens.get(), parents.get(), depths.get(), scores.get(), counts.get(), max_nodes};
  }
  DeviceArray<int32_t> tokens, parents, depths;
  DeviceArray<float> scores;
  mutable DeviceArray<int32_t> counts;
  std::vector<int32_t> counts_before;  // compile_tree lowers counts
  int max_nodes;
};

enum class Draft {
  kRandom,     // gaps of 0.7 nat
  kPeaked,     // the first rank far ahead, the others in steps of 1/16: deep trees, equal siblings
  kTied,       // of three values, exact sums
  kRounded,    // of three values whose sums round: siblings that pass their elders
  kEqual,      // all scores of a depth tie
  kImpossible  // of equal values and -inf
};

const char* name_of(Draft draft) {
  constexpr const char* kNames[] = {"random", "peaked", "tied", "rounded", "equal", "impossible"};
  return kNames[static_cast<int>(draft)];
}

// Descending log-probabilities.
void make_table(int depth, int k, Draft draft, std::mt19937& rng, std::vector<int32_t>& ids,
                std::vector<float>& log_probs) {
  std::exponential_distribution<float> gap(1.0f);
  for (int d = 0; d < depth; ++d) {
    std::vector<float> row(k);
    float value = -gap(rng) * 0.5f;
    const float base = -1.3f - 0.003f * static_cast<float>(rng() % 1000);
    for (float& x : row) {
      const auto level = static_cast<float>(rng() % 3);
      x = draft == Draft::kTied         ? -0.25f * (1 + level)
          : draft == Draft::kRounded    ? base - 1.1f * level
          : draft == Draft::kEqual      ? -0.25f
          : draft == Draft::kImpossible ? (level > 1 ? -INFINITY : -1.7f)
          : draft == Draft::kPeaked     ? -2.0f - 0.0625f * static_cast<float>(rng() % 96)
                                        : value;
      value -= gap(rng) * 0.7f;
    }
    if (draft == Draft::kPeaked) row[0] = -0.01f * static_cast<float>(1 + rng() % 100);
    std::sort(row.rbegin(), row.rend());
    for (int r = 0; r < k; ++r) {
      ids.push_back(static_cast<int32_t>(rng() % 163840));
      log_probs.push_back(row[r]);
    }
  }
}

struct Batch {
  int num_seqs, depth, k, max_nodes;
  Draft draft;
  std::vector<int32_t> ids, anchors, budgets, limits;
  std::vector<float> log_probs, min_scores;
  std::vector<Tree> trees;  // expected
};

Batch make_batch(int num_seqs, int depth, int k, int max_nodes, Draft draft, bool ragged,
                 std::mt19937& rng) {
  Batch b{num_seqs, depth, k, max_nodes, draft, {}, {}, {}, {}, {}, {}, {}};
  for (int s = 0; s < num_seqs; ++s) {
    make_table(depth, k, draft, rng, b.ids, b.log_probs);
    b.anchors.push_back(ragged && rng() % 5 == 0 ? -1 : static_cast<int>(rng() % 163840));
    b.budgets.push_back(ragged ? static_cast<int>(rng() % (max_nodes + 1)) : max_nodes);
    b.limits.push_back(ragged ? static_cast<int>(rng() % (depth + 1)) : depth);
    b.min_scores.push_back(ragged && rng() % 2 == 0 ? -3.0f : -INFINITY);
    const size_t at = static_cast<size_t>(s) * depth * k;
    if (ragged && s % 7 == 3) b.log_probs[at + k / 2] = NAN;
    if (ragged && s % 7 == 4) b.log_probs[at + k - 1] = -INFINITY;
    // The device reads the first `budget` ranks only; rank r needs r better siblings in the tree.
    b.trees.push_back(reference_tree(&b.ids[at], &b.log_probs[at], depth, k, b.anchors[s],
                                     b.budgets[s], b.limits[s], b.min_scores[s]));
  }
  return b;
}

void run_build(const Batch& b, const DeviceTrees& out) {
  DeviceArray<int32_t> ids(b.ids), anchors(b.anchors), budgets(b.budgets), limits(b.limits);
  DeviceArray<float> log_probs(b.log_probs), min_scores(b.min_scores);
  BuildTreeParams params{ids.get(),    log_probs.get(),  anchors.get(), budgets.get(),
                         limits.get(), min_scores.get(), b.num_seqs,    b.depth,
                         b.k,          out.arrays()};
  CHECK_CUDA(build_tree(params, nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
}

int compare_trees(const Batch& b, const DeviceTrees& device) {
  const auto tokens = device.tokens.host(), parents = device.parents.host();
  const auto depths = device.depths.host(), counts = device.counts.host();
  const auto scores = device.scores.host();
  int failures = 0;
  for (int s = 0; s < b.num_seqs; ++s) {
    const Tree& tree = b.trees[s];
    bool same = counts[s] == tree.count;
    const size_t at = static_cast<size_t>(s) * (b.max_nodes + 1);
    for (int i = 0; same && i <= tree.count; ++i) {
      same = tokens[at + i] == tree.tokens[i] && parents[at + i] == tree.parents[i] &&
             depths[at + i] == tree.depths[i] &&
             std::memcmp(&scores[at + i], &tree.scores[i], 4) == 0;
    }
    failures += !same;
  }
  return failures;
}

// ---- compile_tree

struct Rows {
  explicit Rows(int num_rows, int max_path, int num_seqs)
      : token_ids(num_rows),
        positions(num_rows),
        slots(num_rows),
        seq_of_row(num_rows),
        node_of_row(num_rows),
        kv_len(num_rows),
        path_len(num_rows),
        path(static_cast<size_t>(num_rows) * max_path),
        offsets(num_seqs + 1),
        chosen(2) {}
  DeviceArray<int32_t> token_ids, positions, slots, seq_of_row, node_of_row, kv_len, path_len, path,
      offsets, chosen;
};

int check_compile(const Batch& b, const DeviceTrees& trees, int num_rows, bool with_costs,
                  bool calibrated, std::mt19937& rng) {
  const int max_path = b.depth + 1, max_blocks = 40;
  std::vector<int32_t> context, tables, bucket_rows;
  std::vector<float> costs;
  int live = 0, total = 0;
  for (int s = 0; s < b.num_seqs; ++s) {
    context.push_back(static_cast<int32_t>(rng() % 1900));
    for (int i = 0; i < max_blocks; ++i) tables.push_back(static_cast<int32_t>(rng() % 100000));
    live += b.trees[s].count >= 0;
    total += std::max(b.trees[s].count, 0);
  }
  num_rows = std::max(num_rows, live);
  for (int rows = 1; rows <= 2 * num_rows && bucket_rows.size() < 31; rows = rows * 2 + 1) {
    bucket_rows.push_back(rows);
    costs.push_back(3.0f + 0.05f * static_cast<float>(rows) + 0.3f * static_cast<float>(rng() % 8));
  }
  DeviceArray<int32_t> d_context(context), d_tables(tables), d_buckets(bucket_rows);
  std::vector<float> calibration;
  for (int d = 0; calibrated && d < max_path; ++d) {
    calibration.push_back(0.5f + 0.01f * static_cast<float>(rng() % 100));
  }
  DeviceArray<float> d_costs(costs), d_calibration(calibration);
  DeviceArray<int32_t> ticket(1, 0);
  trees.counts.set(trees.counts_before);
  Rows rows(num_rows, max_path, b.num_seqs);
  CompileTreeParams p;
  p.trees = trees.arrays();
  p.context_len = d_context.get();
  p.block_tables = d_tables.get();
  if (with_costs) {
    p.cost_ms = d_costs.get();
    p.bucket_rows = d_buckets.get();
    p.num_buckets = static_cast<int>(costs.size());
  }
  p.calibration = calibrated ? d_calibration.get() : nullptr;
  p.ticket = ticket.get();
  p.num_seqs = b.num_seqs;
  p.max_blocks = max_blocks;
  p.num_rows = num_rows;
  p.max_path = max_path;
  p.token_ids = rows.token_ids.get();
  p.positions = rows.positions.get();
  p.slots = rows.slots.get();
  p.seq_of_row = rows.seq_of_row.get();
  p.node_of_row = rows.node_of_row.get();
  p.kv_len = rows.kv_len.get();
  p.path_len = rows.path_len.get();
  p.path = rows.path.get();
  p.row_offsets = rows.offsets.get();
  p.chosen = rows.chosen.get();
  CHECK_CUDA(compile_tree(p, nullptr));
  const auto chosen = rows.chosen.host();
  int failures = 0;
  int capacity = num_rows - live;
  if (with_costs) {
    double best = -1, got = -1;
    for (size_t i = 0; i < costs.size(); ++i) {
      if (bucket_rows[i] > num_rows || bucket_rows[i] < live) continue;
      double worth = live;
      reference_keep(b.trees, bucket_rows[i] - live, calibration, &worth);
      worth /= costs[i];
      best = std::max(best, worth);
      if (static_cast<int>(i) == chosen[0]) got = worth;
    }
    // The device weighs nodes of the class that is cut with the class's mean, 0.01 nat wide; with
    // calibration a class also holds nodes worth more, taken behind a poorer one: many where
    // scores are equal.
    const double least = !calibrated ? 0.9999 : b.draft == Draft::kEqual ? 0.9 : 0.98;
    if (live > 0 && best >= 0 && !(got > best * least)) {
      std::printf("  bucket %d is worth %f, best %f\n", chosen[0], got, best);
      ++failures;
    }
    capacity = chosen[0] >= 0 ? bucket_rows[chosen[0]] - live : 0;
  } else {
    failures += chosen[0] != -1;
  }
  double unused = 0;
  const std::vector<int> kept = reference_keep(b.trees, capacity, calibration, &unused);
  const auto lowered = trees.counts.host();
  for (int s = 0; s < b.num_seqs; ++s) {
    failures += lowered[s] != (b.trees[s].count < 0 ? -1 : kept[s]);
  }
  failures += ticket.host()[0] != 0;
  const auto token_ids = rows.token_ids.host(), positions = rows.positions.host();
  const auto slots = rows.slots.host(), seqs = rows.seq_of_row.host();
  const auto nodes = rows.node_of_row.host(), kv_len = rows.kv_len.host();
  const auto path_len = rows.path_len.host(), path = rows.path.host();
  const auto offsets = rows.offsets.host();
  int row = 0;
  for (int s = 0; s < b.num_seqs; ++s) {
    const Tree& tree = b.trees[s];
    failures += offsets[s] != row;
    const auto slot = [&](int node) {
      const int position = context[s] + node;
      return tables[s * max_blocks + position / 64] * 64 + position % 64;
    };
    for (int i = 0; tree.count >= 0 && i <= kept[s] && row < num_rows; ++i, ++row) {
      bool same = token_ids[row] == tree.tokens[i] &&
                  positions[row] == context[s] + tree.depths[i] && slots[row] == slot(i) &&
                  seqs[row] == s && nodes[row] == i && kv_len[row] == context[s] &&
                  path_len[row] == tree.depths[i] + 1;
      int at = i;
      for (int d = max_path - 1; d >= 0; --d) {
        const int32_t value = path[static_cast<size_t>(row) * max_path + d];
        if (d > tree.depths[i]) {
          same = same && value == -1;
        } else {
          same = same && value == slot(at);
          at = tree.parents[at];
        }
      }
      failures += !same;
    }
  }
  failures += offsets[b.num_seqs] != row || chosen[1] != row;
  for (; row < num_rows; ++row) {
    bool inert = token_ids[row] == -1 && positions[row] == 0 && slots[row] == -1 &&
                 seqs[row] == -1 && nodes[row] == -1 && kv_len[row] == 0 && path_len[row] == 0;
    for (int d = 0; d < max_path; ++d) {
      inert = inert && path[static_cast<size_t>(row) * max_path + d] == -1;
    }
    failures += !inert;
  }
  if (failures != 0 || std::getenv("LAB_VERBOSE") != nullptr) {
    std::printf("  compile T=%d %s%s: %d failures (live %d, nodes %d, bucket %d)\n", num_rows,
                with_costs ? "cut by cost" : "cut by rows", calibrated ? ", calibrated" : "",
                failures, live, total, chosen[0]);
  }
  return failures;
}

// few: one number of rows instead of four.
int check_batch(int num_seqs, int depth, int k, int max_nodes, Draft draft, bool ragged,
                std::mt19937& rng, bool few = false) {
  const Batch b = make_batch(num_seqs, depth, k, max_nodes, draft, ragged, rng);
  DeviceTrees trees(num_seqs, max_nodes);
  run_build(b, trees);
  trees.counts_before = trees.counts.host();
  const int build_failures = compare_trees(b, trees);
  int failures = 0;
  const int most = num_seqs * (max_nodes + 1);
  for (int rows :
       few ? std::vector<int>{most / 3} : std::vector<int>{num_seqs, most / 3, most, most + 37}) {
    failures += check_compile(b, trees, rows, false, false, rng);
    failures += check_compile(b, trees, rows, true, false, rng);
    failures += check_compile(b, trees, rows, true, true, rng);
  }
  std::printf("tree B=%d depth=%d k=%d N=%d %s%s: build %d, compile %d failures\n", num_seqs, depth,
              k, max_nodes, name_of(draft), ragged ? " ragged" : "", build_failures, failures);
  return failures + build_failures;
}

}  // namespace

int check_tree() {
  std::mt19937 rng(2);
  int failures = 0;
  for (const Draft draft : {Draft::kRandom, Draft::kPeaked, Draft::kTied, Draft::kRounded,
                            Draft::kEqual, Draft::kImpossible}) {
    for (bool ragged : {false, true}) {
      failures += check_batch(1, 7, 8, 8, draft, ragged, rng);
      failures += check_batch(1, 1, 1, 1, draft, ragged, rng);
      failures += check_batch(3, 15, 64, 64, draft, ragged, rng);
      failures += check_batch(2, 15, 64, 255, draft, ragged, rng);
      failures += check_batch(8, 7, 16, 16, draft, ragged, rng);
      failures += check_batch(64, 7, 16, 16, draft, ragged, rng);
      failures += check_batch(64, 15, 64, 64, draft, ragged, rng);
      failures += check_batch(5, 16, 33, 100, draft, ragged, rng);
      failures += check_batch(16, 15, 64, 128, draft, ragged, rng);
      failures += check_batch(2, 15, 64, 512, draft, ragged, rng);
      failures += check_batch(200, 7, 8, 12, draft, ragged, rng);
      failures += check_batch(7, 3, 10, 32, draft, ragged, rng);
    }
  }
  return failures;
}

namespace {

template <int kNumSeqs, int kDepth, int kK, int kNodes, Draft kDraft, bool kRagged>
int check_small() {
  std::mt19937 rng(3);
  return check_batch(kNumSeqs, kDepth, kK, kNodes, kDraft, kRagged, rng, true);
}

}  // namespace

std::vector<SmallCase> small_tree_cases() {
  return {{"one_node", check_small<1, 1, 1, 1, Draft::kEqual, false>},
          {"by_steps", check_small<1, 7, 8, 16, Draft::kPeaked, false>},
          {"by_steps_ragged", check_small<7, 3, 10, 32, Draft::kTied, true>},
          {"many_sequences", check_small<20, 7, 8, 12, Draft::kImpossible, true>},
          {"rounds_of_64", check_small<1, 15, 64, 64, Draft::kRandom, false>},
          {"rounds_of_64_ragged", check_small<5, 15, 64, 64, Draft::kRounded, true>},
          {"rounds_of_128", check_small<2, 16, 33, 100, Draft::kPeaked, true>},
          {"rounds_of_256", check_small<2, 15, 64, 255, Draft::kTied, false>},
          {"rounds_of_256_equal", check_small<1, 15, 64, 255, Draft::kEqual, false>},
          {"rounds_of_512", check_small<2, 15, 64, 512, Draft::kPeaked, false>}};
}

int check_planted_fault() {
  std::mt19937 rng(9);
  Batch b = make_batch(4, 7, 16, 16, Draft::kRandom, false, rng);
  for (int32_t& budget : b.budgets) --budget;
  DeviceTrees trees(b.num_seqs, b.max_nodes);
  run_build(b, trees);
  return compare_trees(b, trees);
}

int check_golden(const std::string& folder) {
  int failures = 0;
  for (const char* name : {"code_short", "code_long", "code_1400", "prose_mid", "prose_300",
                           "chat_arithmetic", "chat_code", "chat_tool", "chat_tool_result"}) {
    const std::string file = read_file(folder + "/" + name + ".safetensors");
    const std::string json = read_file(folder + "/" + std::string(name) + ".json");
    const auto logits = golden_tensor<float>(file, "draft_logits");
    const int depth = 7, vocab = 5376;
    for (int n : {8, 16, 64}) {
      DeviceArray<float> d_logits(logits), log_probs(static_cast<size_t>(depth) * n);
      DeviceArray<int32_t> ids(static_cast<size_t>(depth) * n);
      DeviceArray<char> workspace(top_k_log_probs_workspace_bytes(depth, vocab), 0);
      TopKLogProbsParams top;
      top.logits = d_logits.get();
      top.row_stride = top.vocab_size = vocab;
      top.num_rows = top.max_rows = depth;
      top.k = n;
      top.ids = ids.get();
      top.log_probs = log_probs.get();
      top.workspace = workspace.get();
      CHECK_CUDA(top_k_log_probs(top, nullptr));
      DeviceArray<int32_t> anchor(golden_ints(json, "n", "anchor"));
      DeviceArray<int32_t> budget(std::vector<int32_t>{n});
      DeviceTrees trees(1, n);
      CHECK_CUDA(build_tree({ids.get(), log_probs.get(), anchor.get(), budget.get(), nullptr,
                             nullptr, 1, depth, n, trees.arrays()},
                            nullptr));
      const std::string tree = "tree" + std::to_string(n);
      const auto tokens = golden_tensor<int32_t>(file, tree + ".tokens");
      const auto parents = golden_tensor<int32_t>(file, tree + ".parents");
      const auto depths = golden_tensor<int32_t>(file, tree + ".depths");
      const auto scores = golden_tensor<float>(file, tree + ".scores");
      const auto got_tokens = trees.tokens.host(), got_parents = trees.parents.host();
      const auto got_depths = trees.depths.host();
      const auto got_scores = trees.scores.host();
      int wrong = trees.counts.host()[0] != n;
      for (int i = 0; i < n; ++i) {
        wrong += got_tokens[i + 1] != tokens[i] || got_parents[i + 1] != parents[i] ||
                 got_depths[i + 1] != depths[i] ||
                 !(std::abs(got_scores[i + 1] - scores[i]) < 1e-4);
      }
      failures += wrong;
      if (wrong != 0) std::printf("  golden %s N=%d: %d nodes differ\n", name, n, wrong);
    }
  }
  std::printf("golden trees: %d failures\n", failures);
  return failures;
}

}  // namespace coppice::kernels::checks
