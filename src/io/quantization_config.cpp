#include "io/quantization_config.h"

#include "io/mapped_file.h"

namespace coppice {
namespace {

constexpr const char* kInstead =
    "; get the INT4 (compressed-tensors pack-quantized, group 32), FP8 block 128x128 or BF16 "
    "version instead, for Kimi-K2 models moonshotai/Kimi-K2.6";

[[noreturn]] void unsupported(const JsonField& field, const std::string& format) {
  const std::string where = field.path().empty() ? "" : ": field '" + field.path() + "'";
  throw Error(ErrorKind::kUnsupported,
              field.source() + where + ": " + format + " weights are not supported" + kInstead);
}

QuantizationConfig read_compressed_tensors(const JsonField& quantization) {
  const std::string format = quantization.get<std::string>("format");
  if (format != "pack-quantized") unsupported(quantization, printable(format));
  const auto groups = quantization.at("config_groups").members();
  if (groups.size() != 1) quantization.at("config_groups").fail("expected one group");
  const JsonField& group = groups[0].second;
  if (group.has("input_activations")) unsupported(group, "activation-quantised");
  const JsonField weights = group.at("weights");
  const auto bits = weights.get<std::int64_t>("num_bits");
  const std::string type = weights.get<std::string>("type", "int");
  if (bits != 4 || type != "int")
    unsupported(weights, std::to_string(bits) + "-bit " + printable(type));
  if (!weights.get<bool>("symmetric", true)) unsupported(weights, "asymmetric INT4");
  const std::string strategy = weights.get<std::string>("strategy", "group");
  if (strategy != "group") unsupported(weights, printable(strategy) + "-wise INT4");
  if (weights.value().find("actorder") != nullptr && weights.has("actorder") &&
      weights.at("actorder").value() != Json(false))
    unsupported(weights, "activation-ordered INT4");
  const auto group_size = weights.get<std::int64_t>("group_size");
  if (group_size != 32)
    unsupported(weights, "INT4 group size " + std::to_string(group_size) + " (32 is supported)");
  return {.format = QuantizationFormat::kPackQuantizedInt4, .group_size = group_size};
}

QuantizationConfig read_fp8(const JsonField& quantization) {
  const std::string fmt = quantization.get<std::string>("fmt", "e4m3");
  if (fmt != "e4m3") unsupported(quantization, "FP8 " + printable(fmt));
  if (!quantization.has("weight_block_size")) unsupported(quantization, "FP8 per-tensor");
  auto block = quantization.get<std::vector<std::int64_t>>("weight_block_size");
  if (block != std::vector<std::int64_t>{128, 128})
    unsupported(quantization.at("weight_block_size"), "FP8 in blocks other than 128x128");
  return {.format = QuantizationFormat::kFp8Block, .weight_block_size = std::move(block)};
}

}  // namespace

const char* name_of(QuantizationFormat format) {
  switch (format) {
    case QuantizationFormat::kPlain:
      return "not quantised";
    case QuantizationFormat::kPackQuantizedInt4:
      return "INT4 group 32 (compressed-tensors pack-quantized)";
    case QuantizationFormat::kFp8Block:
      return "FP8 E4M3 block 128x128";
  }
  return "?";
}

QuantizationConfig read_quantization_config(const JsonField& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto quantization = config.find(key);
    if (!quantization) continue;
    const std::string method = quantization->get<std::string>("quant_method", "compressed-tensors");
    if (method == "compressed-tensors") return read_compressed_tensors(*quantization);
    if (method == "fp8") return read_fp8(*quantization);
    std::string algorithm = quantization->get<std::string>("quant_algo", "");
    if (!algorithm.empty()) algorithm = " " + algorithm;
    unsupported(*quantization, printable(method + algorithm));
  }
  if (const auto text_config = config.find("text_config"))
    return read_quantization_config(*text_config);
  return {};
}

QuantizationConfig read_quantization_config(const std::filesystem::path& directory) {
  const std::filesystem::path model_opt = directory / "hf_quant_config.json";
  if (std::filesystem::exists(model_opt)) {
    const Json document = read_json_file(model_opt);
    const JsonField root(document, printable(model_opt.string()));
    std::string algorithm = "ModelOpt";
    if (const auto quantization = root.find("quantization"))
      algorithm += " " + printable(quantization->get<std::string>("quant_algo", ""));
    unsupported(root, algorithm);
  }
  const std::filesystem::path path = directory / "config.json";
  const Json document = read_json_file(path);
  return read_quantization_config(JsonField(document, printable(path.string())));
}

}  // namespace coppice
