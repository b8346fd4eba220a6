// Tile choice of skinny_gemm: pure host arithmetic.
#pragma once

#include <cstddef>

namespace coppice::kernels {

inline constexpr int kSkinnyCellInputs = 64;  // of one warp in a step
inline constexpr int kSkinnySumSlots = 8;     // between the multiplying and the finishing warps

// Follows from the weight's shape alone: it fixes the order of additions.
struct SkinnyGemmSplit {
  int warps_k = 1;   // of the eight warps, how many share the inputs of a row: 1, 2, 4 or 8
  int segments = 1;  // of the inputs, each done by one block
  int steps = 0;     // of 64 * warps_k inputs in a segment
};

SkinnyGemmSplit skinny_gemm_split(int num_heads, int outputs, int inputs);

// May follow the number of tokens: changes no result bit.
struct SkinnyGemmTiles {
  int tiles = 1;    // m16 tiles of outputs per warp
  int columns = 1;  // n8 tiles of tokens per item
  int chunks = 1;   // of 8 * columns tokens
  int stages = 0;
  int stage_bytes = 0;
  size_t shared_bytes = 0;
};

SkinnyGemmTiles skinny_gemm_tiles(int num_tokens, int num_heads, int outputs,
                                  const SkinnyGemmSplit& split, size_t max_shared_bytes);

}  // namespace coppice::kernels
