#include "backend/cpu/moe_ops.h"

#include <algorithm>
#include <array>
#include <bitset>

#include "backend/cpu/ops.h"
#include "backend/cpu/vector_math.h"

namespace coppice::cpu {
namespace {

constexpr std::int64_t kMaxExperts = 1024;

// One row: its top_k experts in descending order of score + bias, ties to the lowest id.
void route_row(const MoeRouteArgs& args, std::int64_t t) {
  const std::int64_t num_experts = args.logits.shape(1), top_k = args.topk_ids.shape(1);
  const float* const logits = args.logits.row<float>(t);
  const float* const bias = args.bias.data<float>();
  std::int32_t* const ids = args.topk_ids.row<std::int32_t>(t);
  float* const weights = args.topk_weights.row<float>(t);
  std::array<float, kMaxExperts> scores;
  for (std::int64_t e = 0; e < num_experts; ++e)
    scores[static_cast<std::size_t>(e)] = sigmoid(logits[e]);
  std::bitset<kMaxExperts> chosen;
  float sum = 0;
  for (std::int64_t k = 0; k < top_k; ++k) {
    std::size_t best = kMaxExperts;
    float best_choice = 0;
    for (std::size_t e = 0; e < static_cast<std::size_t>(num_experts); ++e) {
      const float choice = scores[e] + bias[e];
      if (chosen[e] || (best != kMaxExperts && !(choice > best_choice))) continue;
      best = e;
      best_choice = choice;
    }
    chosen.set(best);
    ids[k] = static_cast<std::int32_t>(best);
    weights[k] = scores[best];
    sum += weights[k];
  }
  for (std::int64_t k = 0; k < top_k; ++k) {
    if (args.norm_topk_prob) weights[k] /= sum + 1e-20f;
    weights[k] *= args.routed_scaling_factor;
  }
}

// Everything the experts see of a route, checked: a wrong id would read outside the weights.
std::int32_t expert_of(const MoeExpertsArgs& args, std::int64_t t, std::int64_t k) {
  const std::int32_t id = args.topk_ids.row<std::int32_t>(t)[k];
  COPPICE_CHECK_LT(id, args.experts->num_experts);
  return id;
}

// hidden[i] = silu(gate_i . x) * (up_i . x)
float expert_hidden(const DenseMatrix& gate_up, const float* x, std::int64_t i) {
  const float gate = dot(x, gate_up.row(i), gate_up.cols);
  const float up = dot(x, gate_up.row(gate_up.rows / 2 + i), gate_up.cols);
  return silu(gate) * up;
}

}  // namespace

void moe_route(const MoeRouteArgs& args, ThreadPool& pool) {
  const std::int64_t top_k = args.topk_ids.shape(1);
  COPPICE_CHECK_LE(args.logits.shape(1), kMaxExperts);
  COPPICE_CHECK_LE(top_k, args.logits.shape(1));
  const std::int32_t* const seq_of_row = args.seq_of_row.data<std::int32_t>();
  pool.parallel_for(args.logits.shape(0), kMinRowsPerThread,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        if (seq_of_row[t] >= 0) {
                          route_row(args, t);
                        } else {
                          std::fill_n(args.topk_ids.row<std::int32_t>(t), top_k, -1);
                          std::fill_n(args.topk_weights.row<float>(t), top_k, 0.0f);
                        }
                      }
                    });
}

void moe_experts(const MoeExpertsArgs& args, const std::vector<DenseExpert>& experts, float* hidden,
                 ThreadPool& pool) {
  const std::int64_t num_rows = args.x.shape(0), top_k = args.topk_ids.shape(1);
  const std::int64_t hidden_size = args.experts->hidden_size;
  const std::int64_t intermediate_size = args.experts->intermediate_size;
  // hidden [T, top_k, intermediate_size]
  pool.parallel_for(
      num_rows * top_k * intermediate_size, 64, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
          const std::int64_t slot = item / intermediate_size, i = item % intermediate_size;
          const std::int32_t id = expert_of(args, slot / top_k, slot % top_k);
          if (id < 0) continue;
          hidden[item] = expert_hidden(experts[static_cast<std::size_t>(id)].gate_up,
                                       args.x.row<float>(slot / top_k), i);
        }
      });
  pool.parallel_for(num_rows * hidden_size, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t t = item / hidden_size, n = item % hidden_size;
      float sum = 0;
      for (std::int64_t k = 0; k < top_k; ++k) {
        const std::int32_t id = expert_of(args, t, k);
        if (id < 0) continue;
        const float* const h = hidden + (t * top_k + k) * intermediate_size;
        sum += args.topk_weights.row<float>(t)[k] *
               dot(h, experts[static_cast<std::size_t>(id)].down.row(n), intermediate_size);
      }
      if (!args.shared.empty()) sum += args.shared.row<float>(t)[n];
      args.out.row<float>(t)[n] = sum;
    }
  });
}

}  // namespace coppice::cpu
