// How a checkpoint's weights are stored, from `quantization_config` of its config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/json_field.h"

namespace coppice {

enum class QuantizationFormat {
  kPlain,              // BF16, F16 or F32
  kPackQuantizedInt4,  // compressed-tensors pack-quantized: 4-bit symmetric groups
  kFp8Block,           // DeepSeek-V3: F8_E4M3 with one F32 scale per block
};
const char* name_of(QuantizationFormat format);

struct QuantizationConfig {
  QuantizationFormat format = QuantizationFormat::kPlain;
  std::int64_t group_size = 0;                       // kPackQuantizedInt4: 32
  std::vector<std::int64_t> weight_block_size = {};  // kFp8Block: [128, 128]
};

// Reads `quantization_config` (or `compression_config`) of `config` or of its `text_config`. Which
// tensors are quantised is told by their presence in the file, not by the ignore list. A format
// that Coppice does not run throws kUnsupported "SOURCE: ...", naming it and what to get instead.
QuantizationConfig read_quantization_config(const JsonField& config);

// The same for a model folder: reads config.json, and refuses a folder whose hf_quant_config.json
// (ModelOpt) declares another format.
QuantizationConfig read_quantization_config(const std::filesystem::path& directory);

}  // namespace coppice
