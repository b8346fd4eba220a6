// Multi-head latent attention over a paged cache: decoding, tree verification and prompts.
#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "base/random_values.h"
#include "base/thread_pool.h"
#include "benchmark/attention_rows.h"

namespace coppice {
namespace {

constexpr std::uint64_t kCacheSeed = 11, kLatentSeed = 12, kRopeSeed = 13;

struct AttentionShape {
  std::int64_t num_heads, rank, rope;
  AttentionRows at;

  float scale() const { return 1 / std::sqrt(static_cast<float>(3 * rope)); }
};

struct Attention {
  AttentionMetadata metadata;
  Tensor q_lat, q_pe, out;
  std::vector<Tensor> caches;
};

BuiltCase build(BenchSide& side, const AttentionShape& s) {
  auto a = std::make_shared<Attention>();
  a->metadata = s.at.metadata(side);
  const std::int64_t width = s.rank + s.rope, num_blocks = s.at.batch * s.at.blocks();
  const double cache_bytes = static_cast<double>(s.at.batch * (s.at.context + s.at.count) * width) *
                             static_cast<double>(size_of(side.backend().kv_dtype()));
  const std::int64_t copies = copies_past_cache(side, cache_bytes);
  for (std::int64_t i = 0; i < copies; ++i)
    a->caches.push_back(
        side.kv({num_blocks, kBlockSize, width}, kCacheSeed + 100 * static_cast<std::uint64_t>(i)));
  a->q_lat = side.act({s.at.total(), s.num_heads, s.rank}, kLatentSeed);
  a->q_pe = side.act({s.at.total(), s.num_heads, s.rope}, kRopeSeed);
  a->out = side.zeros(side.backend().activation_dtype(), {s.at.total(), s.num_heads, s.rank});
  Backend& backend = side.backend();
  // The plan is made once a step for all layers: it is timed on its own.
  backend.plan_mla_attention({.metadata = &a->metadata,
                              .num_heads = s.num_heads,
                              .kv_lora_rank = s.rank,
                              .qk_rope_head_dim = s.rope});
  backend.synchronize();
  const auto pairs = static_cast<double>(s.at.total() * s.num_heads);
  return {.num_copies = copies,
          .run =
              [a, s, &backend](std::int64_t i) {
                backend.mla_attention({.q_lat = a->q_lat,
                                       .q_pe = a->q_pe,
                                       .cache = a->caches[static_cast<std::size_t>(i)],
                                       .metadata = &a->metadata,
                                       .scale = s.scale(),
                                       .out = a->out});
              },
          .outputs = {a->q_lat, a->q_pe, a->out},
          .bytes = cache_bytes + pairs * static_cast<double>(2 * s.rank + s.rope) * 2,
          .flops = 2 * pairs * s.at.mean_keys() * static_cast<double>(2 * s.rank + s.rope),
          .keep = a};
}

float cache_value(std::int64_t slot, std::int64_t column, std::int64_t width) {
  const auto index = static_cast<std::uint64_t>(slot * width + column);
  return to_float(to_bf16(random_uniform(kCacheSeed, index, 1)));
}

// Attention of one row's heads over slots [begin, end) of `slots`: sums and totals are added to.
void attend(const AttentionShape& s, const std::vector<std::int64_t>& slots, std::int64_t begin,
            std::int64_t end, const float* lat, const float* pe,
            const std::vector<std::int64_t>& heads, double* sums, double* totals) {
  const std::int64_t width = s.rank + s.rope;
  std::vector<float> key(static_cast<std::size_t>(width));
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t c = 0; c < width; ++c)
      key[static_cast<std::size_t>(c)] = cache_value(slots[static_cast<std::size_t>(i)], c, width);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      float score = 0;
      for (std::int64_t c = 0; c < s.rank; ++c)
        score += key[static_cast<std::size_t>(c)] * lat[heads[h] * s.rank + c];
      for (std::int64_t c = 0; c < s.rope; ++c)
        score += key[static_cast<std::size_t>(s.rank + c)] * pe[heads[h] * s.rope + c];
      // Inputs are bounded: scores stay far below what exp overflows at.
      const double weight = std::exp(double{score} * double{s.scale()});
      totals[h] += weight;
      double* const sum = sums + h * static_cast<std::size_t>(s.rank);
      for (std::int64_t c = 0; c < s.rank; ++c) sum[c] += weight * key[static_cast<std::size_t>(c)];
    }
  }
}

// One row's given heads over all its keys, in pieces.
std::vector<double> attend(const AttentionShape& s, std::int64_t row, const float* lat,
                           const float* pe, const std::vector<std::int64_t>& heads) {
  const std::vector<std::int64_t> slots = s.at.slots(row);
  constexpr std::int64_t kPieces = 64;
  const std::size_t size = heads.size() * static_cast<std::size_t>(s.rank);
  std::vector<double> sums(kPieces * size, 0), totals(kPieces * heads.size(), 0);
  ThreadPool pool;
  pool.parallel_for(kPieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      attend(s, slots, i * std::ssize(slots) / kPieces, (i + 1) * std::ssize(slots) / kPieces, lat,
             pe, heads, &sums[static_cast<std::size_t>(i) * size],
             &totals[static_cast<std::size_t>(i) * heads.size()]);
  });
  std::vector<double> result(size, 0);
  for (std::size_t i = 0; i < size; ++i) {
    double sum = 0, total = 0;
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      sum += sums[piece * size + i];
      total += totals[piece * heads.size() + i / static_cast<std::size_t>(s.rank)];
    }
    result[i] = sum / total;
  }
  return result;
}

double sampled_error(BenchSide& side, const BuiltCase& built, const AttentionShape& s) {
  double worst = 0;
  for (const std::int64_t row : {std::int64_t{0}, s.at.total() - 1}) {
    const auto lat = side.read(built.outputs[0].rows(row, 1));
    const auto pe = side.read(built.outputs[1].rows(row, 1));
    const auto out = side.read(built.outputs[2].rows(row, 1));
    const std::vector<std::int64_t> heads = {0, s.num_heads - 1};
    const std::vector<double> sums = attend(s, row, lat.data(), pe.data(), heads);
    std::vector<float> values, expected(sums.begin(), sums.end());
    for (const std::int64_t head : heads)
      values.insert(values.end(), out.begin() + head * s.rank, out.begin() + (head + 1) * s.rank);
    worst = std::max(worst, row_error(values, expected, s.rank));
  }
  return worst;
}

// The step's plan alone.
BuiltCase build_plan(BenchSide& side, const AttentionShape& s) {
  auto metadata = std::make_shared<AttentionMetadata>(s.at.metadata(side));
  Backend& backend = side.backend();
  return {.num_copies = 1,
          .run =
              [metadata, s, &backend](std::int64_t) {
                backend.plan_mla_attention({.metadata = metadata.get(),
                                            .num_heads = s.num_heads,
                                            .kv_lora_rank = s.rank,
                                            .qk_rope_head_dim = s.rope});
              },
          .keep = metadata};
}

}  // namespace

void add_attention_cases(std::vector<KernelCase>& cases, const NetworkShape& n) {
  const auto shape_json = [&n](const AttentionShape& s) {
    return Json::object({{"network", n.name},
                         {"num_heads", s.num_heads},
                         {"batch", s.at.batch},
                         {"context", s.at.context},
                         {"tree", s.at.count}});
  };
  const auto name = [&n](const AttentionShape& s) {
    return n.name + " B=" + std::to_string(s.at.batch) + " L=" + std::to_string(s.at.context) +
           " T=" + std::to_string(s.at.count);
  };
  const auto add = [&](std::int64_t batch, std::int64_t context, std::int64_t tree) {
    const AttentionShape s = {n.num_heads, n.kv_lora_rank, n.rope_dim, {batch, context, tree}};
    cases.push_back(
        {.key = "mla " + name(s),
         .kernel = "mla_attention",
         .shape = shape_json(s),
         .bound = 1e-2,
         .build = [s](BenchSide& side) { return build(side, s); },
         .error = [s](BenchSide& side,
                      const BuiltCase& built) { return sampled_error(side, built, s); }});
  };
  const auto add_prompt = [&](std::int64_t context, std::int64_t rows) {
    const AttentionShape s = {
        n.num_heads, n.kv_lora_rank, n.rope_dim, {1, context, rows, AttentionRows::Kind::kPrompt}};
    cases.push_back(
        {.key = "mla prompt " + n.name + " L=" + std::to_string(context) +
                " M=" + std::to_string(rows),
         .kernel = "mla_attention of prompts",
         .shape = Json::object({{"network", n.name},
                                {"num_heads", s.num_heads},
                                {"context", context},
                                {"rows", rows}}),
         .bound = 1e-2,
         .build = [s](BenchSide& side) { return build(side, s); },
         .error = [s](BenchSide& side,
                      const BuiltCase& built) { return sampled_error(side, built, s); }});
  };
  if (n.name == "tiny") {
    for (const std::int64_t tree : {1, 17, 65}) add(1, 1024, tree);
    add_prompt(512, 128);
    return;
  }
  const std::vector<std::int64_t> trees = n.name == "tp8" ? std::vector<std::int64_t>{1, 17, 33, 64}
                                                          : std::vector<std::int64_t>{1, 17, 64};
  for (const std::int64_t context : {1024, 8192, 32768, 131072})
    for (const std::int64_t tree : trees) add(1, context, tree);
  for (const std::int64_t context : {8192, 32768, 131072})
    for (const std::int64_t tree : {1, 17}) add(8, context, tree);
  add_prompt(8192, 2048);
  if (n.name != "tp8") return;
  add_prompt(0, 2048);
  add_prompt(8192, 512);
  for (const std::int64_t tree : {1, 17}) add(1, 262144, tree);  // K2.6's longest context
  for (const std::int64_t batch : {1, 8}) {
    const AttentionShape s = {n.num_heads, n.kv_lora_rank, n.rope_dim, {batch, 8192, 17}};
    // Its output shows in the attention that follows: no check of its own.
    cases.push_back({.key = "mla plan " + name(s),
                     .kernel = "plan_mla_attention",
                     .shape = shape_json(s),
                     .build = [s](BenchSide& side) { return build_plan(side, s); },
                     .error = [](BenchSide&, const BuiltCase&) { return 0.0; }});
  }
}

}  // namespace coppice
