// Every node of tiny-k2's golden trees: its logits under the tree mask are those of a prefill of
// its own path, with nothing else in the cache but the prompt.
#include <gtest/gtest.h>

#include "backend/factory/make_backend.h"
#include "model/load_model.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_driver.h"

namespace coppice {
namespace {

using testing::GoldenFile;
using testing::ModelDriver;
using testing::relative_error;
using testing::TreeRows;

// Of the largest logit.
constexpr double kReferenceError = 1e-4;
constexpr double kFastError = 2e-2;

struct Case {
  std::string device, prompt;
};

class TreePath : public ::testing::TestWithParam<Case> {};

TreeRows golden_tree(const GoldenFile& golden, const std::string& name) {
  TreeRows rows{.tokens = {golden.ints("greedy")[0]}, .parents = {-1}};
  for (const std::int32_t token : golden.ints(name + ".tokens")) rows.tokens.push_back(token);
  for (const std::int32_t parent : golden.ints(name + ".parents")) rows.parents.push_back(parent);
  return rows;
}

TEST_P(TreePath, EveryNodeEqualsAPrefillOfItsPath) {
  const auto& [device, prompt] = GetParam();
  const auto backend = make_backend({.device = device, .num_threads = 0});
  const auto model =
      load_model(*backend, testing::kTinyK2, {.max_rows = 256, .max_positions = 2048});
  const GoldenFile golden(prompt);
  const auto tokens = golden.ints("token_ids");
  ModelDriver driver(*backend, *model, std::ssize(tokens) + 80);
  driver.prefill(tokens, 100);
  const auto vocab_size = static_cast<std::size_t>(model->config().vocab_size);
  std::int64_t nodes = 0;
  double largest = 0, wrong_path = 1e9;
  for (const char* name : {"tree8", "tree64"}) {
    const TreeRows tree = golden_tree(golden, name);
    const std::vector<float> verified = driver.verify(tree).logits;
    for (std::size_t node = 0; node < tree.tokens.size(); ++node, ++nodes) {
      std::vector<std::int32_t> path;
      for (auto at = static_cast<std::int32_t>(node); at >= 0;
           at = tree.parents[static_cast<std::size_t>(at)])
        path.insert(path.begin(), tree.tokens[static_cast<std::size_t>(at)]);
      const std::int64_t length = driver.length();
      const std::vector<float> fresh = driver.append(path, Provenance::kPrompt).logits;
      driver.truncate(length);
      const std::span<const float> own(verified.data() + node * vocab_size, vocab_size);
      const std::span<const float> last(fresh.data() + fresh.size() - vocab_size, vocab_size);
      largest = std::max(largest, relative_error(own, last));
      // The comparison can fail: another node's row is no match.
      const std::size_t other = (node + 1) % tree.tokens.size();
      wrong_path = std::min(
          wrong_path, relative_error({verified.data() + other * vocab_size, vocab_size}, last));
    }
  }
  EXPECT_EQ(nodes, 9 + 65);
  EXPECT_LT(largest, device == "cpu" ? kFastError : kReferenceError);
  EXPECT_GT(wrong_path, 0.05);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* device : {"cpu-reference", "cpu"})
    for (const char* prompt : {"code_short", "prose_mid", "chat_code"})
      all.push_back({device, prompt});
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return (info.param.device == "cpu" ? "fast_" : "reference_") + info.param.prompt;
}

INSTANTIATE_TEST_SUITE_P(TinyK2, TreePath, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace coppice
