// check_loadable: what a network needs, told from config.json and headers alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "io/json.h"
#include "model/load_model.h"
#include "tests/support/source_dir.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

class CheckLoadable : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(models_ / "tiny-k2")) GTEST_SKIP() << models_ << " has no tiny-k2";
    std::string pattern = (fs::temp_directory_path() / "coppice-loadable-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    std::error_code ec;
    fs::remove_all(dir_, ec);
  }
  // The model with one field of its config.json changed.
  std::string refuse(const char* model, const std::string& key, Json value) {
    fs::remove_all(dir_);
    fs::copy(models_ / model, dir_);
    Json config = read_json_file(dir_ / "config.json");
    Json& network = config.find("text_config") != nullptr ? config["text_config"] : config;
    network[key] = std::move(value);
    fs::permissions(dir_ / "config.json", fs::perms::owner_write, fs::perm_options::add);
    std::ofstream(dir_ / "config.json") << write_json(config);
    try {
      check_loadable(dir_.string());
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find(dir_.string()), 0u) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  const fs::path models_ = fs::path(testing::source_dir()) / "models";
  fs::path dir_;
};

TEST_F(CheckLoadable, ShippedModelsPass) {
  check_loadable((models_ / "tiny-k2").string());
  check_loadable((models_ / "tiny-k2-dflash").string());
}

TEST_F(CheckLoadable, ChangedSizesAreRefused) {
  EXPECT_NE(refuse("tiny-k2", "num_hidden_layers", 7).find("layers.6."), std::string::npos);
  EXPECT_NE(refuse("tiny-k2", "n_routed_experts", 33).find("mlp.gate."), std::string::npos);
  EXPECT_NE(refuse("tiny-k2", "vocab_size", 5377).find("BF16[5376, 384]"), std::string::npos);
  EXPECT_NE(refuse("tiny-k2-dflash", "intermediate_size", 641).find("_proj"), std::string::npos);
}

}  // namespace
}  // namespace coppice
