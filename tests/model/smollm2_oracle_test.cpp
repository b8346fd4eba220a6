// SmolLM2-135M-Instruct against llama.cpp on the same GGUF file: greedy tokens of 20 prompts.
// Both round activations to 8 bits for quantised weights, each in its own blocks, so the two may
// part where the two best tokens are close; such places are counted and printed, and parting
// anywhere else fails. (With the same weights written as F32 nothing is rounded, and all 535 tokens
// of the 20 prompts are equal.)
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/factory/make_backend.h"
#include "model/load_model.h"
#include "tests/io/support/files.h"
#include "tests/support/model_driver.h"
#include "tests/support/smollm2.h"
#include "tests/support/source_dir.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr int kNumTokens = 24;
// Log-probability gap below which 8-bit activations may change the choice.
constexpr double kNearTie = 0.5;

struct Choice {
  std::int32_t token;
  double margin;
};

// The oracle's answers to the prompts, and its system-info line.
std::vector<std::vector<Choice>> ask_llama_cpp(const fs::path& python, const std::string& model,
                                               const std::string& prompts, std::string& info) {
  const test::TempDir dir;
  test::write_file(dir / "prompts", prompts);
  const std::string command = "'" + python.string() + "' '" + testing::source_dir() +
                              "/scripts/oracle_llama_cpp.py' '" + model + "' '" +
                              (dir / "prompts").string() + "' " + std::to_string(kNumTokens) +
                              " '" + (dir / "out").string() + "' 2> /dev/null";
  std::vector<std::vector<Choice>> answers;
  if (std::system(command.c_str()) != 0) return answers;
  std::ifstream out(dir / "out");
  std::getline(out, info);
  for (std::string line; std::getline(out, line);) {
    std::istringstream words(line);
    std::vector<Choice>& answer = answers.emplace_back();
    for (Choice choice{}; words >> choice.token >> choice.margin;) answer.push_back(choice);
  }
  return answers;
}

TEST(SmolLM2Oracle, GreedyTokensEqualLlamaCpp) {
  const fs::path source = testing::source_dir();
  const std::string path = testing::smollm2_path();
  const char* named = std::getenv("COPPICE_PYTHON");
  const fs::path python = named != nullptr ? fs::path(named) : source / ".venv/bin/python";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is absent (make models)";
  if (!fs::exists(python)) GTEST_SKIP() << python << " is absent (make oracles)";

  const std::vector<std::vector<std::int32_t>> prompts = testing::smollm2_prompts();
  std::ostringstream lines;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    for (const std::int32_t id : prompt) lines << id << ' ';
    lines << '\n';
  }
  std::string info;
  const auto answers = ask_llama_cpp(python, path, lines.str(), info);
  if (answers.empty())
    GTEST_SKIP() << python << " cannot run llama.cpp (PyPI: xllamacpp or llama-cpp-python)";
  ASSERT_EQ(answers.size(), prompts.size());

  const auto backend = make_backend({.device = "cpu", .num_threads = 0});
  const auto model = load_model(*backend, path, {.max_rows = 64, .max_positions = 256});
  std::size_t equal_prompts = 0, tokens = 0, near_ties = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    testing::ModelDriver driver(*backend, *model, 192);
    const std::vector<float> logits = driver.prefill(prompts[i], 64).logits;
    std::int32_t token = testing::argmax({logits.end() - model->config().vocab_size, logits.end()});
    bool equal = true;
    for (const Choice& choice : answers[i]) {
      if (token != choice.token) {
        EXPECT_LT(choice.margin, kNearTie)
            << testing::kQuestions[i] << " after " << driver.length();
        std::printf("near tie: %s: token %lld, llama.cpp's two best are %.3f apart\n",
                    testing::kQuestions[i],
                    static_cast<long long>(driver.length() - std::ssize(prompts[i])),
                    choice.margin);
        ++near_ties;
        equal = false;
        break;
      }
      ++tokens;
      token = testing::argmax(driver.append({&token, 1}, Provenance::kDecided).logits);
    }
    equal_prompts += equal;
  }
  std::printf(
      "llama.cpp: %s\n%zu of %zu prompts equal; %zu tokens before the first difference; "
      "%zu near ties\n",
      info.c_str(), equal_prompts, prompts.size(), tokens, near_ties);
}

}  // namespace
}  // namespace coppice
