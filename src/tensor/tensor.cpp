#include "tensor/tensor.h"

namespace coppice {
namespace {

std::byte* advance(void* data, DType dtype, std::int64_t elements) {
  return static_cast<std::byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

Tensor::Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device)
    : data_(data), dtype_(dtype), device_(device), ndim_(static_cast<int>(shape.size())) {
  COPPICE_CHECK_LE(ndim_, kMaxDims);
  std::size_t dim = 0;
  for (const std::int64_t size : shape) {
    COPPICE_CHECK_GE(size, 0);
    shape_[dim++] = size;
  }
  row_stride_ = row_size();
}

std::int64_t Tensor::row_size() const {
  std::int64_t size = 1;
  for (int dim = 1; dim < ndim_; ++dim) size *= shape_[static_cast<std::size_t>(dim)];
  return size;
}

std::int64_t Tensor::num_elements() const {
  return ndim_ == 0 ? 0 : shape_[0] * row_size();
}

std::int64_t Tensor::num_bytes() const {
  COPPICE_CHECK(is_dense(), describe());
  return num_elements() * static_cast<std::int64_t>(size_of(dtype_));
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  COPPICE_CHECK(begin >= 0 && count >= 0 && begin + count <= shape(0), describe(), " rows ", begin,
                " + ", count);
  Tensor view = *this;
  view.data_ = advance(data_, dtype_, begin * row_stride_);
  view.shape_[0] = count;
  return view;
}

Tensor Tensor::columns(std::int64_t begin, std::int64_t count) const {
  COPPICE_CHECK_EQ(ndim_, 2);
  COPPICE_CHECK(begin >= 0 && count >= 0 && begin + count <= shape(1), describe(), " columns ",
                begin, " + ", count);
  Tensor view = *this;
  view.data_ = advance(data_, dtype_, begin);
  view.shape_[1] = count;
  return view;
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> shape) const {
  Tensor view(data_, dtype_, shape, device_);
  COPPICE_CHECK_EQ(view.num_elements(), num_elements());
  if (!is_dense()) {
    COPPICE_CHECK_EQ(view.shape_[0], shape_[0]);
    view.row_stride_ = row_stride_;
  }
  return view;
}

std::string Tensor::describe() const {
  std::string text = name_of(dtype_);
  text += '[';
  for (int dim = 0; dim < ndim_; ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(shape_[static_cast<std::size_t>(dim)]);
  }
  return text + ']';
}

}  // namespace coppice
