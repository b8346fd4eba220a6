// Llama and Qwen3 from GGUF files.
#include <cmath>

#include "backend/factory/make_backend.h"
#include "model/gguf_config.h"
#include "model/load_model.h"
#include "model/weight_loader.h"
#include "tests/io/support/files.h"
#include "tests/io/support/gguf_builder.h"
#include "tests/model/support/checkpoint_files.h"
#include "tests/support/model_driver.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;
using test::GgufBuilder;
using test::raw;
using test::StoredTensor;
using test::StoredTensors;
using test::TempDir;
using test::write_file;

constexpr std::uint64_t kSeed = 21;
constexpr ModelOptions kOptions{.max_rows = 16};
const std::vector<std::int32_t> kPrompt = {5, 17, 299, 0, 42, 42, 7, 256};
constexpr std::uint32_t kU32 = 4, kF32 = 6;

Backend& backend() {
  static const std::unique_ptr<Backend> made =
      make_backend({.device = "cpu-reference", .num_threads = 1});
  return *made;
}

std::vector<float> logits_of(Model& model) {
  testing::ModelDriver driver(backend(), model, 64);
  return driver.prefill(kPrompt, 16).logits;
}

ModelConfig small_llama_config() {
  ModelConfig config = test::small_qwen3_config();
  config.qk_norm = false;
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 100000;
  return config;
}

GgufBuilder& add_metadata(GgufBuilder& builder, const std::string& arch, const ModelConfig& c) {
  const auto size = [&](const char* key, std::int64_t value) {
    builder.key(arch + "." + key, kU32, raw(static_cast<std::uint32_t>(value)));
  };
  builder.string("general.architecture", arch);
  size("embedding_length", c.hidden_size);
  size("block_count", c.num_hidden_layers);
  size("feed_forward_length", c.intermediate_size);
  size("attention.head_count", c.num_attention_heads);
  size("attention.head_count_kv", c.num_key_value_heads);
  size("attention.key_length", c.head_dim);
  size("attention.value_length", c.head_dim);
  size("rope.dimension_count", c.head_dim);
  size("context_length", c.max_position_embeddings);
  builder.key(arch + ".rope.freq_base", kF32, raw(static_cast<float>(c.rope.theta)));
  builder.key(arch + ".attention.layer_norm_rms_epsilon", kF32,
              raw(static_cast<float>(c.rms_norm_eps)));
  builder.key("tokenizer.ggml.bos_token_id", kU32, raw(std::uint32_t{1}));
  builder.key("tokenizer.ggml.eos_token_id", kU32, raw(std::uint32_t{2}));
  return builder;
}

// Rows of q and k as converters of Llama leave them: pair (i, i + dim/2) becomes (2i, 2i + 1).
std::string interleave_rows(const StoredTensor& tensor, std::int64_t head_dim) {
  const auto rows = static_cast<std::size_t>(tensor.shape[0]);
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t width = tensor.bytes.size() / rows;
  std::string out = tensor.bytes;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t in_head = row % dim;
    const std::size_t target = row - in_head + in_head % (dim / 2) * 2 + in_head / (dim / 2);
    out.replace(target * width, width, tensor.bytes, row * width, width);
  }
  return out;
}

std::string gguf_bytes(const std::string& arch, const ModelConfig& config,
                       const StoredTensors& tensors, GgufBuilder builder = {}) {
  add_metadata(builder, arch, config);
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const bool is_rotated =
        name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos;
    std::vector<std::uint64_t> sizes(tensor.shape.rbegin(), tensor.shape.rend());
    constexpr std::uint32_t kTypeF32 = 0, kTypeBf16 = 30;
    builder.tensor(gguf_name(name), sizes, tensor.type == StorageType::kF32 ? kTypeF32 : kTypeBf16,
                   data.size());
    data += arch == "llama" && is_rotated ? interleave_rows(tensor, config.head_dim) : tensor.bytes;
    data.resize((data.size() + 31) / 32 * 32);
  }
  return builder.build(data);
}

TEST(GgufModel, Names) {
  EXPECT_EQ(gguf_name("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(gguf_name("model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(gguf_name("lm_head.weight"), "output.weight");
  EXPECT_EQ(gguf_name("model.layers.3.input_layernorm.weight"), "blk.3.attn_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.3.post_attention_layernorm.weight"), "blk.3.ffn_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.13.self_attn.q_norm.weight"), "blk.13.attn_q_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.13.mlp.down_proj.weight"), "blk.13.ffn_down.weight");
}

// The rotation of neighbouring pairs over permuted rows is the half-split one over plain rows.
TEST(GgufModel, LlamaEqualsItsSafetensorsForm) {
  for (const bool tied : {false, true}) {
    ModelConfig config = small_llama_config();
    config.tie_word_embeddings = tied;
    TempDir dir;
    write_file(dir / "model.gguf",
               gguf_bytes("llama", config, test::random_tensors(list_weights(config), kSeed, "")));
    const ModelConfig read = load_model_config((dir / "model.gguf").string());
    EXPECT_TRUE(read.rope.interleaved);
    EXPECT_EQ(read.tie_word_embeddings, tied);
    EXPECT_EQ(read.vocab_size, config.vocab_size);
    EXPECT_EQ(read.eos_token_ids, std::vector<std::int64_t>{2});
    const auto expected = make_random_model(backend(), config, kSeed, kOptions);
    // The folder that holds the file is as good as the file.
    for (const std::string& path : {(dir / "model.gguf").string(), dir.path().string()}) {
      const auto loaded = load_model(backend(), path, kOptions);
      EXPECT_LT(testing::relative_error(logits_of(*loaded), logits_of(*expected)), 1e-5);
    }
  }
}

TEST(GgufModel, Qwen3EqualsItsSafetensorsForm) {
  const ModelConfig config = test::small_qwen3_config();
  TempDir dir;
  write_file(dir / "model.gguf",
             gguf_bytes("qwen3", config, test::random_tensors(list_weights(config), kSeed, "")));
  EXPECT_FALSE(load_model_config(dir.path().string()).rope.interleaved);
  const auto loaded = load_model(backend(), dir.path().string(), kOptions);
  const auto expected = make_random_model(backend(), config, kSeed, kOptions);
  EXPECT_LT(testing::relative_error(logits_of(*loaded), logits_of(*expected)), 1e-5);
}

// Llama 3 files carry the frequency scaling as a tensor.
TEST(GgufModel, RopeDivisors) {
  const ModelConfig config = small_llama_config();
  StoredTensors tensors = test::random_tensors(list_weights(config), kSeed, "");
  std::vector<float> divisors(static_cast<std::size_t>(config.head_dim / 2), 1.0f);
  divisors.back() = 8.0f;
  tensors["rope_freqs.weight"] = {
      StorageType::kF32,
      {config.head_dim / 2},
      {reinterpret_cast<const char*>(divisors.data()), divisors.size() * sizeof(float)}};
  TempDir dir;
  write_file(dir / "model.gguf", gguf_bytes("llama", config, tensors));
  const ModelConfig read = load_model_config(dir.path().string());
  EXPECT_NEAR(rope_frequencies(read.rope, config.head_dim).back() * 8,
              rope_frequencies(config.rope, config.head_dim).back(), 1e-12);
  EXPECT_NE(load_model(backend(), dir.path().string(), kOptions), nullptr);
}

TEST(GgufModel, RefusalsNameFileAndKey) {
  const ModelConfig config = small_llama_config();
  const StoredTensors tensors = test::random_tensors(list_weights(config), kSeed, "");
  const auto refuse = [&](ErrorKind kind, const std::string& bytes,
                          const std::vector<std::string>& parts) {
    TempDir dir;
    write_file(dir / "model.gguf", bytes);
    const std::string message =
        error_of(kind, [&] { load_model(backend(), dir.path().string(), kOptions); });
    expect_contains(message, {dir.path().string()});
    expect_contains(message, parts);
  };
  refuse(ErrorKind::kUnsupported, gguf_bytes("gemma3", config, tensors),
         {"general.architecture", "gemma3", "llama"});
  GgufBuilder linear;
  linear.string("llama.rope.scaling.type", "linear");
  refuse(ErrorKind::kUnsupported, gguf_bytes("llama", config, tensors, linear),
         {"llama.rope.scaling.type"});
  ModelConfig damaged = config;
  damaged.num_attention_heads = 0;
  refuse(ErrorKind::kBadFile, gguf_bytes("llama", damaged, tensors),
         {"llama.attention.head_count"});
  StoredTensors missing = tensors;
  missing.erase("model.layers.1.mlp.up_proj.weight");
  refuse(ErrorKind::kBadFile, gguf_bytes("llama", config, missing),
         {"blk.1.ffn_up.weight", "missing"});
  ModelConfig wider = config;
  wider.hidden_size = 128;
  refuse(ErrorKind::kBadFile, gguf_bytes("llama", wider, tensors), {"token_embd.weight", "128"});
}

}  // namespace
}  // namespace coppice
