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

constexpr int kWarpsPerBlock = kThreads / 32;

__global__ void row_product_kernel(RowProductParams params) {
  const std::int64_t output = std::int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
  const std::int64_t head = blockIdx.y, row = blockIdx.z;
  const int lane = threadIdx.x % 32;
  if (output >= params.outputs) return;
  const auto* x =
      static_cast<const __nv_bfloat16*>(params.x) + row * params.x_stride + head * params.inputs;
  const auto* weight = static_cast<const __nv_bfloat16*>(params.weight) +
                       (head * params.outputs + output) * params.inputs;
  float sum = 0.0f;
  for (std::int64_t i = lane; i < params.inputs; i += 32)
    sum = __fmaf_rn(__bfloat162float(x[i]), __bfloat162float(weight[i]), sum);
  for (int offset = 16; offset > 0; offset /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
  if (lane != 0) return;
  const std::int64_t at = row * params.out_stride + head * params.outputs + output;
  if (params.out_is_f32)
    static_cast<float*>(params.out)[at] = sum;
  else
    static_cast<__nv_bfloat16*>(params.out)[at] = __float2bfloat16_rn(sum);
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

cudaError_t row_product(const RowProductParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((params.outputs + kWarpsPerBlock - 1) / kWarpsPerBlock),
                  static_cast<unsigned>(params.num_heads), static_cast<unsigned>(params.num_rows));
  row_product_kernel<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace coppice::kernels
