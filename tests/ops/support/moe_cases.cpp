// moe_route, moe_experts and moe_block.
#include <limits>
#include "tests/ops/support/staging.h"

namespace coppice::testing {
namespace {

std::vector<std::int32_t> sequences(const std::vector<std::int64_t>& rows) {
  std::vector<std::int32_t> values;
  for (const std::int64_t id : rows) values.push_back(id == kPadding ? -1 : 0);
  return values;
}

struct RouteSize {
  std::int64_t experts, top_k;
  bool normalize, ties;
};

RowResults run_route(Backend& backend, const std::vector<std::int64_t>& rows, RouteSize size) {
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> logits, bias;
  for (const std::int64_t id : rows)
    for (std::int64_t e = 0; e < size.experts; ++e)
      logits.push_back(id == kPadding ? std::numeric_limits<float>::quiet_NaN()
                       : size.ties    ? static_cast<float>((id + e) % 3)
                                      : 3 * noise(1, id, e));
  for (std::int64_t e = 0; e < size.experts; ++e)
    bias.push_back(size.ties ? 0.25f : 0.3f + 0.1f * noise(2, 0, e));
  const Tensor ids = s.int_out(count, {size.top_k}), weights = s.f32_out(count, {size.top_k});
  backend.moe_route({.logits = s.f32({count, size.experts}, logits),
                     .bias = s.f32({size.experts}, bias),
                     .seq_of_row = s.ints({count}, sequences(rows)),
                     .norm_topk_prob = size.normalize,
                     .routed_scaling_factor = 2.827f,
                     .topk_ids = ids,
                     .topk_weights = weights});
  // Padded rows must have come out as no expert at all.
  const std::vector<float> chosen = s.read(ids);
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (rows[i / static_cast<std::size_t>(size.top_k)] == kPadding)
      COPPICE_CHECK_EQ(chosen[i], -1.0f);
  RowResults results;
  s.collect(ids, rows, results);
  s.collect(weights, rows, results);
  return results;
}

struct ExpertSize {
  std::int64_t experts, top_k, hidden, intermediate;
  WeightFormat format;
  bool shared, all_to_one;
};

// Row id's experts: spread over all, or expert 1 first for everybody.
std::int32_t expert_of(const ExpertSize& size, std::int64_t id, std::int64_t k) {
  const std::int64_t first = size.all_to_one ? 1 : id * 5 % size.experts;
  return static_cast<std::int32_t>((first + k * 3) % size.experts);
}

RowResults run_experts(Backend& backend, const std::vector<std::int64_t>& rows,
                       const ExpertSize& size) {
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<ExpertSource> sources;
  for (std::int64_t e = 0; e < size.experts; ++e) {
    const auto stream = static_cast<std::uint32_t>(100 + 10 * e);
    sources.push_back(
        {random_matrix(size.format, size.intermediate, size.hidden, stream).view(),
         random_matrix(size.format, size.intermediate, size.hidden, stream + 3).view(),
         random_matrix(size.format, size.hidden, size.intermediate, stream + 6).view()});
  }
  const ExpertWeights experts = backend.load_experts(sources);
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  for (const std::int64_t id : rows)
    for (std::int64_t k = 0; k < size.top_k; ++k) {
      // Slot 1 of every seventh row is empty; its weight must not be read.
      const bool empty = id == kPadding || (id % 7 == 2 && k == 1);
      ids.push_back(empty ? -1 : expert_of(size, id, k));
      weights.push_back(empty ? std::numeric_limits<float>::quiet_NaN() : 1.5f + noise(2, id, k));
    }
  const Tensor out = s.act_out(count, {size.hidden});
  backend.moe_experts({.x = s.act_rows(1, rows, {size.hidden}),
                       .topk_ids = s.ints({count, size.top_k}, ids),
                       .topk_weights = s.f32({count, size.top_k}, weights),
                       .experts = &experts,
                       .shared = size.shared ? s.act_rows(3, rows, {size.hidden}) : Tensor(),
                       .out = out});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

struct BlockSize {
  std::int64_t experts, top_k, hidden, intermediate;
};

// The fused op, or its steps. `apart`: every row chooses the same experts, whatever the rounding.
RowResults run_block(Backend& backend, const std::vector<std::int64_t>& rows, const BlockSize& size,
                     bool fused, bool apart) {
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<ExpertSource> sources;
  for (std::int64_t e = 0; e < size.experts; ++e) {
    const auto stream = static_cast<std::uint32_t>(100 + 10 * e);
    const auto matrix = [&](std::int64_t outputs, std::int64_t inputs, std::uint32_t offset) {
      return random_matrix(WeightFormat::kInt4Group32, outputs, inputs, stream + offset).view();
    };
    sources.push_back({matrix(size.intermediate, size.hidden, 0),
                       matrix(size.intermediate, size.hidden, 3),
                       matrix(size.hidden, size.intermediate, 6)});
  }
  const ExpertWeights experts = backend.load_experts(sources);
  const auto linear = [&](std::int64_t outputs, std::int64_t inputs, std::uint32_t stream) {
    const HostMatrix part = random_matrix(WeightFormat::kBF16, outputs, inputs, stream).view();
    return backend.load_linear({&part, 1});
  };
  const LinearWeight router = linear(size.experts, size.hidden, 30);
  const LinearWeight gate_up = linear(2 * size.intermediate, size.hidden, 31);
  const LinearWeight down = linear(size.hidden, size.intermediate, 32);
  std::vector<float> bias;
  for (std::int64_t e = 0; e < size.experts; ++e)
    bias.push_back(apart ? static_cast<float>(e * 7 % size.experts) : 0.1f * noise(2, 0, e));
  const MoeBlockArgs args = {.x = s.act_rows(1, rows, {size.hidden}),
                             .router = &router,
                             .bias = s.f32({size.experts}, bias),
                             .seq_of_row = s.ints({count}, sequences(rows)),
                             .norm_topk_prob = true,
                             .routed_scaling_factor = 2.827f,
                             .shared_gate_up = &gate_up,
                             .shared_down = &down,
                             .experts = &experts,
                             .out = s.act_out(count, {size.hidden}),
                             .topk_ids = s.int_out(count, {size.top_k}),
                             .topk_weights = s.f32_out(count, {size.top_k}),
                             .router_logits = s.f32_out(count, {size.experts}),
                             .gate_up = s.act_out(count, {2 * size.intermediate}),
                             .act = s.act_out(count, {size.intermediate}),
                             .shared = s.act_out(count, {size.hidden})};
  if (fused)
    backend.moe_block(args);
  else
    backend.Backend::moe_block(args);
  RowResults results;
  s.collect(args.topk_ids, rows, results);
  s.collect(args.topk_weights, rows, results);
  s.collect(args.out, rows, results);
  return results;
}

}  // namespace

void add_moe_cases(std::vector<OpCase>& cases) {
  using Rows = std::vector<std::int64_t>;
  const auto route = [&](std::string name, float fast, RouteSize size) {
    cases.push_back({"moe_route", std::move(name), fast, 1e-6f,
                     [size](Backend& b, const Rows& r) { return run_route(b, r, size); }});
  };
  route("32 choose 4", 0, {32, 4, true, false});
  route("384 choose 8", 0, {384, 8, true, false});
  route("not normalised", 0, {40, 6, false, false});
  route("ties", 0, {16, 5, true, true});
  const auto experts = [&](std::string name, float fast, ExpertSize size) {
    cases.push_back({"moe_experts", std::move(name), fast, 2e-2f,
                     [size](Backend& b, const Rows& r) { return run_experts(b, r, size); }});
  };
  experts("int4 tiny-k2", 1e-4f, {32, 4, 384, 128, WeightFormat::kInt4Group32, true, false});
  experts("int4 all to one", 1e-4f, {9, 3, 96, 64, WeightFormat::kInt4Group32, false, true});
  experts("bf16", 1e-4f, {8, 2, 64, 48, WeightFormat::kBF16, true, false});
  experts("bf16 odd", 1e-4f, {5, 2, 50, 37, WeightFormat::kBF16, false, false});
  experts("q4_0", 5e-2f, {8, 2, 64, 96, WeightFormat::kQ4_0, true, false});
  experts("q8_0", 5e-2f, {8, 2, 64, 96, WeightFormat::kQ8_0, true, false});
  const auto block = [&](std::string name, BlockSize size) {
    cases.push_back({"moe_block", std::move(name), 1e-4f, 2e-2f, [size](Backend& b, const Rows& r) {
                       COPPICE_CHECK(run_block(b, r, size, true, false) ==
                                         run_block(b, r, size, false, false),
                                     "the fused op differs from its steps");
                       return run_block(b, r, size, true, true);
                     }});
  };
  block("tiny-k2", {32, 4, 384, 128});
  block("wide shared expert", {16, 2, 64, 576});
  block("144 experts", {144, 8, 64, 64});
}

}  // namespace coppice::testing
