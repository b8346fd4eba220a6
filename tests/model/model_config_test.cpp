#include "model/model_config.h"

#include <filesystem>

#include "tests/model/support/config_files.h"
#include "tests/support/source_dir.h"

namespace coppice {
namespace {

using test::changed;
using test::ConfigFolder;
using test::error_of;
using test::expect_contains;
using test::kimi_k25_config;
using test::kimi_text_config;
using test::qwen3_config;
using test::smollm2_config;
using test::write_file;

ModelConfig load(const Json& config) {
  return load_model_config(ConfigFolder(config).path());
}

// The message, which must name the file and the field.
std::string refuse(ErrorKind kind, const std::string& field, const Json& config) {
  const ConfigFolder folder(config);
  const std::string message = error_of(kind, [&] { load_model_config(folder.path()); });
  expect_contains(message, {folder.path() + "/config.json: ", "'" + field + "'"});
  return message;
}

TEST(ModelConfig, KimiK25) {
  const ModelConfig model = load(kimi_k25_config());
  EXPECT_EQ(model.architecture, Architecture::kDeepseek);
  EXPECT_EQ(model.tensor_prefix, "language_model.");
  EXPECT_EQ(model.num_hidden_layers, 61);
  EXPECT_EQ(model.n_routed_experts, 384);
  EXPECT_EQ(model.q_lora_rank, 1536);
  EXPECT_DOUBLE_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_TRUE(model.rope.interleaved);
  EXPECT_NEAR(model.softmax_scale(), 0.1446796, 1e-7);
  EXPECT_DOUBLE_EQ(rope_amplitude(model.rope), 1);
  EXPECT_EQ(model.bos_token_id, 163584);
}

TEST(ModelConfig, FlatKimiK2) {
  const ModelConfig model = load(kimi_text_config());
  EXPECT_EQ(model.architecture, Architecture::kDeepseek);
  EXPECT_EQ(model.tensor_prefix, "");
  // Without `architectures`, model_type decides.
  EXPECT_EQ(
      load(changed(kimi_text_config(), [](Json& c) { c.erase("architectures"); })).kv_lora_rank,
      512);
}

// K2-Instruct, Thinking and K2.5 differ in these; nothing may be taken for granted.
TEST(ModelConfig, BetaFastAndEpsComeFromTheFile) {
  const ModelConfig model = load(changed(kimi_text_config(), [](Json& c) {
    c["rms_norm_eps"] = 1e-6;
    c["rope_scaling"]["beta_fast"] = 1;
    c["rope_scaling"]["factor"] = 32;
    c["max_position_embeddings"] = 131072;
  }));
  EXPECT_DOUBLE_EQ(model.rms_norm_eps, 1e-6);
  EXPECT_DOUBLE_EQ(model.rope.beta_fast, 1);
  EXPECT_NEAR(model.softmax_scale(), 0.1308608, 1e-7);
}

// K2.5's config.json names 163585, but a turn ends with 163586.
TEST(ModelConfig, StopIdsOfGenerationConfigComeFirst) {
  const ConfigFolder folder(kimi_k25_config());
  EXPECT_EQ(load_model_config(folder.path()).eos_token_ids, std::vector<std::int64_t>{163585});
  write_file(folder.dir / "generation_config.json",
             R"({"max_length": 262144, "eos_token_id": 163586})");
  EXPECT_EQ(load_model_config(folder.path()).eos_token_ids,
            (std::vector<std::int64_t>{163586, 163585}));
  write_file(folder.dir / "tokenizer_config.json",
             R"({"added_tokens_decoder": {"163584": {"content": "[BOS]"},
                 "163585": {"content": "[EOS]"}, "163586": {"content": "<|im_end|>"},
                 "163593": {"content": "[EOT]"}}})");
  EXPECT_EQ(load_model_config(folder.path()).eos_token_ids,
            (std::vector<std::int64_t>{163586, 163585, 163593}));
  write_file(folder.dir / "generation_config.json", R"({"eos_token_id": [163586, 200000]})");
  const std::string message =
      error_of(ErrorKind::kBadFile, [&] { load_model_config(folder.path()); });
  expect_contains(message, {"generation_config.json", "'eos_token_id'", "200000"});
}

TEST(ModelConfig, Qwen3) {
  const ModelConfig model = load(qwen3_config());
  EXPECT_EQ(model.architecture, Architecture::kLlama);
  EXPECT_TRUE(model.qk_norm);
  EXPECT_TRUE(model.tie_word_embeddings);
  EXPECT_EQ(model.num_attention_heads * model.head_dim, 2048);  // not hidden_size
  EXPECT_EQ(model.rope.type, RopeType::kDefault);
  EXPECT_FALSE(model.rope.interleaved);
  EXPECT_DOUBLE_EQ(model.rope.theta, 1e6);
  // transformers' default for Qwen3 is 128, whatever hidden_size / heads is.
  EXPECT_EQ(load(changed(qwen3_config(), [](Json& c) { c.erase("head_dim"); })).head_dim, 128);
}

TEST(ModelConfig, SmolLM2) {
  const ModelConfig model = load(smollm2_config());
  EXPECT_FALSE(model.qk_norm);
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.eos_token_ids, std::vector<std::int64_t>{2});
  EXPECT_DOUBLE_EQ(model.softmax_scale(), 0.125);
  EXPECT_TRUE(load(changed(smollm2_config(), [](Json& c) {
                c["rope_interleaved"] = true;
              })).rope.interleaved);
}

TEST(ModelConfig, RopeScalings) {
  const Json llama3 = changed(smollm2_config(), [](Json& c) {
    c["rope_scaling"] = Json::object({{"rope_type", "llama3"},
                                      {"factor", 8.0},
                                      {"low_freq_factor", 1.0},
                                      {"high_freq_factor", 4.0},
                                      {"original_max_position_embeddings", 8192}});
  });
  EXPECT_EQ(load(llama3).rope.type, RopeType::kLlama3);
  const Json parameters = changed(qwen3_config(), [](Json& c) {
    c.erase("rope_theta");
    c.erase("rope_scaling");
    c["rope_parameters"] = Json::object({{"rope_type", "default"}, {"rope_theta", 5e6}});
  });
  EXPECT_DOUBLE_EQ(load(parameters).rope.theta, 5e6);
  EXPECT_EQ(load(parameters).rope.type, RopeType::kDefault);
  for (const char* type : {"linear", "dynamic", "longrope", "mrope"}) {
    const std::string message =
        refuse(ErrorKind::kUnsupported, "rope_scaling", changed(smollm2_config(), [&](Json& c) {
                 c["rope_scaling"] = Json::object({{"rope_type", type}, {"factor", 2.0}});
               }));
    expect_contains(message, {type});
  }
  refuse(ErrorKind::kBadFile, "rope_scaling.factor",
         changed(kimi_text_config(), [](Json& c) { c["rope_scaling"]["factor"] = 0; }));
  refuse(ErrorKind::kBadFile, "rope_scaling",
         changed(kimi_text_config(), [](Json& c) { c["rope_scaling"].erase("type"); }));
  refuse(ErrorKind::kBadFile, "rope_scaling.type",
         changed(kimi_text_config(), [](Json& c) { c["rope_scaling"]["rope_type"] = "llama3"; }));
}

TEST(ModelConfig, AttentionFactorOfTheFileWins) {
  const ModelConfig model = load(changed(qwen3_config(), [](Json& c) {
    c["rope_scaling"] = Json::object({{"rope_type", "yarn"},
                                      {"factor", 64.0},
                                      {"original_max_position_embeddings", 4096},
                                      {"attention_factor", 1.25}});
  }));
  EXPECT_DOUBLE_EQ(rope_amplitude(model.rope), 1.25);
}

TEST(ModelConfig, UnsupportedIsRefusedByName) {
  const std::vector<std::pair<const char*, Json>> fields = {{"n_group", 8},
                                                            {"topk_group", 4},
                                                            {"scoring_func", "softmax"},
                                                            {"topk_method", "greedy"},
                                                            {"moe_layer_freq", 2},
                                                            {"attention_bias", true},
                                                            {"hidden_act", "gelu"},
                                                            {"partial_rotary_factor", 0.5}};
  for (const auto& [field, value] : fields)
    refuse(ErrorKind::kUnsupported, field,
           changed(kimi_text_config(), [&](Json& c) { c[field] = value; }));
  const ConfigFolder k3(changed(kimi_text_config(), [](Json& c) {
    c["architectures"] = Json::array({"KimiK3ForCausalLM"});
  }));
  expect_contains(error_of(ErrorKind::kUnsupported, [&] { load_model_config(k3.path()); }),
                  {"config.json", "KimiK3ForCausalLM", "DeepseekV3ForCausalLM"});
  const ConfigFolder nvfp4(changed(kimi_k25_config(), [](Json& c) {
    c["quantization_config"] =
        Json::object({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}});
  }));
  expect_contains(error_of(ErrorKind::kUnsupported, [&] { load_model_config(nvfp4.path()); }),
                  {"NVFP4", "instead"});
}

// Every required field, missing and damaged: one line naming file and field.
TEST(ModelConfig, EveryBadFieldIsNamed) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
        "num_hidden_layers", "num_attention_heads", "n_routed_experts", "num_experts_per_tok",
        "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
        "rms_norm_eps", "max_position_embeddings"}) {
    refuse(ErrorKind::kBadFile, field,
           changed(kimi_text_config(), [&](Json& c) { c.erase(field); }));
    for (const Json& bad : {Json(-1), Json(0), Json("7168"), Json(1e300), Json::array({1})})
      refuse(ErrorKind::kBadFile, field,
             changed(kimi_text_config(), [&](Json& c) { c[field] = bad; }));
    refuse(ErrorKind::kBadFile, "text_config." + std::string(field),
           changed(kimi_k25_config(), [&](Json& c) { c["text_config"][field] = -1; }));
  }
  refuse(ErrorKind::kBadFile, "num_experts_per_tok",
         changed(kimi_text_config(), [](Json& c) { c["num_experts_per_tok"] = 385; }));
  // More than a backend can route, or a request's row of stop tokens can hold.
  refuse(ErrorKind::kBadFile, "num_experts_per_tok",
         changed(kimi_text_config(), [](Json& c) { c["num_experts_per_tok"] = 65; }));
  refuse(ErrorKind::kBadFile, "n_routed_experts",
         changed(kimi_text_config(), [](Json& c) { c["n_routed_experts"] = 1025; }));
  refuse(ErrorKind::kBadFile, "eos_token_id", changed(smollm2_config(), [](Json& c) {
           c["eos_token_id"] = Json::array();
           for (std::int64_t id = 0; id < 17; ++id) c["eos_token_id"].push_back(id);
         }));
  refuse(ErrorKind::kBadFile, "first_k_dense_replace",
         changed(kimi_text_config(), [](Json& c) { c["first_k_dense_replace"] = 62; }));
  refuse(ErrorKind::kBadFile, "num_key_value_heads",
         changed(smollm2_config(), [](Json& c) { c["num_key_value_heads"] = 4; }));
  refuse(ErrorKind::kBadFile, "eos_token_id",
         changed(smollm2_config(), [](Json& c) { c["eos_token_id"] = 49152; }));
  refuse(ErrorKind::kBadFile, "text_config",
         changed(kimi_k25_config(), [](Json& c) { c.erase("text_config"); }));
}

TEST(ModelConfig, TinyK2) {
  const ModelConfig model = load_model_config(testing::source_dir() + "/models/tiny-k2");
  EXPECT_EQ(model.hidden_size, 384);
  EXPECT_EQ(model.first_k_dense_replace, 1);
  EXPECT_NEAR(model.softmax_scale(), 0.16205962, 1e-8);
  EXPECT_EQ(model.eos_token_ids, (std::vector<std::int64_t>{5122, 5121, 5129}));
}

// The published file itself, where a copy is at hand: in $COPPICE_SHARED, or beside the repository.
TEST(ModelConfig, PublishedKimiK25) {
  const char* named = std::getenv("COPPICE_SHARED");
  const std::filesystem::path shared =
      named != nullptr ? std::filesystem::path(named)
                       : std::filesystem::path(testing::source_dir()).parent_path() / "shared";
  const std::string folder = (shared / "data/kimi-k2.5").string();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent (COPPICE_SHARED)";
  const ModelConfig model = load_model_config(folder);
  EXPECT_EQ(model.num_hidden_layers, 61);
  EXPECT_EQ(model.tensor_prefix, "language_model.");
  EXPECT_NEAR(model.softmax_scale(), 0.1446796, 1e-7);
  EXPECT_EQ(model.eos_token_ids.front(), 163586);
}

}  // namespace
}  // namespace coppice
