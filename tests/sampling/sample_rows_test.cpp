// sample_rows against a slow double-precision reference that shares no code with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "backend/cpu/ops.h"
#include "base/rng.h"
#include "tests/spec/support/host_tensors.h"

namespace coppice {
namespace {

using testing::HostTensors;
using testing::make_sampling;
using testing::make_trees;
using testing::set_tree;
using testing::values;

constexpr std::int64_t kVocab = 24;

struct Params {
  double temperature = 1;
  int top_k = 0;
  double top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
  std::int64_t seed = 0;
  int choice_index = 0, min_tokens = 0;
  std::map<int, double> bias;
  std::vector<int> stop_ids;
};

// Probabilities of the surviving ids, by the documented order of filters.
std::map<int, double> reference_distribution(std::vector<double> logits, const Params& params,
                                             const std::vector<int>& prompt,
                                             const std::vector<int>& output) {
  std::map<int, int> out_count;
  std::set<int> seen(prompt.begin(), prompt.end());
  for (const int token : output) ++out_count[token], seen.insert(token);
  std::set<int> banned;
  if (static_cast<int>(output.size()) < params.min_tokens)
    banned.insert(params.stop_ids.begin(), params.stop_ids.end());
  std::vector<std::pair<double, int>> ranked;
  for (int id = 0; id < static_cast<int>(logits.size()); ++id) {
    if (banned.contains(id)) continue;
    double z = logits[static_cast<std::size_t>(id)];
    if (seen.contains(id)) z = z > 0 ? z / params.repetition : z * params.repetition;
    if (out_count.contains(id)) z -= params.frequency * out_count[id] + params.presence;
    if (params.bias.contains(id)) z += params.bias.at(id);
    ranked.emplace_back(params.temperature > 0 ? z / params.temperature : z, id);
  }
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (params.temperature == 0) return {{ranked[0].second, 1.0}};
  if (params.top_k > 0 && params.top_k < static_cast<int>(ranked.size()))
    ranked.resize(static_cast<std::size_t>(params.top_k));
  double sum = 0;
  for (const auto& [z, id] : ranked) sum += std::exp(z - ranked[0].first);
  std::map<int, double> kept;
  double before = 0;
  for (const auto& [z, id] : ranked) {
    const double p = std::exp(z - ranked[0].first) / sum;
    if (before < params.top_p && p * sum >= params.min_p * 1.0) kept[id] = p;
    before += p;
  }
  double total = 0;
  for (const auto& [id, p] : kept) total += p;
  for (auto& [id, p] : kept) p /= total;
  return kept;
}

int reference_choice(const std::map<int, double>& distribution, std::int64_t seed, int position,
                     int choice_index) {
  int best = -1;
  double best_key = 0;
  for (const auto& [id, p] : distribution) {
    const auto bits =
        philox4x32({static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(position),
                    static_cast<std::uint32_t>(choice_index), 0},
                   static_cast<std::uint64_t>(seed));
    const double u = uniform_open(bits[0]);
    const double key = std::log(p) - std::log(-std::log(u));
    if (best < 0 || key > best_key) best = id, best_key = key;
  }
  return best;
}

class SampleRowsTest : public ::testing::Test {
 protected:
  // Rows of one sequence: the root and the nodes of its tree.
  struct Result {
    std::vector<std::int32_t> choices, finite;
    std::vector<float> log_probs;
  };

  Result sample(const std::vector<std::vector<double>>& logits, const Params& params,
                const std::vector<int>& prompt, const std::vector<int>& output,
                const std::vector<testing::Node>& nodes) {
    HostTensors pool;
    const auto rows = static_cast<std::int64_t>(logits.size());
    SampleRowsArgs args;
    args.logits = pool.make<float>({rows, kVocab});
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t v = 0; v < kVocab; ++v)
        args.logits.row<float>(t)[v] =
            static_cast<float>(logits[static_cast<std::size_t>(t)][static_cast<std::size_t>(v)]);
    args.trees = make_trees(pool, 1, 16);
    set_tree(args.trees, 0, output.empty() ? prompt.back() : output.back(), nodes);
    args.sampling = make_sampling(pool, 1, 64);
    set_params(args.sampling, params, prompt, output);
    args.positions = pool.make<std::int32_t>({rows});
    args.node_of_row = pool.make<std::int32_t>({rows});
    const auto context = static_cast<std::int32_t>(prompt.size() + output.size()) - 1;
    for (std::int32_t t = 0; t < rows; ++t) {
      args.node_of_row.data<std::int32_t>()[t] = t;
      args.positions.data<std::int32_t>()[t] = context + args.trees.depths.data<std::int32_t>()[t];
    }
    args.seq_of_row = pool.make<std::int32_t>({rows});
    args.choices = pool.make<std::int32_t>({rows});
    args.finite = pool.make<std::int32_t>({rows});
    args.log_probs = pool.make<float>({rows});
    args.greedy = says_greedy_;
    cpu::sample_rows(args, threads_);
    return {values<std::int32_t>(args.choices), values<std::int32_t>(args.finite),
            values<float>(args.log_probs)};
  }

  static void set_params(const SamplingBuffers& sampling, const Params& params,
                         const std::vector<int>& prompt, const std::vector<int>& output) {
    sampling.temperature.data<float>()[0] = static_cast<float>(params.temperature);
    sampling.top_k.data<std::int32_t>()[0] = params.top_k;
    sampling.top_p.data<float>()[0] = static_cast<float>(params.top_p);
    sampling.min_p.data<float>()[0] = static_cast<float>(params.min_p);
    sampling.repetition_penalty.data<float>()[0] = static_cast<float>(params.repetition);
    sampling.presence_penalty.data<float>()[0] = static_cast<float>(params.presence);
    sampling.frequency_penalty.data<float>()[0] = static_cast<float>(params.frequency);
    sampling.seed.data<std::int64_t>()[0] = params.seed;
    sampling.choice_index.data<std::int32_t>()[0] = params.choice_index;
    sampling.min_tokens.data<std::int32_t>()[0] = params.min_tokens;
    std::vector<int> history = prompt;
    history.insert(history.end(), output.begin(), output.end());
    std::copy(history.begin(), history.end(), sampling.history.data<std::int32_t>());
    sampling.history_len.data<std::int32_t>()[0] = static_cast<std::int32_t>(history.size());
    sampling.prompt_len.data<std::int32_t>()[0] = static_cast<std::int32_t>(prompt.size());
    int i = 0;
    for (const auto& [id, value] : params.bias) {
      sampling.bias_ids.data<std::int32_t>()[i] = id;
      sampling.bias_values.data<float>()[i++] = static_cast<float>(value);
    }
    std::copy(params.stop_ids.begin(), params.stop_ids.end(),
              sampling.stop_ids.data<std::int32_t>());
  }

  Params random_params() {
    const auto coin = [&] { return rng_() % 2 == 0; };
    Params params;
    params.temperature = coin() ? 0 : 0.25 * static_cast<double>(1 + rng_() % 6);
    if (coin()) params.top_k = 1 + static_cast<int>(rng_() % 12);
    if (coin()) params.top_p = 0.30078125 + 0.125 * static_cast<double>(rng_() % 5);
    if (coin()) params.min_p = 0.0703125;
    if (coin()) params.repetition = 1.25;
    if (coin()) params.presence = 0.5;
    if (coin()) params.frequency = 0.25;
    if (coin()) params.bias = {{3, 2.5}, {7, -3.25}};
    if (coin()) params.min_tokens = 6, params.stop_ids = {2, 5};
    params.seed = static_cast<std::int64_t>(rng_()) << 20;
    params.choice_index = static_cast<int>(rng_() % 3);
    return params;
  }

  bool says_greedy_ = false;  // what SampleRowsArgs::greedy says
  ThreadPool threads_{2};
  std::mt19937 rng_{99};
};

TEST_F(SampleRowsTest, EqualsTheDoublePrecisionReferenceOnEveryNodeOfATree) {
  std::normal_distribution<double> normal(0, 2);
  int compared = 0;
  for (int trial = 0; trial < 700; ++trial) {
    const Params params = random_params();
    std::vector<int> prompt = {1, 3, 3, 9}, output;
    for (std::uint32_t i = 0; i < rng_() % 5; ++i)
      output.push_back(static_cast<int>(rng_() % kVocab));
    // root -> {a -> c, b}
    const std::vector<testing::Node> nodes = {
        {3, 0}, {static_cast<int>(rng_() % kVocab), 0}, {9, 1}};
    const std::vector<std::vector<int>> paths = {
        {}, {nodes[0].token}, {nodes[1].token}, {nodes[0].token, nodes[2].token}};
    std::vector<std::vector<double>> logits(4);
    for (auto& row : logits)
      for (std::int64_t v = 0; v < kVocab; ++v)
        row.push_back(std::round(normal(rng_) * 64) / 64);  // exact in fp32, ties happen
    const Result result = sample(logits, params, prompt, output, nodes);
    for (std::size_t t = 0; t < 4; ++t) {
      std::vector<int> out = output;
      out.insert(out.end(), paths[t].begin(), paths[t].end());
      const auto distribution = reference_distribution(logits[t], params, prompt, out);
      const int position = static_cast<int>(prompt.size() + out.size());
      EXPECT_EQ(result.choices[t],
                reference_choice(distribution, params.seed, position, params.choice_index))
          << "trial " << trial << " row " << t;
      EXPECT_EQ(result.finite[t], 1);
      ++compared;
      double sum = 0;
      for (const double x : logits[t]) sum += std::exp(x);
      EXPECT_NEAR(result.log_probs[t],
                  logits[t][static_cast<std::size_t>(result.choices[t])] - std::log(sum), 1e-5);
    }
  }
  EXPECT_EQ(compared, 2800);
}

TEST_F(SampleRowsTest, FrequenciesFollowTheFilteredDistribution) {
  Params params;
  params.temperature = 0.75;
  params.top_p = 0.9;
  std::vector<double> logits(kVocab, -2);
  logits[4] = 2, logits[9] = 1.5, logits[11] = 1, logits[20] = 0.25;
  const auto distribution = reference_distribution(logits, params, {1}, {});
  std::map<int, int> counts;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; i += 50) {
    params.seed = i;
    ++counts[sample({logits}, params, {1}, {}, {}).choices[0]];
  }
  double chi_square = 0;
  for (const auto& [id, p] : distribution) {
    const double expected = p * kDraws / 50;
    chi_square += std::pow(counts[id] - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, 25);  // at most 5 degrees of freedom: p > 1e-4
}

TEST_F(SampleRowsTest, GreedyTiesGoToTheLowestId) {
  std::vector<double> logits(kVocab, 0);
  logits[7] = logits[3] = 5;
  Params params;
  params.temperature = 0;
  EXPECT_EQ(sample({logits}, params, {1}, {}, {}).choices[0], 3);
  says_greedy_ = true;
  EXPECT_EQ(sample({logits}, params, {1}, {}, {}).choices[0], 3);
  logits[5] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sample({logits}, params, {1}, {}, {}).finite[0], 0);
}

TEST_F(SampleRowsTest, NotFiniteRowsAreFlaggedAndOnlyThey) {
  std::vector<double> good(kVocab, 0.5), bad = good;
  bad[5] = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> worse = good;
  worse[23] = std::numeric_limits<double>::infinity();
  Params params;
  const Result result = sample({good, bad, worse, good}, params, {1}, {}, {{1, 0}, {2, 0}, {3, 0}});
  EXPECT_EQ(result.finite, (std::vector<std::int32_t>{1, 0, 0, 1}));
  EXPECT_EQ(result.choices[1], -1);
}

}  // namespace
}  // namespace coppice
