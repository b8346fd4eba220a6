#include "text/tools_typescript.h"

#include <gtest/gtest.h>

#include "tests/text/support/oracle.h"

namespace coppice {
namespace {

std::optional<std::string> convert(const std::string& parameters) {
  return tools_to_typescript(parse_json(
      R"([{"type":"function","function":{"name":"f","parameters":)" + parameters + "}}]", "test"));
}

// The text between "(_: " and ") => any", or what stands before the function when asked.
std::string type_of(const std::string& parameters) {
  const std::string text = convert(parameters).value_or("nothing");
  const std::size_t begin = text.find("functions {\n"), end = text.find(" => any;");
  return begin == text.npos ? text : text.substr(begin + 12, end - begin - 12);
}

std::string property(const std::string& schema) {
  return type_of(R"({"type":"object","properties":{"p":)" + schema + "}}");
}

TEST(ToolsTypescript, Goldens) {
  const Json golden = read_json_file(test::golden("tools_typescript.json"));
  EXPECT_EQ(golden.size(), 18u);
  for (const Json& item : golden.as_array()) {
    EXPECT_EQ(tools_to_typescript(*item.find("tools")), item.find("text")->as_string());
  }
}

TEST(ToolsTypescript, Types) {
  const auto field = [](const std::string& type) {
    return "type f = (_: {\n  p?: " + type + "\n})";
  };
  EXPECT_EQ(property(R"({"type":"integer"})"), field("number"));
  EXPECT_EQ(property("{}"), field("any"));
  EXPECT_EQ(property("true"), field("any"));
  EXPECT_EQ(property("false"), field("null"));
  EXPECT_EQ(property(R"({"type":["string","null"]})"), field("string | null"));
  EXPECT_EQ(property(R"({"type":["array","object","integer"]})"),
            field("Array<any> | {} | number"));
  EXPECT_EQ(property(R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"number"}}]})"),
            field("string | Array<number>"));
  EXPECT_EQ(property(R"({"enum":["a",1,null,true,1.5]})"), field("\"a\" | 1 | None | True | 1.5"));
  EXPECT_EQ(property(R"({"type":"array"})"), field("Array<any>"));
  EXPECT_EQ(property(R"({"type":"object"})"), field("{}"));
  EXPECT_EQ(property(R"({"type":"object","additionalProperties":{"type":"integer"}})"),
            field("{\n    [k: string]: number\n  }"));
  EXPECT_EQ(type_of("{}"), "type f = (_: {})");
  EXPECT_EQ(type_of("null"), "type f = (_: {})");
}

TEST(ToolsTypescript, CommentsAndReferences) {
  EXPECT_EQ(
      property(
          R"({"type":"string","description":"a\n\nb","pattern":"^x$","maxLength":3,"default":"é"})"),
      "type f = (_: {\n  // a\n\n  // b\n  // maxLength: 3, pattern: ^x$\n  // Default: \"é\"\n  "
      "p?: string\n})");
  EXPECT_EQ(
      type_of(
          R"({"$defs":{"N":{"type":"object","description":"node","properties":{"next":{"$ref":"#/$defs/N"}}}},
                       "properties":{"n":{"$ref":"#/$defs/N"}},"required":["n"]})"),
      "// node\ninterface N {\n  next?: N\n}\ntype f = (_: {\n  n: N\n})");
  EXPECT_EQ(type_of(R"({"properties":{"again":{"$ref":"#"}}})"),
            "interface parameters {\n  again?: parameters\n}\ntype f = (_: parameters)");
}

TEST(ToolsTypescript, WhatHasNoForm) {
  for (const char* schema :
       {R"({"$ref":"#/definitions/X"})", R"({"$ref":"#/$defs/Missing"})", R"({"oneOf":[]})",
        R"({"type":"string","enum":[1]})", R"({"type":["string","number"],"enum":["a"]})",
        R"({"type":["what"]})", R"({"type":1})", "3", "\"x\"", R"({"anyOf":{}})"}) {
    EXPECT_EQ(property(schema), "nothing") << schema;
  }
  EXPECT_EQ(tools_to_typescript(Json::array()), "");
  EXPECT_EQ(tools_to_typescript(parse_json(R"([{"type":"_plugin"}])", "test")), "");
  EXPECT_EQ(tools_to_typescript(Json()), std::nullopt);
}

TEST(ToolsTypescript, SortKeys) {
  const Json sorted = sort_keys(parse_json(R"({"b":[{"d":1,"c":2}],"a":0})", "test"));
  EXPECT_EQ(write_json(sorted), R"({"a":0,"b":[{"c":2,"d":1}]})");
}

}  // namespace
}  // namespace coppice
