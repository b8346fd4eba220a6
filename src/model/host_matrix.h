// Host-side work on matrices as checkpoints store them: slices for tensor parallelism, regrouped
// rows, and plain values. A matrix without data has a shape only, and so has what is made of it.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "backend/op_args.h"

namespace coppice {

// Keeps the bytes behind derived matrices alive until clear().
class HostStorage {
 public:
  std::byte* allocate(std::size_t num_bytes) { return blocks_.emplace_back(num_bytes).data(); }
  void clear() { blocks_.clear(); }

 private:
  std::deque<std::vector<std::byte>> blocks_;
};

const char* name_of(WeightFormat format);

// Columns must be a multiple of this; slices of columns begin and end at such multiples.
std::int64_t column_multiple(WeightFormat format);
// Slices of rows begin at such multiples.
std::int64_t row_multiple(WeightFormat format);
// Bytes of one row of `data`; block scales of FP8 and group scales of INT4 are apart.
std::size_t row_bytes(WeightFormat format, std::int64_t cols);
// All bytes, scales included.
std::size_t num_bytes(const HostMatrix& matrix);

// Rows [begin, begin + count): a view.
HostMatrix slice_rows(const HostMatrix& matrix, std::int64_t begin, std::int64_t count);
// Columns [begin, begin + count): copied into `storage` unless these are all.
HostMatrix slice_cols(const HostMatrix& matrix, std::int64_t begin, std::int64_t count,
                      HostStorage& storage);
// Row i of the result is row order[i]. Plain formats only (see to_plain).
HostMatrix gather_rows(const HostMatrix& matrix, std::span<const std::int64_t> order,
                       HostStorage& storage);
// [cols, rows]. Plain formats only.
HostMatrix transpose(const HostMatrix& matrix, HostStorage& storage);

bool is_plain(WeightFormat format);  // F32, F16, BF16
// Plain matrices as they are, others rounded to BF16.
HostMatrix to_plain(const HostMatrix& matrix, HostStorage& storage);

}  // namespace coppice
