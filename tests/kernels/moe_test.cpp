// Routed experts, router and skinny GEMM on a GPU against arithmetic in double precision, and bit
// for bit against themselves with one row. Skipped without a device.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "kernels/gemm/skinny_gemm.h"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts.h"
#include "kernels/moe/moe_experts_config.h"
#include "kernels/moe/moe_route.h"
#include "kernels/moe/moe_wide.h"
#include "kernels/moe/repack_experts.h"
#include "kernels/moe/repack_on_host.h"

namespace coppice::kernels {
namespace {

bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

#define REQUIRE_DEVICE() \
  if (!has_device()) GTEST_SKIP() << "no CUDA device"

float to_float(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &word, 4);
  return value;
}

uint16_t to_bf16(double value) {
  const float narrow = static_cast<float>(value);
  uint32_t word = 0;
  std::memcpy(&word, &narrow, 4);
  return static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}

template <typename T>
struct DeviceArray {
  T* data = nullptr;
  size_t count = 0;
  explicit DeviceArray(size_t n) : count(n) {
    EXPECT_EQ(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    EXPECT_EQ(cudaMemcpy(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data); }
  void fill(int byte, size_t first = 0) {
    EXPECT_EQ(cudaMemset(data + first, byte, (count - first) * sizeof(T)), cudaSuccess);
  }
  std::vector<T> host() const {
    std::vector<T> copy(count);
    EXPECT_EQ(cudaMemcpy(copy.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return copy;
  }
};

std::vector<uint16_t> random_bf16(size_t count, double low, double high, unsigned seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> pick(low, high);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = to_bf16(pick(rng));
  return values;
}

// ---- Routed experts

// Up to 85 rows take the narrow form, more the wide one (moe_wide_pays).
constexpr int kTokens = 90, kTopK = 4, kExperts = 20;

struct PackedMatrix {
  int rows, inputs;
  std::vector<int32_t> packed;  // [experts, rows, inputs / 8]
  std::vector<uint16_t> scale;  // [experts, rows, inputs / 32]

  PackedMatrix(int out, int in, unsigned seed) : rows(out), inputs(in) {
    std::mt19937 rng(seed);
    packed.resize(size_t(kExperts) * rows * inputs / 8);
    for (int32_t& word : packed) word = static_cast<int32_t>(rng());
    scale = random_bf16(size_t(kExperts) * rows * inputs / 32, 0.002, 0.01, seed + 1);
  }
  double weight(int expert, int row, int input) const {
    const size_t at = (size_t(expert) * rows + row) * inputs + input;
    const int nibble = static_cast<int>(static_cast<uint32_t>(packed[at / 8]) >> (at % 8 * 4) & 15);
    return (nibble - 8) * double(to_float(scale[at / 32]));
  }
  double dot(int expert, int row, const uint16_t* x) const {
    double sum = 0;
    for (int k = 0; k < inputs; ++k) sum += weight(expert, row, k) * to_float(x[k]);
    return sum;
  }
};

class MoeExpertsTest : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  int hidden() const { return GetParam().first; }
  int intermediate() const { return GetParam().second; }

  void SetUp() override {
    REQUIRE_DEVICE();
    gate_ = std::make_unique<PackedMatrix>(intermediate(), hidden(), 1);
    up_ = std::make_unique<PackedMatrix>(intermediate(), hidden(), 3);
    down_ = std::make_unique<PackedMatrix>(hidden(), intermediate(), 5);
    x_ = random_bf16(size_t(kTokens) * hidden(), -1, 1, 7);
    std::mt19937 rng(9);
    for (int t = 0; t < kTokens; ++t) {
      std::vector<int> experts(kExperts - 1);  // the last expert stays empty
      for (int e = 0; e < kExperts - 1; ++e) experts[e] = e;
      std::shuffle(experts.begin(), experts.end(), rng);
      if (t % 2) experts[0] = 0, experts[1] = 18, experts[2] = 17, experts[3] = 16;
      ids_.insert(ids_.end(), experts.begin(), experts.begin() + kTopK);
      for (int k = 0; k < kTopK; ++k) weights_.push_back(0.2f + 0.1f * float(rng() % 5));
    }
    w13_ = std::make_unique<DeviceArray<uint8_t>>(
        kExperts * expert_blob_bytes(expert_blob_shape(2 * intermediate(), hidden())));
    w2_ = std::make_unique<DeviceArray<uint8_t>>(
        kExperts * expert_blob_bytes(expert_blob_shape(hidden(), intermediate())));
    repack(*gate_, up_.get(), *w13_);
    repack(*down_, nullptr, *w2_);
    counters_ = moe_experts_counter_bytes(kTopK, kExperts);
    workspace_ = std::make_unique<DeviceArray<uint8_t>>(
        moe_experts_workspace_bytes(kTokens, kTopK, kExperts, hidden(), intermediate()));
    workspace_->fill(0);
  }

  static void repack(const PackedMatrix& m, const PackedMatrix* up, DeviceArray<uint8_t>& blob) {
    const DeviceArray<int32_t> packed(m.packed), packed_up(up ? up->packed : m.packed);
    const DeviceArray<uint16_t> scale(m.scale), scale_up(up ? up->scale : m.scale);
    ASSERT_EQ(repack_experts({.packed = packed.data,
                              .scale = scale.data,
                              .packed_up = up ? packed_up.data : nullptr,
                              .scale_up = up ? scale_up.data : nullptr,
                              .blob = blob.data,
                              .num_experts = kExperts,
                              .rows = m.rows,
                              .inputs = m.inputs},
                             nullptr),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // Rows [first, first + tokens) with NaN in whatever the call should not read.
  std::vector<float> run(const std::vector<uint16_t>& x, const std::vector<int>& ids, int first,
                         int tokens, int* active = nullptr) {
    const DeviceArray<uint16_t> x_device(std::vector<uint16_t>(
        x.begin() + first * hidden(), x.begin() + (first + tokens) * hidden()));
    const DeviceArray<int> ids_device(
        std::vector<int>(ids.begin() + first * kTopK, ids.begin() + (first + tokens) * kTopK));
    const DeviceArray<float> weights_device(std::vector<float>(
        weights_.begin() + first * kTopK, weights_.begin() + (first + tokens) * kTopK));
    DeviceArray<float> out(size_t(tokens) * hidden());
    DeviceArray<int> active_device(1);
    out.fill(0xFF);
    workspace_->fill(0xFF, counters_);
    EXPECT_EQ(moe_experts({.x = x_device.data,
                           .topk_ids = ids_device.data,
                           .topk_weights = weights_device.data,
                           .w13 = w13_->data,
                           .w2 = w2_->data,
                           .out = out.data,
                           .num_active_experts = active_device.data,
                           .workspace = workspace_->data,
                           .num_tokens = tokens,
                           .top_k = kTopK,
                           .num_experts = kExperts,
                           .hidden_size = hidden(),
                           .intermediate_size = intermediate(),
                           .out_is_float = true},
                          nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (active) *active = active_device.host()[0];
    return out.host();
  }

  std::vector<double> reference(int token) const {
    std::vector<double> out(hidden(), 0.0);
    for (int slot = 0; slot < kTopK; ++slot) {
      const int expert = ids_[token * kTopK + slot];
      std::vector<uint16_t> activation(intermediate());
      for (int i = 0; i < intermediate(); ++i) {
        const uint16_t* x = &x_[size_t(token) * hidden()];
        const double gate = gate_->dot(expert, i, x);
        activation[i] = to_bf16(gate / (1 + std::exp(-gate)) * up_->dot(expert, i, x));
      }
      for (int row = 0; row < hidden(); ++row) {
        out[row] += weights_[token * kTopK + slot] * down_->dot(expert, row, activation.data());
      }
    }
    return out;
  }

  void expect_padding_inert(int tokens) {
    const std::vector<float> together = run(x_, ids_, 0, tokens);
    std::vector<uint16_t> x = x_;
    std::vector<int> ids = ids_;
    for (int token = 1; token < tokens; token += 3) {
      std::fill_n(x.begin() + token * hidden(), hidden(), 0xFFFF);  // NaN
      for (int k = 0; k < kTopK; ++k) ids[token * kTopK + k] = k % 2 ? -1 : kExperts;
    }
    const std::vector<float> padded = run(x, ids, 0, tokens);
    for (int token = 0; token < tokens; ++token) {
      for (int row = 0; row < hidden(); ++row) {
        const size_t at = size_t(token) * hidden() + row;
        ASSERT_EQ(padded[at], token % 3 == 1 ? 0.0f : together[at]) << token << " " << row;
      }
    }
  }

  std::unique_ptr<PackedMatrix> gate_, up_, down_;
  std::vector<uint16_t> x_;
  std::vector<int> ids_;
  std::vector<float> weights_;
  std::unique_ptr<DeviceArray<uint8_t>> w13_, w2_, workspace_;
  size_t counters_ = 0;
};

TEST_P(MoeExpertsTest, AgreesWithDoublePrecision) {
  const std::vector<float> got = run(x_, ids_, 0, kTokens);
  double difference = 0, norm = 0;
  for (int token : {0, 1, kTokens - 1}) {
    const std::vector<double> want = reference(token);
    for (int row = 0; row < hidden(); ++row) {
      const double d = got[size_t(token) * hidden() + row] - want[row];
      difference += d * d;
      norm += want[row] * want[row];
    }
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-3);
}

TEST_P(MoeExpertsTest, ARowsBitsDependOnThatRowOnly) {
  std::vector<float> alone;
  for (int token = 0; token < kTokens; ++token) {
    const std::vector<float> row = run(x_, ids_, token, 1);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  for (int tokens : {2, 7, 17, 40, 80, 81, kTokens}) {
    int active = 0;
    const std::vector<float> together = run(x_, ids_, 0, tokens, &active);
    EXPECT_EQ(active,
              static_cast<int>(std::set<int>(ids_.begin(), ids_.begin() + tokens * kTopK).size()));
    EXPECT_EQ(std::memcmp(alone.data(), together.data(), together.size() * 4), 0) << tokens;
  }
}

TEST_P(MoeExpertsTest, TheHostRepacksToTheSameBytes) {
  const auto expect_same = [](const PackedMatrix& m, const PackedMatrix* up,
                              const std::vector<uint8_t>& blob) {
    const size_t size = blob.size() / kExperts;
    std::vector<uint8_t> own(size);
    for (size_t e = 0; e < kExperts; ++e) {
      const size_t words = e * m.rows * m.inputs / 8, groups = e * m.rows * m.inputs / 32;
      repack_on_host({.packed = &m.packed[words],
                      .scale = &m.scale[groups],
                      .packed_up = up ? &up->packed[words] : nullptr,
                      .scale_up = up ? &up->scale[groups] : nullptr,
                      .rows = m.rows,
                      .inputs = m.inputs},
                     own.data());
      ASSERT_EQ(std::memcmp(own.data(), &blob[e * size], size), 0) << "expert " << e;
    }
  };
  expect_same(*gate_, up_.get(), w13_->host());
  expect_same(*down_, nullptr, w2_->host());
}

// Both forms: few rows, and many.
TEST_P(MoeExpertsTest, PaddedRowsAreInert) {
  for (int tokens : {30, kTokens}) expect_padding_inert(tokens);
}

TEST_P(MoeExpertsTest, OneExpertMayTakeEveryRow) {
  std::vector<int> ids = ids_;
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i % kTopK == 2 ? 3 : -1;
  int active = 0;
  const std::vector<float> together = run(x_, ids, 0, kTokens, &active);
  EXPECT_EQ(active, 1);
  for (int token : {0, 31, 32, kTokens - 1}) {
    const std::vector<float> alone = run(x_, ids, token, 1);
    EXPECT_EQ(std::memcmp(alone.data(), &together[size_t(token) * hidden()], hidden() * 4), 0);
  }
}
// Inputs shared by eight warps or not, with and without padded cells, in both products; the last so
// wide that one row's form has two tiles of down a block.
INSTANTIATE_TEST_SUITE_P(Shapes, MoeExpertsTest,
                         ::testing::Values(std::pair{384, 128}, std::pair{384, 32},
                                           std::pair{1120, 96}, std::pair{1024, 128},
                                           std::pair{1024, 1056}, std::pair{5120, 128}));

TEST(MoeExpertsConfig, HoldsAnyRoutingOfItsSize) {
  for (int tokens : {1, 3, 8, 17, 64, 65, 300, 1024, 2048}) {
    const MoeExpertsConfig c =
        choose_moe_experts_config(tokens, 8, 384, tokens == 1, 232448, 233472);
    EXPECT_GE(c.stages, 2) << tokens;
    EXPECT_LE(c.shared_bytes, 232448u);
    EXPECT_LE(c.unit_rows, 8 * c.columns);
    // All pairs to one expert, and all experts with one row more than fills a unit.
    EXPECT_GE(c.max_units, (tokens * 8 + c.unit_rows - 1) / c.unit_rows);
    EXPECT_GE(c.max_units, std::min(tokens * 8 / (c.unit_rows + 1), 384) * 2);
  }
}

TEST(MoeWideConfig, HoldsAnyRoutingOfItsSize) {
  for (int tokens : {769, 1025, 2048, 8192}) {
    const MoeWideConfig c = choose_moe_wide_config(tokens, 8, 384, 132, 232448);
    EXPECT_GE(c.stages, 4) << tokens;
    EXPECT_LE(c.shared_bytes, 232448u);
    EXPECT_GE(c.columns, kWideFewColumns);
    EXPECT_GE(c.max_units, (tokens * 8 + c.columns - 1) / c.columns);
    EXPECT_GE(c.max_units, std::min(tokens * 8 / (c.columns + 1), 384) * 2);
  }
}

// ---- Router

TEST(MoeRoute, TakesTheLargestBiasedScoresAndTheLowestIdOfEquals) {
  REQUIRE_DEVICE();
  constexpr int kRouted = 384, kChosen = 8, kRows = 5;
  std::vector<float> logits(kRows * kRouted), bias(kRouted);
  std::mt19937 rng(3);
  for (float& z : logits) z = float(rng() % 64) / 16 - 2;  // many ties
  for (float& b : bias) b = float(rng() % 4) / 8;
  const DeviceArray<float> logits_device(logits), bias_device(bias);
  const DeviceArray<int> seq_of_row(std::vector<int>{0, 0, -1, 1, 1});
  DeviceArray<int> ids(kRows * kChosen);
  DeviceArray<float> weights(kRows * kChosen);
  ASSERT_EQ(moe_route({.logits = logits_device.data,
                       .bias = bias_device.data,
                       .seq_of_row = seq_of_row.data,
                       .topk_ids = ids.data,
                       .topk_weights = weights.data,
                       .num_tokens = kRows,
                       .num_experts = kRouted,
                       .top_k = kChosen,
                       .routed_scaling_factor = 2.827f},
                      nullptr),
            cudaSuccess);
  const std::vector<int> got = ids.host();
  const std::vector<float> got_weights = weights.host();
  for (int row = 0; row < kRows; ++row) {
    std::vector<int> order(kRouted);
    std::vector<float> score(kRouted);
    for (int e = 0; e < kRouted; ++e) {
      order[e] = e;
      score[e] = 1.0f / (1.0f + std::exp(-logits[row * kRouted + e]));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return score[a] + bias[a] > score[b] + bias[b]; });
    double sum = 0;
    for (int k = 0; k < kChosen; ++k) sum += score[order[k]];
    for (int k = 0; k < kChosen; ++k) {
      EXPECT_EQ(got[row * kChosen + k], row == 2 ? -1 : order[k]) << row << " " << k;
      EXPECT_NEAR(got_weights[row * kChosen + k], row == 2 ? 0 : score[order[k]] / sum * 2.827,
                  1e-5);
    }
  }
}

// ---- Skinny GEMM

struct GemmShape {
  int heads, outputs, inputs;
};

class SkinnyGemmTest : public ::testing::TestWithParam<GemmShape> {};

TEST_P(SkinnyGemmTest, AgreesWithDoublePrecisionAndItselfAlone) {
  REQUIRE_DEVICE();
  const GemmShape s = GetParam();
  constexpr int kRows = 300;
  const int row_inputs = s.heads * s.inputs, row_outputs = s.heads * s.outputs;
  const std::vector<uint16_t> x = random_bf16(size_t(kRows) * row_inputs, -1, 1, 1);
  const std::vector<uint16_t> w = random_bf16(size_t(row_outputs) * s.inputs, -0.1, 0.1, 2);
  const DeviceArray<uint16_t> x_device(x), w_device(w);
  const auto run = [&](int first, int tokens) {
    DeviceArray<float> out(size_t(tokens) * row_outputs);
    out.fill(0xFF);
    EXPECT_EQ(skinny_gemm({.x = x_device.data + size_t(first) * row_inputs,
                           .weight = w_device.data,
                           .out = out.data,
                           .num_tokens = tokens,
                           .num_heads = s.heads,
                           .outputs = s.outputs,
                           .inputs = s.inputs,
                           .x_stride = row_inputs,
                           .out_stride = row_outputs,
                           .out_is_float = true},
                          nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return out.host();
  };
  std::vector<float> alone;
  for (int t = 0; t < kRows; ++t) {
    const std::vector<float> row = run(t, 1);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  for (int t : {0, kRows - 1}) {
    for (int o = 0; o < row_outputs; o += 7) {
      double want = 0;
      for (int k = 0; k < s.inputs; ++k) {
        want += double(to_float(x[size_t(t) * row_inputs + o / s.outputs * s.inputs + k])) *
                to_float(w[size_t(o) * s.inputs + k]);
      }
      EXPECT_NEAR(alone[size_t(t) * row_outputs + o], want, 1e-3);
    }
  }
  for (int tokens : {2, 8, 9, 16, 17, 33, 64, 70, 128, 129, 256, 257, 300}) {
    const std::vector<float> together = run(0, tokens);
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), together.size() * 4), 0) << tokens;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SkinnyGemmTest,
                         ::testing::Values(GemmShape{1, 96, 1024}, GemmShape{1, 48, 384},
                                           GemmShape{3, 48, 576}, GemmShape{8, 128, 512},
                                           GemmShape{1, 8192, 256}));

}  // namespace
}  // namespace coppice::kernels
