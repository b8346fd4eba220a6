#include "io/weight_rows.h"

namespace coppice {
namespace {

constexpr std::int64_t kFp8Block = 128;

std::int64_t num_blocks(std::int64_t size) {
  return (size + kFp8Block - 1) / kFp8Block;
}

template <typename T>
void convert(const T* values, std::span<float> out) {
  for (std::size_t j = 0; j < out.size(); ++j) out[j] = to_float(values[j]);
}

}  // namespace

WeightRows::WeightRows(const Checkpoint& checkpoint, const TensorInfo& info)
    : values_(checkpoint.tensor(info)) {
  if (info.shape.size() != 2)
    checkpoint.fail(info, "is " + info.describe() + ", expected two dimensions");
  switch (info.type) {
    case StorageType::kF32:
    case StorageType::kF16:
    case StorageType::kBF16:
      return;
    case StorageType::kF8E4M3:
      scale_inv_ = checkpoint.tensor(info.name + "_scale_inv", DType::kF32,
                                     {num_blocks(num_rows()), num_blocks(num_cols())});
      return;
    default:
      checkpoint.fail(info, "is " + info.describe() + ", not a floating-point weight",
                      ErrorKind::kUnsupported);
  }
}

void WeightRows::read(std::int64_t row, std::span<float> out) const {
  COPPICE_CHECK_EQ(static_cast<std::int64_t>(out.size()), num_cols());
  switch (values_.dtype()) {
    case DType::kF16:
      return convert(values_.row<f16>(row), out);
    case DType::kBF16:
      return convert(values_.row<bf16>(row), out);
    case DType::kF8E4M3: {
      const float* scales = scale_inv_.row<float>(row / kFp8Block);
      const auto* bytes = static_cast<const std::uint8_t*>(values_.raw()) + row * num_cols();
      for (std::size_t j = 0; j < out.size(); ++j)
        out[j] = f8e4m3_to_float(bytes[j]) * scales[j / kFp8Block];
      return;
    }
    default:
      std::copy_n(values_.row<float>(row), out.size(), out.data());
  }
}

}  // namespace coppice
