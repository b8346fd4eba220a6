// Row-wise kernels of a layer, and the choices at its end.
#include "base/half.h"
#include "base/random_values.h"
#include "benchmark/kernel_case.h"

namespace coppice {
namespace {

constexpr std::int64_t kMaxPositions = 4096, kVocab = 163840;
constexpr std::uint64_t kTableSeed = 5;

struct Rows {
  NetworkShape network;
  std::int64_t count;
};

double bytes_of(std::initializer_list<Tensor> tensors) {
  double total = 0;
  for (const Tensor& tensor : tensors)
    total +=
        static_cast<double>(tensor.num_elements()) * static_cast<double>(size_of(tensor.dtype()));
  return total;
}

BuiltCase build_norm(BenchSide& side, const Rows& r) {
  const std::int64_t hidden = r.network.hidden_size;
  const Tensor residual = side.act({r.count, hidden}, 1),
               delta = side.act({r.count, hidden}, 2, 0.1f);
  const Tensor weight = side.f32({hidden}, 3);
  const Tensor out = side.zeros(side.backend().activation_dtype(), {r.count, hidden});
  Backend& backend = side.backend();
  return {
      .run =
          [=, &backend](std::int64_t) {
            backend.add_rms_norm(
                {.residual = residual, .delta = delta, .weight = weight, .eps = 1e-5f, .out = out});
          },
      .outputs = {residual, out},
      .bytes = bytes_of({residual, residual, delta, out, weight})};
}

BuiltCase build_rope(BenchSide& side, const Rows& r) {
  const NetworkShape& n = r.network;
  const std::int64_t width = n.kv_lora_rank + n.rope_dim;
  std::vector<std::int32_t> positions, slots;
  for (std::int64_t i = 0; i < r.count; ++i) {
    positions.push_back(static_cast<std::int32_t>((i * 37) % kMaxPositions));
    slots.push_back(static_cast<std::int32_t>(i));
  }
  const Tensor q_pe = side.act({r.count, n.num_heads, n.rope_dim}, 1);
  const Tensor kv_a = side.act({r.count, width}, 2), norm = side.f32({n.kv_lora_rank}, 3);
  const Tensor cos_sin = side.f32({kMaxPositions, n.rope_dim}, 4, 0.7f);
  const Tensor cache = side.zeros(side.backend().kv_dtype(),
                                  {(r.count + kBlockSize - 1) / kBlockSize, kBlockSize, width});
  const Tensor position = side.ints({r.count}, positions), slot = side.ints({r.count}, slots);
  Backend& backend = side.backend();
  return {.run =
              [=, &backend](std::int64_t) {
                backend.mla_rope_and_write_kv({.q_pe = q_pe,
                                               .kv_a = kv_a,
                                               .kv_norm = norm,
                                               .eps = 1e-5f,
                                               .cos_sin = cos_sin,
                                               .positions = position,
                                               .slots = slot,
                                               .cache = cache});
              },
          .outputs = {q_pe, cache},
          .bytes = bytes_of({q_pe, q_pe, kv_a, kv_a})};
}

BuiltCase build_route(BenchSide& side, const Rows& r) {
  const NetworkShape& n = r.network;
  const Tensor logits = side.f32({r.count, n.n_routed_experts}, 1, 4);
  const Tensor bias = side.f32({n.n_routed_experts}, 2, 0.05f);
  const Tensor seqs =
      side.ints({r.count}, std::vector<std::int32_t>(static_cast<std::size_t>(r.count), 0));
  const Tensor ids = side.zeros(DType::kI32, {r.count, n.num_experts_per_tok});
  const Tensor weights = side.zeros(DType::kF32, {r.count, n.num_experts_per_tok});
  Backend& backend = side.backend();
  return {.run =
              [=, &backend](std::int64_t) {
                backend.moe_route({.logits = logits,
                                   .bias = bias,
                                   .seq_of_row = seqs,
                                   .norm_topk_prob = true,
                                   .routed_scaling_factor = 2.827f,
                                   .topk_ids = ids,
                                   .topk_weights = weights});
              },
          .outputs = {ids, weights},
          .bytes = bytes_of({logits, bias, ids, weights})};
}

BuiltCase build_silu(BenchSide& side, const Rows& r) {
  const std::int64_t width = r.network.moe_intermediate_size;
  const Tensor gate_up = side.act({r.count, 2 * width}, 1, 4);
  const Tensor out = side.zeros(side.backend().activation_dtype(), {r.count, width});
  Backend& backend = side.backend();
  return {
      .run = [=, &backend](std::int64_t) { backend.silu_mul({.gate_up = gate_up, .out = out}); },
      .outputs = {out},
      .bytes = bytes_of({gate_up, out})};
}

// Tables of the vocabulary are whole on every rank. Every call takes other rows of it.
BuiltCase build_embed(BenchSide& side, const Rows& r) {
  const std::int64_t vocab = r.network.name == "tiny" ? r.network.vocab_size : kVocab;
  const std::int64_t hidden = r.network.hidden_size;
  const Tensor table = side.zeros(DType::kBF16, {vocab, hidden});
  side.meter().fill(table, kTableSeed, 1);
  const Tensor out = side.zeros(side.backend().activation_dtype(), {r.count, hidden});
  const double bytes = 2 * static_cast<double>(r.count * hidden) * 2;
  const std::int64_t copies = copies_past_cache(side, bytes);
  auto tokens = std::make_shared<std::vector<Tensor>>();
  for (std::int64_t i = 0; i < copies; ++i) {
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < r.count; ++t)
      ids.push_back(static_cast<std::int32_t>((7919 * (i * r.count + t) + 13) % vocab));
    tokens->push_back(side.ints({r.count}, ids));
  }
  Backend& backend = side.backend();
  return {
      .num_copies = copies,
      .run =
          [=, &backend](std::int64_t i) {
            backend.embed(
                {.token_ids = (*tokens)[static_cast<std::size_t>(i)], .table = table, .out = out});
          },
      .outputs = {(*tokens)[0], out},
      .bytes = bytes,
      .keep = tokens};
}

// Of all rows.
double embed_error(BenchSide& side, const BuiltCase& built) {
  const std::vector<float> ids = side.read(built.outputs[0]), out = side.read(built.outputs[1]);
  const std::int64_t hidden = built.outputs[1].row_size();
  std::vector<float> expected;
  for (const float id : ids)
    for (std::int64_t i = 0; i < hidden; ++i)
      expected.push_back(to_float(to_bf16(random_uniform(
          kTableSeed, static_cast<std::uint64_t>(static_cast<std::int64_t>(id) * hidden + i), 1))));
  return row_error(out, expected, hidden);
}

using Builder = BuiltCase (*)(BenchSide&, const Rows&);

void add(std::vector<KernelCase>& cases, const NetworkShape& n, const char* name,
         const char* kernel, Builder builder) {
  for (const std::int64_t count : {1, 17, 64, 256})
    cases.push_back({.key = std::string(name) + " " + n.name + " M=" + std::to_string(count),
                     .kernel = kernel,
                     .shape = Json::object({{"network", n.name}, {"rows", count}}),
                     .build = [builder, n, count](BenchSide& side) {
                       return builder(side, {n, count});
                     }});
}

}  // namespace

void add_row_cases(std::vector<KernelCase>& cases, const NetworkShape& n) {
  add(cases, n, "add_norm", "add_rms_norm", build_norm);
  add(cases, n, "rope_write", "mla_rope_and_write_kv", build_rope);
  add(cases, n, "route", "moe_route", build_route);
  add(cases, n, "silu", "silu_mul", build_silu);
  if (n.name == "tp1") return;  // as a rank's
  for (const std::int64_t count : {1, 64, 1024})
    cases.push_back({.key = "embed " + n.name + " M=" + std::to_string(count),
                     .kernel = "embed",
                     .shape = Json::object({{"network", n.name}, {"rows", count}}),
                     .bound = 0,
                     .build =
                         [n, count](BenchSide& side) {
                           return build_embed(side, {n, count});
                         },
                     .error = embed_error});
}

}  // namespace coppice
