// Faults of a checkpoint that its headers alone do not show: quantised weights without their
// scales, shapes that disagree, missing layers or experts, and (when asked) values that are no
// numbers.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/json_field.h"
#include "io/quantization_config.h"

namespace coppice {

struct FormatFault {
  ErrorKind kind;
  std::string message;  // one line: file, tensor, cause
};

struct FormatCheckOptions {
  bool values = false;             // read all floating-point data: NaN, infinity, bad scales
  std::size_t max_faults = 100;    // stop after so many
  ProgressCallback progress = {};  // bytes read, of all to read
};

// `config` is config.json, or nullptr when there is none (GGUF): layers and experts are then not
// counted. Faults come in the order of the tensors.
std::vector<FormatFault> check_format(const Checkpoint& checkpoint, const JsonField* config,
                                      const QuantizationConfig& quantization,
                                      const FormatCheckOptions& options = {});

}  // namespace coppice
