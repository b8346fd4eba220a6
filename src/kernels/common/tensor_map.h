// Tensor maps for the copy engine: bf16 matrices with the 128-byte swizzle unless asked otherwise.
// Host only.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

// `rank` dimensions, x fastest; `strides` in bytes, of dimensions 1 and up, multiples of 16. Boxes
// reaching beyond the end are filled with zeros. cudaErrorNotSupported without a driver that has
// tensor maps, cudaErrorInvalidValue for a matrix that none can describe.
inline cudaError_t encode_tensor_map(CUtensorMap* map, const void* data, uint32_t rank,
                                     const cuuint64_t* shape, const cuuint64_t* strides,
                                     const cuuint32_t* box,
                                     CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                     CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
    return error == cudaSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode(map, type, rank, const_cast<void*>(data), shape, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// The common case of two dimensions: `rows` rows of `columns` elements, `stride` elements apart.
inline cudaError_t encode_matrix_map(CUtensorMap* map, const void* data, int64_t rows,
                                     int64_t columns, int64_t stride, int box_rows,
                                     int box_columns) {
  const cuuint64_t shape[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  return encode_tensor_map(map, data, 2, shape, strides, box);
}

}  // namespace coppice::kernels
