#include "io/quantization_config.h"

#include "tests/io/support/files.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;

const char* const kInt4 = R"({"quantization_config":{"quant_method":"compressed-tensors",
  "format":"pack-quantized","config_groups":{"group_0":{"targets":["Linear"],
  "input_activations":null,"weights":{"num_bits":4,"type":"int","symmetric":true,
  "strategy":"group","group_size":32,"dynamic":false,"actorder":null}}}}})";

QuantizationConfig read(const std::string& text) {
  const Json document = parse_json(text, "config.json");
  return read_quantization_config(JsonField(document, "config.json"));
}

std::string refuse(const std::string& text) {
  const std::string message = error_of(ErrorKind::kUnsupported, [&] { read(text); });
  expect_contains(message, {"config.json", "instead"});
  return message;
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return text.replace(text.find(from), from.size(), to);
}

TEST(QuantizationConfig, KnownFormats) {
  EXPECT_EQ(read("{}").format, QuantizationFormat::kPlain);
  EXPECT_EQ(read(kInt4).format, QuantizationFormat::kPackQuantizedInt4);
  EXPECT_EQ(read(kInt4).group_size, 32);
  EXPECT_EQ(read("{\"text_config\":" + std::string(kInt4) + "}").format,
            QuantizationFormat::kPackQuantizedInt4);
  const QuantizationConfig fp8 = read(
      R"({"quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],
          "activation_scheme":"dynamic"}})");
  EXPECT_EQ(fp8.format, QuantizationFormat::kFp8Block);
  EXPECT_EQ(fp8.weight_block_size, (std::vector<std::int64_t>{128, 128}));
}

TEST(QuantizationConfig, OtherFormatsAreRefusedByName) {
  expect_contains(
      refuse(R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4"}})"),
      {"modelopt NVFP4", "moonshotai/Kimi-K2.6"});
  expect_contains(refuse(with(kInt4, "pack-quantized", "nvfp4-pack-quantized")),
                  {"nvfp4-pack-quantized"});
  for (const char* method : {"awq", "gptq", "bitsandbytes", "mxfp4", "x\\ny"})
    expect_contains(
        refuse(R"({"quantization_config":{"quant_method":")" + std::string(method) + "\"}}"),
        {"weights are not supported"});
  expect_contains(refuse(R"({"quantization_config":{"quant_method":"fp8"}})"), {"FP8 per-tensor"});
  expect_contains(
      refuse(R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[64,64]}})"),
      {"other than 128x128"});
}

TEST(QuantizationConfig, Int4VariantsAreRefusedByName) {
  for (const char* size : {"16", "64", "128", "0", "-1", "33"})
    expect_contains(refuse(with(kInt4, "\"group_size\":32", std::string("\"group_size\":") + size)),
                    {std::string("group size ") + size, "32 is supported"});
  expect_contains(refuse(with(kInt4, "\"num_bits\":4", "\"num_bits\":8")), {"8-bit int"});
  expect_contains(refuse(with(kInt4, "\"symmetric\":true", "\"symmetric\":false")), {"asymmetric"});
  expect_contains(refuse(with(kInt4, "\"strategy\":\"group\"", "\"strategy\":\"channel\"")),
                  {"channel-wise"});
  expect_contains(refuse(with(kInt4, "\"actorder\":null", "\"actorder\":\"group\"")),
                  {"activation-ordered"});
  expect_contains(refuse(with(kInt4, "\"input_activations\":null", "\"input_activations\":{}")),
                  {"activation-quantised"});
  expect_contains(error_of(ErrorKind::kBadFile,
                           [] { read(with(kInt4, "\"num_bits\":4", "\"num_bits\":\"4\"")); }),
                  {"config_groups.group_0.weights.num_bits", "expected an integer"});
}

TEST(QuantizationConfig, ModelOptFolder) {
  const test::TempDir dir;
  test::write_file(dir / "config.json", kInt4);
  EXPECT_EQ(read_quantization_config(dir.path()).format, QuantizationFormat::kPackQuantizedInt4);
  test::write_file(dir / "hf_quant_config.json", R"({"quantization":{"quant_algo":"NVFP4"}})");
  expect_contains(error_of(ErrorKind::kUnsupported, [&] { read_quantization_config(dir.path()); }),
                  {"hf_quant_config.json", "ModelOpt NVFP4"});
}

}  // namespace
}  // namespace coppice
