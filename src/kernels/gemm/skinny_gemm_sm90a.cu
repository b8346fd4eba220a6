#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/gemm/skinny_gemm.cuh"

namespace coppice::kernels {

namespace {

using SkinnyKernel = void (*)(SkinnyGemmKernelParams, SkinnyGemmMaps);

template <int kColumns>
SkinnyKernel pick_kernel(int warpgroups) {
  if constexpr (kColumns <= 128) {
    if (warpgroups == 3) return skinny_gemm_kernel<kColumns, 3>;
  }
  return warpgroups == 2 ? skinny_gemm_kernel<kColumns, 2> : skinny_gemm_kernel<kColumns, 1>;
}

SkinnyKernel pick_kernel(const SkinnyGemmTiles& tiles) {
  switch (tiles.columns) {
    case 8:
      return pick_kernel<8>(tiles.warpgroups);
    case 16:
      return pick_kernel<16>(tiles.warpgroups);
    case 24:
      return pick_kernel<24>(tiles.warpgroups);
    case 32:
      return pick_kernel<32>(tiles.warpgroups);
    case 48:
      return pick_kernel<48>(tiles.warpgroups);
    case 64:
      return pick_kernel<64>(tiles.warpgroups);
    case 128:
      return pick_kernel<128>(tiles.warpgroups);
    case 160:
      return pick_kernel<160>(tiles.warpgroups);
    case 192:
      return pick_kernel<192>(tiles.warpgroups);
    default:
      return pick_kernel<256>(tiles.warpgroups);
  }
}

bool valid(const SkinnyGemmParams& p) {
  return p.num_tokens >= 0 && p.num_heads > 0 && p.outputs > 0 && p.outputs % 16 == 0 &&
         p.inputs > 0 && p.inputs % kSkinnyStepInputs == 0 && p.x_stride % 8 == 0 &&
         p.out_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.out) % 16 == 0;
}

SkinnyProduct product_of(const SkinnyGemmParams& p) {
  return {.out = p.out,
          .out_stride = p.out_stride,
          .outputs = p.outputs,
          .out_is_float = p.out_is_float};
}

cudaError_t weight_map(CUtensorMap* map, const SkinnyGemmParams& p, const SkinnyGemmTiles& tiles) {
  return encode_matrix_map(map, p.weight, int64_t{p.num_heads} * p.outputs, p.inputs, p.inputs,
                           tiles.outputs, kSkinnyStepInputs);
}

int tiles_of_head(const SkinnyGemmParams& p, const SkinnyGemmTiles& tiles) {
  return (p.outputs + tiles.outputs - 1) / tiles.outputs;
}

// `second`: null, or a product of the same inputs with one head.
cudaError_t launch(const SkinnyGemmParams& params, const SkinnyGemmParams* second,
                   const SkinnyGemmTiles& tiles, cudaStream_t stream) {
  const int head_tiles = tiles_of_head(params, tiles);
  SkinnyGemmKernelParams p = {
      .product = {product_of(params)},
      .second_tile = params.num_heads * head_tiles,
      .num_tokens = params.num_tokens,
      .inputs = params.inputs,
      .segments = skinny_gemm_segments(params.num_heads, params.outputs, params.inputs),
      .tile_outputs = tiles.outputs,
      .head_tiles = head_tiles,
      .copied_rows = tiles.copied_rows,
      .stages = tiles.stages,
      .pushed_at = static_cast<int>(tiles.pushed_at)};
  SkinnyGemmMaps maps;
  cudaError_t error = weight_map(&maps.weight[0], params, tiles);
  if (error != cudaSuccess) return error;
  int num_tiles = p.second_tile;
  if (second) {
    p.product[1] = product_of(*second);
    num_tiles += tiles_of_head(*second, tiles);
    error = weight_map(&maps.weight[1], *second, tiles);
    if (error != cudaSuccess) return error;
  }
  error = encode_matrix_map(&maps.x, params.x, params.num_tokens,
                            int64_t{params.num_heads} * params.inputs, params.x_stride,
                            tiles.copied_rows, kSkinnyStepInputs);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(p.segments), static_cast<unsigned>(tiles.chunks),
                  static_cast<unsigned>(num_tiles));
  return launch_clusters(pick_kernel(tiles), grid, grid.x, 128 * tiles.warpgroups + 64,
                         tiles.shared_bytes, stream, p, maps);
}

cudaError_t current_device(SkinnyGemmDevice* device) {
  int id = 0, max_shared_bytes = 0;
  cudaError_t error = cudaGetDevice(&id);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&device->num_sms, cudaDevAttrMultiProcessorCount, id);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
  device->max_shared_bytes = static_cast<size_t>(max_shared_bytes);
  return error;
}

}  // namespace

cudaError_t skinny_gemm_with(const SkinnyGemmParams& params, const SkinnyGemmTiles& tiles,
                             cudaStream_t stream) {
  return valid(params) ? launch(params, nullptr, tiles, stream) : cudaErrorInvalidValue;
}

cudaError_t skinny_gemm(const SkinnyGemmParams& params, cudaStream_t stream) {
  if (!valid(params)) return cudaErrorInvalidValue;
  if (params.num_tokens == 0) return cudaSuccess;
  SkinnyGemmDevice device;
  if (cudaError_t error = current_device(&device); error != cudaSuccess) return error;
  return skinny_gemm_with(
      params,
      skinny_gemm_tiles(params.num_tokens, params.num_heads, params.outputs, params.inputs, device),
      stream);
}

cudaError_t skinny_gemm_pair(const SkinnyGemmParams& first, const SkinnyGemmParams& second,
                             cudaStream_t stream) {
  if (!valid(first) || !valid(second) || first.x != second.x || first.x_stride != second.x_stride ||
      first.num_tokens != second.num_tokens || first.inputs != second.inputs ||
      first.num_heads != 1 || second.num_heads != 1) {
    return cudaErrorInvalidValue;
  }
  const bool alike = skinny_gemm_segments(1, first.outputs, first.inputs) ==
                     skinny_gemm_segments(1, second.outputs, second.inputs);
  if (first.num_tokens == 0 || !alike) {
    const cudaError_t error = skinny_gemm(first, stream);
    return error != cudaSuccess ? error : skinny_gemm(second, stream);
  }
  SkinnyGemmDevice device;
  if (cudaError_t error = current_device(&device); error != cudaSuccess) return error;
  // Tiles for the wider one.
  const int outputs = std::max(first.outputs, second.outputs);
  return launch(first, &second,
                skinny_gemm_tiles(first.num_tokens, 1, outputs, first.inputs, device), stream);
}

}  // namespace coppice::kernels
