#include "tests/model/support/naive_network.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/dequantize.h"

namespace coppice::test {
namespace {

double dot(const double* a, const double* b, std::size_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

void add(Rows& x, const Rows& y) {
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t k = 0; k < x[i].size(); ++k) x[i][k] += y[i][k];
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

Row normalized(const double* x, std::size_t n, const Row& weight, double eps) {
  const double scale = 1 / std::sqrt(dot(x, x, n) / static_cast<double>(n) + eps);
  Row out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
  return out;
}

std::vector<double> softmax(std::vector<double> scores) {
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
  return scores;
}

std::size_t count(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

}  // namespace

Rows NaiveNetwork::matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
  const HostMatrix stored = source_.matrix({name, rows, cols});
  Rows result;
  std::vector<float> values(count(cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    dequantize_row(stored, row, values.data());
    result.emplace_back(values.begin(), values.end());
  }
  source_.release();
  return result;
}

Row NaiveNetwork::vector(const std::string& name, std::int64_t n) {
  const std::vector<float> values = source_.vector({name, n});
  return {values.begin(), values.end()};
}

Rows NaiveNetwork::linear(const Rows& x, const std::string& name, std::int64_t rows) {
  const Rows weight = matrix(name, rows, static_cast<std::int64_t>(x[0].size()));
  Rows out;
  for (const Row& row : x) {
    Row& y = out.emplace_back();
    for (const Row& w : weight) y.push_back(dot(w.data(), row.data(), row.size()));
  }
  return out;
}

Rows NaiveNetwork::norm(const Rows& x, const std::string& name) {
  const Row weight = vector(name, static_cast<std::int64_t>(x[0].size()));
  Rows out;
  for (const Row& row : x)
    out.push_back(normalized(row.data(), row.size(), weight, config_.rms_norm_eps));
  return out;
}

Rows NaiveNetwork::mlp(const Rows& x, const std::string& prefix, std::int64_t width) {
  Rows gate = linear(x, prefix + "gate_proj", width);
  const Rows up = linear(x, prefix + "up_proj", width);
  for (std::size_t i = 0; i < gate.size(); ++i)
    for (std::size_t k = 0; k < gate[i].size(); ++k) gate[i][k] = silu(gate[i][k]) * up[i][k];
  return linear(gate, prefix + "down_proj", config_.hidden_size);
}

void NaiveNetwork::rotate(double* values, std::int64_t dim, std::size_t position) const {
  const std::vector<double> frequencies = rope_frequencies(config_.rope, dim);
  const double amplitude = rope_amplitude(config_.rope);
  const std::size_t half = count(dim / 2);
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    double& a = values[config_.rope.interleaved ? 2 * i : i];
    double& b = values[config_.rope.interleaved ? 2 * i + 1 : i + half];
    const double x = a, y = b;
    a = (x * std::cos(angle) - y * std::sin(angle)) * amplitude;
    b = (x * std::sin(angle) + y * std::cos(angle)) * amplitude;
  }
}

// The expanded form: keys and values of every head are computed from the latent.
Rows NaiveNetwork::mla(const Rows& x, const std::string& prefix) {
  const ModelConfig& c = config_;
  const std::size_t nope = count(c.qk_nope_head_dim), rope = count(c.qk_rope_head_dim);
  const std::size_t v_dim = count(c.v_head_dim), rank = count(c.kv_lora_rank);
  const std::size_t heads = count(c.num_attention_heads);
  Rows q =
      linear(norm(linear(x, prefix + "q_a_proj", c.q_lora_rank), prefix + "q_a_layernorm.weight"),
             prefix + "q_b_proj", c.num_attention_heads * c.head_dim);
  Rows kv_a = linear(x, prefix + "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim);
  Rows latent;
  for (std::size_t i = 0; i < x.size(); ++i) {
    latent.emplace_back(kv_a[i].begin(), kv_a[i].begin() + c.kv_lora_rank);
    rotate(kv_a[i].data() + rank, c.qk_rope_head_dim, i);
    for (std::size_t h = 0; h < heads; ++h)
      rotate(q[i].data() + h * (nope + rope) + nope, c.qk_rope_head_dim, i);
  }
  const Rows kv = linear(norm(latent, prefix + "kv_a_layernorm.weight"), prefix + "kv_b_proj",
                         c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim));
  Rows out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t h = 0; h < heads; ++h) {
      const double* query = q[i].data() + h * (nope + rope);
      std::vector<double> scores;
      for (std::size_t j = 0; j <= i; ++j)
        scores.push_back((dot(query, kv[j].data() + h * (nope + v_dim), nope) +
                          dot(query + nope, kv_a[j].data() + rank, rope)) *
                         c.softmax_scale());
      scores = softmax(scores);
      for (std::size_t d = 0; d < v_dim; ++d) {
        double sum = 0;
        for (std::size_t j = 0; j <= i; ++j)
          sum += scores[j] * kv[j][h * (nope + v_dim) + nope + d];
        out[i].push_back(sum);
      }
    }
  return linear(out, prefix + "o_proj", c.hidden_size);
}

// keys holds the rows of all positions; queries those of the last ones.
Rows NaiveNetwork::gqa(const Rows& queries, const Rows& keys, const std::string& prefix,
                       const Mask& mask) {
  const ModelConfig& c = config_;
  const std::size_t heads = count(c.num_attention_heads), kv_heads = count(c.num_key_value_heads);
  const std::size_t dim = count(c.head_dim), first = keys.size() - queries.size();
  Rows q = linear(queries, prefix + "q_proj", c.num_attention_heads * c.head_dim);
  Rows k = linear(keys, prefix + "k_proj", c.num_key_value_heads * c.head_dim);
  const Rows v = linear(keys, prefix + "v_proj", c.num_key_value_heads * c.head_dim);
  const auto prepare = [&](Rows& rows, std::size_t num_heads, const char* name,
                           std::size_t position) {
    const Row weight = c.qk_norm ? vector(prefix + name, c.head_dim) : Row();
    for (Row& row : rows) {
      for (std::size_t h = 0; h < num_heads; ++h) {
        double* head = row.data() + h * dim;
        if (c.qk_norm) std::ranges::copy(normalized(head, dim, weight, c.rms_norm_eps), head);
        rotate(head, c.head_dim, position);
      }
      ++position;
    }
  };
  prepare(q, heads, "q_norm.weight", first);
  prepare(k, kv_heads, "k_norm.weight", 0);
  Rows out(queries.size());
  for (std::size_t i = 0; i < queries.size(); ++i)
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t offset = h / (heads / kv_heads) * dim;
      std::vector<double> scores;
      for (std::size_t j = 0; j < keys.size(); ++j)
        scores.push_back(mask(first + i, j)
                             ? dot(q[i].data() + h * dim, k[j].data() + offset, dim) *
                                   c.softmax_scale()
                             : -INFINITY);
      scores = softmax(scores);
      for (std::size_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (std::size_t j = 0; j < keys.size(); ++j) sum += scores[j] * v[j][offset + d];
        out[i].push_back(sum);
      }
    }
  return linear(out, prefix + "o_proj", c.hidden_size);
}

Rows NaiveNetwork::experts(const Rows& x, const std::string& prefix) {
  const ModelConfig& c = config_;
  const Rows router = linear(x, prefix + "gate", c.n_routed_experts);
  const Row bias = vector(prefix + "gate.e_score_correction_bias", c.n_routed_experts);
  Rows out = mlp(x, prefix + "shared_experts.", c.n_shared_experts * c.moe_intermediate_size);
  for (std::size_t i = 0; i < x.size(); ++i) {
    Row scores = router[i];
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return scores[a] + bias[a] > scores[b] + bias[b];
    });
    order.resize(count(c.num_experts_per_tok));
    double sum = 0;
    for (const std::size_t expert : order) sum += scores[expert];
    for (const std::size_t expert : order) {
      const Rows y =
          mlp({x[i]}, prefix + "experts." + std::to_string(expert) + ".", c.moe_intermediate_size);
      const double weight = scores[expert] / (c.norm_topk_prob ? sum : 1) * c.routed_scaling_factor;
      for (std::size_t k = 0; k < y[0].size(); ++k) out[i][k] += weight * y[0][k];
    }
  }
  return out;
}

std::vector<Rows> NaiveNetwork::hidden_states(const std::vector<std::int32_t>& tokens) {
  const Rows table = matrix("model.embed_tokens", config_.vocab_size, config_.hidden_size);
  Rows x;
  for (const std::int32_t token : tokens) x.push_back(table[static_cast<std::size_t>(token)]);
  std::vector<Rows> states{x};
  const Mask causal = [](std::size_t query, std::size_t key) { return key <= query; };
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const Rows h = norm(x, layer + "input_layernorm.weight");
    const bool is_mla = config_.architecture == Architecture::kDeepseek;
    add(x, is_mla ? mla(h, layer + "self_attn.") : gqa(h, h, layer + "self_attn.", causal));
    const Rows g = norm(x, layer + "post_attention_layernorm.weight");
    const bool is_routed = is_mla && i >= config_.first_k_dense_replace;
    add(x,
        is_routed ? experts(g, layer + "mlp.") : mlp(g, layer + "mlp.", config_.intermediate_size));
    states.push_back(x);
  }
  return states;
}

Rows NaiveNetwork::head(const Rows& normed) {
  return linear(normed, config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head",
                config_.vocab_size);
}

Rows NaiveNetwork::logits(const Rows& hidden) {
  return head(norm(hidden, "model.norm.weight"));
}

Rows NaiveNetwork::draft(const DflashConfig& drafter, const Rows& features, const Rows& block,
                         const std::function<Mask(std::size_t layer)>& mask_of) {
  const Rows context = norm(linear(features, "fc", config_.hidden_size), "hidden_norm.weight");
  Rows x = block;
  for (std::int64_t i = 0; i < drafter.network.num_hidden_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const Rows h = norm(x, layer + "input_layernorm.weight");
    Rows keys = context;
    keys.insert(keys.end(), h.begin(), h.end());
    add(x, gqa(h, keys, layer + "self_attn.", mask_of(static_cast<std::size_t>(i))));
    add(x, mlp(norm(x, layer + "post_attention_layernorm.weight"), layer + "mlp.",
               config_.intermediate_size));
  }
  return norm(x, "norm.weight");
}

}  // namespace coppice::test
