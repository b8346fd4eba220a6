// Loading networks from files: formats, refusals, and equality with the same weights made in
// memory.
#include "model/load_model.h"

#include <cmath>

#include "backend/factory/make_backend.h"
#include "base/log.h"
#include "model/weight_loader.h"
#include "tests/io/support/files.h"
#include "tests/model/support/checkpoint_files.h"
#include "tests/support/model_driver.h"
#include "tests/support/source_dir.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;
using test::random_tensors;
using test::small_k2_config;
using test::small_qwen3_config;
using test::StoredTensors;
using test::TempDir;
using test::write_file;

constexpr std::uint64_t kSeed = 11;
constexpr ModelOptions kOptions{.max_rows = 16};
const std::vector<std::int32_t> kPrompt = {5, 17, 299, 0, 42, 42, 7, 256};

Backend& backend() {
  static const std::unique_ptr<Backend> made =
      make_backend({.device = "cpu-reference", .num_threads = 1});
  return *made;
}

std::vector<float> logits_of(Model& model) {
  testing::ModelDriver driver(backend(), model, 64);
  return driver.prefill(kPrompt, 5).logits;
}

// A folder with a checkpoint of the small K2 network.
struct Folder {
  explicit Folder(const ModelConfig& config, const std::string& prefix = "language_model.")
      : tensors(random_tensors(list_weights(config), kSeed, prefix)) {
    write_file(dir / "config.json", test::config_json(config));
  }
  std::string path() const { return dir.path().string(); }
  std::unique_ptr<Model> load() {
    test::write_tensors(tensors, path());
    return load_model(backend(), path(), kOptions);
  }
  std::string refuse(ErrorKind kind) {
    const std::string message = error_of(kind, [&] { load(); });
    expect_contains(message, {path() + "/model.safetensors"});
    return message;
  }

  TempDir dir;
  StoredTensors tensors;
};

const std::string kLayer1 = "language_model.model.layers.1.";
const std::string kExpert = kLayer1 + "mlp.experts.2.down_proj";

TEST(LoadModel, K2FromSafetensorsEqualsTheSameWeightsInMemory) {
  Folder folder(small_k2_config());
  // Vision tensors of the wrapper are nobody's business here.
  folder.tensors["vision_tower.patch_embed.proj.weight"] = {
      StorageType::kBF16, {2, 2}, std::string(8, '\0')};
  const auto made = make_random_model(backend(), small_k2_config(), kSeed, kOptions);
  EXPECT_EQ(logits_of(*folder.load()), logits_of(*made));
  const auto other = make_random_model(backend(), small_k2_config(), kSeed + 1, kOptions);
  EXPECT_NE(logits_of(*other), logits_of(*made));
}

TEST(LoadModel, Qwen3TiedAndUntied) {
  for (const bool tied : {false, true}) {
    ModelConfig config = small_qwen3_config();
    config.tie_word_embeddings = tied;
    Folder folder(config, "");
    const auto made = make_random_model(backend(), config, kSeed, kOptions);
    EXPECT_EQ(logits_of(*folder.load()), logits_of(*made));
  }
}

const std::string kLayer0 = "language_model.model.layers.0.";

// The logits with these matrices in FP8, and with the same values as F32.
std::pair<std::vector<float>, std::vector<float>> f8_and_f32(
    std::initializer_list<const char*> names) {
  Folder f8(small_k2_config()), f32(small_k2_config());
  for (const std::string name : names) {
    test::quantize_to_f8(f8.tensors, kLayer0 + name);
    f32.tensors[kLayer0 + name + ".weight"] = test::dequantized_f8(f8.tensors, kLayer0 + name);
  }
  return {logits_of(*f8.load()), logits_of(*f32.load())};
}

TEST(LoadModel, F8BlocksEqualTheirDequantisedValues) {
  const auto [f8, f32] =
      f8_and_f32({"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.o_proj",
                  "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"});
  EXPECT_EQ(f8, f32);
  // Matrices whose rows are regrouped are rounded to BF16.
  const auto [regrouped, exact] = f8_and_f32({"self_attn.q_b_proj", "self_attn.kv_b_proj"});
  EXPECT_NE(regrouped, exact);
  EXPECT_LT(testing::relative_error(regrouped, exact), 0.05);

  Folder folder(small_k2_config());
  test::quantize_to_f8(folder.tensors, kLayer0 + "mlp.up_proj");
  folder.tensors.erase(kLayer0 + "mlp.up_proj.weight_scale_inv");
  expect_contains(folder.refuse(ErrorKind::kBadFile), {"mlp.up_proj", "weight_scale_inv"});
}

// Each single tensor missing or renamed: refused by name before anything is allocated.
TEST(LoadModel, EveryMissingTensorIsNamed) {
  const Folder whole(small_k2_config());
  for (const auto& [name, tensor] : whole.tensors) {
    if (name.ends_with("weight_shape")) continue;
    Folder folder(small_k2_config());
    auto node = folder.tensors.extract(name);
    node.key() = name + "_renamed";
    folder.tensors.insert(std::move(node));
    const std::string message = error_of(ErrorKind::kBadFile, [&] { folder.load(); });
    // Without weight_packed the loader looks for a plain matrix.
    const std::string stem = name.substr(0, name.find(".weight_packed"));
    expect_contains(message, {stem, "missing"});
  }
}

TEST(LoadModel, WrongShapesNameTensorAndBoth) {
  Folder folder(small_k2_config());
  folder.tensors[kExpert + ".weight_scale"].shape = {64, 4};
  expect_contains(folder.refuse(ErrorKind::kBadFile),
                  {kExpert + ".weight_scale", "[64, 4]", "[128, 2]"});

  Folder norm(small_k2_config());
  norm.tensors[kLayer1 + "input_layernorm.weight"] = {
      StorageType::kF32, {64}, std::string(256, '\0')};
  expect_contains(norm.refuse(ErrorKind::kBadFile),
                  {kLayer1 + "input_layernorm.weight", "[64]", "[128]"});

  Folder shape(small_k2_config());
  const std::int32_t wrong[] = {128, 32};
  std::memcpy(shape.tensors[kExpert + ".weight_shape"].bytes.data(), wrong, sizeof wrong);
  expect_contains(shape.refuse(ErrorKind::kBadFile), {kExpert + ".weight_shape", "32", "64"});
}

void set_scale(StoredTensors& tensors, std::size_t index, float value) {
  const bf16 rounded = to_bf16(value);
  std::memcpy(tensors[kExpert + ".weight_scale"].bytes.data() + index * 2, &rounded, 2);
}

TEST(LoadModel, DamagedScalesAreRefused) {
  for (const float bad : {NAN, INFINITY, -INFINITY, -0.5f}) {
    Folder folder(small_k2_config());
    set_scale(folder.tensors, 7, bad);
    expect_contains(folder.refuse(ErrorKind::kBadFile), {kExpert + ".weight_scale", "[3, 1]"});
  }
  Folder zero(small_k2_config());
  set_scale(zero.tensors, 6, 0);
  set_scale(zero.tensors, 7, 0);
  expect_contains(zero.refuse(ErrorKind::kBadFile), {kExpert + ".weight_scale", "row 3", "zero"});
  Folder norm(small_k2_config());
  const float nan = NAN;
  std::memcpy(norm.tensors["language_model.model.norm.weight"].bytes.data(), &nan, 4);
  expect_contains(norm.refuse(ErrorKind::kBadFile), {"model.norm.weight", "not finite"});
}

TEST(LoadModel, UnusedTensorsAreReported) {
  std::string warning;
  set_log_sink([&](LogLevel, std::string_view line) { warning += line; });
  Folder folder(small_k2_config());
  folder.tensors["language_model.model.layers.0.extra.weight"] = {
      StorageType::kBF16, {2}, std::string(4, '\0')};
  folder.load();
  set_log_sink({});
  expect_contains(warning, {"1 tensor", "layers.0.extra.weight"});
}

TEST(LoadModel, ProgressReachesTheTotal) {
  Folder folder(small_k2_config());
  test::write_tensors(folder.tensors, folder.path());
  std::int64_t last = 0, total = 0;
  load_model(backend(), folder.path(), kOptions, [&](std::int64_t done, std::int64_t all) {
    EXPECT_GE(done, last);
    EXPECT_TRUE(total == 0 || total == all);
    last = done;
    total = all;
  });
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 100000);
}

// One rank's shapes of Kimi K2.6 run on their own, without a communicator.
TEST(LoadModel, KimiRankShapes) {
  ModelConfig config = kimi_k2_config(2, 4, 8);
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.moe_intermediate_size, 256);
  EXPECT_EQ(config.intermediate_size, 2304);
  EXPECT_EQ(config.vocab_size, 20480);
  EXPECT_EQ(config.kv_lora_rank, 512);
  EXPECT_EQ(kimi_k2_config(61, 384).vocab_size, 163840);
  config.vocab_size = 512;
  const auto fast = make_backend({.device = "cpu", .num_threads = 0});
  const auto model = make_random_model(*fast, config, kSeed, {.max_rows = 8, .max_positions = 128});
  testing::ModelDriver driver(*fast, *model, 64);
  for (const float value : driver.prefill(kPrompt, 8).logits) ASSERT_TRUE(std::isfinite(value));
}

// Routed experts that are not INT4: K2-Instruct's FP8, and BF16 before quantisation. On both
// backends.
TEST(LoadModel, ExpertsInF8AndBf16) {
  for (const bool f8 : {false, true}) {
    Folder folder(small_k2_config()), plain(small_k2_config());
    const ModelConfig config = small_k2_config();
    for (std::int64_t expert = 0; expert < config.n_routed_experts; ++expert)
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = kLayer1 + "mlp.experts." + std::to_string(expert) + "." + part;
        test::replace_int4_by_bf16(folder.tensors, name);
        test::replace_int4_by_bf16(plain.tensors, name);
        if (!f8) continue;
        test::quantize_to_f8(folder.tensors, name);
        plain.tensors[name + ".weight"] = test::dequantized_f8(folder.tensors, name);
      }
    const std::vector<float> expected = logits_of(*plain.load());
    EXPECT_EQ(logits_of(*folder.load()), expected);
    const auto fast = make_backend({.device = "cpu", .num_threads = 1});
    const auto model = load_model(*fast, folder.path(), kOptions);
    testing::ModelDriver driver(*fast, *model, 64);
    EXPECT_LT(testing::relative_error(driver.prefill(kPrompt, 5).logits, expected), 2e-2);
  }
}

// ---- Drafters

// The target's embedding of the mask token was never trained: such a drafter needs its own row.
TEST(LoadDflash, EmptyMaskEmbeddingIsRefusedAndAmplitudeCanBeSet) {
  Folder target_folder(small_k2_config());
  std::string& table = target_folder.tensors["language_model.model.embed_tokens.weight"].bytes;
  const auto row_bytes = static_cast<std::size_t>(small_k2_config().hidden_size) * sizeof(bf16);
  const DflashConfig config = test::small_dflash_config();
  TempDir dir;
  write_file(dir / "config.json", test::config_json(config));
  test::write_tensors(random_tensors(list_weights(config), kSeed, ""), dir.path().string());
  auto target = target_folder.load();
  const auto drafter = load_dflash_model(backend(), dir.path().string(), *target, kOptions);
  EXPECT_FALSE(drafter->config().network.rope.attention_factor.has_value());
  // The YaRN amplitude can be set from outside: published files do not agree on it.
  ModelOptions louder = kOptions;
  louder.draft_attention_factor = 1.4159;
  EXPECT_DOUBLE_EQ(rope_amplitude(load_dflash_model(backend(), dir.path().string(), *target, louder)
                                      ->config()
                                      .network.rope),
                   1.4159);

  table.replace(static_cast<std::size_t>(config.mask_token_id) * row_bytes, row_bytes,
                std::string(row_bytes, '\0'));
  target = target_folder.load();
  expect_contains(
      error_of(ErrorKind::kUnsupported,
               [&] { load_dflash_model(backend(), dir.path().string(), *target, kOptions); }),
      {dir.path().string() + "/config.json", "mask_token_id", "299"});
}

TEST(LoadDflash, MustFitItsTarget) {
  const std::string target_dir = testing::source_dir() + "/models/tiny-k2";
  const std::string drafter_dir = target_dir + "-dflash";
  const auto target = make_random_model(backend(), small_k2_config(), kSeed, kOptions);
  expect_contains(error_of(ErrorKind::kBadFile,
                           [&] { load_dflash_model(backend(), drafter_dir, *target, kOptions); }),
                  {drafter_dir + "/config.json", "hidden_size", "384", "128"});
}

// A variant's extra tensors would change what it computes.
TEST(LoadDflash, UnknownTensorsAreRefused) {
  const std::string source = testing::source_dir() + "/models/tiny-k2";
  const auto target = load_model(backend(), source, kOptions);
  const Checkpoint original(source + "-dflash");
  StoredTensors tensors;
  for (const TensorInfo& info : original.tensors()) {
    const auto bytes = original.bytes(info);
    tensors[info.name] = {
        info.type, info.shape, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
  }
  TempDir dir;
  std::filesystem::copy(source + "-dflash/config.json", dir.path());
  test::write_tensors(tensors, dir.path().string());
  EXPECT_NE(load_dflash_model(backend(), dir.path().string(), *target, kOptions), nullptr);
  tensors["layers.0.self_attn.sinks"] = {StorageType::kBF16, {8}, std::string(16, '\0')};
  test::write_tensors(tensors, dir.path().string());
  expect_contains(
      error_of(ErrorKind::kUnsupported,
               [&] { load_dflash_model(backend(), dir.path().string(), *target, kOptions); }),
      {"model.safetensors", "layers.0.self_attn.sinks"});
}

}  // namespace
}  // namespace coppice
