// sample_rows against the host.
#include <random>

#include "kernels/sample/sample_rows.h"
#include "tests/kernels/support/device_array.h"
#include "tests/kernels/support/tree_checks.h"
#include "tests/kernels/support/tree_reference.h"

namespace coppice::kernels::checks {
namespace {

template <typename T, typename F>
DeviceArray<T> column(const std::vector<SampleSpec>& specs, F&& field) {
  std::vector<T> values;
  for (const SampleSpec& spec : specs) values.push_back(static_cast<T>(field(spec)));
  return DeviceArray<T>(values);
}

SampleSpec make_spec(int kind, int vocab, std::mt19937& rng) {
  SampleSpec spec;
  spec.seed = static_cast<int64_t>(rng()) << 32 | rng();
  spec.choice_index = static_cast<int32_t>(rng() % 3);
  spec.prompt_len = 40;
  const int len = 40 + static_cast<int>(rng() % 200);
  for (int i = 0; i < len; ++i) spec.history.push_back(static_cast<int32_t>(rng() % (vocab / 4)));
  spec.stop_ids = {static_cast<int32_t>(rng() % vocab), 3};
  spec.temperature = 0.5f + static_cast<float>(rng() % 100) * 0.01f;
  if (kind == 1) spec.top_k = 1 + static_cast<int>(rng() % 60);
  if (kind == 2) spec.top_p = 0.3f + static_cast<float>(rng() % 70) * 0.01f;
  if (kind == 3) spec.min_p = 0.05f;
  if (kind >= 4) {
    spec.top_k = 50;
    spec.top_p = 0.9f;
    spec.min_p = 0.02f;
  }
  if (kind == 5) {
    spec.repetition = 1.2f;
    spec.presence = 0.5f;
    spec.frequency = 0.25f;
    for (int i = 0; i < 9; ++i) {
      spec.bias.push_back({static_cast<int32_t>(rng() % vocab), static_cast<float>(i) - 2.0f});
    }
    spec.min_tokens = 1000;
  }
  if (kind == 6) {
    spec.temperature = 0;
    spec.repetition = 1.3f;
  }
  if (kind == 7) spec.top_k = 300;
  if (kind == 8) spec.temperature = 0.08f;  // so peaked that the 50th is out of any noise's reach
  return spec;
}

struct RowsCase {
  int vocab, num_seqs, rows_per_seq;
  float deviation = 4;  // of the logits
  bool with_mask = false;
  int first_kind = 0;  // of sequence 0; the others follow
  // One launch, with one row of each sequence, its last; that of the last of several sequences is
  // not finite. Otherwise nearly all rows, twice, and some alone.
  bool few = false;
};

int check_rows(const RowsCase& c, std::mt19937& rng) {
  const auto [vocab, num_seqs, rows_per_seq, deviation, with_mask, first_kind, few] = c;
  const int nodes = rows_per_seq, stride = 512, max_bias = 16, max_stop = 2;
  const int num_rows = num_seqs * rows_per_seq;
  std::vector<SampleSpec> specs;
  std::vector<int32_t> tokens, parents, depths, history, bias_ids, stop_ids;
  std::vector<float> bias_values;
  for (int s = 0; s < num_seqs; ++s) {
    specs.push_back(make_spec((first_kind + s) % 9, vocab, rng));
    std::vector<int32_t> depth{0};
    for (int i = 0; i < nodes; ++i) {
      const int parent = i == 0 ? -1 : static_cast<int>(rng() % i);
      tokens.push_back(static_cast<int32_t>(rng() % (vocab / 4)));
      parents.push_back(parent);
      if (i > 0) depth.push_back(depth[parent] + 1);
      depths.push_back(depth[i]);
    }
    std::vector<int32_t> padded(specs[s].history);
    padded.resize(stride, -1);
    history.insert(history.end(), padded.begin(), padded.end());
    for (int i = 0; i < max_bias; ++i) {
      const bool used = i < static_cast<int>(specs[s].bias.size());
      bias_ids.push_back(used ? specs[s].bias[i].first : -1);
      bias_values.push_back(used ? specs[s].bias[i].second : 0.0f);
    }
    stop_ids.insert(stop_ids.end(), specs[s].stop_ids.begin(), specs[s].stop_ids.end());
  }
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(static_cast<size_t>(num_rows) * vocab);
  for (float& x : logits) x = normal(rng);
  std::vector<int32_t> positions, seq_of_row, node_of_row, want, finite(num_rows, 1);
  const int words = (vocab + 31) / 32;
  std::vector<uint32_t> mask(static_cast<size_t>(num_rows) * words);
  for (uint32_t& w : mask) w = static_cast<uint32_t>(rng());
  for (int row = 0; row < num_rows; ++row) {
    const int s = row / rows_per_seq, node = row % rows_per_seq;
    positions.push_back(static_cast<int32_t>(rng() % 100000));
    seq_of_row.push_back((few ? node + 1 < nodes : rng() % 9 == 0) ? -1 : s);
    node_of_row.push_back(node);
    if (few ? row + 1 == num_rows && num_seqs > 1 : rng() % 11 == 0) {
      logits[static_cast<size_t>(row) * vocab + rng() % vocab] = rng() % 2 == 0 ? NAN : -INFINITY;
      finite[row] = 0;
    }
    if (seq_of_row[row] < 0) {
      want.push_back(-1);
      finite[row] = 1;
      continue;
    }
    std::vector<int32_t> path;
    for (int at = node; at > 0; at = parents[s * nodes + at])
      path.push_back(tokens[s * nodes + at]);
    std::vector<bool> allowed(vocab);
    for (int id = 0; id < vocab; ++id) {
      allowed[id] = mask[static_cast<size_t>(row) * words + id / 32] >> (id % 32) & 1u;
    }
    const std::vector<float> x(logits.begin() + static_cast<long>(row) * vocab,
                               logits.begin() + static_cast<long>(row + 1) * vocab);
    want.push_back(
        reference_sample(x, specs[s], path, positions[row], with_mask ? &allowed : nullptr));
  }
  DeviceArray<float> d_logits(logits), d_bias_values(bias_values);
  DeviceArray<int32_t> d_positions(positions), d_seq(seq_of_row), d_node(node_of_row);
  DeviceArray<int32_t> d_tokens(tokens), d_parents(parents), d_depths(depths), d_history(history);
  DeviceArray<int32_t> d_bias_ids(bias_ids), d_stop(stop_ids), choices(num_rows),
      d_finite(num_rows);
  DeviceArray<uint32_t> d_mask(mask);
  DeviceArray<uint32_t> counts(static_cast<size_t>(num_seqs) * vocab, 0);
  const auto temperature = column<float>(specs, [](auto& s) { return s.temperature; });
  const auto top_k = column<int32_t>(specs, [](auto& s) { return s.top_k; });
  const auto top_p = column<float>(specs, [](auto& s) { return s.top_p; });
  const auto min_p = column<float>(specs, [](auto& s) { return s.min_p; });
  const auto repetition = column<float>(specs, [](auto& s) { return s.repetition; });
  const auto presence = column<float>(specs, [](auto& s) { return s.presence; });
  const auto frequency = column<float>(specs, [](auto& s) { return s.frequency; });
  const auto seed = column<int64_t>(specs, [](auto& s) { return s.seed; });
  const auto choice_index = column<int32_t>(specs, [](auto& s) { return s.choice_index; });
  const auto prompt_len = column<int32_t>(specs, [](auto& s) { return s.prompt_len; });
  const auto history_len = column<int32_t>(specs, [](auto& s) { return s.history.size(); });
  const auto min_tokens = column<int32_t>(specs, [](auto& s) { return s.min_tokens; });
  SampleRowsParams p;
  p.logits = d_logits.get();
  p.row_stride = p.vocab_size = vocab;
  p.positions = d_positions.get();
  p.seq_of_row = d_seq.get();
  p.node_of_row = d_node.get();
  p.allowed = with_mask ? d_mask.get() : nullptr;
  p.trees = {d_tokens.get(), d_parents.get(), d_depths.get(), nullptr, nullptr, nodes - 1};
  p.temperature = temperature.get();
  p.top_k = top_k.get();
  p.top_p = top_p.get();
  p.min_p = min_p.get();
  p.repetition_penalty = repetition.get();
  p.presence_penalty = presence.get();
  p.frequency_penalty = frequency.get();
  p.seed = seed.get();
  p.choice_index = choice_index.get();
  p.prompt_len = prompt_len.get();
  p.history = d_history.get();
  p.history_len = history_len.get();
  p.bias_ids = d_bias_ids.get();
  p.bias_values = d_bias_values.get();
  p.stop_ids = d_stop.get();
  p.min_tokens = min_tokens.get();
  p.history_stride = stride;
  p.max_bias = max_bias;
  p.max_stop_ids = max_stop;
  p.num_seqs = num_seqs;
  p.num_rows = num_rows;
  p.choices = choices.get();
  p.finite = d_finite.get();
  p.token_counts = counts.get();
  CHECK_CUDA(sample_rows(p, nullptr));
  const auto first = choices.host();
  if (!few) CHECK_CUDA(sample_rows(p, nullptr));  // the workspace was left zero
  const auto got = choices.host(), got_finite = d_finite.host();
  int wrong = 0, failures = first != got;
  for (int row = 0; row < num_rows; ++row) {
    if (got[row] != want[row]) {
      ++wrong;
      std::printf("  row %d (kind %d): got %d, want %d\n", row,
                  (first_kind + row / rows_per_seq) % 9, got[row], want[row]);
    }
    failures += got_finite[row] != finite[row];
  }
  for (uint32_t count : counts.host()) failures += count != 0;
  // One row alone gives the same token.
  for (int row = 0; row < num_rows && !few; row += 7) {
    p.logits = d_logits.get() + static_cast<size_t>(row) * vocab;
    p.positions = d_positions.get() + row;
    p.seq_of_row = d_seq.get() + row;
    p.node_of_row = d_node.get() + row;
    if (with_mask) p.allowed = d_mask.get() + static_cast<size_t>(row) * words;
    p.num_rows = 1;
    CHECK_CUDA(sample_rows(p, nullptr));
    failures += choices.host()[0] != got[row];
  }
  std::printf("sample V=%d rows=%d%s%s: %d failures, %d choices differ\n", vocab, num_rows,
              deviation < 1 ? " flat" : "", with_mask ? " masked" : "", failures, wrong);
  return failures + wrong;
}

// Logits so even that all ids are of one class of the filters: how many fit in the lists of a block
// decides how its cut is searched.
constexpr float kEven = 0.001f;

// Clusters up to 64 rows, a block a row above. Sequences of each kind, and one that is not finite.
template <int kRowsPerSeq, bool kMasked>
int check_all_kinds() {
  std::mt19937 rng(5);
  return check_rows({1344, 10, kRowsPerSeq, 4, kMasked, 0, true}, rng);
}

// Top-k alone or top-p alone: 64 sums over the row.
constexpr int kTopKKind = 1, kTopPKind = 2;
template <int kVocab, int kRowsPerSeq, int kKind>
int check_even() {
  std::mt19937 rng(6);
  return check_rows({kVocab, 1, kRowsPerSeq, kEven, false, kKind, true}, rng);
}

}  // namespace

int check_sample() {
  std::mt19937 rng(4);
  int failures = check_rows({5376, 9, 12}, rng);
  failures += check_rows({5376, 9, 3, 0.02f, true}, rng);
  failures += check_rows({163840, 9, 1, 4, true}, rng);
  failures += check_rows({163840, 9, 1, 0.02f}, rng);
  return failures;
}

std::vector<SmallCase> small_sample_cases() {
  return {
      {"clusters", check_all_kinds<3, false>},
      {"clusters_masked", check_all_kinds<2, true>},
      {"clusters_even_top_k", check_even<1344, 3, kTopKKind>},
      {"clusters_beyond_lists_top_p", check_even<5376, 2, kTopPKind>},
      {"blocks", check_all_kinds<8, false>},
      {"blocks_masked", check_all_kinds<7, true>},
      {"blocks_even_top_k", check_even<1344, 70, kTopKKind>},
      {"blocks_beyond_lists_top_p", check_even<5376, 65, kTopPKind>},
  };
}

}  // namespace coppice::kernels::checks
