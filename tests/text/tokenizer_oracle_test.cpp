// Token ids equal to the reference packages (tiktoken, tokenizers) on random Unicode texts.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "io/gguf.h"
#include "io/json.h"
#include "tests/text/support/oracle.h"
#include "text/tokenizer.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

std::string from_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  }
  return out;
}

// Encodes every case of an oracle file; reports the first few that differ.
void compare(const Tokenizer& tokenizer, const fs::path& oracle, int expected_cases) {
  std::ifstream file(oracle);
  std::string hex, line;
  int cases = 0, different = 0;
  while (std::getline(file, hex) && std::getline(file, line)) {
    const bool special = hex.starts_with('s');
    const std::string text = from_hex(std::string_view(hex).substr(special ? 1 : 0));
    std::istringstream numbers(line);
    std::vector<std::int32_t> wanted;
    for (std::int32_t id; numbers >> id;) wanted.push_back(id);
    const std::vector<std::int32_t> ids = tokenizer.encode(text, special);
    ++cases;
    if (ids != wanted && ++different <= 3) {
      ADD_FAILURE() << "case " << cases << (special ? " (special)" : "") << ": " << hex
                    << "\n wanted " << testing::PrintToString(wanted) << "\n got "
                    << testing::PrintToString(ids);
    }
  }
  EXPECT_EQ(cases, expected_cases);
  EXPECT_EQ(different, 0);
}

void compare_kimi(const fs::path& folder, int cases, const char* seed) {
  COPPICE_NEEDS_ORACLE();
  if (!fs::exists(folder / "tiktoken.model")) {
    GTEST_SKIP() << "no tokenizer files in " << folder;
  }
  test::TemporaryFolder temporary;
  const fs::path out = temporary.path() / "cases";
  ASSERT_TRUE(test::run_oracle("oracle_tokenizer.py",
                               {"tiktoken", folder, std::to_string(cases), seed, out}));
  compare(Tokenizer::from_folder(folder), out, cases);
}

TEST(TokenizerOracle, TinyK2) {
  compare_kimi(test::tiny_k2_folder(), 20'000, "1");
}

TEST(TokenizerOracle, RealKimi) {
  compare_kimi(test::shared_folder() / "data/kimi-k2.5", 5'000, "2");
}

// The GGUF of SmolLM2, where it has been fetched.
TEST(TokenizerOracle, SmolLm2Gguf) {
  COPPICE_NEEDS_ORACLE();
  const fs::path path = test::source_folder() / "models/downloaded/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << "no " << path << " (make models)";
  const GgufFile file(path);
  const GgufVocabulary vocabulary = read_gguf_vocabulary(file.fields());
  Json data = Json::object();
  const auto list = [&data](const char* key, const auto& items) {
    data[key] = Json::array();
    for (const auto& item : items) data[key].push_back(Json(item));
  };
  list("tokens", vocabulary.tokens);
  list("types", vocabulary.token_types);
  list("merges", vocabulary.merges);
  test::TemporaryFolder temporary;
  std::ofstream(temporary.path() / "vocabulary.json") << write_json(data);
  const fs::path out = temporary.path() / "cases";
  ASSERT_TRUE(test::run_oracle("oracle_tokenizer.py",
                               {"smollm2-vocabulary", temporary.path(), "20000", "5", out}));
  compare(Tokenizer::from_gguf(vocabulary, path.string()), out, 20'000);
}

// The cuts themselves: ids alone hide a wrong cut wherever no merge crosses it.
TEST(TokenizerOracle, Pieces) {
  COPPICE_NEEDS_ORACLE();
  constexpr int kCases = 30'000;
  constexpr PreTokenizer kKinds[] = {PreTokenizer::kKimi, PreTokenizer::kLlama3,
                                     PreTokenizer::kQwen2, PreTokenizer::kGpt2,
                                     PreTokenizer::kSmolLm};
  test::TemporaryFolder temporary;
  const fs::path out = temporary.path() / "cases";
  ASSERT_TRUE(
      test::run_oracle("oracle_tokenizer.py", {"pieces", "-", std::to_string(kCases), "4", out}));
  std::ifstream file(out);
  std::string hex, line;
  int cases = 0, different = 0;
  while (std::getline(file, hex)) {
    const std::string text = from_hex(hex);
    ++cases;
    for (const PreTokenizer kind : kKinds) {
      ASSERT_TRUE(std::getline(file, line));
      std::string lengths;
      for (const Piece& piece : pre_tokenize(kind, text)) {
        lengths += (lengths.empty() ? "" : " ") + std::to_string(piece.end - piece.begin);
      }
      if (lengths != line && ++different <= 3) {
        ADD_FAILURE() << "pattern " << static_cast<int>(kind) << ": " << hex << "\n wanted " << line
                      << "\n got    " << lengths;
      }
    }
  }
  EXPECT_EQ(cases, kCases);
  EXPECT_EQ(different, 0);
}

class TokenizerJsonOracle : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerJsonOracle, Equal) {
  COPPICE_NEEDS_ORACLE();
  test::TemporaryFolder temporary;
  const fs::path out = temporary.path() / "cases";
  ASSERT_TRUE(
      test::run_oracle("oracle_tokenizer.py", {GetParam(), temporary.path(), "20000", "3", out}));
  compare(Tokenizer::from_folder(temporary.path()), out, 20'000);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TokenizerJsonOracle,
                         testing::Values("qwen3", "llama3", "smollm2", "gpt2"));

}  // namespace
}  // namespace coppice
