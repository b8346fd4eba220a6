#include "io/inspect_report.h"

#include <cmath>

#include "base/half.h"
#include "tests/io/support/files.h"
#include "tests/io/support/gguf_builder.h"
#include "tests/io/support/tiny_checkpoint.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;
using test::TinyCheckpoint;

const std::string kExpert = "language_model.model.layers.1.mlp.experts.2.up_proj";

class Inspect : public ::testing::Test {
 protected:
  InspectReport inspect(bool values = false) {
    std::filesystem::remove_all(dir_ / "m");
    std::filesystem::create_directory(dir_ / "m");
    model_.write(dir_ / "m");
    return inspect_checkpoint(dir_ / "m", {}, {.values = values});
  }
  // The first fault of the damaged model; the undamaged one has none.
  std::string fault(bool values = false) {
    const InspectReport report = inspect(values);
    EXPECT_FALSE(report.faults.empty());
    if (report.faults.empty()) return "";
    EXPECT_EQ(report.faults[0].kind, ErrorKind::kBadFile);
    expect_contains(report.faults[0].message, {(dir_ / "m").string()});
    return report.faults[0].message;
  }
  // Puts the 16-bit pattern of `value` at element `i` of the expert's scales.
  void set_scale(std::size_t i, float value) {
    const bf16 element = to_bf16(value);
    std::memcpy(model_.find(kExpert + ".weight_scale").bytes.data() + 2 * i, &element, 2);
  }

  test::TempDir dir_;
  TinyCheckpoint model_ = test::make_tiny_checkpoint();
};

TEST_F(Inspect, ReportsPartsAndSizes) {
  const InspectReport report = inspect(true);
  EXPECT_TRUE(report.faults.empty()) << report.faults[0].message;
  const auto part = [&](ModelPart p) { return report.parts[static_cast<std::size_t>(p)]; };
  EXPECT_EQ(part(ModelPart::kRoutedExperts).tensors, 4 * 9);
  EXPECT_EQ(part(ModelPart::kRoutedExperts).parameters, 4 * 3 * 32 * 64);
  EXPECT_EQ(part(ModelPart::kSharedExperts).parameters, 3 * 32 * 64);
  EXPECT_EQ(part(ModelPart::kDenseMlp).tensors, 3);
  EXPECT_EQ(part(ModelPart::kRouter).tensors, 1);
  EXPECT_EQ(part(ModelPart::kAttention).tensors, 6);
  EXPECT_EQ(part(ModelPart::kNorms).tensors, 5);
  EXPECT_EQ(part(ModelPart::kOther).tensors, 0);
  EXPECT_EQ(report.by_type.at("I32").tensors, 24);
  const std::string text = format_report(report, true);
  expect_contains(text,
                  {"KimiK25ForConditionalGeneration (kimi_k2)", "routed experts", "INT4 group 32",
                   "no format fault found", kExpert + ".weight_packed  I32[32, 8]"});
  const Json json = report_as_json(report, true);
  EXPECT_EQ(json.find("total")->find("bytes")->as_uint(), report.total.bytes);
  EXPECT_EQ(json.find("tensors")->size(), report.tensors.size());
}

TEST_F(Inspect, ClassifiesNames) {
  const std::pair<const char*, ModelPart> cases[] = {
      {"vision_tower.encoder.final_layernorm.weight", ModelPart::kVision},
      {"mm_projector.proj.0.weight", ModelPart::kVision},
      {"model.layers.3.mlp.gate.e_score_correction_bias", ModelPart::kRouter},
      {"model.layers.3.mlp.gate_proj.weight", ModelPart::kDenseMlp},
      {"model.layers.3.self_attn.kv_a_layernorm.weight", ModelPart::kNorms},
      {"model.layers.3.self_attn.kv_b_proj.weight", ModelPart::kAttention},
      {"blk.3.ffn_gate_exps.weight", ModelPart::kRoutedExperts},
      {"blk.3.ffn_up_shexp.weight", ModelPart::kSharedExperts},
      {"blk.3.attn_q.weight", ModelPart::kAttention},
      {"output.weight", ModelPart::kLmHead},
      {"output_norm.weight", ModelPart::kNorms},
      {"token_embd.weight", ModelPart::kEmbedding},
      {"fc.weight", ModelPart::kOther}};
  for (const auto& [name, part] : cases) EXPECT_EQ(part_of(name), part) << name;
}

TEST_F(Inspect, EveryMissingTensorOfALayerIsNamed) {
  const TinyCheckpoint whole = model_;
  for (const std::vector<test::TinyTensor>& shard : whole.shards)
    for (const test::TinyTensor& tensor : shard) {
      const bool is_mlp = tensor.name.find(".mlp.") != std::string::npos;
      const bool is_expert = tensor.name.find(".experts.") != std::string::npos;
      // With one layer of each kind, nothing else implies the other tensors of an MLP.
      if (tensor.name.find(".layers.") == std::string::npos || (is_mlp && !is_expert)) continue;
      model_ = whole;
      model_.erase(tensor.name);
      expect_contains(fault(), {"tensor '" + tensor.name + "'", "missing"});
    }
}

TEST_F(Inspect, LayersAndExpertsAreCounted) {
  model_.config["text_config"]["num_hidden_layers"] = 3;
  expect_contains(fault(), {"layers.2.", "is missing"});
  model_.config["text_config"]["num_hidden_layers"] = std::int64_t{1} << 60;
  EXPECT_EQ(inspect().faults.size(), 100u);
  model_.config["text_config"]["num_hidden_layers"] = 2;
  model_.config["text_config"]["n_routed_experts"] = 5;
  expect_contains(fault(), {"experts.4.", "is missing"});
}

TEST_F(Inspect, Int4TensorsMustAgree) {
  const TinyCheckpoint whole = model_;
  const auto damaged = [&](auto&& damage) {
    model_ = whole;
    damage();
    return fault();
  };
  expect_contains(damaged([&] {
                    model_.find(kExpert + ".weight_scale").shape = {32, 1};
                    model_.find(kExpert + ".weight_scale").bytes.resize(64);
                  }),
                  {kExpert + ".weight_scale", "BF16[32, 1]", "[32, 64] in groups of 32"});
  expect_contains(damaged([&] {
                    model_.find(kExpert + ".weight_packed").shape = {64, 4};
                  }),
                  {"I32[64, 4]", "weight_shape says [32, 64]"});
  expect_contains(damaged([&] { model_.find(kExpert + ".weight_shape").bytes[0] = 33; }),
                  {"weight_shape says [33, 64]"});
  expect_contains(damaged([&] { model_.find(kExpert + ".weight_shape").bytes[3] = '\xff'; }),
                  {"which is no shape"});
  expect_contains(damaged([&] { model_.config.erase("quantization_config"); }),
                  {"weight_packed", "declares none"});
  model_ = whole;
  auto& shape = model_.find(kExpert + ".weight_shape");  // as 64-bit integers, also legal
  const std::int64_t wide[2] = {32, 64};
  shape.type = StorageType::kI64;
  shape.bytes.assign(reinterpret_cast<const char*>(wide), sizeof(wide));
  EXPECT_TRUE(inspect().faults.empty());
}

TEST_F(Inspect, ValuesAreReadWhenAsked) {
  const TinyCheckpoint whole = model_;
  const auto damaged = [&](auto&& damage) {
    model_ = whole;
    damage();
    EXPECT_TRUE(inspect(false).faults.empty());
    return fault(true);
  };
  const std::string scale = "tensor '" + kExpert + ".weight_scale'";
  expect_contains(damaged([&] { set_scale(7, NAN); }), {scale, "element [3, 1] is nan"});
  expect_contains(damaged([&] { set_scale(6, INFINITY); }), {scale, "element [3, 0] is infinite"});
  expect_contains(damaged([&] { set_scale(1, -0.5f); }), {scale, "element [0, 1] is negative"});
  expect_contains(damaged([&] {
                    set_scale(62, 0);
                    set_scale(63, 0);
                  }),
                  {scale, "row 31 is zero"});
  expect_contains(damaged([&] {
                    model_.find("language_model.lm_head.weight").bytes[131] = '\x7f';
                    model_.find("language_model.lm_head.weight").bytes[130] = '\x80';
                  }),
                  {"lm_head.weight", "element [1, 1] is infinite"});
}

TEST_F(Inspect, Fp8WeightsNeedTheirScales) {
  const std::string name = "language_model.model.layers.0.mlp.up_proj.weight";
  model_.config["quantization_config"] =
      parse_json(R"({"quant_method":"fp8","weight_block_size":[128,128]})", "");
  for (const auto& shard : test::make_tiny_checkpoint().shards)
    for (const auto& tensor : shard)
      if (tensor.name.find(".experts.") != std::string::npos) model_.erase(tensor.name);
  model_.config["text_config"]["n_routed_experts"] = 0;
  auto& weight = model_.find(name);
  weight.type = StorageType::kF8E4M3;
  weight.bytes.resize(weight.bytes.size() / 2);
  expect_contains(fault(), {name, "'" + name + "_scale_inv' is missing"});
  model_.shards[0].push_back(
      {name + "_scale_inv", StorageType::kF32, {1, 2}, std::string(8, '\0')});
  model_.index["weight_map"][name + "_scale_inv"] = test::tiny_shard_name(0);
  expect_contains(fault(), {"F32[1, 2]", "needs F32[1, 1]"});
  model_.find(name + "_scale_inv").shape = {1, 1};
  model_.find(name + "_scale_inv").bytes.resize(4);
  EXPECT_TRUE(inspect(true).faults.empty());
}

TEST_F(Inspect, GgufAndLoneFiles) {
  test::write_file(dir_ / "x.gguf",
                   test::GgufBuilder()
                       .string("general.architecture", "llama")
                       .key("llama.block_count", 4, test::raw<std::uint32_t>(7))
                       .tensor("blk.0.attn_q.weight", {32}, 8, 0)
                       .build(test::raw<std::uint16_t>(0x7c00) + std::string(32, '\0')));
  const InspectReport report = inspect_checkpoint(dir_ / "x.gguf");
  EXPECT_EQ(report.architecture, "GGUF llama");
  EXPECT_EQ(report.facts[0].second, "7");
  const InspectReport read = inspect_checkpoint(dir_ / "x.gguf", {}, {.values = true});
  ASSERT_EQ(read.faults.size(), 1u);
  expect_contains(read.faults[0].message, {"x.gguf", "block 0 is infinite"});
  test::write_file(dir_ / "a.safetensors", test::tiny_shard({{"t", StorageType::kU8, {1}, "x"}}));
  EXPECT_EQ(inspect_checkpoint(dir_ / "a.safetensors").total.bytes, 1u);
  expect_contains(error_of(ErrorKind::kNotFound,
                           [&] {
                             std::filesystem::create_directory(dir_ / "bare");
                             std::filesystem::copy(dir_ / "a.safetensors", dir_ / "bare");
                             inspect_checkpoint(dir_ / "bare");
                           }),
                  {"bare/config.json: no such file"});
}

}  // namespace
}  // namespace coppice
