#include "client/datasets.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "tests/io/support/files.h"

namespace coppice {
namespace {

const std::string kModel = std::string(COPPICE_SOURCE_DIR) + "/models/tiny-k2";

class DatasetsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel + "/tiktoken.model"))
      GTEST_SKIP() << "models/tiny-k2 is absent";
  }
  std::string write(const std::string& text) {
    test::write_file(folder_ / "dataset", text);
    return folder_ / "dataset";
  }
  const Tokenizer& tokenizer() {
    static const Tokenizer tokenizer = Tokenizer::from_folder(kModel);
    return tokenizer;
  }

 private:
  test::TempDir folder_;
};

TEST_F(DatasetsTest, RandomPromptsHaveTheirLength) {
  DatasetOptions options{
      .num_prompts = 20, .random_input_len = 60, .random_output_len = 9, .random_prefix_len = 20};
  const auto prompts = load_dataset(options, tokenizer());
  ASSERT_EQ(prompts.size(), 20u);
  std::set<std::string> texts;
  for (const BenchPrompt& prompt : prompts) {
    EXPECT_EQ(std::ssize(tokenizer().encode(prompt.text)), prompt.num_tokens);
    EXPECT_NEAR(static_cast<double>(prompt.num_tokens), 80, 2);
    EXPECT_EQ(prompt.output_len, 9);
    texts.insert(prompt.text);
  }
  EXPECT_GT(texts.size(), 15u);
  EXPECT_EQ(load_dataset(options, tokenizer())[7].text, prompts[7].text);
  options.random_range_ratio = 0.5;
  for (const BenchPrompt& prompt : load_dataset(options, tokenizer())) {
    EXPECT_GE(prompt.output_len, 4);
    EXPECT_LE(prompt.output_len, 14);
  }
}

TEST_F(DatasetsTest, ShareGptTakesWhatIsLongEnough) {
  const std::string text = "a question that is long enough to be measured";
  const std::string path =
      write(R"([{"conversations": [{"value": "x"}]}, {"conversations": [{"value": ")" + text +
            R"("}, {"value": "and an answer that is long enough too"}]}, {"other": 1}])");
  const auto prompts =
      load_dataset({.name = "sharegpt", .path = path, .num_prompts = 3}, tokenizer());
  ASSERT_EQ(prompts.size(), 3u);  // repeated
  EXPECT_EQ(prompts[2].text, text);
  EXPECT_EQ(prompts[0].output_len,
            std::ssize(tokenizer().encode("and an answer that is long enough too")));
}

TEST_F(DatasetsTest, CustomNamesTheBadLine) {
  const std::string path = write("{\"prompt\": \"one\", \"output_tokens\": 5}\n\n{\"text\": 1}\n");
  try {
    load_dataset({.name = "custom", .path = path, .num_prompts = 1, .custom_output_len = -1},
                 tokenizer());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line 3"), std::string::npos) << error.what();
  }
  const auto prompts = load_dataset({.name = "custom",
                                     .path = write("{\"prompt\": \"one\", \"output_tokens\": 5}"),
                                     .num_prompts = 1,
                                     .custom_output_len = -1},
                                    tokenizer());
  EXPECT_EQ(prompts[0].output_len, 5);
  EXPECT_THROW(load_dataset({.name = "sonnet"}, tokenizer()), Error);
  EXPECT_THROW(load_dataset({.name = "custom"}, tokenizer()), Error);
}

}  // namespace
}  // namespace coppice
