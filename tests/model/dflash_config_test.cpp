#include <cmath>

#include "model/model_config.h"
#include "tests/model/support/config_files.h"
#include "tests/support/source_dir.h"

namespace coppice {
namespace {

using test::changed;
using test::ConfigFolder;
using test::error_of;
using test::expect_contains;
using test::kimi_dflash_config;

DflashConfig load(const Json& config) {
  return load_dflash_config(ConfigFolder(config).path());
}

std::string refuse(ErrorKind kind, const std::string& field, const Json& config) {
  const ConfigFolder folder(config);
  const std::string message = error_of(kind, [&] { load_dflash_config(folder.path()); });
  expect_contains(message, {folder.path() + "/config.json: ", field});
  return message;
}

std::string refuse_changed(ErrorKind kind, const std::string& field,
                           const std::function<void(Json&)>& change) {
  return refuse(kind, field, changed(kimi_dflash_config(), change));
}

// The same drafter in the speculators form: ids count from the embedding.
Json speculators_config() {
  Json config =
      Json::object({{"speculators_model_type", "dflash"},
                    {"architectures", Json::array({"DFlashSpeculator"})},
                    {"block_size", 8},
                    {"mask_token_id", 163838},
                    {"draft_vocab_size", 163840},
                    {"aux_hidden_state_layer_ids", Json::array({2, 13, 25, 36, 48, 59})}});
  Json layers = kimi_dflash_config();
  for (const char* key : {"block_size", "dflash_config", "num_target_layers", "architectures"})
    layers.erase(key);
  config["transformer_layer_config"] = layers;
  return config;
}

TEST(DflashConfig, KimiForm) {
  const DflashConfig drafter = load(kimi_dflash_config());
  EXPECT_EQ(drafter.block_size, 8);
  EXPECT_EQ(drafter.mask_token_id, 163838);
  EXPECT_EQ(drafter.target_layer_ids, (std::vector<std::int64_t>{1, 12, 24, 35, 47, 58}));
  EXPECT_EQ(drafter.num_target_layers, 61);
  EXPECT_EQ(drafter.network.architecture, Architecture::kLlama);
  EXPECT_TRUE(drafter.network.qk_norm);
  EXPECT_EQ(drafter.network.num_key_value_heads, 8);
  EXPECT_EQ(drafter.network.rope.type, RopeType::kYarn);
  EXPECT_DOUBLE_EQ(drafter.network.rope.theta, 50000);
  EXPECT_FALSE(drafter.network.rope.interleaved);
  EXPECT_DOUBLE_EQ(rope_amplitude(drafter.network.rope), 1);
  EXPECT_DOUBLE_EQ(drafter.network.softmax_scale(), 1 / std::sqrt(128.0));
  EXPECT_EQ(drafter.sliding_window, 0);
}

// Guessing the layers when the field is missing is wrong for most checkpoints.
TEST(DflashConfig, TargetLayersAreRequired) {
  refuse_changed(ErrorKind::kBadFile, "target_layer_ids",
                 [](Json& c) { c["dflash_config"].erase("target_layer_ids"); });
  refuse_changed(ErrorKind::kBadFile, "target_layer_ids", [](Json& c) {
    c["dflash_config"]["target_layer_ids"] = Json::array({1, 12, 12});
  });
  refuse_changed(ErrorKind::kBadFile, "target_layer_ids", [](Json& c) {
    c["dflash_config"]["target_layer_ids"] = Json::array({12, 1});
  });
  refuse_changed(ErrorKind::kBadFile, "target_layer_ids", [](Json& c) {
    c["dflash_config"]["target_layer_ids"] = Json::array({1, 61});
  });
  refuse_changed(ErrorKind::kBadFile, "target_layer_ids",
                 [](Json& c) { c["dflash_config"]["target_layer_ids"] = Json::array(); });
  // The last layer is legal: it is captured before the final norm.
  EXPECT_EQ(load(changed(kimi_dflash_config(),
                         [](Json& c) {
                           c["dflash_config"]["target_layer_ids"] = Json::array({1, 60});
                         }))
                .target_layer_ids.back(),
            60);
}

TEST(DflashConfig, BlockSizeInEitherPlace) {
  const Json inside = changed(kimi_dflash_config(), [](Json& c) {
    c.erase("block_size");
    c["dflash_config"]["block_size"] = 16;
  });
  EXPECT_EQ(load(inside).block_size, 16);
  refuse_changed(ErrorKind::kBadFile, "dflash_config.block_size",
                 [](Json& c) { c["dflash_config"]["block_size"] = 16; });
  refuse_changed(ErrorKind::kBadFile, "block_size", [](Json& c) { c.erase("block_size"); });
  refuse_changed(ErrorKind::kBadFile, "block_size", [](Json& c) { c["block_size"] = 1; });
  refuse_changed(ErrorKind::kBadFile, "mask_token_id",
                 [](Json& c) { c["dflash_config"]["mask_token_id"] = 163840; });
  refuse_changed(ErrorKind::kBadFile, "mask_token_id",
                 [](Json& c) { c["dflash_config"].erase("mask_token_id"); });
}

TEST(DflashConfig, SpeculatorsIdsAreShifted) {
  const DflashConfig drafter = load(speculators_config());
  EXPECT_EQ(drafter.target_layer_ids, (std::vector<std::int64_t>{1, 12, 24, 35, 47, 58}));
  EXPECT_EQ(drafter.block_size, 8);
  EXPECT_EQ(drafter.network.head_dim, 128);
  refuse(ErrorKind::kBadFile, "aux_hidden_state_layer_ids",
         changed(speculators_config(), [](Json& c) {
           c["aux_hidden_state_layer_ids"] = Json::array({0, 13});
         }));
  refuse(ErrorKind::kBadFile, "aux_hidden_state_layer_ids",
         changed(speculators_config(), [](Json& c) { c.erase("aux_hidden_state_layer_ids"); }));
}

TEST(DflashConfig, SpeculatorsDefaults) {
  const Json config = changed(speculators_config(), [](Json& c) {
    c.erase("block_size");
    c["draft_vocab_size"] = 151936;
    c["mask_token_id"] = 151669;
    c["transformer_layer_config"] = Json::object({{"num_hidden_layers", 5}});
  });
  const DflashConfig drafter = load(config);
  EXPECT_EQ(drafter.block_size, 8);
  EXPECT_EQ(drafter.network.hidden_size, 4096);
  EXPECT_EQ(drafter.network.vocab_size, 151936);
  // A reduced vocabulary, by the field or by its default of 32000.
  refuse(ErrorKind::kUnsupported, "draft_vocab_size",
         changed(config, [](Json& c) { c["draft_vocab_size"] = 64000; }));
  refuse(ErrorKind::kUnsupported, "draft_vocab_size 32000",
         changed(config, [](Json& c) { c.erase("draft_vocab_size"); }));
}

Json sliding(const std::function<void(Json&)>& change = [](Json&) {}) {
  return changed(kimi_dflash_config(), [&](Json& c) {
    c["layer_types"] = Json::array({"sliding_attention", "sliding_attention", "sliding_attention",
                                    "sliding_attention", "sliding_attention", "full_attention"});
    c["sliding_window"] = 2048;
    change(c);
  });
}

TEST(DflashConfig, SlidingLayers) {
  const DflashConfig drafter = load(sliding());
  EXPECT_EQ(drafter.sliding_window, 2048);
  EXPECT_TRUE(drafter.layer_is_sliding[0]);
  EXPECT_FALSE(drafter.layer_is_sliding[5]);
  EXPECT_TRUE(drafter.causal_sliding_layers);
  EXPECT_FALSE(
      load(sliding([](Json& c) { c["dflash_config"]["causal"] = false; })).causal_sliding_layers);
  // The MiMo spelling: all layers, bidirectional inside the block.
  const DflashConfig swa = load(changed(kimi_dflash_config(), [](Json& c) {
    c["dflash_config"]["use_swa"] = true;
    c["dflash_config"]["swa_window_size"] = 1024;
    c["dflash_config"]["causal"] = false;
  }));
  EXPECT_EQ(swa.sliding_window, 1024);
  EXPECT_TRUE(swa.layer_is_sliding[5]);
  EXPECT_FALSE(swa.causal_sliding_layers);
  refuse(ErrorKind::kBadFile, "sliding_window",
         sliding([](Json& c) { c.erase("sliding_window"); }));
  refuse(ErrorKind::kBadFile, "layer_types", sliding([](Json& c) { c["num_hidden_layers"] = 5; }));
}

TEST(DflashConfig, VariantsAreRefusedByName) {
  const auto unsupported = [](const std::string& field, const std::function<void(Json&)>& change) {
    refuse_changed(ErrorKind::kUnsupported, field, change);
  };
  unsupported("sample_from_anchor", [](Json& c) { c["sample_from_anchor"] = true; });
  unsupported("sample_from_anchor",
              [](Json& c) { c["dflash_config"]["sample_from_anchor"] = true; });
  unsupported("causal_head", [](Json& c) { c["dflash_config"]["causal_head"] = true; });
  unsupported("causal", [](Json& c) { c["dflash_config"]["causal"] = true; });
  unsupported("target_hidden_size",
              [](Json& c) { c["dflash_config"]["target_hidden_size"] = 4096; });
  unsupported("final_logit_softcapping", [](Json& c) { c["final_logit_softcapping"] = 30.0; });
  unsupported("attention_bias", [](Json& c) { c["attention_bias"] = true; });
  unsupported("hidden_act", [](Json& c) { c["hidden_act"] = "gelu"; });
  unsupported("architectures",
              [](Json& c) { c["architectures"] = Json::array({"Eagle3DraftModel"}); });
  refuse(ErrorKind::kUnsupported, "speculators_model_type",
         changed(speculators_config(), [](Json& c) { c["speculators_model_type"] = "eagle3"; }));
  refuse(ErrorKind::kUnsupported, "sample_from_anchor",
         changed(speculators_config(), [](Json& c) { c["sample_from_anchor"] = true; }));
}

TEST(DflashConfig, TinyK2Drafter) {
  const DflashConfig drafter = load_dflash_config(testing::source_dir() + "/models/tiny-k2-dflash");
  EXPECT_EQ(drafter.block_size, 8);
  EXPECT_EQ(drafter.target_layer_ids, (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(drafter.layer_is_sliding, std::vector<bool>(3, false));
}

}  // namespace
}  // namespace coppice
