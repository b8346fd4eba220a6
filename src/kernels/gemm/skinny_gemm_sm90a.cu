#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/gemm/skinny_gemm.cuh"

namespace coppice::kernels {

namespace {

using SkinnyKernel = void (*)(SkinnyGemmKernelParams, SkinnyGemmMaps);

SkinnyKernel pick_kernel(const SkinnyGemmTiles& tiles) {
  switch (tiles.columns) {
    case 8:
      return skinny_gemm_kernel<8, 1>;
    case 16:
      return skinny_gemm_kernel<16, 1>;
    case 32:
      return skinny_gemm_kernel<32, 1>;
    case 64:
      return skinny_gemm_kernel<64, 1>;
    case 128:
      return tiles.warpgroups == 1 ? skinny_gemm_kernel<128, 1> : skinny_gemm_kernel<128, 2>;
    case 160:
      return tiles.warpgroups == 1 ? skinny_gemm_kernel<160, 1> : skinny_gemm_kernel<160, 2>;
    case 192:
      return tiles.warpgroups == 1 ? skinny_gemm_kernel<192, 1> : skinny_gemm_kernel<192, 2>;
    default:
      return tiles.warpgroups == 1 ? skinny_gemm_kernel<256, 1> : skinny_gemm_kernel<256, 2>;
  }
}

bool valid(const SkinnyGemmParams& p) {
  return p.num_tokens >= 0 && p.num_heads > 0 && p.outputs > 0 && p.outputs % 16 == 0 &&
         p.inputs > 0 && p.inputs % kSkinnyStepInputs == 0 && p.x_stride % 8 == 0 &&
         p.out_stride % 2 == 0;
}

}  // namespace

cudaError_t skinny_gemm_with(const SkinnyGemmParams& params, const SkinnyGemmTiles& tiles,
                             cudaStream_t stream) {
  if (!valid(params)) return cudaErrorInvalidValue;
  const SkinnyGemmKernelParams p = {
      .out = params.out,
      .out_stride = params.out_stride,
      .num_tokens = params.num_tokens,
      .outputs = params.outputs,
      .inputs = params.inputs,
      .segments = skinny_gemm_segments(params.num_heads, params.outputs, params.inputs),
      .head_tiles = tiles.head_tiles,
      .copied_rows = tiles.copied_rows,
      .stages = tiles.stages,
      .out_is_float = params.out_is_float};
  const int tile_outputs = 64 * tiles.warpgroups;
  SkinnyGemmMaps maps;
  cudaError_t error =
      encode_matrix_map(&maps.weight, params.weight, int64_t{params.num_heads} * params.outputs,
                        params.inputs, params.inputs, tile_outputs, kSkinnyStepInputs);
  if (error != cudaSuccess) return error;
  error = encode_matrix_map(&maps.x, params.x, params.num_tokens,
                            int64_t{params.num_heads} * params.inputs, params.x_stride,
                            tiles.copied_rows, kSkinnyStepInputs);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(p.segments), static_cast<unsigned>(tiles.chunks),
                  static_cast<unsigned>(params.num_heads * p.head_tiles));
  return launch_clusters(pick_kernel(tiles), grid, grid.x, 128 * tiles.warpgroups + 64,
                         tiles.shared_bytes, stream, p, maps);
}

cudaError_t skinny_gemm(const SkinnyGemmParams& params, cudaStream_t stream) {
  if (!valid(params)) return cudaErrorInvalidValue;
  if (params.num_tokens == 0) return cudaSuccess;
  int id = 0, num_sms = 0, max_shared_bytes = 0;
  cudaError_t error = cudaGetDevice(&id);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, id);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
  if (error != cudaSuccess) return error;

  return skinny_gemm_with(
      params,
      skinny_gemm_tiles(
          params.num_tokens, params.num_heads, params.outputs, params.inputs,
          {.num_sms = num_sms, .max_shared_bytes = static_cast<size_t>(max_shared_bytes)}),
      stream);
}

}  // namespace coppice::kernels
