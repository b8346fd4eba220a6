#include "kernels/common/launch.h"
#include "kernels/gemm/skinny_gemm.cuh"

namespace coppice::kernels {

namespace {

using SkinnyKernel = void (*)(SkinnyGemmKernelParams);

SkinnyKernel pick_kernel(const SkinnyGemmTiles& tiles) {
  switch (tiles.columns) {
    case 1:
      return skinny_gemm_kernel<1, 1>;
    case 2:
      return skinny_gemm_kernel<1, 2>;
    case 4:
      return tiles.tiles == 1 ? skinny_gemm_kernel<1, 4> : skinny_gemm_kernel<2, 4>;
    default:
      return tiles.tiles == 1 ? skinny_gemm_kernel<1, 8> : skinny_gemm_kernel<2, 8>;
  }
}

constexpr int kMaxCounters = 128 * 1024;

bool valid(const SkinnyGemmParams& p) {
  return p.num_tokens >= 0 && p.num_heads > 0 && p.outputs > 0 && p.outputs % 16 == 0 &&
         p.inputs > 0 && p.inputs % 64 == 0 && p.x_stride % 8 == 0;
}

}  // namespace

size_t skinny_gemm_counter_bytes() {
  return sizeof(uint32_t) * kMaxCounters;
}

size_t skinny_gemm_workspace_bytes(int max_tokens, int num_heads, int outputs, int inputs) {
  const SkinnyGemmSplit split = skinny_gemm_split(num_heads, outputs, inputs);
  if (split.segments == 1) return skinny_gemm_counter_bytes();
  const size_t tokens = (static_cast<size_t>(max_tokens) + 63) / 64 * 64;
  return skinny_gemm_counter_bytes() +
         tokens * num_heads * outputs * split.segments * sizeof(float);
}

cudaError_t skinny_gemm(const SkinnyGemmParams& params, cudaStream_t stream) {
  if (!valid(params)) return cudaErrorInvalidValue;
  if (params.num_tokens == 0) return cudaSuccess;
  int id = 0, sm_count = 0, max_shared_bytes = 0;
  cudaError_t error = cudaGetDevice(&id);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, id);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
  if (error != cudaSuccess) return error;

  SkinnyGemmKernelParams p = {.op = params};
  p.split = skinny_gemm_split(params.num_heads, params.outputs, params.inputs);
  const SkinnyGemmTiles tiles = skinny_gemm_tiles(params.num_tokens, params.num_heads,
                                                  params.outputs, p.split, max_shared_bytes);
  const int item_outputs = 16 * tiles.tiles * kSkinnyWarps / p.split.warps_k;
  p.tiles = tiles;
  p.groups = (params.outputs + item_outputs - 1) / item_outputs;
  p.piece_counters = static_cast<uint32_t*>(params.workspace);
  p.partial = reinterpret_cast<float4*>(static_cast<uint8_t*>(params.workspace) +
                                        skinny_gemm_counter_bytes());
  if (p.split.segments > 1 &&
      params.num_heads * (params.outputs / 16) * tiles.chunks * tiles.columns > kMaxCounters) {
    return cudaErrorInvalidValue;
  }
  return launch_dependent(pick_kernel(tiles), dim3(sm_count), kSkinnyThreads, tiles.shared_bytes,
                          stream, p);
}

}  // namespace coppice::kernels
