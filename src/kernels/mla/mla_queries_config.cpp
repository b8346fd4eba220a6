#include "kernels/mla/mla_queries_config.h"

#include <algorithm>

#include "kernels/gemm/skinny_gemm_config.h"

namespace coppice::kernels {

MlaQueriesCut mla_queries_cut(int num_rows, int num_heads) {
  const int segments = skinny_gemm_segments(1, num_heads * (128 + 64), kMlaQueriesInputs);
  const bool halves = 2 * segments * 32 == kMlaQueriesThreads;  // of the warps, a group each or two
  return {.segments = segments, .together = halves && num_rows > kMlaQueriesPass};
}

size_t mla_queries_shared_bytes(int num_rows, const MlaQueriesCut& cut) {
  const auto rows = static_cast<size_t>(num_rows), parts = static_cast<size_t>(cut.segments);
  const size_t sums = cut.together ? 0 : sizeof(float) * kMlaQueriesSumPitch * rows * parts;
  const size_t at_once = cut.together ? rows : std::min<size_t>(rows, kMlaQueriesPass);
  return kMlaQueriesWeightBytes + kMlaQueriesAbsorbedBytes + 128 + rows * kMlaQueriesNopePitch +
         sums + at_once * kMlaQueriesRowPitch;
}

int mla_queries_blocks(int num_heads) {
  return kMlaQueriesCluster * (num_heads + (num_heads + 1) / 2);
}

bool mla_queries_fits(int num_rows, int num_heads, int q_lora_rank, int kv_lora_rank,
                      int qk_nope_head_dim, int qk_rope_head_dim) {
  return num_rows <= kMlaQueriesMaxRows && num_heads <= 8 && q_lora_rank == kMlaQueriesInputs &&
         kv_lora_rank == 512 && qk_nope_head_dim == 128 && qk_rope_head_dim == 64;
}

}  // namespace coppice::kernels
