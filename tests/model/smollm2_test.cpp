// SmolLM2-135M-Instruct from its GGUF file (make models): real English from a real Llama network.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "backend/factory/make_backend.h"
#include "model/load_model.h"
#include "tests/support/model_driver.h"
#include "tests/support/source_dir.h"
#include "text/tokenizer.h"

namespace coppice {
namespace {

TEST(SmolLM2, AnswersAQuestion) {
  const std::string path =
      testing::source_dir() + "/models/downloaded/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent (make models)";
  const ModelConfig config = load_model_config(path);
  EXPECT_EQ(config.num_attention_heads, 9);
  EXPECT_EQ(config.num_key_value_heads, 3);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.rope.interleaved);

  const GgufFile file(path);
  const Tokenizer tokenizer =
      Tokenizer::from_gguf(read_gguf_vocabulary(file.fields()), file.file().name());
  const std::vector<std::int32_t> prompt = tokenizer.encode(
      "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n", true);

  const auto backend = make_backend({.device = "cpu", .num_threads = 0});
  const auto model = load_model(*backend, path, {.max_rows = 64, .max_positions = 256});
  testing::ModelDriver driver(*backend, *model, 128);
  const auto vocab_size = static_cast<std::size_t>(config.vocab_size);
  const std::vector<float> logits = driver.prefill(prompt, 64).logits;
  std::int32_t token = testing::argmax({logits.end() - config.vocab_size, logits.end()});
  std::vector<std::int32_t> answer;
  while (answer.size() < 24 &&
         std::ranges::find(config.eos_token_ids, token) == config.eos_token_ids.end()) {
    answer.push_back(token);
    token = testing::argmax(driver.append({&token, 1}, Provenance::kDecided).logits);
  }
  const std::string text = tokenizer.decode(answer);
  EXPECT_NE(text.find("Paris"), std::string::npos) << text;
  EXPECT_LT(answer.size(), 24u) << "no stop token: " << text;
  EXPECT_EQ(logits.size() % vocab_size, 0u);
}

}  // namespace
}  // namespace coppice
