#include "kernels/mla/mla_queries_config.h"

#include <algorithm>

namespace coppice::kernels {

size_t mla_queries_shared_bytes(int num_rows, int segments) {
  const auto rows = static_cast<size_t>(num_rows), parts = static_cast<size_t>(segments);
  return kMlaQueriesWeightBytes + kMlaQueriesAbsorbedBytes + 128 +
         rows * (kMlaQueriesNopePitch + parts * kMlaQueriesSumPitch * sizeof(float)) +
         std::min<size_t>(rows, 8) * kMlaQueriesRowPitch;
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
