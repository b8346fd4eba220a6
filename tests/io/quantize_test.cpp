#include <cmath>
#include <random>

#include "io/checkpoint_quantizer.h"
#include "io/inspect_report.h"
#include "io/quantize_int4.h"
#include "io/safetensors_writer.h"
#include "io/weight_rows.h"
#include "tests/io/support/files.h"
#include "tests/io/support/tiny_checkpoint.h"
#include "tests/support/source_dir.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_contains;
using test::TinyCheckpoint;
using test::TinyTensor;

// The inverse of quantize_int4_row: row[j] = q * scale in fp32.
void dequantize_int4_row(const std::int32_t* words, const bf16* scales, std::span<float> row) {
  for (std::size_t j = 0; j < row.size(); ++j) {
    const auto word = static_cast<std::uint32_t>(words[j / kInt4PerWord]);
    const int q = static_cast<int>((word >> (4 * (j % kInt4PerWord))) & 0xfu) - 8;
    row[j] = static_cast<float>(q) * to_float(scales[j / kInt4GroupSize]);
  }
}

std::vector<float> random_row(std::size_t size, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> row(size);
  for (float& value : row) value = static_cast<float>(engine()) * 0x1p-31f - 1.0f;
  return row;
}

int nibble(const std::vector<std::int32_t>& words, std::size_t j) {
  return static_cast<int>((static_cast<std::uint32_t>(words[j / 8]) >> (4 * (j % 8))) & 15u) - 8;
}

TEST(QuantizeInt4, LayoutAndRange) {
  std::vector<float> row(64, 0.0f);
  row[0] = 7.0f;    // q = 7 at bits 0..3 of word 0
  row[1] = -7.0f;   // q = -7
  row[9] = 3.4f;    // q = 3 at bits 4..7 of word 1
  row[40] = 1e-9f;  // the second group is below the smallest scale
  std::vector<std::int32_t> words(8);
  std::vector<bf16> scales(2);
  quantize_int4_row(row, words.data(), scales.data());
  EXPECT_EQ(to_float(scales[0]), 1.0f);
  EXPECT_EQ(scales[1].bits, to_bf16(1e-5f).bits);
  EXPECT_EQ(static_cast<std::uint32_t>(words[0]), 0x8888881fu);
  EXPECT_EQ(static_cast<std::uint32_t>(words[1]), 0x888888b8u);
  for (std::size_t j = 32; j < 64; ++j) EXPECT_EQ(nibble(words, j), 0);
}

TEST(QuantizeInt4, ErrorIsHalfAStepAndValuesStayInRange) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> row = random_row(256, seed);
    std::vector<std::int32_t> words(32);
    std::vector<bf16> scales(8);
    const double reported = quantize_int4_row(row, words.data(), scales.data());
    std::vector<float> back(256);
    dequantize_int4_row(words.data(), scales.data(), back);
    double squared = 0;
    for (std::size_t j = 0; j < row.size(); ++j) {
      const float scale = to_float(scales[j / 32]);
      EXPECT_LE(std::abs(nibble(words, j)), 7);
      EXPECT_EQ(back[j], static_cast<float>(nibble(words, j)) * scale);
      // Half a step, plus what rounding the scale to bf16 may clip off at 7 steps.
      EXPECT_LE(std::abs(row[j] - back[j]), scale * (0.5f + 7.0f / 256));
      squared += std::pow(static_cast<double>(row[j]) - back[j], 2);
    }
    EXPECT_NEAR(reported, squared, 1e-9 * squared);
  }
}

// What is already on the grid stays, bit for bit.
TEST(QuantizeInt4, IsIdempotent) {
  std::vector<std::int32_t> words(32), again(32);
  std::vector<bf16> scales(8), scales_again(8);
  quantize_int4_row(random_row(256, 3), words.data(), scales.data());
  std::vector<float> row(256);
  dequantize_int4_row(words.data(), scales.data(), row);
  EXPECT_EQ(quantize_int4_row(row, again.data(), scales_again.data()), 0.0);
  EXPECT_EQ(words, again);
}

class QuantizeCheckpoint : public ::testing::Test {
 protected:
  // The tiny checkpoint with experts in BF16 (random values) instead of INT4.
  void SetUp() override {
    std::uint32_t seed = 0;
    for (const auto& shard : test::make_tiny_checkpoint().shards)
      for (const TinyTensor& tensor : shard) {
        if (tensor.name.find(".mlp.experts.") == std::string::npos) continue;
        model_.erase(tensor.name);
        if (!tensor.name.ends_with(".weight_packed")) continue;
        const std::string name = tensor.name.substr(0, tensor.name.size() - 7);
        TinyTensor weight{name, StorageType::kBF16, {tensor.shape[0], tensor.shape[1] * 8}};
        for (const float value :
             random_row(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1] * 8), ++seed)) {
          const bf16 element = to_bf16(value);
          weight.bytes.append(reinterpret_cast<const char*>(&element), 2);
        }
        add(std::move(weight));
      }
    model_.config.erase("quantization_config");
  }
  void add(TinyTensor tensor) {
    model_.index["weight_map"][tensor.name] = test::tiny_shard_name(1);
    model_.shards[1].push_back(std::move(tensor));
  }
  QuantizeResult quantize(const QuantizeOptions& options = {}) {
    fs::remove_all(dir_ / "in");
    fs::remove_all(dir_ / "out");
    fs::create_directory(dir_ / "in");
    model_.write(dir_ / "in");
    test::write_file(dir_ / "in" / "tokenizer_config.json", "{}");
    test::write_file(dir_ / "in" / "old.bin", "weights");
    return quantize_checkpoint(dir_ / "in", dir_ / "out", options);
  }
  std::string refuse(ErrorKind kind) {
    return error_of(kind, [&] { quantize(); });
  }

  test::TempDir dir_;
  TinyCheckpoint model_ = test::make_tiny_checkpoint();
  const std::string expert_ = "language_model.model.layers.1.mlp.experts.3.down_proj";
};

TEST_F(QuantizeCheckpoint, WritesALoadableCheckpoint) {
  const QuantizeResult result = quantize();
  EXPECT_EQ(result.quantized_tensors, 12);
  EXPECT_EQ(result.shards, 1u);
  EXPECT_GT(result.relative_error, 0.01);
  EXPECT_LT(result.relative_error, 0.2);
  const InspectReport report = inspect_checkpoint(dir_ / "out", {}, {.values = true});
  EXPECT_TRUE(report.faults.empty()) << report.faults[0].message;
  EXPECT_EQ(report.quantization, name_of(QuantizationFormat::kPackQuantizedInt4));
  EXPECT_EQ(report.total.bytes, result.written_bytes);
  EXPECT_TRUE(fs::exists(dir_ / "out" / "tokenizer_config.json"));
  EXPECT_FALSE(fs::exists(dir_ / "out" / "old.bin"));
  const Json index = read_json_file(dir_ / "out" / "model.safetensors.index.json");
  EXPECT_EQ(index.find("metadata")->find("total_size")->as_uint(), result.written_bytes);
  const Json config = read_json_file(dir_ / "out" / "config.json");
  EXPECT_NE(config.find("text_config")->find("quantization_config"), nullptr);

  const Checkpoint in(dir_ / "in"), out(dir_ / "out");
  const WeightRows weight(in, in.at(expert_ + ".weight"));
  const Tensor packed = out.tensor(expert_ + ".weight_packed", DType::kI32, {64, 4});
  const Tensor scale = out.tensor(expert_ + ".weight_scale", DType::kBF16, {64, 1});
  std::vector<float> row(32);
  for (std::int64_t i = 0; i < 64; ++i) {
    weight.read(i, row);
    std::int32_t words[4];
    bf16 scales[1];
    quantize_int4_row(row, words, scales);
    EXPECT_EQ(std::memcmp(packed.row<std::int32_t>(i), words, sizeof(words)), 0);
    EXPECT_EQ(scale.row<bf16>(i)->bits, scales[0].bits);
  }
  const std::string kept = "language_model.lm_head.weight";
  EXPECT_TRUE(std::ranges::equal(in.bytes(in.at(kept)), out.bytes(out.at(kept))));
}

TEST_F(QuantizeCheckpoint, ResultDependsNeitherOnShardsNorThreads) {
  quantize({.num_threads = 1});
  const std::string whole = test::read_file(dir_ / "out" / "model-00001-of-00001.safetensors");
  std::int64_t last = 0;
  quantize({.num_threads = 4, .progress = [&](std::int64_t done, std::int64_t total) {
              EXPECT_GE(done, last);
              EXPECT_LE(done, total);
              last = done;
            }});
  EXPECT_GT(last, 0);
  EXPECT_TRUE(whole == test::read_file(dir_ / "out" / "model-00001-of-00001.safetensors"));
  const QuantizeResult result = quantize({.shard_bytes = 8000});
  EXPECT_GT(result.shards, 3u);
  EXPECT_EQ(Checkpoint(dir_ / "out").files().size(), result.shards);
  EXPECT_TRUE(inspect_checkpoint(dir_ / "out").faults.empty());
}

TEST_F(QuantizeCheckpoint, Fp8BlocksAreScaled) {
  const std::string attention = "language_model.model.layers.0.self_attn.q_a_proj.weight";
  for (const std::string& name : {expert_ + ".weight", attention}) {
    TinyTensor& weight = model_.find(name);
    weight.type = StorageType::kF8E4M3;
    weight.bytes.assign(weight.bytes.size() / 2, '\x38');  // 1.0
    weight.bytes[0] = '\x40';                              // 2.0
    const float scale = 0.5f;
    add({name + "_scale_inv",
         StorageType::kF32,
         {1, 1},
         std::string(reinterpret_cast<const char*>(&scale), 4)});
  }
  model_.config["quantization_config"] =
      parse_json(R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]})", "");
  quantize();
  EXPECT_TRUE(inspect_checkpoint(dir_ / "out", {}, {.values = true}).faults.empty());
  const Checkpoint out(dir_ / "out");
  EXPECT_FALSE(out.contains(attention + "_scale_inv"));
  EXPECT_EQ(to_float(out.tensor(attention, DType::kBF16, {64, 64}).data<bf16>()[0]), 1.0f);
  EXPECT_EQ(to_float(out.tensor(attention).data<bf16>()[1]), 0.5f);
  const Tensor scale = out.tensor(expert_ + ".weight_scale");
  EXPECT_EQ(to_float(scale.data<bf16>()[0]), to_float(to_bf16(1.0f / 7)));
  EXPECT_EQ(to_float(scale.data<bf16>()[1]), to_float(to_bf16(0.5f / 7)));
}

TEST_F(QuantizeCheckpoint, RefusesWithOneLine) {
  const TinyCheckpoint whole = model_;
  const bf16 bad = to_bf16(NAN);
  std::memcpy(model_.find(expert_ + ".weight").bytes.data() + 66, &bad, 2);
  expect_contains(refuse(ErrorKind::kBadFile),
                  {"'" + expert_ + ".weight'", "element [1, 1] is nan"});
  EXPECT_FALSE(fs::exists(dir_ / "out" / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(dir_ / "out" / "model-00001-of-00001.safetensors"));
  model_ = whole;
  model_.find(expert_ + ".weight").shape = {128, 16};
  expect_contains(refuse(ErrorKind::kUnsupported), {expert_, "multiple of 32"});
  model_ = test::make_tiny_checkpoint();
  expect_contains(refuse(ErrorKind::kUnsupported), {"already INT4"});
  model_ = whole;
  for (const auto& tensor : whole.shards[1])
    if (tensor.name.find(".mlp.experts.") != std::string::npos) model_.erase(tensor.name);
  expect_contains(refuse(ErrorKind::kInvalidArgument), {"no routed experts"});
  model_ = whole;
  quantize();
  expect_contains(error_of(ErrorKind::kInvalidArgument,
                           [&] { quantize_checkpoint(dir_ / "in", dir_ / "out"); }),
                  {"out: is not an empty folder"});
}

// The shipped model was trained with this rule: dequantised and quantised again it is itself.
TEST(QuantizeTinyK2, ReproducesTheTrainedExperts) {
  const fs::path model = fs::path(testing::source_dir()) / "models" / "tiny-k2";
  if (!fs::exists(model / "config.json")) GTEST_SKIP() << model << " is absent";
  const Checkpoint checkpoint(model);
  std::int64_t rows = 0;
  for (const TensorInfo& info : checkpoint.tensors()) {
    if (!info.name.ends_with(".weight_packed")) continue;
    const Tensor packed = checkpoint.tensor(info);
    const Tensor scale = checkpoint.tensor(info.name.substr(0, info.name.size() - 7) + "_scale");
    const auto words_per_row = static_cast<std::size_t>(packed.shape(1));
    std::vector<float> row(words_per_row * 8);
    std::vector<std::int32_t> words(words_per_row);
    std::vector<bf16> scales(static_cast<std::size_t>(scale.shape(1)));
    for (std::int64_t i = 0; i < packed.shape(0); i += 37) {
      dequantize_int4_row(packed.row<std::int32_t>(i), scale.row<bf16>(i), row);
      EXPECT_EQ(quantize_int4_row(row, words.data(), scales.data()), 0.0) << info.name;
      EXPECT_EQ(std::memcmp(words.data(), packed.row<std::int32_t>(i), words_per_row * 4), 0);
      ++rows;
    }
  }
  EXPECT_GT(rows, 1000);
}

}  // namespace
}  // namespace coppice
