#include <cuda.h>

#include "kernels/common/launch.h"
#include "kernels/mla/mla_attention.cuh"
#include "kernels/mla/mla_combine.cuh"
#include "kernels/mla/mla_generic.cuh"

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

// The cache as [9 column blocks][rows][64 columns], read in boxes of `column_blocks` x 64 x 64 with
// the 128-byte swizzle.
cudaError_t make_cache_map(const MlaAttentionParams& p, cuuint32_t column_blocks,
                           CUtensorMap* map) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
    return error == cudaSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t shape[3] = {64, static_cast<cuuint64_t>(p.num_blocks) * kMlaStepPositions,
                               kMlaColumnBlocks};
  const cuuint64_t stride[2] = {kMlaWidth * 2, 128};  // bytes between rows, between column blocks
  const cuuint32_t box[3] = {64, kMlaStepPositions, column_blocks};
  const cuuint32_t element_stride[3] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(p.cache), shape, stride,
             box, element_stride, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

MlaWorkspace workspace(const MlaAttentionParams& p) {
  return mla_workspace(p.workspace, mla_workspace_layout(p.num_rows, p.max_path, num_ctas()));
}

}  // namespace

size_t mla_attention_workspace_bytes(int max_rows, int max_path) {
  return mla_workspace_layout(max_rows, max_path, num_ctas()).total;
}

cudaError_t mla_plan(const MlaAttentionParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || !mla_uses_tensor_cores(p.num_heads, p.kv_lora_rank, p.qk_rope_head_dim))
    return cudaSuccess;
  const int nodes = kMlaTileRows / mla_padded_heads(p.num_heads);
  const unsigned blocks = static_cast<unsigned>(p.num_rows + 3) / 4;
  mla_plan_tiles<<<1, kMlaPlanThreads, 0, stream>>>(p, workspace(p), mla_chunk_table(p.num_heads),
                                                    nodes, num_ctas());
  mla_plan_passes<<<blocks, 128, 0, stream>>>(p, workspace(p), num_ctas());
  return cudaGetLastError();
}

cudaError_t mla_attention(const MlaAttentionParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  const unsigned rows = static_cast<unsigned>(p.num_rows);
  if (!mla_uses_tensor_cores(p.num_heads, p.kv_lora_rank, p.qk_rope_head_dim)) {
    if (p.kv_lora_rank + p.qk_rope_head_dim > kMlaGenericMaxWidth) return cudaErrorInvalidValue;
    return launch_dependent(mla_generic, dim3(rows, static_cast<unsigned>(p.num_heads)),
                            kMlaGenericThreads, 0, stream, p);
  }
  static const cudaError_t configured = cudaFuncSetAttribute(
      mla_attention_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(MlaShared));
  if (configured != cudaSuccess) return configured;
  MlaCacheMaps maps;
  if (const cudaError_t error = make_cache_map(p, 2, &maps.latent); error != cudaSuccess)
    return error;
  if (const cudaError_t error = make_cache_map(p, 1, &maps.rope); error != cudaSuccess)
    return error;
  const int padded = mla_padded_heads(p.num_heads);
  if (const cudaError_t error =
          launch_dependent(mla_attention_sm90, dim3(static_cast<unsigned>(num_ctas())), kMlaThreads,
                           sizeof(MlaShared), stream, p, workspace(p), padded, maps);
      error != cudaSuccess)
    return error;
  return launch_dependent(mla_combine,
                          dim3(rows * static_cast<unsigned>(padded) / 8, kMlaCombineSplit),
                          kMlaCombineWarps * 32, 0, stream, p, workspace(p), padded, num_ctas());
}

}  // namespace coppice::kernels
