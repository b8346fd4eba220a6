// What of a schema or pattern is refused before a grammar is made of it.
#include "server/json_schema_check.h"

#include <gtest/gtest.h>

#include "server/string_pattern.h"

namespace coppice {
namespace {

// The message about a schema, "" when it passes.
std::string refusal(const std::string& schema, bool lenient = false) {
  const Json document = parse_json(schema, "schema");
  try {
    check_json_schema(JsonField(document, "schema", ErrorKind::kInvalidArgument), lenient);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(JsonSchemaCheckTest, KeywordsThatWouldBePassedOverAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"object","required":["z"]})", "required[0]"},
      {R"({"type":"object","properties":{"a":{}},"required":["a","z"]})", "required[1]"},
      {R"({"type":"object","patternProperties":{"^x$":{}},"required":["x"]})", "required[0]"},
      {R"({"properties":{"k":{"$ref":"#/$defs/a","minimum":3}}})", "properties.k.minimum"},
      {R"({"anyOf":[{"type":"integer"}],"minimum":9})", "minimum"},
      {R"({"allOf":[{"type":"integer"}],"minimum":9})", "minimum"},
      {R"({"type":"object","properties":{"a":{}},"anyOf":[{"required":["a"]}]})", "properties"},
      {R"({"type":"integer","anyOf":[{"minimum":8},{"maximum":3}]})", "anyOf"},
      {R"({"multipleOf":7})", "multipleOf"},
      {R"({"items":{"minLength":3}})", "items.minLength"},
      {R"({"type":"string","enum":["a",1]})", "enum[1]"},
      {R"({"type":"string","const":5})", "const"},
      {R"({"type":["string","null"],"enum":["a",true]})", "enum[1]"},
      {R"({"properties":{"a":{}},"patternProperties":{"^a":{}}})", "patternProperties"},
      {R"({"properties":{"A":{}},"propertyNames":{"pattern":"^a$"}})", "propertyNames"},
      {R"({"patternProperties":{"^a":{}},"propertyNames":{"pattern":"^b"}})", "propertyNames"},
      {R"({"items":{"patternProperties":{"^a":{},"b$":{}}}})", "items.patternProperties"},
      {R"({"type":"object","additionalProperties":{},"minProperties":2})", "minProperties"},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":true,"minProperties":2})",
       "minProperties"},
      {R"({"patternProperties":{"^\"x$":{}}})", "patternProperties.^\"x$"},
      {R"({"type":"string","format":"json-pointer"})", "format"},
      {R"({"type":"string","pattern":"^\"x\"$"})", "pattern"},
  };
  for (const auto& [schema, place] : cases) {
    EXPECT_NE(refusal(schema).find("field '" + std::string(place) + "'"), std::string::npos)
        << schema << ": " << refusal(schema);
    EXPECT_EQ(refusal(schema, true), "") << schema;
  }
}

TEST(JsonSchemaCheckTest, WhatGeneratorsWritePasses) {
  for (const char* schema :
       {R"({"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]})",
        R"({"properties":{"a":{"const":"x","enum":["x"],"type":"string"}},"required":["a"]})",
        R"({"allOf":[{"$ref":"#/$defs/a"}],"description":"d","default":1,"title":"t"})",
        R"({"type":"object","oneOf":[{"$ref":"#/$defs/a"},{"type":"object","properties":{}}]})",
        R"({"anyOf":[{"type":"string","maxLength":3},{"type":"null"}],"default":null})",
        R"({"type":"string","nullable":true,"enum":["a",null]})",
        R"({"type":["string","null"],"enum":["a",null]})", R"({"type":"integer","enum":[5.0]})",
        R"({"type":"string","enum":["a"],"maxLength":3})",
        R"({"type":"object","propertyNames":{"pattern":"^q$"}})",
        R"({"patternProperties":{"^q$":{"type":"integer"}},"additionalProperties":false})",
        R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":2,"maxProperties":2})",
        R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1})",
        R"({"properties":{"properties":{},"patternProperties":{},"propertyNames":{}}})",
        R"({"$defs":{"n":{"type":"integer"}},"$ref":"#/$defs/n"})",
        R"({"type":"object","properties":{"pattern":{"type":"string"}}})"})
    EXPECT_EQ(refusal(schema), "") << schema;
}

TEST(StringPatternTest, AsksForCharactersThatJsonEscapes) {
  for (const char* pattern : {"^\"x\"$", R"(^\\{3}$)", R"(^\n$)", R"(\x22)", R"(\u0022)",
                              R"(\u{5c})", R"([\n\r])", R"(a(\\")?)", "[\"]", R"(\x1f)"})
    EXPECT_TRUE(needs_json_escapes(pattern)) << pattern;
  for (const char* pattern :
       {"^.{20}$", R"([\s\S]*)", R"([^"\\]+)", R"(\d+\.\d)", R"([a-z"]+)", R"(\s\S\w)", R"(\/x\-)",
        "[^\\n]*", "", R"(\u00e9)", "\\", "[", R"(\x)", R"(\u{ffffffffffffffffffff})"})
    EXPECT_FALSE(needs_json_escapes(pattern)) << pattern;
}

TEST(StringPatternTest, BecomesAscii) {
  EXPECT_EQ(ascii_pattern("^é[а-я].\\d😀$"), "^\\u{e9}[\\u{430}-\\u{44f}].\\d\\u{1f600}$");
  EXPECT_EQ(ascii_pattern("\\é\\\\é"), "\\u{e9}\\\\\\u{e9}");
}

TEST(StringPatternTest, OfAWholeSchema) {
  const Json schema =
      parse_json(R"({"properties":{"pattern":{"type":"string","pattern":"é"},"b":{"pattern":"\""},)"
                 R"("c":{"format":"json-pointer"},"properties":{"patternProperties":{"é":{}}},)"
                 R"("patternProperties":{}},"patternProperties":{"a":{}},"const":{"pattern":"é"}})",
                 "schema");
  EXPECT_EQ(write_json(with_json_patterns(schema)),
            R"({"properties":{"pattern":{"type":"string","pattern":"\\u{e9}"},"b":{},"c":{},)"
            R"("properties":{"patternProperties":{"\\u{e9}":{}}},"patternProperties":{}},)"
            R"("const":{"pattern":"é"}})");
}

}  // namespace
}  // namespace coppice
