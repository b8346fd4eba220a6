#include "io/safetensors.h"

#include <numeric>

#include "io/safetensors_writer.h"
#include "tensor/buffer.h"
#include "tests/io/support/files.h"
#include "tests/io/support/write_safetensors.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;
using test::safetensors_bytes;
using test::TempDir;
using test::write_file;
using test::write_safetensors;

class Safetensors : public ::testing::Test {
 protected:
  std::string refuse_bytes(const std::string& bytes) {
    write_file(dir_ / "x.safetensors", bytes);
    const std::string message =
        error_of(ErrorKind::kBadFile, [&] { SafetensorsFile(dir_ / "x.safetensors"); });
    expect_contains(message, {(dir_ / "x.safetensors").string()});
    return message;
  }
  std::string refuse(const std::string& header, const std::string& data = "") {
    return refuse_bytes(safetensors_bytes(header, data));
  }
  // One tensor 'a' with this shape and these offsets over `data_bytes` of data.
  std::string refuse_tensor(const std::string& dtype, const std::string& shape,
                            const std::string& offsets, std::size_t data_bytes) {
    const std::string message = refuse(R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape +
                                           R"(,"data_offsets":)" + offsets + "}}",
                                       std::string(data_bytes, '\0'));
    return message;
  }
  SafetensorsFile accept(const std::string& header, const std::string& data = "") {
    write_file(dir_ / "x.safetensors", safetensors_bytes(header, data));
    return SafetensorsFile(dir_ / "x.safetensors");
  }

  TempDir dir_;
};

TEST_F(Safetensors, ReadsTensorsAndMetadata) {
  const SafetensorsFile file = accept(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},)"
      R"("e":{"dtype":"F32","shape":[0,5],"data_offsets":[16,16]}}   )",
      std::string(16, '\1'));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "b");
  EXPECT_EQ(file.tensors()[0].describe(), "BF16[2, 3]");
  EXPECT_EQ(file.tensors()[0].num_bytes, 12u);
  EXPECT_EQ(file.tensors()[1].num_elements(), 1);
  EXPECT_EQ(file.tensors()[2].num_bytes, 0u);
  EXPECT_EQ(file.metadata()[0].second, "pt");
  EXPECT_TRUE(accept("{}").tensors().empty());
}

TEST_F(Safetensors, ReadsEveryDtype) {
  const std::pair<const char*, int> cases[] = {
      {"F64", 64},    {"F32", 32}, {"F16", 16},    {"BF16", 16}, {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"I64", 64}, {"I32", 32},    {"I16", 16},  {"I8", 8},
      {"U64", 64},    {"U32", 32}, {"U16", 16},    {"U8", 8},    {"BOOL", 8},
      {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"C64", 64}};
  for (const auto& [name, bits] : cases) {
    const int bytes = bits;  // eight elements
    const SafetensorsFile file =
        accept(std::string(R"({"a":{"dtype":")") + name + R"(","shape":[8],"data_offsets":[0,)" +
                   std::to_string(bytes) + "]}}",
               std::string(static_cast<std::size_t>(bytes), '\0'));
    EXPECT_STREQ(name_of(file.tensors()[0].type), name);
  }
  expect_contains(refuse_tensor("Q4_0", "[32]", "[0,18]", 18), {"unknown dtype 'Q4_0'"});
  expect_contains(refuse_tensor("F4", "[3]", "[0,2]", 2), {"fills no whole bytes"});
}

TEST_F(Safetensors, RefusesBadHeaders) {
  expect_contains(refuse_bytes(""), {"an empty file"});
  expect_contains(refuse_bytes("abc"), {"only 3 bytes"});
  expect_contains(refuse_bytes("version https://git-lfs.github.com/spec/v1\noid"), {"LFS"});
  expect_contains(refuse_bytes("<!DOCTYPE html><html></html>"), {"HTML"});
  expect_contains(refuse_bytes(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)),
                  {"header length 100000001 is over the limit"});
  expect_contains(refuse_bytes(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)),
                  {"over the limit"});
  expect_contains(refuse_bytes(std::string("\x09\0\0\0\0\0\0\0{}", 10)), {"cut short"});
  expect_contains(refuse_bytes(std::string(8, '\0')), {"does not start with '{'"});
  expect_contains(refuse(" {}"), {"does not start with '{'"});
  expect_contains(refuse("[]"), {"does not start with '{'"});
  expect_contains(refuse("{} x"), {"header", "more text"});
  expect_contains(refuse("{"), {"ends early"});
  expect_contains(refuse(R"({"a":1})"), {"tensor 'a'", "an integer"});
  expect_contains(refuse(R"({"a":{}})"), {"tensor 'a'", "no dtype"});
  expect_contains(refuse(R"({"a":{"dtype":"U8"}})"), {"no shape"});
  expect_contains(refuse(R"({"a":{"dtype":"U8","shape":[0]}})"), {"no data_offsets"});
  expect_contains(refuse(R"({"__metadata__":{"a":1}})"), {"__metadata__.a is no string"});
  expect_contains(refuse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                         "x"),
                  {"duplicate key 'a'"});
}

TEST_F(Safetensors, RefusesBadShapesAndOffsets) {
  expect_contains(refuse_tensor("F32", "[-1]", "[0,4]", 4), {"tensor 'a'", "dimension -1"});
  expect_contains(refuse_tensor("F32", "[1.0]", "[0,4]", 4), {"dimension 1.0"});
  expect_contains(refuse_tensor("F32", "[\"1\"]", "[0,4]", 4), {"dimension"});
  expect_contains(refuse_tensor("F32", "[18446744073709551615]", "[0,4]", 4), {"dimension"});
  expect_contains(refuse_tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4), {"9 dimensions"});
  expect_contains(refuse_tensor("F32", "[2147483648,4294967296]", "[0,4]", 4), {"overflows"});
  expect_contains(refuse_tensor("U8", "[1099511627776,1099511627776]", "[0,4]", 4), {"overflows"});
  expect_contains(refuse_tensor("U8", "[1099511627776,1099511627776,0]", "[0,0]", 0),
                  {"overflows"});
  // Thirty shapes whose product does not fit, in every position of the large size.
  for (int shift = 33; shift < 63; ++shift) {
    const std::string size = std::to_string(std::int64_t{1} << shift);
    const std::string other = std::to_string(std::int64_t{1} << (63 - shift));
    expect_contains(refuse_tensor("U8", "[" + size + "," + other + "]", "[0,4]", 4), {"overflows"});
    expect_contains(refuse_tensor("F4", "[2," + other + "," + size + "]", "[0,4]", 4),
                    {"overflows"});
  }
  // The product wraps to 4 elements modulo 2^64.
  expect_contains(refuse_tensor("U8", "[4611686018427387905,4]", "[0,4]", 4), {"overflows"});
  expect_contains(refuse_tensor("F32", "[2]", "[0,4]", 4), {"needs 8 bytes", "give 4"});
  expect_contains(refuse_tensor("F32", "[1]", "[4,0]", 4), {"no range"});
  expect_contains(refuse_tensor("F32", "[1]", "[0]", 4), {"no range"});
  expect_contains(refuse_tensor("F32", "[1]", "[0,4,4]", 4), {"no range"});
  expect_contains(refuse_tensor("F32", "[1]", "[-4,0]", 4), {"no range"});
  expect_contains(refuse_tensor("F32", "[1]", "[0,4]", 3), {"ends at byte 4", "has 3"});
  expect_contains(refuse_tensor("F32", "[1]", "[0,4]", 5), {"1 bytes follow the last tensor"});
  expect_contains(refuse_tensor("F32", "[1]", "[1,5]", 5), {"a hole of 1 bytes"});
  expect_contains(refuse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                         "123456"),
                  {"tensor 'b'", "overlaps", "2 bytes"});
  expect_contains(refuse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                         "123"),
                  {"tensor 'b'", "a hole of 1 bytes"});
}

// Header sizes around the sizes in which readers like to read.
TEST_F(Safetensors, HeaderOfAnySizeLoads) {
  for (const std::size_t around : {4096u, 65536u, 100000u, 1048576u})
    for (std::size_t size = around - 9; size <= around + 9; ++size) {
      std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
      header.resize(size, ' ');
      EXPECT_EQ(accept(header, "1234").tensors()[0].offset, 8 + size);
    }
}

TEST_F(Safetensors, MessagesStayOnOneLine) {
  const std::string message = refuse("{\"x\\ny\\u0007" + std::string(5000, 'z') + "\":1}");
  EXPECT_LT(message.size(), 500u);
  expect_contains(message, {"'x?y?zz", "...'"});
}

TEST_F(Safetensors, WriterRoundTrips) {
  Buffer storage = Buffer::host(64);
  const Tensor words = storage.tensor(DType::kI32, {2, 3});
  std::iota(words.data<std::int32_t>(), words.data<std::int32_t>() + 6, 7);
  const Tensor halves = storage.tensor(DType::kBF16, {3}, 32);
  write_safetensors(dir_ / "w.safetensors", {{"h", halves}, {"w\"\n", words}}, {{"k", "v"}});
  const SafetensorsFile file(dir_ / "w.safetensors");
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "w\"\n");  // wide types first
  EXPECT_EQ(file.tensors()[0].offset % 64, 0u);
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file.file().bytes().data() + file.tensors()[0].offset, words.raw(), 24), 0);
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"k", "v"}}));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "w.safetensors.part"));
}

TEST_F(Safetensors, UnfinishedWriteLeavesNothing) {
  { SafetensorsWriter writer(dir_ / "p.safetensors", {{"a", StorageType::kU8, {3}}}); }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "p.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "p.safetensors.part"));
  expect_contains(error_of(ErrorKind::kUnavailable,
                           [&] { SafetensorsWriter(dir_ / "none/p.safetensors", {}); }),
                  {"none/p.safetensors.part: cannot create"});
}

}  // namespace
}  // namespace coppice
