// Every op of the table has a cost rule that counts under the op's own name. (That a rule exists at
// all the compiler checks: ops are pure virtual.)
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace coppice {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(COPPICE_SOURCE_DIR + ("/" + path));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> ops_of_the_table() {
  const std::string before = "virtual void ", after = "Args& args) = 0;";
  std::vector<std::string> ops;
  std::ifstream header(COPPICE_SOURCE_DIR "/src/backend/backend.h");
  for (std::string line; std::getline(header, line);) {
    const std::size_t begin = line.find(before), end = line.find("(const ");
    if (begin == std::string::npos || end == std::string::npos || !line.ends_with(after)) continue;
    ops.push_back(line.substr(begin + before.size(), end - begin - before.size()));
  }
  return ops;
}

// The rule of an op in `rules` names the op that it counts.
bool counts_itself(const std::string& rules, const std::string& op) {
  const std::size_t begin = rules.find("void CostBackend::" + op + "(const ");
  if (begin == std::string::npos) return false;
  const std::string body = rules.substr(begin, rules.find("\n}", begin) - begin);
  return body.find("\"" + op + "\"") != std::string::npos;
}

TEST(CostRulesTest, EveryOpCountsUnderItsName) {
  const std::string rules = read("src/backend/cost/cost_rules.cpp");
  const std::vector<std::string> ops = ops_of_the_table();
  EXPECT_GE(ops.size(), 20u);
  for (const std::string& op : ops) EXPECT_TRUE(counts_itself(rules, op)) << op;
}

TEST(CostRulesTest, ARuleUnderAnotherNameIsNoticed) {
  std::string rules = read("src/backend/cost/cost_rules.cpp");
  const std::size_t name = rules.find("\"silu_mul\"");
  ASSERT_NE(name, std::string::npos);
  rules.replace(name, 10, "\"rms_norm\"");
  EXPECT_FALSE(counts_itself(rules, "silu_mul"));
  EXPECT_FALSE(counts_itself(rules, "silu_div"));
}

}  // namespace
}  // namespace coppice
