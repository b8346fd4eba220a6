#include "backend/cpu/linear_ops.h"

#include "backend/cpu/vector_math.h"

namespace coppice::cpu {

void linear(const LinearArgs& args, const DenseMatrix& weight, ThreadPool& pool) {
  COPPICE_CHECK_EQ(args.x.row_size(), weight.cols);
  COPPICE_CHECK_EQ(args.out.row_size(), weight.rows);
  const std::int64_t num_rows = args.x.shape(0);
  pool.parallel_for(weight.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t t = 0; t < num_rows; ++t)
        args.out.row<float>(t)[n] = dot(args.x.row<float>(t), weight.row(n), weight.cols);
  });
}

void head_linear(const HeadLinearArgs& args, const DenseMatrix& weight, ThreadPool& pool) {
  const std::int64_t num_heads = args.x.shape(1), k = args.x.shape(2), n = args.out.shape(2);
  COPPICE_CHECK_EQ(weight.cols, k);
  COPPICE_CHECK_EQ(weight.rows, num_heads * n);
  COPPICE_CHECK_EQ(args.out.shape(1), num_heads);
  const std::int64_t num_rows = args.x.shape(0);
  pool.parallel_for(weight.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t t = 0; t < num_rows; ++t)
        args.out.row<float>(t)[row] = dot(args.x.row<float>(t) + row / n * k, weight.row(row), k);
  });
}

}  // namespace coppice::cpu
