#include "model/checkpoint_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/dequantize.h"
#include "base/log.h"
#include "model/host_matrix.h"

namespace coppice {
namespace {

constexpr std::int64_t kGroup = 32;
constexpr std::int64_t kF8Block = 128;

std::optional<WeightFormat> direct_format(StorageType type) {
  switch (type) {
    case StorageType::kF32:
      return WeightFormat::kF32;
    case StorageType::kF16:
      return WeightFormat::kF16;
    case StorageType::kBF16:
      return WeightFormat::kBF16;
    case StorageType::kQ4_0:
      return WeightFormat::kQ4_0;
    case StorageType::kQ4_1:
      return WeightFormat::kQ4_1;
    case StorageType::kQ8_0:
      return WeightFormat::kQ8_0;
    default:
      return std::nullopt;
  }
}

void check_tensor(const Checkpoint& checkpoint, const TensorInfo& info, StorageType type,
                  std::vector<std::int64_t> shape) {
  if (info.type == type && info.shape == shape) return;
  const TensorInfo expected{.name = {}, .type = type, .shape = std::move(shape)};
  checkpoint.fail(info, "is " + info.describe() + ", expected " + expected.describe());
}

void check_shape(const Checkpoint& checkpoint, const TensorInfo& info,
                 std::vector<std::int64_t> shape) {
  check_tensor(checkpoint, info, info.type, std::move(shape));
}

bool starts_with_any(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::ranges::any_of(prefixes,
                             [&](const std::string& prefix) { return name.starts_with(prefix); });
}

}  // namespace

CheckpointNaming safetensors_naming(const std::string& prefix) {
  return {.name_in_file = [prefix](const std::string& name) { return prefix + name; },
          .ignored_prefixes = {"vision_tower.", "mm_projector."}};
}

CheckpointSource::CheckpointSource(const Checkpoint& checkpoint, CheckpointNaming naming)
    : checkpoint_(checkpoint), naming_(std::move(naming)) {}

bool CheckpointSource::has(const std::string& name) const {
  return checkpoint_.contains(naming_.name_in_file(name));
}

const TensorInfo& CheckpointSource::find(const std::string& name) {
  const TensorInfo& info = checkpoint_.at(naming_.name_in_file(name));
  used_.insert(&info);
  return info;
}

const std::byte* CheckpointSource::data_of(const TensorInfo& info) {
  open_.push_back(&info);
  // A view through tensor() is aligned; blocks are read bytewise and need no alignment.
  if (traits_of(info.type).dtype)
    return static_cast<const std::byte*>(checkpoint_.tensor(info).raw());
  return checkpoint_.bytes(info).data();
}

std::span<const std::byte> CheckpointSource::bytes_of(const TensorInfo& info) {
  open_.push_back(&info);
  return checkpoint_.bytes(info);
}

std::size_t CheckpointSource::check(const WeightSpec& spec) {
  if (spec.cols > 0) return num_bytes(describe_matrix(spec));
  const TensorInfo& info = find(spec.name);
  const std::optional<WeightFormat> format = direct_format(info.type);
  if (!format || !is_plain(*format))
    checkpoint_.fail(info, "is " + info.describe() + ", expected BF16, F16 or F32");
  check_shape(checkpoint_, info, {spec.rows});
  return static_cast<std::size_t>(spec.rows) * sizeof(float);
}

// The format and the scales' shape are told by the tensors that are there, not by the config.
HostMatrix CheckpointSource::describe_matrix(const WeightSpec& spec) {
  if (has(spec.name + ".weight_packed")) return describe_int4(spec);
  const TensorInfo& info = find(spec.name + ".weight");
  check_shape(checkpoint_, info, {spec.rows, spec.cols});
  if (info.type == StorageType::kF8E4M3) return describe_f8(spec, info);
  const std::optional<WeightFormat> format = direct_format(info.type);
  if (!format)
    checkpoint_.fail(info, std::string(name_of(info.type)) + " weights are not supported",
                     ErrorKind::kUnsupported);
  return {.format = *format, .rows = spec.rows, .cols = spec.cols};
}

HostMatrix CheckpointSource::describe_int4(const WeightSpec& spec) {
  const TensorInfo& packed = find(spec.name + ".weight_packed");
  if (spec.cols % kGroup != 0)
    checkpoint_.fail(
        packed, "has " + std::to_string(spec.cols) + " columns, which are no whole groups of 32");
  constexpr std::int64_t kValuesPerWord = 8;
  check_tensor(checkpoint_, packed, StorageType::kI32, {spec.rows, spec.cols / kValuesPerWord});
  check_tensor(checkpoint_, find(spec.name + ".weight_scale"), StorageType::kBF16,
               {spec.rows, spec.cols / kGroup});
  if (has(spec.name + ".weight_shape")) {
    const TensorInfo& shape = find(spec.name + ".weight_shape");
    if (shape.type != StorageType::kI64 && shape.type != StorageType::kI32)
      checkpoint_.fail(shape, "is " + shape.describe() + ", expected I32[2] or I64[2]");
    check_shape(checkpoint_, shape, {2});
  }
  if (has(spec.name + ".weight_zero_point") || has(spec.name + ".weight_g_idx"))
    checkpoint_.fail(packed, "asymmetric or activation-ordered INT4 is not supported",
                     ErrorKind::kUnsupported);
  return {.format = WeightFormat::kInt4Group32, .rows = spec.rows, .cols = spec.cols};
}

HostMatrix CheckpointSource::describe_f8(const WeightSpec& spec, const TensorInfo& info) {
  if (!has(spec.name + ".weight_scale_inv"))
    checkpoint_.fail(info, "is F8_E4M3, but '" + naming_.name_in_file(spec.name) +
                               ".weight_scale_inv' is missing");
  check_tensor(checkpoint_, find(spec.name + ".weight_scale_inv"), StorageType::kF32,
               {(spec.rows + kF8Block - 1) / kF8Block, (spec.cols + kF8Block - 1) / kF8Block});
  return {.format = WeightFormat::kF8Block128, .rows = spec.rows, .cols = spec.cols};
}

// Scales that were never filled, or are damaged, would otherwise give plausible garbage.
void CheckpointSource::check_int4_scales(const WeightSpec& spec) {
  const TensorInfo& info = find(spec.name + ".weight_scale");
  const bf16* scales = checkpoint_.tensor(info).data<bf16>();
  const std::int64_t per_row = spec.cols / kGroup;
  constexpr std::uint16_t kInfinity = 0x7f80;
  for (std::int64_t row = 0; row < spec.rows; ++row) {
    std::uint16_t any = 0;
    for (std::int64_t group = 0; group < per_row; ++group) {
      const std::uint16_t bits = scales[row * per_row + group].bits;
      any |= bits;
      if (bits >= kInfinity)  // the sign bit too: negative values compare greater
        checkpoint_.fail(info, "scale [" + std::to_string(row) + ", " + std::to_string(group) +
                                   "] is negative or not finite");
    }
    if (any == 0) checkpoint_.fail(info, "row " + std::to_string(row) + " is all zero");
  }
}

HostMatrix CheckpointSource::matrix(const WeightSpec& spec) {
  HostMatrix matrix = describe_matrix(spec);
  if (matrix.format == WeightFormat::kInt4Group32) {
    check_int4_scales(spec);
    matrix.data = data_of(find(spec.name + ".weight_packed"));
    matrix.scales = data_of(find(spec.name + ".weight_scale"));
    if (!has(spec.name + ".weight_shape")) return matrix;
    const TensorInfo& info = find(spec.name + ".weight_shape");
    const Tensor shape = checkpoint_.tensor(info);
    for (const int i : {0, 1}) {
      const std::int64_t stated = info.type == StorageType::kI64
                                      ? shape.data<std::int64_t>()[i]
                                      : std::int64_t{shape.data<std::int32_t>()[i]};
      const std::int64_t expected = i == 0 ? spec.rows : spec.cols;
      if (stated != expected)
        checkpoint_.fail(
            info, "says " + std::to_string(stated) + ", expected " + std::to_string(expected));
    }
    return matrix;
  }
  matrix.data = data_of(find(spec.name + ".weight"));
  if (matrix.format == WeightFormat::kF8Block128)
    matrix.scales = data_of(find(spec.name + ".weight_scale_inv"));
  return matrix;
}

std::vector<float> CheckpointSource::vector(const WeightSpec& spec) {
  check(spec);
  const TensorInfo& info = find(spec.name);
  const HostMatrix row{
      .format = *direct_format(info.type), .rows = 1, .cols = spec.rows, .data = data_of(info)};
  std::vector<float> values(static_cast<std::size_t>(spec.rows));
  dequantize_row(row, 0, values.data());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      checkpoint_.fail(info, "value " + std::to_string(i) + " is not finite");
  return values;
}

void CheckpointSource::check_unused() {
  std::int64_t count = 0;
  const TensorInfo* first = nullptr;
  for (const TensorInfo& info : checkpoint_.tensors()) {
    if (used_.contains(&info) || starts_with_any(info.name, naming_.ignored_prefixes) ||
        info.name.ends_with("rotary_emb.inv_freq"))
      continue;
    if (count++ == 0) first = &info;
  }
  if (count == 0) return;
  if (naming_.refuse_unused)
    checkpoint_.fail(*first, "is part of a variant that is not supported", ErrorKind::kUnsupported);
  log_warning(printable(checkpoint_.path().string()) + ": " + std::to_string(count) +
              " tensors are not used, the first is '" + printable(first->name) + "'");
}

void CheckpointSource::release() {
  for (const TensorInfo* info : open_) checkpoint_.dont_need(*info);
  open_.clear();
}

}  // namespace coppice
