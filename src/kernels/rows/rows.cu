#include <cuda_bf16.h>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch.h"
#include "kernels/rows/rows.h"

namespace coppice::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void embed_kernel(EmbedParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
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

// kPairs: two elements a thread, for even sizes and strides.
template <bool kPairs>
__global__ void silu_mul_kernel(SiluMulParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t row = blockIdx.y;
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto* gate =
      static_cast<const __nv_bfloat16*>(params.gate_up) + row * params.gate_up_stride;
  const auto* up = gate + params.size;
  auto* out = static_cast<__nv_bfloat16*>(params.out) + row * params.out_stride;
  if constexpr (kPairs) {
    if (i >= params.size / 2) return;
    const float2 g = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(gate)[i]);
    const float2 u = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(up)[i]);
    reinterpret_cast<__nv_bfloat162*>(out)[i] =
        __floats2bfloat162_rn(silu_times(g.x, u.x), silu_times(g.y, u.y));
  } else {
    if (i >= params.size) return;
    out[i] = __float2bfloat16_rn(silu_times(__bfloat162float(gate[i]), __bfloat162float(up[i])));
  }
}

template <typename Word>
__global__ void gather_rows_kernel(GatherRowsParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t i = blockIdx.y;
  const std::int32_t row = params.rows[i];
  if (row < 0) return;
  const auto* src = reinterpret_cast<const Word*>(static_cast<const char*>(params.src) +
                                                  row * params.src_stride_bytes);
  auto* out = reinterpret_cast<Word*>(static_cast<char*>(params.out) + i * params.out_stride_bytes);
  const std::int64_t word = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (word < params.row_bytes / std::int64_t{sizeof(Word)}) out[word] = src[word];
}

constexpr int kWarpsPerBlock = kThreads / 32;

__global__ void row_product_kernel(RowProductParams params) {
  grid_dependency_launch();
  grid_dependency_wait();
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
  return launch_dependent(embed_kernel, dim3(static_cast<unsigned>(params.num_rows)), kThreads, 0,
                          stream, params);
}

cudaError_t silu_mul(const SiluMulParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  const bool pairs = (params.size | params.gate_up_stride | params.out_stride) % 2 == 0;
  const dim3 grid(blocks_for(pairs ? params.size / 2 : params.size),
                  static_cast<unsigned>(params.num_rows));
  return launch_dependent(pairs ? silu_mul_kernel<true> : silu_mul_kernel<false>, grid, kThreads, 0,
                          stream, params);
}

template <typename Word>
cudaError_t launch_gather_rows(const GatherRowsParams& params, cudaStream_t stream) {
  const dim3 grid(blocks_for(params.row_bytes / std::int64_t{sizeof(Word)}),
                  static_cast<unsigned>(params.num_rows));
  return launch_dependent(gather_rows_kernel<Word>, grid, kThreads, 0, stream, params);
}

cudaError_t gather_rows(const GatherRowsParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.row_bytes == 0) return cudaSuccess;
  const auto bits = static_cast<std::uint64_t>(params.row_bytes | params.src_stride_bytes |
                                               params.out_stride_bytes) |
                    reinterpret_cast<std::uintptr_t>(params.src) |
                    reinterpret_cast<std::uintptr_t>(params.out);
  if (bits % 16 == 0) return launch_gather_rows<uint4>(params, stream);
  if (bits % 4 == 0) return launch_gather_rows<std::uint32_t>(params, stream);
  if (bits % 2 == 0) return launch_gather_rows<std::uint16_t>(params, stream);
  return cudaErrorInvalidValue;
}

cudaError_t row_product(const RowProductParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((params.outputs + kWarpsPerBlock - 1) / kWarpsPerBlock),
                  static_cast<unsigned>(params.num_heads), static_cast<unsigned>(params.num_rows));
  return launch_dependent(row_product_kernel, grid, kThreads, 0, stream, params);
}

}  // namespace coppice::kernels
