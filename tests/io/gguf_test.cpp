#include "io/gguf.h"

#include <limits>

#include "io/checkpoint.h"
#include "tests/io/support/files.h"
#include "tests/io/support/gguf_builder.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;
using test::gguf_string;
using test::GgufBuilder;
using test::raw;

class Gguf : public ::testing::Test {
 protected:
  GgufFile accept(const std::string& bytes) {
    test::write_file(dir_ / "x.gguf", bytes);
    return GgufFile(dir_ / "x.gguf");
  }
  std::string refuse(const std::string& bytes, ErrorKind kind = ErrorKind::kBadFile) {
    test::write_file(dir_ / "x.gguf", bytes);
    const std::string message = error_of(kind, [&] { GgufFile(dir_ / "x.gguf"); });
    expect_contains(message, {(dir_ / "x.gguf").string() + ": "});
    return message;
  }
  test::TempDir dir_;
};

TEST_F(Gguf, ReadsEveryValueType) {
  const GgufFile file =
      accept(GgufBuilder()
                 .key("u8", 0, raw<std::uint8_t>(200))
                 .key("i8", 1, raw<std::int8_t>(-3))
                 .key("u16", 2, raw<std::uint16_t>(60000))
                 .key("i16", 3, raw<std::int16_t>(-300))
                 .key("u32", 4, raw<std::uint32_t>(4000000000u))
                 .key("i32", 5, raw<std::int32_t>(-70000))
                 .key("f32", 6, raw(0.5f))
                 .key("bool", 7, raw<std::uint8_t>(1))
                 .string("string", "h\xc3\xa9")
                 .key("nested", 9,
                      raw<std::uint32_t>(9) + raw<std::uint64_t>(1) + raw<std::uint32_t>(5) +
                          raw<std::uint64_t>(2) + raw<std::int32_t>(1) + raw<std::int32_t>(-2))
                 .key("u64", 10, raw(std::uint64_t{1} << 63))
                 .key("i64", 11, raw<std::int64_t>(-5))
                 .key("f64", 12, raw(0.1))
                 .build());
  const JsonField fields = file.fields();
  EXPECT_EQ(fields.get<int>("u8"), 200);
  EXPECT_EQ(fields.get<int>("i8"), -3);
  EXPECT_EQ(fields.get<int>("u16"), 60000);
  EXPECT_EQ(fields.get<int>("i16"), -300);
  EXPECT_EQ(fields.get<std::int64_t>("u32"), 4000000000);
  EXPECT_EQ(fields.get<int>("i32"), -70000);
  EXPECT_EQ(fields.get<float>("f32"), 0.5f);
  EXPECT_TRUE(fields.get<bool>("bool"));
  EXPECT_EQ(fields.get<std::string>("string"), "h\xc3\xa9");
  EXPECT_EQ(fields.at("nested").elements()[0].as<std::vector<int>>(), (std::vector<int>{1, -2}));
  EXPECT_EQ(fields.get<std::uint64_t>("u64"), std::uint64_t{1} << 63);
  EXPECT_EQ(fields.get<int>("i64"), -5);
  EXPECT_EQ(fields.get<double>("f64"), 0.1);
  expect_contains(error_of(ErrorKind::kBadFile, [&] { fields.get<int>("llama.block_count"); }),
                  {"x.gguf: field 'llama.block_count': missing"});
}

TEST_F(Gguf, ReadsTensorsAsBlocks) {
  // F32[3] then Q4_0[2, 64] (4 blocks of 18), Q4_1[32] (20), Q8_0[32] (34), BF16 and F16 scalars.
  std::string data(32 + 96 + 32 + 64 + 32 + 2, '\0');
  data[32] = 'q';
  const std::string bytes = GgufBuilder()
                                .tensor("a", {3}, 0, 0)
                                .tensor("q", {64, 2}, 2, 32)
                                .tensor("r", {32}, 3, 128)
                                .tensor("s", {32}, 8, 160)
                                .tensor("t", {1}, 30, 224)
                                .tensor("u", {}, 1, 256)
                                .build(data);
  const GgufFile file = accept(bytes);
  EXPECT_EQ(file.tensors()[1].describe(), "Q4_0[2, 64]");
  EXPECT_EQ(file.tensors()[1].num_bytes, 72u);
  EXPECT_EQ(file.tensors()[2].num_bytes, 20u);
  EXPECT_EQ(file.tensors()[3].num_bytes, 34u);
  const Checkpoint checkpoint(dir_.path());
  EXPECT_EQ(checkpoint.tensors().size(), 6u);
  EXPECT_NE(checkpoint.gguf_metadata(), nullptr);
  EXPECT_EQ(static_cast<char>(checkpoint.bytes(checkpoint.at("q"))[0]), 'q');
  EXPECT_EQ(checkpoint.tensor("a").num_elements(), 3);
  expect_contains(error_of(ErrorKind::kUnsupported, [&] { checkpoint.tensor("q"); }),
                  {"x.gguf", "'q'", "Q4_0"});
}

TEST_F(Gguf, RefusesDamagedStarts) {
  expect_contains(refuse(""), {"an empty file"});
  expect_contains(refuse("GGU"), {"not a GGUF file"});
  expect_contains(refuse("version https://git-lfs.github.com"), {"LFS"});
  expect_contains(refuse("GGUF"), {"version: needs 4 bytes at byte 4"});
  expect_contains(refuse(GgufBuilder().build("", 32, 2), ErrorKind::kUnsupported),
                  {"GGUF version 2", "version 3 is supported"});
  expect_contains(refuse(GgufBuilder().build("", 32, 0x03000000u), ErrorKind::kUnsupported),
                  {"big-endian"});
  const std::string start = "GGUF" + raw<std::uint32_t>(3);
  expect_contains(refuse(start + raw(UINT64_MAX) + raw<std::uint64_t>(0)), {"tensor count"});
  expect_contains(refuse(start + raw<std::uint64_t>(0) + raw(UINT64_MAX)), {"key count"});
  const std::string whole =
      GgufBuilder().string("k", "v").tensor("a", {3}, 0, 0).build(std::string(12, '\0'));
  for (std::size_t size = 0; size < whole.size(); ++size) refuse(whole.substr(0, size));
  accept(whole);
}

TEST_F(Gguf, RefusesDamagedKeys) {
  const auto with = [](std::uint32_t type, const std::string& value) {
    return GgufBuilder().key("k", type, value).build(std::string(64, '\0'));
  };
  expect_contains(refuse(with(13, "")), {"key 'k'", "unknown value type 13"});
  expect_contains(refuse(with(7, "\2")), {"key 'k'", "boolean is 2"});
  expect_contains(refuse(with(6, raw(std::numeric_limits<float>::quiet_NaN()))), {"finite"});
  expect_contains(refuse(with(8, raw(UINT64_MAX))), {"key 'k'", "over the limit"});
  expect_contains(refuse(with(8, raw<std::uint64_t>(4000))), {"key 'k'", "needs 4000 bytes"});
  expect_contains(refuse(with(9, raw<std::uint32_t>(8) + raw(UINT64_MAX))), {"do not fit"});
  std::string nested;
  for (int i = 0; i < 6; ++i) nested += raw<std::uint32_t>(9) + raw<std::uint64_t>(1);
  expect_contains(refuse(with(9, nested)), {"nested too deep"});
  expect_contains(refuse(GgufBuilder().string("k", "1").string("k", "2").build()),
                  {"key 'k' occurs twice"});
  expect_contains(refuse(GgufBuilder().key("split.count", 2, raw<std::uint16_t>(3)).build(),
                         ErrorKind::kUnsupported),
                  {"one of 3 split files"});
  for (const std::uint32_t bad : {0u, 4u, 33u, 1u << 30})
    expect_contains(refuse(GgufBuilder().key("general.alignment", 4, raw(bad)).build()),
                    {"general.alignment", "no usable alignment"});
}

TEST_F(Gguf, RefusesDamagedTensors) {
  const std::string data(64, '\0');
  const auto one = [&](const std::vector<std::uint64_t>& sizes, std::uint32_t type,
                       std::uint64_t offset) {
    return GgufBuilder().tensor("a", sizes, type, offset).build(data);
  };
  expect_contains(refuse(one({1, 1, 1, 1, 1}, 0, 0)), {"tensor 'a'", "5 dimensions"});
  expect_contains(refuse(one({UINT64_MAX}, 0, 0)), {"overflows"});
  expect_contains(refuse(one({1u << 31, std::uint64_t{1} << 40}, 0, 0)), {"overflows"});
  expect_contains(refuse(one({std::uint64_t{1} << 62, 4}, 0, 0)), {"overflows"});
  expect_contains(refuse(one({33}, 2, 0)), {"no whole blocks"});
  expect_contains(refuse(one({17}, 0, 0)), {"ends beyond the file"});
  expect_contains(refuse(one({16}, 0, 8)), {"ends beyond the file"});
  expect_contains(refuse(one({4}, 0, UINT64_MAX)), {"ends beyond the file"});
  expect_contains(refuse(one({4}, 0, 8)), {"offset 8 is not the expected 0"});
  expect_contains(refuse(one({4}, 0, 0)), {"bytes follow the last tensor"});
  expect_contains(refuse(one({4}, 77, 0)), {"unknown type number 77"});
  expect_contains(refuse(one({256}, 14, 0), ErrorKind::kUnsupported),
                  {"tensor 'a'", "Q6_K is not supported", "get a Q4_0"});
  expect_contains(refuse(GgufBuilder().tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).build(data)),
                  {"tensor 'b'", "overlaps"});
  expect_contains(refuse(GgufBuilder().tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).build(data)),
                  {"tensor 'a' occurs twice"});
}

TEST_F(Gguf, Vocabulary) {
  GgufBuilder builder;
  builder.string("tokenizer.ggml.model", "gpt2")
      .string("tokenizer.ggml.pre", "smollm")
      .strings("tokenizer.ggml.tokens", {"a", "b", "ab"})
      .strings("tokenizer.ggml.merges", {"a b"})
      .key("tokenizer.ggml.token_type", 9,
           raw<std::uint32_t>(5) + raw<std::uint64_t>(3) + raw(1) + raw(1) + raw(3))
      .key("tokenizer.ggml.eos_token_id", 4, raw<std::uint32_t>(2))
      .string("tokenizer.chat_template", "{{ x }}");
  const GgufVocabulary vocabulary = read_gguf_vocabulary(accept(builder.build()).fields());
  EXPECT_EQ(vocabulary.tokens, (std::vector<std::string>{"a", "b", "ab"}));
  EXPECT_EQ(vocabulary.merges, (std::vector<std::string>{"a b"}));
  EXPECT_EQ(vocabulary.token_types, (std::vector<std::int32_t>{1, 1, 3}));
  EXPECT_EQ(vocabulary.eos_token_id, 2);
  EXPECT_EQ(vocabulary.bos_token_id, -1);
  EXPECT_EQ(vocabulary.chat_template, "{{ x }}");
  const GgufFile bad = accept(
      builder
          .key("tokenizer.ggml.scores", 9, raw<std::uint32_t>(6) + raw<std::uint64_t>(1) + raw(1.f))
          .build());
  expect_contains(error_of(ErrorKind::kBadFile, [&] { read_gguf_vocabulary(bad.fields()); }),
                  {"tokenizer.ggml.scores", "1 items for 3 tokens"});
}

}  // namespace
}  // namespace coppice
