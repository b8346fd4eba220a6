// Test data on a backend: made on the host from counters, uploaded, and read back as floats.
#pragma once

#include <deque>
#include <vector>

#include "backend/backend.h"
#include "tests/ops/op_cases.h"

namespace coppice::testing {

// A number in (-1, 1) that both bf16 and fp32 hold exactly, from (stream, row, column).
float noise(std::uint32_t stream, std::int64_t row, std::int64_t column);

// Owns the device tensors of one run of one case.
class Staging {
 public:
  explicit Staging(Backend& backend) : backend_(backend) {}

  Tensor ints(std::initializer_list<std::int64_t> shape, const std::vector<std::int32_t>& values);
  Tensor f32(std::initializer_list<std::int64_t> shape, const std::vector<float>& values);
  // In the activation or the cache dtype of the backend.
  Tensor act(std::initializer_list<std::int64_t> shape, const std::vector<float>& values);
  Tensor kv(std::initializer_list<std::int64_t> shape, const std::vector<float>& values);
  // noise(stream, id, column) per row; rows of padding hold NaN.
  Tensor act_rows(std::uint32_t stream, const std::vector<std::int64_t>& rows,
                  std::initializer_list<std::int64_t> inner, float scale = 1);

  // Outputs start as NaN (ints: a wild value) and end in a guard row that must stay so.
  Tensor act_out(std::int64_t rows, std::initializer_list<std::int64_t> inner);
  Tensor f32_out(std::int64_t rows, std::initializer_list<std::int64_t> inner);
  Tensor int_out(std::int64_t rows, std::initializer_list<std::int64_t> inner);

  // Appends the rows of `tensor` to the results; checks its guard row.
  void collect(const Tensor& tensor, const std::vector<std::int64_t>& rows, RowResults& results);
  std::vector<float> read(const Tensor& tensor);

 private:
  Tensor upload(DType dtype, std::initializer_list<std::int64_t> shape,
                const std::vector<float>& values);
  Tensor output(DType dtype, std::int64_t rows, std::initializer_list<std::int64_t> inner);

  Backend& backend_;
  std::deque<Buffer> buffers_;
};

// A matrix as a checkpoint would hold it, random, values about 1 / sqrt(cols).
struct RandomMatrix {
  RandomMatrix(WeightFormat format, std::int64_t rows, std::int64_t cols, std::uint32_t stream);
  HostMatrix view() const;

  WeightFormat format;
  std::int64_t rows, cols;
  std::vector<std::uint8_t> data, scales;
};

// The same matrix again and again: made once per process.
const RandomMatrix& random_matrix(WeightFormat format, std::int64_t rows, std::int64_t cols,
                                  std::uint32_t stream);

const char* name_of(WeightFormat format);

}  // namespace coppice::testing
