#include "backend/cpu/dense_matrix.h"

#include "backend/dequantize.h"

namespace coppice::cpu {

DenseMatrix load_dense(std::span<const HostMatrix> parts, ThreadPool& pool) {
  DenseMatrix matrix;
  for (const HostMatrix& part : parts) {
    check_matrix(part);
    COPPICE_CHECK_EQ(part.cols, parts[0].cols);
    matrix.rows += part.rows;
    matrix.cols = part.cols;
  }
  matrix.storage =
      Buffer::host(static_cast<std::size_t>(matrix.rows * matrix.cols) * sizeof(float));
  auto* out = static_cast<float*>(matrix.storage.data());
  for (const HostMatrix& part : parts) {
    pool.parallel_for(part.rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        dequantize_row(part, row, out + row * part.cols);
    });
    out += part.rows * part.cols;
  }
  return matrix;
}

}  // namespace coppice::cpu
