#include "kernels/common/launch.h"
#include "kernels/gqa/gqa_attention.cuh"
#include "kernels/gqa/gqa_rows.cuh"

namespace coppice::kernels {
namespace {

// Merges the chunks of all rows, where they left the first kernel one by one.
template <int kHeadDim>
cudaError_t combine(const GqaAttentionParams& p, const GqaLaunch& l, cudaStream_t stream) {
  constexpr int kWarps = 4;
  const int blocks = (p.num_rows * p.num_heads + kWarps - 1) / kWarps;
  return launch_dependent(gqa_combine_kernel<kHeadDim>, dim3(static_cast<unsigned>(blocks)),
                          32 * kWarps, 0, stream, p, l.max_chunks);
}

template <int kHeadDim, bool kSplit>
cudaError_t run_rows(const GqaAttentionParams& p, const GqaLaunch& l, cudaStream_t stream) {
  const int tiles = (p.num_rows + l.rows_of_tile - 1) / l.rows_of_tile;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.num_kv_heads),
                  static_cast<unsigned>(l.clusters));
  const cudaError_t error = launch_dependent(gqa_rows_kernel<kHeadDim, kSplit>, grid,
                                             32 * kGqaParts, l.shared_bytes, stream, p, l);
  return error != cudaSuccess || !kSplit ? error : combine<kHeadDim>(p, l, stream);
}

template <int kHeadDim, int kColumnParts, bool kSplit, int kBlocks>
cudaError_t run(const GqaAttentionParams& p, const GqaLaunch& l, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kBlocks * l.clusters),
                  static_cast<unsigned>(p.num_kv_heads), static_cast<unsigned>(l.windows));
  const cudaError_t error =
      launch_clusters(gqa_attention_kernel<kHeadDim, kColumnParts, kSplit, kBlocks>, grid, kBlocks,
                      l.threads(), l.shared_bytes, stream, p, l);
  return error != cudaSuccess || !kSplit ? error : combine<kHeadDim>(p, l, stream);
}

template <int kHeadDim, bool kSplit>
cudaError_t run(const GqaAttentionParams& p, const GqaLaunch& l, cudaStream_t stream) {
  if (l.rows_of_tile > 0) return run_rows<kHeadDim, kSplit>(p, l, stream);
  if (l.blocks == 1) return run<kHeadDim, 4, kSplit, 1>(p, l, stream);
  if (l.column_parts == 4) return run<kHeadDim, 4, kSplit, kGqaParts>(p, l, stream);
  return l.column_parts == 2 ? run<kHeadDim, 2, kSplit, kGqaParts>(p, l, stream)
                             : run<kHeadDim, 1, kSplit, kGqaParts>(p, l, stream);
}

template <int kHeadDim>
cudaError_t run(const GqaAttentionParams& p, cudaStream_t stream) {
  const bool clusters = has_dependent_launch();  // both since sm_90
  const GqaLaunch l = gqa_launch({.num_rows = p.num_rows,
                                  .num_seqs = p.num_seqs,
                                  .num_heads = p.num_heads,
                                  .num_kv_heads = p.num_kv_heads,
                                  .head_dim = kHeadDim,
                                  .max_kv_len = p.max_kv_len,
                                  .max_path = p.max_path},
                                 clusters);
  return l.split ? run<kHeadDim, true>(p, l, stream) : run<kHeadDim, false>(p, l, stream);
}

}  // namespace

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
