// Projections: every weight matrix of a layer, and the lm_head.
#include <cmath>

#include "base/half.h"
#include "base/random_values.h"
#include "benchmark/kernel_case.h"

namespace coppice {
namespace {

constexpr std::uint64_t kWeightSeed = 100;

struct Product {
  std::string name;
  std::int64_t outputs, inputs;  // of one head
  std::int64_t num_heads = 1;    // above 1: head_linear
  bool f32_out = false;
  Provenance provenance = Provenance::kDecided;

  bool is_prompt() const { return provenance == Provenance::kPrompt; }
};

float weight_amplitude(std::int64_t inputs) {
  return std::sqrt(3.0f / static_cast<float>(inputs));
}

BuiltCase build(BenchSide& side, const Product& p, std::int64_t rows) {
  const std::int64_t outputs = p.num_heads * p.outputs;
  const auto weight_bytes = static_cast<double>(outputs * p.inputs * 2);
  const std::int64_t copies = copies_past_cache(side, weight_bytes);
  auto weights = std::make_shared<std::vector<LinearWeight>>();
  for (std::int64_t i = 0; i < copies; ++i)
    weights->push_back(side.meter().random_linear(outputs, p.inputs,
                                                  kWeightSeed + static_cast<std::uint64_t>(i),
                                                  weight_amplitude(p.inputs)));
  const Tensor x = side.act({rows, p.num_heads * p.inputs}, 1);
  const Tensor out =
      side.zeros(p.f32_out ? DType::kF32 : side.backend().activation_dtype(), {rows, outputs});
  Backend& backend = side.backend();
  BuiltCase built = {.num_copies = copies, .run = {}, .outputs = {x, out}};
  if (p.num_heads == 1)
    built.run = [&backend, weights, x, out, p](std::int64_t i) {
      backend.linear({.x = x,
                      .weight = &(*weights)[static_cast<std::size_t>(i)],
                      .out = out,
                      .provenance = p.provenance});
    };
  else
    built.run = [&backend, weights, x, out, p, rows](std::int64_t i) {
      backend.head_linear({.x = x.reshape({rows, p.num_heads, p.inputs}),
                           .weight = &(*weights)[static_cast<std::size_t>(i)],
                           .out = out.reshape({rows, p.num_heads, p.outputs}),
                           .provenance = p.provenance});
    };
  built.bytes = weight_bytes + static_cast<double>(x.num_bytes() + out.num_bytes());
  built.flops = 2.0 * static_cast<double>(rows * outputs * p.inputs);
  built.keep = weights;
  return built;
}

// First, middle and last row, every (outputs / 61)th output, in double precision.
double sampled_error(BenchSide& side, const BuiltCase& built, const Product& p) {
  const std::vector<float> x = side.read(built.outputs[0]), out = side.read(built.outputs[1]);
  const std::int64_t rows = built.outputs[0].shape(0), outputs = p.num_heads * p.outputs;
  const std::int64_t stride = std::max<std::int64_t>(outputs / 61, 1);
  double worst = 0;
  for (const std::int64_t row : {std::int64_t{0}, rows / 2, rows - 1}) {
    std::vector<float> values, expected;
    for (std::int64_t o = 0; o < outputs; o += stride) {
      const std::int64_t first = (row * p.num_heads + o / p.outputs) * p.inputs;
      double sum = 0;
      for (std::int64_t i = 0; i < p.inputs; ++i)
        sum += double{x[static_cast<std::size_t>(first + i)]} *
               to_float(
                   to_bf16(random_uniform(kWeightSeed, static_cast<std::uint64_t>(o * p.inputs + i),
                                          weight_amplitude(p.inputs))));
      values.push_back(out[static_cast<std::size_t>(row * outputs + o)]);
      expected.push_back(static_cast<float>(sum));
    }
    worst = std::max(worst, row_error(values, expected, std::ssize(values)));
  }
  return worst;
}

void add(std::vector<KernelCase>& cases, const NetworkShape& network, const Product& product,
         std::initializer_list<std::int64_t> row_counts) {
  for (const std::int64_t rows : row_counts)
    cases.push_back(
        {.key = product.name + (product.is_prompt() ? " prompt " : " ") + network.name +
                " M=" + std::to_string(rows),
         .kernel = std::string(product.num_heads == 1 ? "linear" : "head_linear") +
                   (product.is_prompt() ? " of prompts" : ""),
         .shape = Json::object({{"network", network.name},
                                {"rows", rows},
                                {"outputs", product.outputs},
                                {"inputs", product.inputs},
                                {"num_heads", product.num_heads}}),
         .build = [product, rows](BenchSide& side) { return build(side, product, rows); },
         .error = [product](
                      BenchSide& side,
                      const BuiltCase& built) { return sampled_error(side, built, product); }});
}

}  // namespace

void add_dense_cases(std::vector<KernelCase>& cases, const NetworkShape& n) {
  const auto rows = {std::int64_t{1},  std::int64_t{8},  std::int64_t{17},
                     std::int64_t{33}, std::int64_t{64}, std::int64_t{256}};
  const std::int64_t h = n.num_heads;
  add(cases, n, {"qkv_a", n.q_lora_rank + n.kv_lora_rank + n.rope_dim, n.hidden_size}, rows);
  add(cases, n, {"q_b", h * (n.nope_dim + n.rope_dim), n.q_lora_rank}, rows);
  add(cases, n, {"k_absorbed", n.kv_lora_rank, n.nope_dim, h}, rows);
  add(cases, n, {"v_absorbed", n.v_head_dim, n.kv_lora_rank, h}, rows);
  add(cases, n, {"o_proj", n.hidden_size, h * n.v_head_dim}, rows);
  add(cases, n, {"shared_gate_up", 2 * n.moe_intermediate_size, n.hidden_size}, rows);
  add(cases, n, {"shared_down", n.hidden_size, n.moe_intermediate_size}, rows);
  add(cases, n, {"router", n.n_routed_experts, n.hidden_size, 1, true}, rows);
  add(cases, n, {"mlp_gate_up", 2 * n.intermediate_size, n.hidden_size}, {1, 17, 64});
  add(cases, n, {"mlp_down", n.hidden_size, n.intermediate_size}, {1, 17, 64});
  add(cases, n, {"lm_head", n.vocab_size, n.hidden_size, 1, true}, rows);
  // By cuBLASLt on a GPU.
  const Product prompt = {"qkv_a",       n.q_lora_rank + n.kv_lora_rank + n.rope_dim,
                          n.hidden_size, 1,
                          false,         Provenance::kPrompt};
  if (n.name == "tp8") add(cases, n, prompt, {2048, 8192});
  if (n.name == "tiny") add(cases, n, prompt, {256});
}

}  // namespace coppice
