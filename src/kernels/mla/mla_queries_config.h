// Sizes of mla_queries: pure host arithmetic.
#pragma once

#include <cstddef>

namespace coppice::kernels {

inline constexpr int kMlaQueriesMaxRows = 24;
inline constexpr int kMlaQueriesInputs = 1536;  // q_lora_rank
inline constexpr int kMlaQueriesSteps = kMlaQueriesInputs / 64;
inline constexpr int kMlaQueriesCluster = 8;
inline constexpr int kMlaQueriesThreads = 256;
inline constexpr int kMlaQueriesPass = 8;   // rows, a warp each
inline constexpr int kMlaQueriesTile = 16;  // outputs of q_b of a block
inline constexpr int kMlaQueriesWeightBytes = kMlaQueriesTile * kMlaQueriesInputs * 2;
inline constexpr int kMlaQueriesAbsorbedBytes = 64 * 128 * 2;
// Bytes between rows in shared memory; 16 more than a row, so that eight rows meet no bank twice.
inline constexpr int kMlaQueriesRowPitch = 2 * kMlaQueriesInputs + 16;
inline constexpr int kMlaQueriesNopePitch = 2 * 128 + 16;
inline constexpr int kMlaQueriesSumPitch = kMlaQueriesTile + 4;  // floats

struct MlaQueriesCut {
  int segments;   // of the inputs of q_b, as in skinny_gemm
  bool together;  // all rows in one pass; else eight a pass
};

MlaQueriesCut mla_queries_cut(int num_rows, int num_heads);

size_t mla_queries_shared_bytes(int num_rows, const MlaQueriesCut& cut);

// Whether the fused kernel covers a shape; the device must be sm_90.
bool mla_queries_fits(int num_rows, int num_heads, int q_lora_rank, int kv_lora_rank,
                      int qk_nope_head_dim, int qk_rope_head_dim);

// Blocks: a cluster for each head, then clusters for the rotated part.
int mla_queries_blocks(int num_heads);

}  // namespace coppice::kernels
