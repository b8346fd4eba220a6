// Templates rendered equal to jinja2: language snippets, and published chat templates from a folder
// named by COPPICE_CHAT_TEMPLATES (they are not ours to ship).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "tests/text/support/oracle.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace coppice {
namespace {

struct Outcome {
  std::optional<std::string> text;
  std::string error;
};

Outcome render(const Json& item) {
  std::tm now{};
  now.tm_year = 2026 - 1900, now.tm_mon = 2, now.tm_mday = 5;
  now.tm_hour = 14, now.tm_min = 7, now.tm_sec = 9;
  try {
    const JinjaBody body = parse_jinja(item.find("template")->as_string(), "template");
    JinjaVariables variables;
    for (const auto& [name, value] : item.find("variables")->as_object()) {
      variables.emplace_back(name, JinjaValue::from_json(value));
    }
    return {run_jinja(body, std::move(variables), now, {}, "template").text(), ""};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

// Every case: the same text, or a fault in both.
void compare(const std::filesystem::path& oracle, int at_least) {
  std::ifstream file(oracle);
  std::string line;
  int cases = 0, different = 0;
  while (std::getline(file, line)) {
    const Json item = parse_json(line, "oracle", {.max_depth = 64});
    const Json* wanted = item.find("text");
    const Outcome outcome = render(item);
    ++cases;
    const bool equal =
        wanted == nullptr ? !outcome.text : outcome.text && *outcome.text == wanted->as_string();
    if (equal || ++different > 20) continue;
    ADD_FAILURE() << item.find("name")->as_string() << "\n"
                  << (different <= 3 ? item.find("template")->as_string().substr(0, 300) : "")
                  << "\n wanted "
                  << (wanted == nullptr ? item.find("error")->as_string() : wanted->as_string())
                  << "\n got    " << outcome.text.value_or(outcome.error);
  }
  std::printf("%d renderings, %d differ from jinja2\n", cases, different);
  EXPECT_GE(cases, at_least);
  EXPECT_EQ(different, 0);
}

TEST(JinjaOracle, Snippets) {
  COPPICE_NEEDS_ORACLE();
  test::TemporaryFolder temporary;
  const auto out = temporary.path() / "cases";
  ASSERT_TRUE(test::run_oracle("oracle_chat_template.py", {"snippets", out}));
  compare(out, 200);
}

TEST(JinjaOracle, PublishedTemplates) {
  COPPICE_NEEDS_ORACLE();
  const char* folder = std::getenv("COPPICE_CHAT_TEMPLATES");
  if (folder == nullptr) {
    GTEST_SKIP() << "COPPICE_CHAT_TEMPLATES names no folder of published *.jinja chat templates";
  }
  test::TemporaryFolder temporary;
  const auto out = temporary.path() / "cases";
  ASSERT_TRUE(test::run_oracle("oracle_chat_template.py", {folder, out}));
  compare(out, 84);
}

}  // namespace
}  // namespace coppice
