#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/gqa/gqa_attention.cuh"

namespace coppice::kernels {
namespace {

template <int kHeadDim>
cudaError_t run(const GqaAttentionParams& p, cudaStream_t stream) {
  const int padded = gqa_padded_group(p.num_heads, p.num_kv_heads);
  const int splits = gqa_splits(p.num_rows, p.num_kv_heads, p.max_kv_len);
  const int max_chunks = gqa_max_chunks(p.max_kv_len);
  const dim3 grid(static_cast<unsigned>(p.num_rows), static_cast<unsigned>(p.num_kv_heads),
                  static_cast<unsigned>(splits));
  const cudaError_t error =
      launch_dependent(gqa_attention_kernel<kHeadDim>, grid, kGqaWarps * 32,
                       sizeof(GqaShared<kHeadDim>), stream, p, padded, max_chunks);
  if (error != cudaSuccess || splits == 1) return error;
  return launch_dependent(gqa_combine_kernel<kHeadDim>, dim3(grid.x, grid.y), kGqaWarps * 32, 0,
                          stream, p, padded, max_chunks);
}

}  // namespace

static_assert(sizeof(GqaPartial<64>) == gqa_partial_bytes(64) &&
              sizeof(GqaPartial<128>) == gqa_partial_bytes(128));

cudaError_t gqa_attention(const GqaAttentionParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (p.num_kv_heads <= 0 || p.num_heads % p.num_kv_heads != 0 ||
      p.num_heads / p.num_kv_heads > kGqaTileRows)
    return cudaErrorInvalidValue;
  if (p.head_dim == 64) return run<64>(p, stream);
  if (p.head_dim == 128) return run<128>(p, stream);
  return cudaErrorInvalidValue;
}

}  // namespace coppice::kernels
