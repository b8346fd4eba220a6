// The template language: limits and faults. What it computes is compared with jinja2 in
// jinja_oracle_test.cpp.
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace coppice {
namespace {

MarkedText run(const std::string& text, const JinjaLimits& limits = {}) {
  return run_jinja(parse_jinja(text, "t.jinja"), {}, std::tm{}, limits, "t.jinja");
}

std::string error_of(const std::string& text, const JinjaLimits& limits = {}) {
  try {
    run(text, limits);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("t.jinja: line "), 0u) << error.what();
    return error.what();
  }
  return "no error";
}

std::string repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Jinja, NamesLineAndCause) {
  EXPECT_EQ(error_of("a\n{{ 1 +\n }}"), "t.jinja: line 3: unexpected ''");
  EXPECT_EQ(error_of("\n\n{{ raise_exception('no such role') }}"), "t.jinja: line 3: no such role");
  EXPECT_EQ(error_of("{% macro f() %}\n{{ 1 / 0 }}{% endmacro %}\n{{ f() }}"),
            "t.jinja: line 2: division by zero");
  EXPECT_EQ(error_of("{{ x.y }}"), "t.jinja: line 1: member 'y' of an undefined value");
}

TEST(Jinja, MalformedTemplates) {
  for (const char* text : {"{{",
                           "{{ 1",
                           "{%",
                           "{% if %}",
                           "{% if x %}",
                           "{% endif %}",
                           "{% for %}{% endfor %}",
                           "{# x",
                           "{% for x in y %}",
                           "{{ 'a }}",
                           "{{ 1 2 }}",
                           "{{ (1 }}",
                           "{{ ) }}",
                           "{{ [1, }}",
                           "{{ {1} }}",
                           "{% set %}",
                           "{% set x %}",
                           "{% macro %}{% endmacro %}",
                           "{% macro f(a=1, b) %}{% endmacro %}",
                           "{% break %}",
                           "{% nothing %}",
                           "{% extends 'x' %}",
                           "{% include 'x' %}",
                           "{{ f(*a) }}",
                           "{{ x[] }}",
                           "{{ x[1:2:3:4] }}",
                           "{{ x | }}",
                           "{{ x is }}",
                           "{{ a.b. }}",
                           "{{ '\\u12' }}",
                           "{% raw %}",
                           "{{ $ }}",
                           "{% call f %}{% endcall %}",
                           "{% if a %}{% else %}{% else %}{% endif %}"}) {
    EXPECT_NE(error_of(text), "no error") << text;
  }
}

TEST(Jinja, StepsAndSizeAreLimited) {
  EXPECT_NE(
      error_of(
          "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}")
          .find("too many steps"),
      std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ "
                     "ns.x %}{% endfor %}")
                .find("grows beyond"),
            std::string::npos);
  EXPECT_NE(error_of("{{ 'a' * 99999999999 }}").find("grows beyond"), std::string::npos);
  EXPECT_NE(error_of("{{ [1] * 99999999999 }}").find("too long"), std::string::npos);
  EXPECT_NE(error_of("{{ range(999999999) }}").find("too long"), std::string::npos);
  EXPECT_NE(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(error_of("{% for i in range(9) %}0123456789{% endfor %}",
                     {.max_steps = 1000, .max_bytes = 64})
                .find("grows beyond"),
            std::string::npos);
  EXPECT_NE(error_of("{{ 9223372036854775807 + 1 }}").find("overflow"), std::string::npos);
}

TEST(Jinja, DepthIsLimited) {
  const std::pair<const char*, const char*> units[] = {{"(", ")"}, {"[", "]"},   {"not ", ""},
                                                       {"-", ""},  {"{1:", "}"}, {"x if ", ""}};
  for (const auto& [open, close] : units) {
    const std::string text = "{{ " + repeat(open, 5000) + "1" + repeat(close, 5000) + " }}";
    EXPECT_NE(error_of(text).find("too deeply"), std::string::npos) << open;
  }
  EXPECT_NE(error_of("{{ 1" + repeat(" + 1", 5000) + " }}"), "no error");
  EXPECT_NE(error_of("{{ x" + repeat(".y", 5000) + " }}"), "no error");
  EXPECT_NE(error_of("{{ x" + repeat("|trim", 5000) + " }}"), "no error");
  EXPECT_NE(error_of(repeat("{% if true %}", 5000)), "no error");
  EXPECT_NE(error_of("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% endif %}"), "no error");
  EXPECT_NE(error_of("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] "
                     "%}{% endfor %}")
                .find("nested too deeply"),
            std::string::npos);
}

// Things that hold one another must not leak (checked under LeakSanitizer) nor dangle.
TEST(Jinja, CyclesAndEscapes) {
  EXPECT_EQ(run("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}x").text(),
            "x");
  EXPECT_EQ(run("{% set n = namespace() %}{% for i in [1] %}{% macro m() %}{{ i }}m{% endmacro %}"
                "{% set n.m = m %}{% endfor %}{{ n.m() }}")
                .text(),
            "m");
  EXPECT_EQ(run("{% for i in [1] %}{% set loop.self = loop %}{% endfor %}y").text(), "y");
}

TEST(Jinja, TrustFollowsTheTemplatesWords) {
  const JinjaBody body = parse_jinja(
      "A{{ d }}{{ 'B' ~ d ~ 'C' }}{{ (d + 'D')[1:] }}{{ d | trim }}{{ 'E' | upper }}{{ d | tojson "
      "}}"
      "{% set s %}F{{ d }}{% endset %}{{ s }}{{ ['G', d] | join('-') }}{{ 'xHx'.split('x')[1] }}",
      "t");
  JinjaVariables variables = {{"d", JinjaValue::string("<>", false)}};
  const MarkedText text = run_jinja(body, std::move(variables), std::tm{}, {}, "t");
  std::string trusted;
  for (const auto& range : text.trusted())
    trusted += text.text().substr(range.begin, range.end - range.begin);
  EXPECT_EQ(text.text(), "A<>B<>C>D<>E\"<>\"F<>G-<>H");
  EXPECT_EQ(trusted, "ABCDEFG-H");
}

TEST(Jinja, NothingBehindTheData) {
  for (const char* text :
       {"{{ ''.__class__ }}", "{{ x.__init__ }}", "{{ [].__class__.__mro__ }}",
        "{{ {}.update({1: 2}) }}", "{{ ''.format('x') }}", "{{ [].extend([1]) }}"}) {
    if (error_of(text) != "no error") continue;
    EXPECT_EQ(run(text).text(), "") << text;
  }
}

}  // namespace
}  // namespace coppice
