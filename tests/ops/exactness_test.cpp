// Equalities bit for bit that no tolerance may hide: where a key was found, and fused against
// composed ops.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>

#include "backend/factory/make_backend.h"
#include "base/error.h"
#include "tests/ops/support/staging.h"

namespace coppice::testing {
namespace {

constexpr std::int64_t kMaxPath = 8, kTableBlocks = 4;
constexpr std::int32_t kTable[kTableBlocks] = {5, 1, 3, 2};

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

std::int32_t slot_of(std::int64_t position) {
  return static_cast<std::int32_t>(kTable[position / kBlockSize] * kBlockSize +
                                   position % kBlockSize);
}

std::vector<float> noise_values(std::uint32_t stream, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(noise(stream, 0, i));
  return values;
}

// One row over `length` keys, the last `on_path` of them through the path.
struct KeySplit {
  std::int64_t length, on_path;
  bool swapped = false;  // the fault: the path's first and last slots change places
};

AttentionMetadata metadata(Staging& s, KeySplit split) {
  std::vector<std::int32_t> path(kMaxPath, -1);
  for (std::int64_t i = 0; i < split.on_path; ++i)
    path[static_cast<std::size_t>(i)] = slot_of(split.length - split.on_path + i);
  if (split.swapped) std::swap(path[0], path[static_cast<std::size_t>(split.on_path - 1)]);
  return {.seq_of_row = s.ints({1}, {0}),
          .kv_len = s.ints({1}, {static_cast<std::int32_t>(split.length - split.on_path)}),
          .path_len = s.ints({1}, {static_cast<std::int32_t>(split.on_path)}),
          .path = s.ints({1, kMaxPath}, path),
          .block_tables = s.ints({1, kTableBlocks}, {kTable, kTable + kTableBlocks}),
          .max_kv_len = split.length};
}

std::vector<float> mla_row(Backend& backend, KeySplit split) {
  constexpr std::int64_t kHeads = 8, kRank = 128, kRope = 32;
  Staging s(backend);
  const AttentionMetadata meta = metadata(s, split);
  const Tensor out = s.act_out(1, {kHeads, kRank});
  backend.mla_attention({.q_lat = s.act_rows(1, {0}, {kHeads, kRank}),
                         .q_pe = s.act_rows(2, {0}, {kHeads, kRope}),
                         .cache = s.kv({6, kBlockSize, kRank + kRope},
                                       noise_values(3, 6 * kBlockSize * (kRank + kRope))),
                         .metadata = &meta,
                         .scale = 0.3f,
                         .out = out});
  return s.read(out);
}

std::vector<float> gqa_row(Backend& backend, KeySplit split) {
  constexpr std::int64_t kHeads = 6, kKvHeads = 2, kDim = 64;
  Staging s(backend);
  const AttentionMetadata meta = metadata(s, split);
  const Tensor out = s.act_out(1, {kHeads, kDim});
  const auto plane = [&](std::uint32_t stream) {
    return s.kv({6, kBlockSize, kKvHeads * kDim},
                noise_values(stream, 6 * kBlockSize * kKvHeads * kDim));
  };
  backend.gqa_attention({.q = s.act_rows(1, {0}, {kHeads, kDim}),
                         .k_cache = plane(3),
                         .v_cache = plane(4),
                         .metadata = &meta,
                         .positions = s.ints({1}, {static_cast<std::int32_t>(split.length - 1)}),
                         .scale = 0.125f,
                         .out = out});
  return s.read(out);
}

class ExactnessTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      backend_ = make_backend({.device = GetParam(), .num_threads = 2});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(ExactnessTest, AKeyCountsTheSameThroughTableAndPath) {
  for (const std::int64_t length : {1, 2, 7, 63, 64, 65, 66, 70, 127, 128, 129, 200, 256}) {
    const auto mla = bits(mla_row(*backend_, {length, 0}));
    const auto gqa = bits(gqa_row(*backend_, {length, 0}));
    for (std::int64_t on_path = 1; on_path <= std::min(length, kMaxPath); ++on_path) {
      EXPECT_EQ(bits(mla_row(*backend_, {length, on_path})), mla) << length << ' ' << on_path;
      EXPECT_EQ(bits(gqa_row(*backend_, {length, on_path})), gqa) << length << ' ' << on_path;
    }
  }
}

// Positions 62 and 65: a tensor core's product sums 16 keys at once, whatever their order.
TEST_P(ExactnessTest, KeysInAnotherOrderAreCaught) {
  // Sums of fp32 in another order are seldom another bf16: kernels' planted faults find it there.
  if (backend_->activation_dtype() == DType::kF32) {
    EXPECT_NE(bits(mla_row(*backend_, {66, 4, true})), bits(mla_row(*backend_, {66, 0})));
  }
  EXPECT_NE(bits(gqa_row(*backend_, {66, 4, true})), bits(gqa_row(*backend_, {66, 0})));
}

TEST_P(ExactnessTest, AddRmsNormIsAddThenRmsNorm) {
  for (const std::int64_t size : {15, 72, 576}) {
    if (GetParam() == std::string_view("cuda") && size % 8 != 0) continue;  // refused there
    Staging s(*backend_);
    const Tensor weight = s.f32({size}, std::vector<float>(static_cast<std::size_t>(size), 1.25f));
    const Tensor fused = s.act_out(2, {size}), composed = s.act_out(2, {size});
    const Tensor residual = s.act_rows(1, {0, 1}, {size}, 3);
    backend_->add_rms_norm({.residual = residual,
                            .delta = s.act_rows(2, {0, 1}, {size}),
                            .weight = weight,
                            .eps = 1e-5f,
                            .out = fused});
    backend_->rms_norm({.x = residual, .weight = weight, .eps = 1e-5f, .out = composed});
    EXPECT_EQ(bits(s.read(fused)), bits(s.read(composed)));
    // The residual itself: each element is one rounded sum.
    const std::vector<float> sums = s.read(residual);
    if (backend_->activation_dtype() != DType::kF32) continue;
    for (std::int64_t i = 0; i < size; ++i)
      EXPECT_EQ(sums[static_cast<std::size_t>(i)], 3 * noise(1, 0, i) + noise(2, 0, i));
  }
}

// A row that went wrong must be seen to be wrong: rounding activations to integers may not hide it.
TEST_P(ExactnessTest, NanAndInfinityReachTheResultsOfTheirOwnRowOnly) {
  constexpr std::int64_t kIn = 64, kOut = 24, kRows = 3;
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt4Group32, WeightFormat::kQ4_0,
        WeightFormat::kQ4_1, WeightFormat::kQ8_0}) {
    const HostMatrix matrix = random_matrix(format, kOut, kIn, 10).view();
    const LinearWeight weight = backend_->load_linear({&matrix, 1});
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Staging s(*backend_);
      std::vector<float> x = noise_values(1, kRows * kIn);
      x[kIn + 37] = bad;
      const Tensor out = s.f32_out(kRows, {kOut});
      backend_->linear({.x = s.act({kRows, kIn}, x), .weight = &weight, .out = out});
      const std::vector<float> values = s.read(out);
      for (std::int64_t row = 0; row < kRows; ++row) {
        const auto begin = values.begin() + row * kOut;
        const auto finite =
            std::count_if(begin, begin + kOut, [](float value) { return std::isfinite(value); });
        EXPECT_EQ(finite, row == 1 ? 0 : kOut) << name_of(format) << " row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ExactnessTest,
                         ::testing::Values("cpu-reference", "cpu-avx2", "cpu-avx512", "cuda"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(MakeBackendTest, NamesTheFlagAndTheCause) {
  const auto message = [](const BackendOptions& options) -> std::string {
    try {
      make_backend(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({.device = "tpu"}).find("'tpu' is none of"), std::string::npos);
  EXPECT_NE(message({.device = "cuda:x"}).find("'cuda:x' is none of"), std::string::npos);
  EXPECT_NE(message({.device = "cpu", .num_threads = -1}).find("threads: -1"), std::string::npos);
  EXPECT_EQ(message({.device = "cpu", .num_threads = 1}), "");
}

}  // namespace
}  // namespace coppice::testing
