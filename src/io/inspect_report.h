// What is in a checkpoint: architecture, sizes by part, storage types, faults. The text and JSON of
// `coppice inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/format_check.h"
#include "io/json.h"
#include "io/quantization_config.h"

namespace coppice {

// The parts of a network in the order they are listed.
enum class ModelPart {
  kEmbedding,
  kAttention,
  kRouter,
  kRoutedExperts,
  kSharedExperts,
  kDenseMlp,
  kNorms,
  kLmHead,
  kVision,
  kOther,
};
inline constexpr std::size_t kNumModelParts = 10;
const char* name_of(ModelPart part);
// By name, for Hugging Face and GGUF spellings.
ModelPart part_of(std::string_view tensor_name);

struct PartSize {
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;  // weights; scales and shapes of quantised weights do not count
  std::uint64_t bytes = 0;
};

struct InspectReport {
  std::string path;
  std::string architecture;  // "KimiK25ForConditionalGeneration (kimi_k2)"
  // Name and value of the sizes worth seeing, e.g. {"layers", "61"}.
  std::vector<std::pair<std::string, std::string>> facts;
  std::string quantization;
  std::size_t files = 0;
  std::int64_t unlisted_tensors = 0;
  PartSize total;
  std::vector<PartSize> parts;              // [kNumModelParts]
  std::map<std::string, PartSize> by_type;  // "BF16" ...
  std::vector<TensorInfo> tensors;          // for the list
  std::vector<FormatFault> faults;
};

// Opens the checkpoint at `path` and reports on it. Faults of single tensors are collected; a
// checkpoint that cannot be opened, or a format that is not run, throws Error.
InspectReport inspect_checkpoint(const std::filesystem::path& path,
                                 const CheckpointOptions& open_options = {},
                                 const FormatCheckOptions& check_options = {});

// Several lines, ending in a newline; with `list_tensors` one more line per tensor.
std::string format_report(const InspectReport& report, bool list_tensors);
Json report_as_json(const InspectReport& report, bool list_tensors);

// "554.27 GB" (powers of 1000), for reports.
std::string format_bytes(std::uint64_t bytes);

}  // namespace coppice
