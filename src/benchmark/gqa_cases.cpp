// Grouped-query attention over a paged cache: blocks of the drafter, single rows, trees.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/half.h"
#include "base/random_values.h"
#include "benchmark/attention_rows.h"

namespace coppice {
namespace {

constexpr std::uint64_t kKeySeed = 11, kValueSeed = 12, kQuerySeed = 13, kNextCopy = 100;

struct GqaShape {
  std::int64_t num_heads, num_kv_heads, head_dim;
  AttentionRows at;

  std::int64_t width() const { return num_kv_heads * head_dim; }  // of a cache row
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
};

struct Gqa {
  AttentionMetadata metadata;
  Tensor q, positions, out;
  std::vector<Tensor> keys, values;
};

// A row's own position; only windows and causal limits ask for it.
Tensor positions_of(BenchSide& side, const AttentionRows& at) {
  std::vector<std::int32_t> positions;
  for (std::int64_t row = 0; row < at.total(); ++row) {
    const std::int64_t behind =
        at.kind == AttentionRows::Kind::kTree ? std::ssize(at.path(row)) - 1 : row % at.count;
    positions.push_back(static_cast<std::int32_t>(at.context + behind));
  }
  return side.ints({at.total()}, positions);
}

BuiltCase build(BenchSide& side, const GqaShape& s) {
  auto g = std::make_shared<Gqa>();
  Backend& backend = side.backend();
  g->metadata = s.at.metadata(side);
  g->positions = positions_of(side, s.at);
  const double cache_bytes =
      static_cast<double>(s.at.batch * (s.at.context + s.at.count) * 2 * s.width()) *
      static_cast<double>(size_of(backend.kv_dtype()));
  const std::int64_t copies = copies_past_cache(side, cache_bytes);
  for (std::int64_t i = 0; i < copies; ++i) {
    const std::uint64_t stream = kNextCopy * static_cast<std::uint64_t>(i);
    const auto plane = [&](std::uint64_t seed) {
      return side.kv({s.at.batch * s.at.blocks(), kBlockSize, s.width()}, seed + stream);
    };
    g->keys.push_back(plane(kKeySeed));
    g->values.push_back(plane(kValueSeed));
  }
  g->q = side.act({s.at.total(), s.num_heads, s.head_dim}, kQuerySeed);
  g->out = side.zeros(backend.activation_dtype(), {s.at.total(), s.num_heads, s.head_dim});
  const auto elements = static_cast<double>(g->q.num_elements());
  return {.num_copies = copies,
          .run =
              [g, s, &backend](std::int64_t i) {
                backend.gqa_attention({.q = g->q,
                                       .k_cache = g->keys[static_cast<std::size_t>(i)],
                                       .v_cache = g->values[static_cast<std::size_t>(i)],
                                       .metadata = &g->metadata,
                                       .positions = g->positions,
                                       .scale = s.scale(),
                                       .out = g->out});
              },
          .outputs = {g->q, g->out},
          .bytes = cache_bytes + 2 * elements * 2,
          .flops = 4 * elements * s.at.mean_keys(),
          .keep = g};
}

// One head of one row in double precision. Inputs are bounded: scores stay far below what exp
// overflows at.
std::vector<float> attend(const GqaShape& s, std::int64_t row, std::int64_t head, const float* q) {
  const auto dim = static_cast<std::size_t>(s.head_dim);
  const std::int64_t first = head / (s.num_heads / s.num_kv_heads) * s.head_dim;
  std::vector<double> sums(dim, 0);
  double total = 0;
  for (const std::int64_t slot : s.at.slots(row)) {
    const auto value = [&](std::uint64_t seed, std::size_t column) {
      const auto index = static_cast<std::uint64_t>(slot * s.width() + first) + column;
      return double{to_float(to_bf16(random_uniform(seed, index, 1)))};
    };
    double score = 0;
    for (std::size_t c = 0; c < dim; ++c) score += value(kKeySeed, c) * double{q[c]};
    const double weight = std::exp(score * double{s.scale()});
    total += weight;
    for (std::size_t c = 0; c < dim; ++c) sums[c] += weight * value(kValueSeed, c);
  }
  std::vector<float> result;
  for (const double sum : sums) result.push_back(static_cast<float>(sum / total));
  return result;
}

// First and last head of the first and last row.
double sampled_error(BenchSide& side, const BuiltCase& built, const GqaShape& s) {
  double worst = 0;
  for (const std::int64_t row : {std::int64_t{0}, s.at.total() - 1}) {
    const auto q = side.read(built.outputs[0].rows(row, 1));
    const auto out = side.read(built.outputs[1].rows(row, 1));
    for (const std::int64_t head : {std::int64_t{0}, s.num_heads - 1}) {
      const std::int64_t begin = head * s.head_dim;
      const std::vector<float> values(out.begin() + begin, out.begin() + begin + s.head_dim);
      worst =
          std::max(worst, row_error(values, attend(s, row, head, q.data() + begin), s.head_dim));
    }
  }
  return worst;
}

}  // namespace

void add_gqa_cases(std::vector<KernelCase>& cases, const NetworkShape& n) {
  using Kind = AttentionRows::Kind;
  const auto add = [&](const std::string& name, const GqaShape& s) {
    if (n.name == "tiny" && s.at.batch * s.at.context > 8192) return;  // a CPU's share
    cases.push_back(
        {.key = "gqa " + name + " B=" + std::to_string(s.at.batch) +
                " L=" + std::to_string(s.at.context) + " T=" + std::to_string(s.at.count),
         .kernel = "gqa_attention",
         .shape = Json::object({{"num_heads", s.num_heads},
                                {"num_kv_heads", s.num_kv_heads},
                                {"head_dim", s.head_dim},
                                {"batch", s.at.batch},
                                {"context", s.at.context},
                                {"rows", s.at.count}}),
         .bound = 1e-2,
         .build = [s](BenchSide& side) { return build(side, s); },
         .error = [s](BenchSide& side,
                      const BuiltCase& built) { return sampled_error(side, built, s); }});
  };
  // Kimi K2.6's drafter on one of eight ranks.
  const auto drafter = [&](std::int64_t batch, std::int64_t context) {
    add("drafter", {8, 1, 128, {batch, context, 8, Kind::kBlock}});
  };
  for (const std::int64_t context : {1024, 8192, 32768}) drafter(1, context);
  drafter(8, 8192);
  // Other networks.
  for (const std::int64_t batch : {1, 64}) add("32/8", {32, 8, 128, {batch, 2048, 1}});
  add("32/8", {32, 8, 128, {1, 8192, 17}});
}

}  // namespace coppice
