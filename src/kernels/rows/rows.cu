#include <cuda_bf16.h>

#include "kernels/rows/rows.h"

namespace coppice::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void embed_kernel(EmbedParams params) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t token = params.token_ids[row];
  auto* out = static_cast<__nv_bfloat162*>(params.out) + row * params.hidden_size / 2;
  for (std::int64_t i = threadIdx.x; i < params.hidden_size / 2; i += blockDim.x) {
    __nv_bfloat162 value = __floats2bfloat162_rn(0.0f, 0.0f);
    if (token >= 0 && params.table_is_f32) {
      const float2 pair =
          static_cast<const float2*>(params.table)[token * params.hidden_size / 2 + i];
      value = __floats2bfloat162_rn(pair.x, pair.y);
    } else if (token >= 0) {
      value = static_cast<const __nv_bfloat162*>(params.table)[token * params.hidden_size / 2 + i];
    }
    out[i] = value;
  }
}

__device__ float silu_times(float gate, float up) {
  return __fmul_rn(__fdividef(gate, 1.0f + __expf(-gate)), up);
}

__global__ void silu_mul_kernel(SiluMulParams params) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= params.size / 2) return;
  const auto* gate_row =
      static_cast<const __nv_bfloat16*>(params.gate_up) + row * params.gate_up_stride;
  const float2 gate = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(gate_row)[i]);
  const float2 up =
      __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(gate_row + params.size)[i]);
  auto* out = static_cast<__nv_bfloat16*>(params.out) + row * params.out_stride;
  reinterpret_cast<__nv_bfloat162*>(out)[i] =
      __floats2bfloat162_rn(silu_times(gate.x, up.x), silu_times(gate.y, up.y));
}

__global__ void gather_rows_kernel(GatherRowsParams params) {
  const std::int64_t i = blockIdx.y;
  const std::int32_t row = params.rows[i];
  if (row < 0) return;
  const auto* src = reinterpret_cast<const std::int32_t*>(static_cast<const char*>(params.src) +
                                                          row * params.src_stride_bytes);
  auto* out =
      reinterpret_cast<std::int32_t*>(static_cast<char*>(params.out) + i * params.out_stride_bytes);
  const std::int64_t word = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (word < params.row_bytes / 4) out[word] = src[word];
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t embed(const EmbedParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  embed_kernel<<<static_cast<unsigned>(params.num_rows), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t silu_mul(const SiluMulParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  const dim3 grid(blocks_for(params.size / 2), static_cast<unsigned>(params.num_rows));
  silu_mul_kernel<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t gather_rows(const GatherRowsParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  const dim3 grid(blocks_for(params.row_bytes / 4), static_cast<unsigned>(params.num_rows));
  gather_rows_kernel<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace coppice::kernels
