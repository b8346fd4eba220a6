#include "io/format_check.h"

#include "io/completeness.h"
#include "io/value_check.h"

namespace coppice {
namespace {

constexpr std::string_view kPacked = ".weight_packed";
constexpr std::string_view kScale = ".weight_scale";
constexpr std::string_view kShape = ".weight_shape";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kScaleInv = ".weight_scale_inv";

// `name` with `suffix` replaced; empty when it does not end so.
std::string replaced(const std::string& name, std::string_view suffix, std::string_view by) {
  if (!name.ends_with(suffix)) return {};
  return name.substr(0, name.size() - suffix.size()) + std::string(by);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::string shape_text(std::int64_t rows, std::int64_t cols) {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

class Checker {
 public:
  Checker(const Checkpoint& checkpoint, const QuantizationConfig& quantization)
      : checkpoint_(checkpoint), quantization_(quantization) {}

  // Throws the Error of a fault of this tensor.
  void check(const TensorInfo& info) const {
    if (info.name.ends_with(kPacked)) check_int4(info);
    if (info.name.ends_with(kScale)) require(info, replaced(info.name, kScale, kPacked));
    if (info.name.ends_with(kShape)) require(info, replaced(info.name, kShape, kPacked));
    if (info.name.ends_with(kScaleInv)) require(info, replaced(info.name, kScaleInv, kWeight));
    if (info.type == StorageType::kF8E4M3 && info.name.ends_with(kWeight)) check_fp8(info);
  }

 private:
  const TensorInfo& require(const TensorInfo& info, const std::string& partner) const {
    const TensorInfo* found = checkpoint_.find(partner);
    if (found == nullptr) checkpoint_.fail(info, "'" + printable(partner) + "' is missing");
    return *found;
  }

  void check_int4(const TensorInfo& packed) const {
    const TensorInfo& scale = require(packed, replaced(packed.name, kPacked, kScale));
    const TensorInfo& shape = require(packed, replaced(packed.name, kPacked, kShape));
    if (quantization_.format != QuantizationFormat::kPackQuantizedInt4)
      checkpoint_.fail(packed, "packed weights, but config.json declares none");
    if (packed.type != StorageType::kI32 || packed.shape.size() != 2)
      checkpoint_.fail(packed, "is " + packed.describe() + ", expected I32[rows, columns / 8]");
    const auto [rows, cols] = read_weight_shape(shape);
    if (packed.shape[0] != rows || packed.shape[1] != ceil_div(cols, 8))
      checkpoint_.fail(
          packed, "is " + packed.describe() + ", but weight_shape says " + shape_text(rows, cols));
    const std::int64_t group_size = quantization_.group_size;
    if (scale.type != StorageType::kBF16 || scale.shape.size() != 2 || scale.shape[0] != rows ||
        scale.shape[1] != ceil_div(cols, group_size))
      checkpoint_.fail(scale, "is " + scale.describe() + ", but " + shape_text(rows, cols) +
                                  " in groups of " + std::to_string(group_size) + " needs BF16" +
                                  shape_text(rows, ceil_div(cols, group_size)));
  }

  std::pair<std::int64_t, std::int64_t> read_weight_shape(const TensorInfo& info) const {
    const bool wide = info.type == StorageType::kI64;
    if ((!wide && info.type != StorageType::kI32) || info.num_elements() != 2)
      checkpoint_.fail(info, "is " + info.describe() + ", expected I32[2]");
    const Tensor values = checkpoint_.tensor(info);
    const auto at = [&](int i) {
      return wide ? values.data<std::int64_t>()[i] : std::int64_t{values.data<std::int32_t>()[i]};
    };
    constexpr std::int64_t kMax = std::int64_t{1} << 40;
    if (at(0) < 1 || at(1) < 1 || at(0) > kMax || at(1) > kMax)
      checkpoint_.fail(info, "holds " + shape_text(at(0), at(1)) + ", which is no shape");
    return {at(0), at(1)};
  }

  void check_fp8(const TensorInfo& weight) const {
    const TensorInfo& scale = require(weight, weight.name + "_scale_inv");
    if (quantization_.format != QuantizationFormat::kFp8Block)
      checkpoint_.fail(weight, "FP8 weights, but config.json declares none");
    const std::int64_t block_rows = quantization_.weight_block_size[0];
    const std::int64_t block_cols = quantization_.weight_block_size[1];
    if (weight.shape.size() != 2)
      checkpoint_.fail(weight, "is " + weight.describe() + ", expected two dimensions");
    const std::int64_t rows = ceil_div(weight.shape[0], block_rows);
    const std::int64_t cols = ceil_div(weight.shape[1], block_cols);
    if (scale.type != StorageType::kF32 || scale.shape != std::vector<std::int64_t>{rows, cols})
      checkpoint_.fail(scale, "is " + scale.describe() + ", but " + weight.describe() +
                                  " in blocks of 128x128 needs F32" + shape_text(rows, cols));
  }

  const Checkpoint& checkpoint_;
  const QuantizationConfig& quantization_;
};

}  // namespace

std::vector<FormatFault> check_format(const Checkpoint& checkpoint, const JsonField* config,
                                      const QuantizationConfig& quantization,
                                      const FormatCheckOptions& options) {
  std::vector<FormatFault> faults;
  const auto collect = [&](auto&& check) {
    if (faults.size() >= options.max_faults) return;
    try {
      check();
    } catch (const Error& error) {
      faults.push_back({error.kind(), error.what()});
    }
  };
  if (config != nullptr)
    for (const std::string& name : missing_tensors(checkpoint, *config, options.max_faults))
      collect([&] { checkpoint.at(name); });
  const Checker checker(checkpoint, quantization);
  for (const TensorInfo& info : checkpoint.tensors()) collect([&] { checker.check(info); });
  if (!options.values) return faults;
  const auto total = static_cast<std::int64_t>(checkpoint.total_bytes());
  std::int64_t done = 0;
  for (const TensorInfo& info : checkpoint.tensors()) {
    collect([&] { check_values(checkpoint, info); });
    done += static_cast<std::int64_t>(info.num_bytes);
    if (options.progress) options.progress(done, total);
  }
  return faults;
}

}  // namespace coppice
