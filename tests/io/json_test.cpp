#include "io/json.h"

#include <limits>

#include "io/json_field.h"
#include "tests/io/support/files.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;

Json parse(std::string_view text) {
  return parse_json(text, "test.json");
}

std::string parse_error(std::string_view text) {
  return error_of(ErrorKind::kBadFile, [&] { parse(text); });
}

TEST(Json, ReadsEveryKind) {
  const Json value = parse(
      R"({"z":null,"a":true,"i":-7,"u":18446744073709551615,"d":1.5,"s":"x\u00e9\ud83d\ude00","l":[1,[]],"o":{}})");
  ASSERT_TRUE(value.is_object());
  EXPECT_EQ(value.as_object()[0].first, "z");  // insertion order
  EXPECT_TRUE(value.find("z")->is_null());
  EXPECT_TRUE(value.find("a")->as_bool());
  EXPECT_EQ(value.find("i")->as_int(), -7);
  EXPECT_EQ(value.find("u")->as_uint(), UINT64_MAX);
  EXPECT_EQ(value.find("d")->as_double(), 1.5);
  EXPECT_EQ(value.find("s")->as_string(), "x\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(value.find("l")->size(), 2u);
  EXPECT_EQ(value.find("o")->size(), 0u);
  EXPECT_EQ(value.find("none"), nullptr);
  EXPECT_EQ(parse(" 3 ").as_int(), 3);
}

TEST(Json, DoublesAreRoundedCorrectly) {
  EXPECT_EQ(parse("1e-05").as_double(), 1e-05);
  EXPECT_EQ(parse("2.827").as_double(), 2.827);
  EXPECT_EQ(parse("0.1").as_double(), 0.1);
  EXPECT_EQ(parse("9007199254740993.0").as_double(), 9007199254740993.0);
  EXPECT_EQ(parse("1.7976931348623157e308").as_double(), std::numeric_limits<double>::max());
  EXPECT_EQ(parse("4.9e-324").as_double(), 4.9e-324);
  EXPECT_EQ(parse("1e-400").as_double(), 0.0);
  EXPECT_EQ(parse("123456789012345678901234567890").as_double(), 123456789012345678901234567890.0);
  EXPECT_EQ(parse("[0.1,0.2]").as_array()[1].as_double(), 0.2);
}

TEST(Json, RefusesWithPositionAndCause) {
  expect_contains(parse_error("{\n \"a\": 1e400}"), {"test.json", "line 2", "range of a double"});
  expect_contains(parse_error("-1e400"), {"range of a double"});
  expect_contains(parse_error("{\"a\":1,\"b\":2,\"a\":3}"), {"duplicate key 'a'"});
  expect_contains(parse_error("{\"a\""), {"ends early"});
  expect_contains(parse_error(""), {"ends early"});
  expect_contains(parse_error("[1] x"), {"column 5", "more text"});
  expect_contains(parse_error(std::string(65, '[') + std::string(65, ']')), {"deeper than 64"});
  for (const char* bad : {"{a:1}", "[1,]", "[01]", "nul", "\"\x01\"", "\"\xff\"", "\"\\ud800\"",
                          "'a'", "NaN", "[1 2]", "{\"a\" 1}", "\"\\x\"", "+1", ".5", "// c\n1"})
    expect_contains(parse_error(bad), {"test.json: line 1"});
  EXPECT_EQ(parse(std::string(64, '[') + std::string(64, ']')).size(), 1u);
}

TEST(Json, BuildsAndEdits) {
  Json value;
  value["b"] = 1;
  value["a"]["inner"].push_back("x");
  value["b"] = 2;
  EXPECT_EQ(write_json(value), R"({"b":2,"a":{"inner":["x"]}})");
  EXPECT_TRUE(value.erase("b"));
  EXPECT_FALSE(value.erase("b"));
  EXPECT_EQ(value, Json::object({{"a", Json::object({{"inner", Json::array({"x"})}})}}));
  EXPECT_FALSE(Json(1) == Json(1.0));
  EXPECT_EQ(Json(std::uint64_t{5}), Json(5));
}

TEST(Json, WritesPythonLayouts) {
  const Json value = parse(R"({"b":[1,2.0,"é\n\u0001\"/"],"a":{},"c":[]})");
  EXPECT_EQ(write_json(value), "{\"b\":[1,2.0,\"é\\n\\u0001\\\"/\"],\"a\":{},\"c\":[]}");
  EXPECT_EQ(write_json(value, kPythonJson),
            "{\"b\": [1, 2.0, \"\\u00e9\\n\\u0001\\\"/\"], \"a\": {}, \"c\": []}");
  EXPECT_EQ(write_json(value, {.indent = 2, .sort_keys = true}),
            "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.0,\n    \"é\\n\\u0001\\\"/\"\n  ],\n  "
            "\"c\": []\n}");
  EXPECT_EQ(write_json(Json("\xf0\x9f\x98\x80"), kPythonJson), "\"\\ud83d\\ude00\"");
  EXPECT_EQ(write_json(Json("\b\f\t\r\x0b\x7f")), "\"\\b\\f\\t\\r\\u000b\x7f\"");
}

TEST(Json, WritesDoublesAsPythonRepr) {
  const std::pair<double, const char*> cases[] = {{0.0, "0.0"},
                                                  {-0.0, "-0.0"},
                                                  {1.0, "1.0"},
                                                  {0.1, "0.1"},
                                                  {1e-4, "0.0001"},
                                                  {1e-5, "1e-05"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {1.5e300, "1.5e+300"},
                                                  {123456.789, "123456.789"},
                                                  {2.0 / 3.0, "0.6666666666666666"},
                                                  {5e-324, "5e-324"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(write_json(Json(value)), text);
  EXPECT_EQ(write_json(Json(std::numeric_limits<double>::infinity())), "null");
}

TEST(Json, ReplacesInvalidUtf8WhenWriting) {
  for (const char* bad :
       {"\xff", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80"})
    EXPECT_EQ(parse(write_json(Json(bad))).as_string().find("\xef\xbf\xbd"), 0u);
}

TEST(JsonField, NamesFileAndDottedField) {
  const Json value = parse(
      R"({"text_config":{"hidden_size":384,"eps":1e-5,"layers":[1,"x"],"none":null,"big":3000000000}})");
  const JsonField root(value, "config.json");
  const JsonField text = root.at("text_config");
  EXPECT_EQ(text.get<int>("hidden_size"), 384);
  EXPECT_EQ(text.get<float>("eps"), 1e-5f);
  EXPECT_EQ(text.get<double>("hidden_size"), 384.0);
  EXPECT_EQ(text.get<int>("none", 5), 5);
  EXPECT_EQ(text.get("absent", "word"), "word");
  EXPECT_EQ(text.get<std::int64_t>("big"), 3000000000);
  const auto fails = [&](auto call) { return error_of(ErrorKind::kBadFile, call); };
  expect_contains(fails([&] { text.get<int>("absent"); }),
                  {"config.json", "'text_config.absent'", "missing"});
  expect_contains(fails([&] { text.get<int>("none"); }), {"'text_config.none'", "missing"});
  expect_contains(fails([&] { text.get<int>("eps"); }), {"'text_config.eps'", "fraction"});
  const Json whole = parse_json(R"({"a": 16.0, "b": -2e3, "c": 1e300, "d": 300.0})", "file");
  const JsonField numbers(whole, "file");
  EXPECT_EQ(numbers.get<std::int64_t>("a"), 16);
  EXPECT_EQ(numbers.get<std::int64_t>("b"), -2000);
  expect_contains(fails([&] { numbers.get<std::int64_t>("c"); }), {"'c'", "fraction"});
  expect_contains(fails([&] { numbers.get<std::int8_t>("d"); }), {"'d'", "300", "not between"});
  expect_contains(fails([&] { text.get<int>("big"); }), {"3000000000 is not between"});
  expect_contains(fails([&] { text.get<std::uint64_t>("layers"); }), {"expected an integer"});
  expect_contains(fails([&] { text.get<std::vector<int>>("layers"); }),
                  {"'text_config.layers[1]'", "found a string"});
  expect_contains(fails([&] { root.at("text_config").at("eps").find("x"); }),
                  {"expected an object"});
  text.allow_only({"hidden_size", "eps", "layers", "none", "big"});
  expect_contains(fails([&] {
                    text.allow_only({"hidden_size", "eps", "layers", "big"});
                  }),
                  {"'text_config.none'", "unknown; there are hidden_size, eps, layers, big"});
  const JsonField request(value, "request", ErrorKind::kInvalidArgument);
  expect_contains(error_of(ErrorKind::kInvalidArgument, [&] { request.get<bool>("stream"); }),
                  {"request: field 'stream': missing"});
}

TEST(Json, FilesThatAreSomethingElse) {
  const test::TempDir dir;
  const auto read = [&](const std::string& bytes) {
    test::write_file(dir / "config.json", bytes);
    return error_of(ErrorKind::kBadFile, [&] { read_json_file(dir / "config.json"); });
  };
  expect_contains(read("version https://git-lfs.github.com/spec/v1\n"), {"config.json", "LFS"});
  expect_contains(read("<!DOCTYPE html><html>"), {"config.json", "HTML"});
  expect_contains(read("\x1f\x8b\x08"), {"config.json", "gzip"});
  expect_contains(read(""), {"config.json", "empty file"});
  expect_contains(error_of(ErrorKind::kNotFound, [&] { read_json_file(dir / "none.json"); }),
                  {"none.json: no such file"});
  expect_contains(error_of(ErrorKind::kBadFile, [&] { read_json_file(dir.path()); }),
                  {"directory"});
  expect_contains(error_of(ErrorKind::kBadFile, [&] { read_json_file("/dev/zero"); }),
                  {"/dev/zero: not a regular file"});
}

}  // namespace
}  // namespace coppice
