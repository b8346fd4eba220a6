// Tokens that come out of random draft trees follow the target's own distribution: chi-square over
// toy target tables, with planted faults that the same test must find.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "backend/cpu/ops.h"
#include "tests/spec/support/host_tensors.h"

namespace coppice {
namespace {

using testing::HostTensors;
using testing::make_sampling;
using testing::make_trees;
using testing::Node;
using testing::set_tree;

constexpr std::int64_t kVocab = 16;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kMaxNodes = 16;
constexpr int kLength = 3;  // tokens of one sample
constexpr std::int32_t kStart = 5;

enum class Fault { kNone, kTemperature, kSwappedSiblings, kBonusFromParent };

struct Case {
  double temperature = 1;
  std::int32_t top_k = 0;
  float top_p = 1;
};

// P(next | how many tokens came before, previous token), before and after the filters.
struct Target {
  std::vector<float> logits;  // [kLength, kVocab, kVocab]
  const float* row(std::int64_t depth, std::int32_t previous) const {
    return &logits[static_cast<std::size_t>((depth * kVocab + previous) * kVocab)];
  }
  std::vector<double> probabilities(std::int64_t depth, std::int32_t previous,
                                    const Case& c) const {
    std::vector<std::pair<double, std::int32_t>> ranked;
    for (std::int32_t v = 0; v < kVocab; ++v)
      ranked.emplace_back(-static_cast<double>(row(depth, previous)[v]) / c.temperature, v);
    std::sort(ranked.begin(), ranked.end());
    if (c.top_k > 0) ranked.resize(static_cast<std::size_t>(c.top_k));
    double sum = 0, before = 0, kept = 0;
    for (const auto& [z, v] : ranked) sum += std::exp(-z);
    std::vector<double> p(kVocab, 0.0);
    for (const auto& [z, v] : ranked) {
      if (before < static_cast<double>(c.top_p))
        kept += p[static_cast<std::size_t>(v)] = std::exp(-z) / sum;
      before += std::exp(-z) / sum;
    }
    for (double& value : p) value /= kept;
    return p;
  }
};

Target random_target(std::mt19937& rng) {
  Target target;
  std::normal_distribution<float> normal(0, 1.5f);
  for (std::int64_t i = 0; i < kLength * kVocab * kVocab; ++i) target.logits.push_back(normal(rng));
  return target;
}

// Depth at most 3, at most 4 distinct children of a node.
std::vector<Node> random_tree(std::mt19937& rng) {
  std::vector<Node> nodes;
  std::vector<std::int32_t> level = {0};
  for (int depth = 0; depth < 3; ++depth) {
    std::vector<std::int32_t> next;
    for (const std::int32_t parent : level) {
      std::vector<std::int32_t> tokens(kVocab);
      for (std::int32_t v = 0; v < kVocab; ++v) tokens[static_cast<std::size_t>(v)] = v;
      std::shuffle(tokens.begin(), tokens.end(), rng);
      for (std::size_t width = rng() % 5, i = 0; i < width && nodes.size() < kMaxNodes; ++i) {
        nodes.push_back({tokens[i], parent});
        next.push_back(static_cast<std::int32_t>(nodes.size()));
      }
    }
    level = next;
  }
  return nodes;
}

// Draws samples of kLength tokens, kBatch sequences a round, by sample_rows and accept_path.
class TreeSampler {
 public:
  TreeSampler(const Target& target, const Case& c, Fault fault, std::uint32_t tree_seed)
      : target_(target), fault_(fault), rng_(tree_seed) {
    sample_.trees = make_trees(pool_, kBatch, kMaxNodes);
    sample_.sampling = make_sampling(pool_, kBatch, 16);
    constexpr std::int64_t kRows = kBatch * (kMaxNodes + 1);
    sample_.logits = pool_.make<float>({kRows, kVocab});
    for (Tensor* tensor : {&sample_.positions, &sample_.seq_of_row, &sample_.node_of_row,
                           &sample_.choices, &sample_.finite, &accept_.slots})
      *tensor = pool_.make<std::int32_t>({kRows});
    for (Tensor* tensor :
         {&accept_.context_len, &accept_.anchors, &accept_.num_emitted, &accept_.finish_reason})
      *tensor = pool_.make<std::int32_t>({kBatch});
    for (Tensor* tensor : {&accept_.accepted_rows, &accept_.emitted})
      *tensor = pool_.make<std::int32_t>({kBatch, 4});
    for (Tensor* tensor : {&accept_.move_src, &accept_.move_dst, &accept_.feature_rows,
                           &accept_.feature_positions, &accept_.feature_slots})
      *tensor = pool_.make<std::int32_t>({kBatch * 4});
    accept_.trees = sample_.trees;
    accept_.row_offsets = pool_.make<std::int32_t>({kBatch + 1});
    accept_.choices = sample_.choices;
    accept_.finite = sample_.finite;
    accept_.block_tables = pool_.make<std::int32_t>({kBatch, 1});
    accept_.sampling = sample_.sampling;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      sample_.sampling.temperature.data<float>()[b] =
          static_cast<float>(c.temperature * (fault == Fault::kTemperature ? 1.1 : 1.0));
      sample_.sampling.top_k.data<std::int32_t>()[b] = c.top_k;
      sample_.sampling.top_p.data<float>()[b] = c.top_p;
    }
  }

  using Sample = std::array<std::int32_t, kLength>;

  // The samples of seeds first .. first + kBatch - 1.
  std::array<Sample, kBatch> draw(std::int64_t first) {
    std::array<Sample, kBatch> samples;
    std::array<std::int64_t, kBatch> length{};
    for (std::int64_t b = 0; b < kBatch; ++b) {
      sample_.sampling.seed.data<std::int64_t>()[b] = first + b;
      sample_.sampling.history_len.data<std::int32_t>()[b] = 1;
      sample_.sampling.prompt_len.data<std::int32_t>()[b] = 1;
      accept_.context_len.data<std::int32_t>()[b] = 0;
      accept_.anchors.data<std::int32_t>()[b] = kStart;
    }
    while (*std::min_element(length.begin(), length.end()) < kLength) {
      round(length);
      for (std::size_t b = 0; b < kBatch; ++b) {
        const auto row = static_cast<std::int64_t>(b);
        for (std::int32_t i = 0; i < accept_.num_emitted.data<std::int32_t>()[row]; ++i)
          if (length[b] < kLength)
            samples[b][static_cast<std::size_t>(length[b]++)] =
                accept_.emitted.row<std::int32_t>(row)[i];
      }
    }
    return samples;
  }

 private:
  void round(const std::array<std::int64_t, kBatch>& length) {
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      accept_.row_offsets.data<std::int32_t>()[b] = static_cast<std::int32_t>(row);
      const std::int64_t done = length[static_cast<std::size_t>(b)];
      sample_.trees.counts.data<std::int32_t>()[b] = -1;
      if (done >= kLength) continue;
      set_tree(sample_.trees, b, accept_.anchors.data<std::int32_t>()[b], random_tree(rng_));
      const std::int32_t nodes = sample_.trees.counts.data<std::int32_t>()[b];
      for (std::int32_t node = 0; node <= nodes; ++node) write_row(row + node, b, node, done);
      if (fault_ == Fault::kSwappedSiblings) swap_first_siblings(b, row);
      row += nodes + 1;
    }
    accept_.row_offsets.data<std::int32_t>()[kBatch] = static_cast<std::int32_t>(row);
    SampleRowsArgs args = sample_;
    for (Tensor* tensor : {&args.logits, &args.positions, &args.seq_of_row, &args.node_of_row,
                           &args.choices, &args.finite})
      *tensor = tensor->rows(0, row);
    cpu::sample_rows(args, threads_);
    cpu::accept_path(accept_, threads_);
    if (fault_ == Fault::kBonusFromParent) take_bonus_from_parent();
  }

  void write_row(std::int64_t row, std::int64_t b, std::int32_t node, std::int64_t done) {
    const std::int32_t depth = sample_.trees.depths.row<std::int32_t>(b)[node];
    const std::int32_t token = sample_.trees.tokens.row<std::int32_t>(b)[node];
    sample_.positions.data<std::int32_t>()[row] =
        accept_.context_len.data<std::int32_t>()[b] + depth;
    sample_.seq_of_row.data<std::int32_t>()[row] = static_cast<std::int32_t>(b);
    sample_.node_of_row.data<std::int32_t>()[row] = node;
    // Beyond the sampled length any distribution will do.
    std::copy_n(target_.row(std::min<std::int64_t>(done + depth, kLength - 1), token), kVocab,
                sample_.logits.row<float>(row));
  }

  void swap_first_siblings(std::int64_t b, std::int64_t row) {
    const std::int32_t* parents = sample_.trees.parents.row<std::int32_t>(b);
    for (std::int32_t node = 2; node <= sample_.trees.counts.data<std::int32_t>()[b]; ++node)
      if (parents[node] == parents[node - 1]) {
        std::swap_ranges(sample_.logits.row<float>(row + node),
                         sample_.logits.row<float>(row + node) + kVocab,
                         sample_.logits.row<float>(row + node - 1));
        return;
      }
  }

  void take_bonus_from_parent() {
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const std::int32_t count = accept_.num_emitted.data<std::int32_t>()[b];
      if (count < 2) continue;
      const std::int32_t parent = accept_.accepted_rows.row<std::int32_t>(b)[count - 2];
      const std::int32_t token = sample_.choices.data<std::int32_t>()[parent];
      accept_.emitted.row<std::int32_t>(b)[count - 1] = token;
      accept_.anchors.data<std::int32_t>()[b] = token;
    }
  }

  const Target& target_;
  Fault fault_;
  std::mt19937 rng_;
  HostTensors pool_;
  ThreadPool threads_{1};
  SampleRowsArgs sample_;
  AcceptPathArgs accept_;
};

// P(chi-square with `dof` degrees of freedom >= x): upper regularised incomplete gamma function.
double chi_square_tail(double x, double dof) {
  const double a = dof / 2, y = x / 2;
  if (y <= 0) return 1;
  const double scale = std::exp(-y + a * std::log(y) - std::lgamma(a));
  if (y < a + 1) {
    double term = 1 / a, sum = term;
    for (int n = 1; n < 1000 && term > sum * 1e-15; ++n) sum += term *= y / (a + n);
    return 1 - sum * scale;
  }
  double b = y + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int n = 1; n < 1000; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    const double step = d * c;
    h *= step;
    if (std::abs(step - 1) < 1e-15) break;
  }
  return scale * h;
}

double p_value(const std::map<std::int32_t, double>& expected,
               const std::map<std::int32_t, std::int64_t>& counts) {
  double statistic = 0, bins = 0, rest_expected = 0, rest_count = 0;
  std::int64_t known = 0, total = 0;
  for (const auto& [key, count] : counts) total += count;
  const auto add = [&](double count, double e) {
    statistic += (count - e) * (count - e) / e;
    ++bins;
  };
  for (const auto& [key, e] : expected) {
    const auto it = counts.find(key);
    const auto count = static_cast<double>(it == counts.end() ? 0 : it->second);
    known += static_cast<std::int64_t>(count);
    if (e >= 5) {
      add(count, e);
    } else {
      rest_expected += e;
      rest_count += count;
    }
  }
  if (known != total) return 0;  // an impossible outcome
  if (rest_expected >= 5) add(rest_count, rest_expected);
  return bins < 2 ? 1 : chi_square_tail(statistic, bins - 1);
}

// p-values of tokens 1, 2, 3 and of the pairs (1, 2) and (2, 3).
std::vector<double> test_sampling(const Case& c, Fault fault, std::uint32_t seed,
                                  std::int64_t num_samples) {
  std::mt19937 rng(seed);
  const Target target = random_target(rng);
  std::array<std::map<std::int32_t, double>, 5> expected;
  const auto first = target.probabilities(0, kStart, c);
  for (std::int32_t x = 0; x < kVocab; ++x) {
    const auto second = target.probabilities(1, x, c);
    for (std::int32_t y = 0; y < kVocab; ++y) {
      const auto third = target.probabilities(2, y, c);
      for (std::int32_t z = 0; z < kVocab; ++z) {
        const double e = first[static_cast<std::size_t>(x)] * second[static_cast<std::size_t>(y)] *
                         third[static_cast<std::size_t>(z)] * static_cast<double>(num_samples);
        if (e == 0) continue;
        expected[0][x] += e, expected[1][y] += e, expected[2][z] += e;
        expected[3][x * 16 + y] += e, expected[4][y * 16 + z] += e;
      }
    }
  }
  std::array<std::map<std::int32_t, std::int64_t>, 5> counts;
  TreeSampler sampler(target, c, fault, seed + 1);
  for (std::int64_t s = 0; s < num_samples; s += kBatch)
    for (const auto& [x, y, z] : sampler.draw((std::int64_t{seed} << 32) + s))
      ++counts[0][x], ++counts[1][y], ++counts[2][z], ++counts[3][x * 16 + y],
          ++counts[4][y * 16 + z];
  std::vector<double> p;
  for (std::size_t i = 0; i < 5; ++i) p.push_back(p_value(expected[i], counts[i]));
  return p;
}

const std::vector<Case> kCases = {{0.5, 0, 1},  {1, 0, 1},      {1.5, 0, 1},    {1, 5, 1},
                                  {1, 0, 0.8f}, {0.5, 6, 0.9f}, {1.5, 0, 0.6f}, {1.5, 10, 0.95f}};

TEST(TreeSamplingTest, FollowsTheTargetInEveryCase) {
  std::vector<double> all;
  for (std::uint32_t seed = 0; seed < 2; ++seed)
    for (const Case& c : kCases)
      for (const double p : test_sampling(c, Fault::kNone, 100 * seed + 1, 1 << 15))
        all.push_back(p);
  // Holm: the smallest of n p-values, times n.
  const double smallest = *std::min_element(all.begin(), all.end());
  EXPECT_GT(smallest * static_cast<double>(all.size()), 0.001);
}

TEST(TreeSamplingTest, PValuesAreUniformOverSeeds) {
  std::vector<double> p;
  for (std::uint32_t seed = 0; seed < 200; ++seed)
    p.push_back(test_sampling({1, 0, 1}, Fault::kNone, 1000 + seed, 1 << 11)[0]);
  std::sort(p.begin(), p.end());
  double distance = 0;
  for (std::size_t i = 0; i < p.size(); ++i)
    distance = std::max({distance, std::abs(p[i] - static_cast<double>(i) / 200),
                         std::abs(p[i] - static_cast<double>(i + 1) / 200)});
  EXPECT_LT(distance, 1.63 / std::sqrt(200.0));  // Kolmogorov-Smirnov, p = 0.01
}

TEST(TreeSamplingTest, PlantedFaultsAreFound) {
  for (const Fault fault :
       {Fault::kTemperature, Fault::kSwappedSiblings, Fault::kBonusFromParent}) {
    const auto p = test_sampling({1, 0, 1}, fault, 7, 1 << 15);
    EXPECT_LT(*std::min_element(p.begin(), p.end()), 1e-6) << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace coppice
