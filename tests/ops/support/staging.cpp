#include "tests/ops/support/staging.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>

#include "base/half.h"
#include "base/rng.h"

namespace coppice::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kWild = -123456789;  // an int output that nothing wrote

std::uint32_t bits_at(std::uint32_t stream, std::int64_t row, std::int64_t column) {
  return philox4x32(
      {static_cast<std::uint32_t>(column), static_cast<std::uint32_t>(row), stream, 7}, 42)[0];
}

std::vector<std::uint8_t> encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::uint8_t> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[4 * i], &values[i], 4);
    } else if (dtype == DType::kI32) {
      const auto integer = static_cast<std::int32_t>(values[i]);
      std::memcpy(&bytes[4 * i], &integer, 4);
    } else {
      COPPICE_CHECK(dtype == DType::kBF16);
      const bf16 half = to_bf16(values[i]);
      std::memcpy(&bytes[2 * i], &half, 2);
    }
  }
  return bytes;
}

std::int64_t product(std::initializer_list<std::int64_t> shape) {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  return size;
}

Tensor shaped(const Buffer& buffer, DType dtype, std::int64_t rows,
              std::initializer_list<std::int64_t> inner) {
  const std::int64_t* const i = inner.begin();
  switch (inner.size()) {
    case 0:
      return buffer.tensor(dtype, {rows});
    case 1:
      return buffer.tensor(dtype, {rows, i[0]});
    default:
      return buffer.tensor(dtype, {rows, i[0], i[1]});
  }
}

}  // namespace

float noise(std::uint32_t stream, std::int64_t row, std::int64_t column) {
  const float value = 2 * uniform_open(bits_at(stream, row, column)) - 1;
  return to_float(to_bf16(value));
}

Tensor Staging::upload(DType dtype, std::initializer_list<std::int64_t> shape,
                       const std::vector<float>& values) {
  COPPICE_CHECK_EQ(product(shape), static_cast<std::int64_t>(values.size()));
  const std::vector<std::uint8_t> bytes = encode(dtype, values);
  buffers_.push_back(backend_.allocate(bytes.size()));
  const Tensor tensor = buffers_.back().tensor(dtype, shape);
  backend_.upload(tensor, bytes.data());
  return tensor;
}

Tensor Staging::ints(std::initializer_list<std::int64_t> shape,
                     const std::vector<std::int32_t>& values) {
  return upload(DType::kI32, shape, {values.begin(), values.end()});
}
Tensor Staging::f32(std::initializer_list<std::int64_t> shape, const std::vector<float>& values) {
  return upload(DType::kF32, shape, values);
}
Tensor Staging::act(std::initializer_list<std::int64_t> shape, const std::vector<float>& values) {
  return upload(backend_.activation_dtype(), shape, values);
}
Tensor Staging::kv(std::initializer_list<std::int64_t> shape, const std::vector<float>& values) {
  return upload(backend_.kv_dtype(), shape, values);
}

Tensor Staging::act_rows(std::uint32_t stream, const std::vector<std::int64_t>& rows,
                         std::initializer_list<std::int64_t> inner, float scale) {
  const std::int64_t size = product(inner);
  std::vector<float> values;
  values.reserve(rows.size() * static_cast<std::size_t>(size));
  for (const std::int64_t id : rows)
    for (std::int64_t i = 0; i < size; ++i)
      values.push_back(id == kPadding ? kNan : scale * noise(stream, id, i));
  const Tensor flat = act({static_cast<std::int64_t>(rows.size()), size}, values);
  return shaped(buffers_.back(), flat.dtype(), flat.shape(0), inner);
}

Tensor Staging::output(DType dtype, std::int64_t rows, std::initializer_list<std::int64_t> inner) {
  const std::int64_t size = product(inner);
  const float fill = dtype == DType::kI32 ? static_cast<float>(kWild) : kNan;
  upload(dtype, {rows + 1, size},
         std::vector<float>(static_cast<std::size_t>((rows + 1) * size), fill));
  return shaped(buffers_.back(), dtype, rows, inner);
}

Tensor Staging::act_out(std::int64_t rows, std::initializer_list<std::int64_t> inner) {
  return output(backend_.activation_dtype(), rows, inner);
}
Tensor Staging::f32_out(std::int64_t rows, std::initializer_list<std::int64_t> inner) {
  return output(DType::kF32, rows, inner);
}
Tensor Staging::int_out(std::int64_t rows, std::initializer_list<std::int64_t> inner) {
  return output(DType::kI32, rows, inner);
}

std::vector<float> Staging::read(const Tensor& tensor) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.num_bytes()));
  backend_.download(bytes.data(), tensor);
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype() == DType::kF32) {
      std::memcpy(&values[i], &bytes[4 * i], 4);
    } else if (tensor.dtype() == DType::kI32) {
      std::int32_t integer = 0;
      std::memcpy(&integer, &bytes[4 * i], 4);
      values[i] = static_cast<float>(integer);
    } else {
      bf16 half;
      std::memcpy(&half, &bytes[2 * i], 2);
      values[i] = to_float(half);
    }
  }
  return values;
}

void Staging::collect(const Tensor& tensor, const std::vector<std::int64_t>& rows,
                      RowResults& results) {
  const std::int64_t size = tensor.row_size(), count = tensor.shape(0);
  COPPICE_CHECK_EQ(count, static_cast<std::int64_t>(rows.size()));
  // The guard row lies right behind the view.
  const Tensor all(tensor.raw(), tensor.dtype(), {count + 1, size}, tensor.device());
  const std::vector<float> values = read(all);
  for (std::int64_t i = 0; i < size; ++i) {
    const float guard = values[static_cast<std::size_t>(count * size + i)];
    COPPICE_CHECK(std::isnan(guard) || guard == static_cast<float>(kWild), "row ", count,
                  " of the output was written: ", guard);
  }
  results.resize(rows.size());
  for (std::int64_t row = 0; row < count; ++row) {
    if (rows[static_cast<std::size_t>(row)] == kPadding) continue;
    const auto begin = values.begin() + row * size;
    auto& result = results[static_cast<std::size_t>(row)];
    result.insert(result.end(), begin, begin + size);
  }
}

RandomMatrix::RandomMatrix(WeightFormat format_in, std::int64_t rows_in, std::int64_t cols_in,
                           std::uint32_t stream)
    : format(format_in), rows(rows_in), cols(cols_in) {
  const float size = 1.0f / std::sqrt(static_cast<float>(cols));
  const auto put = [](std::vector<std::uint8_t>& to, const auto& value) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&value);
    to.insert(to.end(), bytes, bytes + sizeof value);
  };
  // Scales vary by row and group so that a wrong one shows.
  const auto scale_at = [&](std::int64_t row, std::int64_t group) {
    return size * (0.75f + 0.25f * noise(stream + 1, row, group));
  };
  const auto random_bytes = [&](std::int64_t row, std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      data.push_back(static_cast<std::uint8_t>(bits_at(stream, row, first + i) >> 13));
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    switch (format) {
      case WeightFormat::kF32:
        for (std::int64_t c = 0; c < cols; ++c) put(data, size * noise(stream, r, c) * 1.0001f);
        break;
      case WeightFormat::kF16:
        for (std::int64_t c = 0; c < cols; ++c) put(data, to_f16(size * noise(stream, r, c)));
        break;
      case WeightFormat::kBF16:
        for (std::int64_t c = 0; c < cols; ++c) put(data, to_bf16(size * noise(stream, r, c)));
        break;
      case WeightFormat::kF8Block128:
        for (std::int64_t c = 0; c < cols; ++c) {
          const std::uint32_t bits = bits_at(stream, r, c) >> 9;
          // Magnitudes up to 2, so that no NaN code occurs.
          data.push_back(static_cast<std::uint8_t>((bits & 0x80u) | (bits % 0x40u)));
        }
        if (r % 128 == 0)
          for (std::int64_t g = 0; g * 128 < cols; ++g) put(scales, scale_at(r, g));
        break;
      case WeightFormat::kInt4Group32:
        random_bytes(r, 0, cols / 2);
        for (std::int64_t g = 0; g < cols / 32; ++g) put(scales, to_bf16(scale_at(r, g) / 8));
        break;
      case WeightFormat::kQ4_0:
      case WeightFormat::kQ4_1:
        for (std::int64_t g = 0; g < cols / 32; ++g) {
          put(data, to_f16(scale_at(r, g) / 8));
          if (format == WeightFormat::kQ4_1) put(data, to_f16(-scale_at(r, g + 1000)));
          random_bytes(r, g * 16, 16);
        }
        break;
      case WeightFormat::kQ8_0:
        for (std::int64_t g = 0; g < cols / 32; ++g) {
          put(data, to_f16(scale_at(r, g) / 128));
          random_bytes(r, g * 32, 32);
        }
        break;
    }
  }
}

HostMatrix RandomMatrix::view() const {
  return {.format = format,
          .rows = rows,
          .cols = cols,
          .data = data.data(),
          .scales = scales.empty() ? nullptr : scales.data()};
}

const RandomMatrix& random_matrix(WeightFormat format, std::int64_t rows, std::int64_t cols,
                                  std::uint32_t stream) {
  using Key = std::tuple<WeightFormat, std::int64_t, std::int64_t, std::uint32_t>;
  static std::map<Key, RandomMatrix> matrices;
  return matrices.try_emplace(Key(format, rows, cols, stream), format, rows, cols, stream)
      .first->second;
}

const char* name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kF8Block128:
      return "f8";
    case WeightFormat::kInt4Group32:
      return "int4";
    case WeightFormat::kQ4_0:
      return "q4_0";
    case WeightFormat::kQ4_1:
      return "q4_1";
    case WeightFormat::kQ8_0:
      return "q8_0";
  }
  return "?";
}

}  // namespace coppice::testing
