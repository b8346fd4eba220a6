// Halves of a layer as the model runs them: norm to o_proj, and norm to the sum of the experts.
#include <cmath>
#include <deque>

#include "benchmark/kernel_case.h"

namespace coppice {
namespace {

float amplitude_of(std::int64_t inputs) {
  return std::sqrt(3.0f / static_cast<float>(inputs));
}

struct BlockShape {
  NetworkShape network;
  std::int64_t rows;
  std::int64_t context = 0;  // attention only: of one sequence
};

double weight_bytes(const LinearWeight& weight) {
  return static_cast<double>(weight.out_features * weight.in_features * 2);
}

// Norm weights lie around 1.
Tensor norm_weight(BenchSide& side, std::int64_t size, std::uint64_t seed) {
  const std::vector<float> noise = side.read(side.f32({size}, seed, 0.1f));
  std::vector<float> values(noise);
  for (float& value : values) value += 1;
  return side.floats({size}, values);
}

// ---- Attention

struct AttentionLayer {
  LinearWeight qkv_a, q_b, k_absorbed, v_absorbed, o_proj;
  Tensor cache;
};

constexpr std::uint64_t kLayerSeed = 1000;

struct AttentionBlock {
  BlockShape s;
  std::deque<AttentionLayer> layers;
  AttentionMetadata metadata;
  Tensor residual, delta, input_norm, q_norm, kv_norm, cos_sin, positions, slots;
  Tensor x, qkv_a, c_q, q, q_lat, o_lat, o, out;

  MlaQueriesArgs queries(const AttentionLayer& layer) const {
    return {.qkv_a = qkv_a,
            .q_norm = q_norm,
            .kv_norm = kv_norm,
            .eps = 1e-5f,
            .q_b = &layer.q_b,
            .k_absorbed = &layer.k_absorbed,
            .cos_sin = cos_sin,
            .positions = positions,
            .slots = slots,
            .cache = layer.cache,
            .c_q = c_q,
            .q = q,
            .q_lat = q_lat};
  }
  void run(Backend& backend, const AttentionLayer& layer) const;
};

void AttentionBlock::run(Backend& backend, const AttentionLayer& layer) const {
  const NetworkShape& n = s.network;
  const std::int64_t T = s.rows, H = n.num_heads;
  backend.add_rms_norm(
      {.residual = residual, .delta = delta, .weight = input_norm, .eps = 1e-5f, .out = x});
  backend.linear({.x = x, .weight = &layer.qkv_a, .out = qkv_a});
  backend.mla_queries(queries(layer));
  backend.mla_attention({.q_lat = q_lat,
                         .q_pe = queries(layer).q_pe(),
                         .cache = layer.cache,
                         .metadata = &metadata,
                         .scale = 1 / std::sqrt(static_cast<float>(n.nope_dim + n.rope_dim)),
                         .out = o_lat});
  backend.head_linear(
      {.x = o_lat, .weight = &layer.v_absorbed, .out = o.reshape({T, H, n.v_head_dim})});
  backend.linear({.x = o, .weight = &layer.o_proj, .out = out});
}

AttentionLayer make_attention_layer(BenchSide& side, const BlockShape& s, std::uint64_t seed) {
  const NetworkShape& n = s.network;
  const std::int64_t width = n.kv_lora_rank + n.rope_dim, h = n.num_heads;
  const auto linear = [&](std::int64_t outputs, std::int64_t inputs, std::uint64_t stream) {
    return side.meter().random_linear(outputs, inputs, seed + stream, amplitude_of(inputs));
  };
  return {.qkv_a = linear(n.q_lora_rank + width, n.hidden_size, 0),
          .q_b = linear(h * (n.nope_dim + n.rope_dim), n.q_lora_rank, 1),
          .k_absorbed = linear(h * n.kv_lora_rank, n.nope_dim, 2),
          .v_absorbed = linear(h * n.v_head_dim, n.kv_lora_rank, 3),
          .o_proj = linear(n.hidden_size, h * n.v_head_dim, 4),
          .cache = side.kv({(s.context + s.rows) / kBlockSize + 1, kBlockSize, width}, seed + 5)};
}

// One sequence; the rows are children of each other.
AttentionMetadata chain(BenchSide& side, const BlockShape& s) {
  std::vector<std::int32_t> zeros, kv_len, path_len, path, table;
  for (std::int64_t row = 0; row < s.rows; ++row) {
    zeros.push_back(0);
    kv_len.push_back(static_cast<std::int32_t>(s.context));
    path_len.push_back(static_cast<std::int32_t>(row + 1));
    for (std::int64_t i = 0; i < s.rows; ++i)
      path.push_back(i <= row ? static_cast<std::int32_t>(s.context + i) : -1);
  }
  const std::int64_t blocks = (s.context + s.rows) / kBlockSize + 1;
  for (std::int64_t i = 0; i < blocks; ++i) table.push_back(static_cast<std::int32_t>(i));
  return {.seq_of_row = side.ints({s.rows}, zeros),
          .kv_len = side.ints({s.rows}, kv_len),
          .path_len = side.ints({s.rows}, path_len),
          .path = side.ints({s.rows, s.rows}, path),
          .block_tables = side.ints({1, blocks}, table),
          .max_kv_len = s.context + s.rows,
          .provenance = Provenance::kDecided};
}

// With one layer.
std::shared_ptr<AttentionBlock> make_attention_block(BenchSide& side, const BlockShape& s) {
  const NetworkShape& n = s.network;
  const DType act = side.backend().activation_dtype();
  const std::int64_t T = s.rows, h = n.num_heads, width = n.kv_lora_rank + n.rope_dim;
  auto block = std::make_shared<AttentionBlock>();
  block->s = s;
  block->metadata = chain(side, s);
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < T; ++i)
    positions.push_back(static_cast<std::int32_t>(s.context + i));
  block->positions = block->slots = side.ints({T}, positions);
  block->residual = side.act({T, n.hidden_size}, 21);
  block->delta = side.act({T, n.hidden_size}, 22, 0.1f);
  block->input_norm = norm_weight(side, n.hidden_size, 23);
  block->q_norm = norm_weight(side, n.q_lora_rank, 24);
  block->kv_norm = norm_weight(side, n.kv_lora_rank, 25);
  block->cos_sin = side.f32({s.context + T, n.rope_dim}, 26, 0.7f);
  block->x = side.zeros(act, {T, n.hidden_size});
  block->qkv_a = side.zeros(act, {T, n.q_lora_rank + width});
  block->c_q = side.zeros(act, {T, n.q_lora_rank});
  block->q = side.zeros(act, {T, h * (n.nope_dim + n.rope_dim)});
  block->q_lat = side.zeros(act, {T, h, n.kv_lora_rank});
  block->o_lat = side.zeros(act, {T, h, n.kv_lora_rank});
  block->o = side.zeros(act, {T, h * n.v_head_dim});
  block->out = side.zeros(act, {T, n.hidden_size});
  block->layers.push_back(make_attention_layer(side, s, kLayerSeed));
  return block;
}

void add_layers(BenchSide& side, AttentionBlock& block, std::int64_t count) {
  while (std::ssize(block.layers) < count)
    block.layers.push_back(
        make_attention_layer(side, block.s, kLayerSeed + 10 * block.layers.size()));
}

// From the first projection to what attention reads.
BuiltCase build_queries(BenchSide& side, const BlockShape& s) {
  const NetworkShape& n = s.network;
  const auto block = make_attention_block(side, s);
  block->qkv_a = side.act({s.rows, n.q_lora_rank + n.kv_lora_rank + n.rope_dim}, 27);
  const AttentionLayer& first = block->layers[0];
  const MlaQueriesArgs queries = block->queries(first);
  const auto between =
      static_cast<double>(queries.qkv_a.num_elements() + queries.q_pe().num_elements() +
                          queries.q_lat.num_elements() + queries.kv_a().num_elements());
  const double bytes = weight_bytes(first.q_b) + weight_bytes(first.k_absorbed) + 2 * between;
  const std::int64_t copies = copies_past_cache(side, bytes);
  add_layers(side, *block, copies);
  Backend& backend = side.backend();
  const Tensor written = first.cache.rows(s.context / kBlockSize, 1)
                             .reshape({kBlockSize, n.kv_lora_rank + n.rope_dim});
  return {
      .num_copies = copies,
      .run =
          [block, &backend](std::int64_t i) {
            backend.mla_queries(block->queries(block->layers[static_cast<std::size_t>(i)]));
          },
      .outputs = {queries.q_lat,
                  queries.q.columns(n.num_heads * n.nope_dim, n.num_heads * n.rope_dim), written},
      .bytes = bytes,
      .flops =
          static_cast<double>(s.rows) * (weight_bytes(first.q_b) + weight_bytes(first.k_absorbed)),
      .keep = block};
}

BuiltCase build_attention(BenchSide& side, const BlockShape& s) {
  const NetworkShape& n = s.network;
  const std::int64_t T = s.rows, h = n.num_heads, width = n.kv_lora_rank + n.rope_dim;
  const auto block = make_attention_block(side, s);
  const AttentionLayer& first = block->layers[0];
  const double bytes = weight_bytes(first.qkv_a) + weight_bytes(first.q_b) +
                       weight_bytes(first.k_absorbed) + weight_bytes(first.v_absorbed) +
                       weight_bytes(first.o_proj) +
                       static_cast<double>((s.context + T) * width * 2);
  const std::int64_t copies = copies_past_cache(side, bytes);
  add_layers(side, *block, copies);
  Backend& backend = side.backend();
  backend.plan_mla_attention({.metadata = &block->metadata,
                              .num_heads = h,
                              .kv_lora_rank = n.kv_lora_rank,
                              .qk_rope_head_dim = n.rope_dim});
  return {.num_copies = copies,
          .run =
              [block, &backend](std::int64_t i) {
                block->run(backend, block->layers[static_cast<std::size_t>(i)]);
              },
          .outputs = {block->out},
          .bytes = bytes,
          .keep = block};
}

// ---- Feed-forward

struct FfnLayer {
  LinearWeight router, gate_up, down;
  ExpertWeights experts;
};

struct FfnBlock {
  std::deque<FfnLayer> layers;
  Tensor residual, delta, norm, bias, seqs, x, logits, ids, weights, gate_up, act, shared, out;

  void run(Backend& backend, const FfnLayer& layer) const {
    backend.add_rms_norm(
        {.residual = residual, .delta = delta, .weight = norm, .eps = 1e-5f, .out = x});
    backend.moe_block({.x = x,
                       .router = &layer.router,
                       .bias = bias,
                       .seq_of_row = seqs,
                       .norm_topk_prob = true,
                       .routed_scaling_factor = 2.827f,
                       .shared_gate_up = &layer.gate_up,
                       .shared_down = &layer.down,
                       .experts = &layer.experts,
                       .out = out,
                       .topk_ids = ids,
                       .topk_weights = weights,
                       .router_logits = logits,
                       .gate_up = gate_up,
                       .act = act,
                       .shared = shared});
  }
};

FfnLayer make_ffn_layer(BenchSide& side, const NetworkShape& n, std::uint64_t seed) {
  const auto linear = [&](std::int64_t outputs, std::int64_t inputs, std::uint64_t stream,
                          float scale) {
    return side.meter().random_linear(outputs, inputs, seed + stream, scale * amplitude_of(inputs));
  };
  // Logits far apart, so that rounding does not change which experts are chosen.
  return {.router = linear(n.n_routed_experts, n.hidden_size, 0, 3),
          .gate_up = linear(2 * n.moe_intermediate_size, n.hidden_size, 1, 1),
          .down = linear(n.hidden_size, n.moe_intermediate_size, 2, 1),
          .experts = side.meter().random_experts(n.n_routed_experts, n.hidden_size,
                                                 n.moe_intermediate_size, seed + 3)};
}

BuiltCase build_ffn(BenchSide& side, const BlockShape& s) {
  const NetworkShape& n = s.network;
  const DType act = side.backend().activation_dtype();
  const std::int64_t T = s.rows;
  auto block = std::make_shared<FfnBlock>();
  block->residual = side.act({T, n.hidden_size}, 31);
  block->delta = side.act({T, n.hidden_size}, 32, 0.1f);
  block->norm = norm_weight(side, n.hidden_size, 33);
  block->bias = side.f32({n.n_routed_experts}, 34, 0.01f);
  block->seqs = side.zeros(DType::kI32, {T});
  block->x = side.zeros(act, {T, n.hidden_size});
  block->logits = side.zeros(DType::kF32, {T, n.n_routed_experts});
  block->ids = side.zeros(DType::kI32, {T, n.num_experts_per_tok});
  block->weights = side.zeros(DType::kF32, {T, n.num_experts_per_tok});
  block->gate_up = side.zeros(act, {T, 2 * n.moe_intermediate_size});
  block->act = side.zeros(act, {T, n.moe_intermediate_size});
  block->shared = side.zeros(act, {T, n.hidden_size});
  block->out = side.zeros(act, {T, n.hidden_size});
  const std::int64_t layers = side.backend().device() == Device::kCpu ? 1 : 8;
  for (std::int64_t i = 0; i < layers; ++i)
    block->layers.push_back(make_ffn_layer(side, n, 2000 + 20 * static_cast<std::uint64_t>(i)));
  const FfnLayer& first = block->layers[0];
  const auto E = static_cast<double>(n.n_routed_experts);
  const double touched = E * (1 - std::pow(1 - static_cast<double>(n.num_experts_per_tok) / E,
                                           static_cast<double>(T)));
  const double expert_bytes =
      3.0 * static_cast<double>(n.hidden_size * n.moe_intermediate_size) * 0.5625;
  Backend& backend = side.backend();
  return {.num_copies = layers,
          .run =
              [block, &backend](std::int64_t i) {
                block->run(backend, block->layers[static_cast<std::size_t>(i)]);
              },
          .outputs = {block->ids, block->out},
          .bytes = weight_bytes(first.router) + weight_bytes(first.gate_up) +
                   weight_bytes(first.down) + touched * expert_bytes,
          .keep = block};
}

}  // namespace

void add_block_cases(std::vector<KernelCase>& cases, const NetworkShape& n) {
  if (n.name == "tp1") return;
  const std::int64_t context = n.name == "tiny" ? 512 : 4096;
  for (const std::int64_t rows : {1, 8, 17})
    cases.push_back(
        {.key = "attention block " + n.name + " L=" + std::to_string(context) +
                " M=" + std::to_string(rows),
         .kernel = "attention block",
         .shape = Json::object({{"network", n.name}, {"rows", rows}, {"context", context}}),
         .bound = 3e-2,
         .build = [n, rows, context](BenchSide& side) {
           return build_attention(side, {n, rows, context});
         }});
  for (const std::int64_t rows : {1, 8, 17})
    cases.push_back({.key = "mla_queries " + n.name + " M=" + std::to_string(rows),
                     .kernel = "mla_queries",
                     .shape = Json::object({{"network", n.name}, {"rows", rows}}),
                     .build = [n, rows, context](BenchSide& side) {
                       return build_queries(side, {n, rows, context});
                     }});
  for (const std::int64_t rows : {1, 8, 17})
    cases.push_back({.key = "ffn block " + n.name + " M=" + std::to_string(rows),
                     .kernel = "ffn block",
                     .shape = Json::object({{"network", n.name}, {"rows", rows}}),
                     .bound = 3e-2,
                     .build =
                         [n, rows](BenchSide& side) {
                           return build_ffn(side, {n, rows});
                         },
                     .chooses = true});
}

}  // namespace coppice
