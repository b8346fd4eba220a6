// What bf16 activations alone do to a network: the fp32 reference with every op's result rounded,
// and a record of the experts that rows choose, for telling honest rounding from a fault.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/trace/forwarding_backend.h"
#include "base/half.h"

namespace coppice::testing {

// Experts of one row in one layer: ascending ids, and how far the worst chosen score lies above the
// best one that was left out.
struct RoutedRow {
  std::vector<std::int32_t> ids;
  float margin = 0;
};
using RoutedRows = std::vector<RoutedRow>;

// Keeps every moe_route's rows, in order. Rounds run op by op.
class RoutingRecorder : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void run_graph(const GraphKey& /*key*/, const std::function<void()>& body) override { body(); }
  void moe_block(const MoeBlockArgs& args) override { Backend::moe_block(args); }
  void moe_route(const MoeRouteArgs& args) override {
    ForwardingBackend::moe_route(args);
    const std::vector<float> logits = read<float>(args.logits), bias = read<float>(args.bias);
    const std::vector<std::int32_t> ids = read<std::int32_t>(args.topk_ids);
    const std::size_t experts = bias.size();
    const auto top_k = static_cast<std::size_t>(args.topk_ids.shape(1));
    RoutedRows rows(logits.size() / experts);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      const auto first = ids.begin() + static_cast<std::ptrdiff_t>(t * top_k);
      rows[t].ids.assign(first, first + static_cast<std::ptrdiff_t>(top_k));
      std::sort(rows[t].ids.begin(), rows[t].ids.end());
      std::vector<float> scores(experts);
      for (std::size_t e = 0; e < experts; ++e)
        scores[e] = 1 / (1 + std::exp(-logits[t * experts + e])) + bias[e];
      std::sort(scores.rbegin(), scores.rend());
      rows[t].margin = scores[top_k - 1] - scores[top_k];
    }
    calls.push_back(std::move(rows));
  }

  std::vector<RoutedRows> calls;

 private:
  template <typename T>
  std::vector<T> read(const Tensor& tensor) {
    std::vector<T> values(static_cast<std::size_t>(tensor.num_elements()));
    download(values.data(), tensor);
    return values;
  }
};

// Rounds what ops of an fp32 CPU backend leave to `mantissa_bits` explicit bits (7: bf16), after a
// relative disturbance far below that, drawn from `seed`: other orders of summation do the like.
// Seed 0 disturbs nothing. Router and head keep fp32, as everywhere.
class RoundedBackend : public ForwardingBackend {
 public:
  RoundedBackend(std::unique_ptr<Backend> inner, std::uint32_t seed, std::int64_t num_experts,
                 std::int64_t vocab_size, int mantissa_bits = 7)
      : ForwardingBackend(std::move(inner)),
        state_(seed),
        disturbs_(seed != 0),
        num_experts_(num_experts),
        vocab_size_(vocab_size),
        dropped_bits_(23 - mantissa_bits) {}

  void embed(const EmbedArgs& args) override {
    ForwardingBackend::embed(args);
    round(args.out);
  }
  void rms_norm(const RmsNormArgs& args) override {
    ForwardingBackend::rms_norm(args);
    round(args.out);
  }
  void add_rms_norm(const AddRmsNormArgs& args) override {
    for (std::int64_t t = 0; t < args.residual.shape(0); ++t)
      for (std::int64_t i = 0; i < args.residual.row_size(); ++i)
        args.residual.row<float>(t)[i] += args.delta.row<float>(t)[i];
    round(args.residual);
    rms_norm({.x = args.residual, .weight = args.weight, .eps = args.eps, .out = args.out});
  }
  void linear(const LinearArgs& args) override {
    ForwardingBackend::linear(args);
    if (args.out.shape(1) != num_experts_ && args.out.shape(1) != vocab_size_) round(args.out);
  }
  void head_linear(const HeadLinearArgs& args) override {
    ForwardingBackend::head_linear(args);
    round(args.out);
  }
  void silu_mul(const SiluMulArgs& args) override {
    ForwardingBackend::silu_mul(args);
    round(args.out);
  }
  // Fused ops step by step: each step is watched or rounded.
  void moe_block(const MoeBlockArgs& args) override { Backend::moe_block(args); }
  void mla_queries(const MlaQueriesArgs& args) override { Backend::mla_queries(args); }
  void moe_experts(const MoeExpertsArgs& args) override {
    ForwardingBackend::moe_experts(args);
    round(args.out);
  }
  void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) override {
    ForwardingBackend::mla_rope_and_write_kv(args);
    round(args.q_pe);
    const Tensor keys = args.cache.reshape(
        {args.cache.shape(0) * args.cache.shape(1), args.cache.shape(2)});  // [slots, width]
    for (std::int64_t t = 0; t < args.slots.shape(0); ++t)
      if (const std::int32_t slot = args.slots.data<std::int32_t>()[t]; slot >= 0)
        round(keys.rows(slot, 1));
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    ForwardingBackend::mla_attention(args);
    round(args.out);
  }

 private:
  static constexpr float kDisturbance = 0x1p-11f;

  float disturbance() {
    state_ = state_ * 1664525u + 1013904223u;
    return (static_cast<float>(state_ >> 8) * 0x1p-23f - 1.0f) * kDisturbance;
  }
  void round(const Tensor& tensor) {
    for (std::int64_t t = 0; t < tensor.shape(0); ++t)
      for (std::int64_t i = 0; i < tensor.row_size(); ++i) {
        float& value = tensor.row<float>(t)[i];
        if (disturbs_) value *= 1.0f + disturbance();
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t half = (1u << (dropped_bits_ - 1)) - 1;
        value = std::bit_cast<float>((bits + half + (bits >> dropped_bits_ & 1u)) >>
                                     dropped_bits_ << dropped_bits_);
      }
  }

  std::uint32_t state_;
  bool disturbs_;
  std::int64_t num_experts_, vocab_size_;
  int dropped_bits_;
};

}  // namespace coppice::testing
