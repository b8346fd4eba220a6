// Routed experts, from the list of chosen experts to the weighted sum.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/half.h"
#include "base/random_values.h"
#include "base/thread_pool.h"
#include "benchmark/kernel_case.h"

namespace coppice {
namespace {

constexpr std::uint64_t kWeightSeed = 500, kRouteSeed = 900;
constexpr std::int64_t kGroup = 32;
constexpr std::int64_t kRoutings = 8;  // calls also rotate over routings

// Distinct experts, uniformly chosen, for every row.
std::vector<std::int32_t> random_routing(const NetworkShape& n, std::int64_t rows,
                                         std::uint64_t seed) {
  std::vector<std::int32_t> ids;
  std::uint64_t draw = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto begin = ids.size();
    while (ids.size() < begin + static_cast<std::size_t>(n.num_experts_per_tok)) {
      const auto id = static_cast<std::int32_t>(random_word(seed, draw++) %
                                                static_cast<std::uint32_t>(n.n_routed_experts));
      if (std::find(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), id) == ids.end())
        ids.push_back(id);
    }
  }
  return ids;
}

double weight_bytes_of_expert(const NetworkShape& n) {
  return 3.0 * static_cast<double>(n.hidden_size * n.moe_intermediate_size) * (0.5 + 2.0 / kGroup);
}

// What one built case holds; copy i uses layer i % layers and routing i % routings.
struct Experts {
  std::vector<ExpertWeights> layers;
  std::vector<Tensor> ids;
  Tensor x, weights, shared, out;
};

BuiltCase build(BenchSide& side, const NetworkShape& n, std::int64_t rows, Provenance provenance) {
  auto e = std::make_shared<Experts>();
  const double layer_bytes = weight_bytes_of_expert(n) * static_cast<double>(n.n_routed_experts);
  const double touched_bytes =
      weight_bytes_of_expert(n) *
      static_cast<double>(std::min(n.n_routed_experts, rows * n.num_experts_per_tok));
  // Few experts of a large layer do not fill the cache twice over, routings differ: more layers.
  std::int64_t layers = std::min<std::int64_t>(
      copies_past_cache(side, touched_bytes),
      std::max<std::int64_t>(1, static_cast<std::int64_t>(10e9 / layer_bytes)));
  for (std::int64_t i = 0; i < layers; ++i)
    e->layers.push_back(
        side.meter().random_experts(n.n_routed_experts, n.hidden_size, n.moe_intermediate_size,
                                    kWeightSeed + 10 * static_cast<std::uint64_t>(i)));
  std::size_t distinct = 0, first_distinct = 0;
  for (std::int64_t i = 0; i < kRoutings; ++i) {
    const auto ids = random_routing(n, rows, kRouteSeed + static_cast<std::uint64_t>(i));
    distinct += std::set(ids.begin(), ids.end()).size();
    if (i == 0) first_distinct = distinct;
    e->ids.push_back(side.ints({rows, n.num_experts_per_tok}, ids));
  }
  e->x = side.act({rows, n.hidden_size}, 1);
  e->shared = side.act({rows, n.hidden_size}, 2);
  e->out = side.act({rows, n.hidden_size}, 3);
  std::vector<float> weights;
  for (std::int64_t i = 0; i < rows * n.num_experts_per_tok; ++i)
    weights.push_back(0.35f + random_uniform(7, static_cast<std::uint64_t>(i), 0.2f));
  e->weights = side.floats({rows, n.num_experts_per_tok}, weights);
  Backend& backend = side.backend();
  const std::int64_t copies = std::max<std::int64_t>(layers, kRoutings) / kRoutings * kRoutings;
  const double row_bytes = 3.0 * static_cast<double>(e->x.num_bytes());
  return {
      .num_copies = copies,
      .run =
          [e, provenance, &backend](std::int64_t i) {
            const auto copy = static_cast<std::size_t>(i);
            backend.moe_experts({.x = e->x,
                                 .topk_ids = e->ids[copy % e->ids.size()],
                                 .topk_weights = e->weights,
                                 .experts = &e->layers[copy % e->layers.size()],
                                 .shared = e->shared,
                                 .out = e->out,
                                 .provenance = provenance});
          },
      .outputs = {e->x, e->ids[0], e->weights, e->shared, e->out},
      .bytes = weight_bytes_of_expert(n) * static_cast<double>(distinct) / kRoutings + row_bytes,
      .flops = 6.0 * static_cast<double>(rows * n.num_experts_per_tok * n.hidden_size *
                                         n.moe_intermediate_size),
      .first_bytes = weight_bytes_of_expert(n) * static_cast<double>(first_distinct) + row_bytes,
      .keep = e};
}

// Dot product of x with row `row` of matrix m of the first layer's experts.
double expert_row(int m, std::int64_t row, std::int64_t cols, const float* x) {
  const std::uint64_t seed = kWeightSeed + 2 * static_cast<std::uint64_t>(m);
  double total = 0;
  for (std::int64_t group = 0; group < cols / kGroup; ++group) {
    float sum = 0;
    for (std::int64_t word = 0; word < kGroup / 8; ++word) {
      const std::int64_t first = group * kGroup + word * 8;
      const std::uint32_t nibbles =
          random_nibbles(seed, static_cast<std::uint64_t>((row * cols + first) / 8));
      for (int i = 0; i < 8; ++i)
        sum += static_cast<float>(static_cast<int>((nibbles >> (4 * i)) & 15u) - 8) * x[first + i];
    }
    const auto scale = random_scale(
        seed + 1, static_cast<std::uint64_t>(row * (cols / kGroup) + group), expert_scale(cols));
    total += double{sum} * to_float(to_bf16(scale));
  }
  return total;
}

// The last row, every (hidden / 61)th output, from the same random streams.
double sampled_error(BenchSide& side, const BuiltCase& built, const NetworkShape& n) {
  const std::int64_t row = built.outputs[0].shape(0) - 1;
  const std::int64_t hidden = n.hidden_size, width = n.moe_intermediate_size;
  const auto x = side.read(built.outputs[0].rows(row, 1));
  const auto ids = side.read(built.outputs[1].rows(row, 1));
  const auto weights = side.read(built.outputs[2].rows(row, 1));
  const auto shared = side.read(built.outputs[3].rows(row, 1));
  const auto out = side.read(built.outputs[4].rows(row, 1));
  const std::int64_t stride = std::max<std::int64_t>(hidden / 61, 1);
  std::vector<float> values, expected(static_cast<std::size_t>((hidden + stride - 1) / stride), 0);
  std::vector<float> act(static_cast<std::size_t>(width));
  ThreadPool pool;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto expert = static_cast<std::int64_t>(ids[k]);
    pool.parallel_for(width, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const double gate = expert_row(0, expert * width + i, hidden, x.data());
        const double up = expert_row(1, expert * width + i, hidden, x.data());
        act[static_cast<std::size_t>(i)] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
      }
    });
    for (std::int64_t o = 0; o < hidden; o += stride)
      expected[static_cast<std::size_t>(o / stride)] +=
          weights[k] * static_cast<float>(expert_row(2, expert * hidden + o, width, act.data()));
  }
  for (std::int64_t o = 0; o < hidden; o += stride) {
    values.push_back(out[static_cast<std::size_t>(o)]);
    expected[static_cast<std::size_t>(o / stride)] += shared[static_cast<std::size_t>(o)];
  }
  return row_error(values, expected, std::ssize(values));
}

}  // namespace

void add_expert_cases(std::vector<KernelCase>& cases, const NetworkShape& n) {
  const bool whole = n.name == "tp1";
  const std::vector<std::int64_t> row_counts =
      whole ? std::vector<std::int64_t>{1, 8, 17, 64, 256, 1024}
            : std::vector<std::int64_t>{1, 2, 4, 8, 17, 33, 64, 128, 256, 512, 1024};
  const auto add = [&](const std::string& name, std::int64_t rows, Provenance provenance) {
    cases.push_back(
        {.key = name + " " + n.name + " M=" + std::to_string(rows),
         .kernel = "moe_experts",
         .shape = Json::object({{"network", n.name},
                                {"rows", rows},
                                {"experts", n.n_routed_experts},
                                {"top_k", n.num_experts_per_tok},
                                {"hidden_size", n.hidden_size},
                                {"intermediate_size", n.moe_intermediate_size}}),
         .build = [n, rows,
                   provenance](BenchSide& side) { return build(side, n, rows, provenance); },
         .error = [n](BenchSide& side,
                      const BuiltCase& built) { return sampled_error(side, built, n); }});
  };
  for (const std::int64_t rows : row_counts) add("experts", rows, Provenance::kDecided);
  const std::vector<std::int64_t> prompts =
      n.name == "tiny" ? std::vector<std::int64_t>{256} : std::vector<std::int64_t>{2048, 8192};
  for (const std::int64_t rows : prompts) add("prompt experts", rows, Provenance::kPrompt);
}

}  // namespace coppice
