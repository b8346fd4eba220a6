#include <cuda.h>

#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/mla/mla_attention.cuh"
#include "kernels/mla/mla_combine.cuh"
#include "kernels/mla/mla_generic.cuh"
#include "kernels/mla/mla_plan.cuh"
#include "kernels/mla/mla_single.cuh"

namespace coppice::kernels {
namespace {

// Multiprocessors of the current device; 0 if it cannot be asked.
int num_ctas() {
  static const int count = [] {
    int device = 0, value = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
      return 0;
    return value;
  }();
  return count;
}

// Other GPUs and other shapes take the plain path.
bool uses_wgmma(const MlaAttentionParams& p) {
  static const bool is_hopper = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
  }();
  return is_hopper && mla_uses_tensor_cores(p.num_heads, p.kv_lora_rank, p.qk_rope_head_dim);
}

// The cache as [9 column blocks][rows][64 columns], read in boxes of `column_blocks` x 64 x 64 with
// the 128-byte swizzle.
cudaError_t make_cache_map(const MlaAttentionParams& p, cuuint32_t column_blocks,
                           CUtensorMap* map) {
  const cuuint64_t shape[3] = {64, static_cast<cuuint64_t>(p.num_blocks) * kMlaStepPositions,
                               kMlaColumnBlocks};
  const cuuint64_t strides[2] = {kMlaWidth * 2, 128};  // between rows, between column blocks
  const cuuint32_t box[3] = {64, kMlaStepPositions, column_blocks};
  return encode_tensor_map(map, p.cache, 3, shape, strides, box);
}

// Clusters that run at the same time; 0 if that cannot be asked.
int num_clusters() {
  static const int count = [] {
    int value = 0;
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned>(num_ctas() / kMlaClusterBlocks * kMlaClusterBlocks));
    config.blockDim = dim3(kMlaThreads);
    config.dynamicSmemBytes = sizeof(MlaShared);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kMlaClusterBlocks, 1, 1};
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (cudaFuncSetAttribute(mla_attention_single_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(MlaShared)) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&value, mla_attention_single_sm90, &config) != cudaSuccess)
      return 0;
    return std::min(value, num_ctas() / kMlaClusterBlocks);
  }();
  return count;
}

bool runs_in_clusters(const MlaAttentionParams& p) {
  return !p.prompt && p.num_rows == 1 && mla_padded_heads(p.num_heads) == kMlaSingleRows &&
         num_clusters() > 0;
}

MlaWorkspace workspace(const MlaAttentionParams& p) {
  return mla_workspace(p.workspace, mla_workspace_layout(p.num_rows, p.max_path, num_ctas()));
}

template <MlaCombineRows kRows>
cudaError_t combine(const MlaAttentionParams& p, unsigned octets, int padded_heads,
                    cudaStream_t stream) {
  using Shape = MlaCombineShape<kRows>;
  return launch_dependent(mla_combine<kRows>, dim3(octets, kMlaCombineSplit / Shape::kParts),
                          Shape::kWarps * 32, sizeof(typename Shape::Shared), stream, p,
                          workspace(p), padded_heads);
}

}  // namespace

size_t mla_attention_workspace_bytes(int max_rows, int max_path) {
  return mla_workspace_layout(max_rows, max_path, num_ctas()).total;
}

cudaError_t mla_plan(const MlaAttentionParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || !uses_wgmma(p)) return cudaSuccess;
  const int padded = mla_padded_heads(p.num_heads);
  const bool few = p.num_rows * padded <= kMlaFewPlanTiles * kMlaTileRows;
  const MlaPlanOptions options = {.nodes_per_tile = kMlaTileRows / padded,
                                  .num_ctas = num_ctas(),
                                  .max_slots = num_ctas() * kMlaSlotsPerCta,
                                  .clustered = runs_in_clusters(p),
                                  .lines = p.num_rows * padded / 8 >= kMlaManyOctets,
                                  .passes = few && !p.prompt};
  const MlaChunkTable table = p.prompt ? mla_prompt_chunk_table() : mla_chunk_table(p.num_heads);
  const int threads =
      std::clamp((p.num_rows + 31) / 32 * 32, kMlaLeastPlanThreads, kMlaPlanThreads);
  const cudaError_t error = launch_dependent(mla_plan_tiles, dim3(1), threads, 0, stream, p,
                                             workspace(p), table, options);
  if (error != cudaSuccess || p.prompt || few) return error;
  const unsigned blocks = static_cast<unsigned>(p.num_rows + 3) / 4;
  mla_plan_passes<<<blocks, 128, 0, stream>>>(p, workspace(p));
  return cudaGetLastError();
}

cudaError_t mla_attention(const MlaAttentionParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  const unsigned rows = static_cast<unsigned>(p.num_rows);
  if (!uses_wgmma(p)) {
    if (p.kv_lora_rank + p.qk_rope_head_dim > kMlaGenericMaxWidth) return cudaErrorInvalidValue;
    return launch_dependent(mla_generic, dim3(rows, static_cast<unsigned>(p.num_heads)),
                            kMlaGenericThreads, 0, stream, p);
  }
  MlaCacheMaps maps;
  if (const cudaError_t error = make_cache_map(p, 2, &maps.latent); error != cudaSuccess)
    return error;
  if (const cudaError_t error = make_cache_map(p, 1, &maps.rope); error != cudaSuccess)
    return error;
  const int padded = mla_padded_heads(p.num_heads);
  const bool single = runs_in_clusters(p);
  const auto kernel = single     ? mla_attention_single_sm90
                      : p.prompt ? mla_attention_sm90<true>
                                 : mla_attention_sm90<false>;
  const int ctas = single ? num_clusters() * kMlaClusterBlocks : num_ctas();
  if (const cudaError_t error =
          launch_clusters(kernel, dim3(static_cast<unsigned>(ctas)), single ? kMlaClusterBlocks : 1,
                          kMlaThreads, sizeof(MlaShared), stream, p, workspace(p), padded, maps);
      error != cudaSuccess)
    return error;
  if (p.prompt) return cudaSuccess;  // no tile is cut
  const unsigned octets = rows * static_cast<unsigned>(padded) / 8;
  const auto merge = octets <= kMlaFewestOctets ? combine<MlaCombineRows::kFewest>
                     : octets < kMlaManyOctets  ? combine<MlaCombineRows::kFew>
                                                : combine<MlaCombineRows::kMany>;
  return merge(p, octets, padded, stream);
}

}  // namespace coppice::kernels
