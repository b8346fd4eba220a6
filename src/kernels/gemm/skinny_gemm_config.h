// Split and tile choice of skinny_gemm: pure host arithmetic.
#pragma once

#include <cstddef>

namespace coppice::kernels {

inline constexpr int kSkinnyStepInputs = 64;  // one row of the 128-byte swizzle
inline constexpr int kSkinnyMaxSegments = 8;  // blocks of a portable cluster

inline constexpr int kSkinnyColumns[] = {8, 16, 24, 32, 48, 64, 128, 160, 192, 256};

inline constexpr int kSkinnyMaxWarpgroups = 3;  // 64 outputs of a tile each

inline constexpr int kSkinnyMostPushed = 64;  // tokens of a tile whose sums can be pushed

// Floats a token takes when blocks exchange their sums.
constexpr int skinny_sum_pitch(int tile_outputs) {
  return tile_outputs + 4;
}

// How many segments the inputs are cut into: follows from the weight's shape alone, because it
// fixes the order of additions. Segment s holds steps [s * steps / segments, (s + 1) * steps /
// segments) of 64 inputs.
int skinny_gemm_segments(int num_heads, int outputs, int inputs);

// May follow the number of tokens: changes no result bit.
struct SkinnyGemmTiles {
  int columns = 8;      // tokens of a tile, one of kSkinnyColumns
  int outputs = 64;     // of a tile
  int warpgroups = 1;   // of the products: 64 outputs each, or what is left of them
  int chunks = 1;       // tiles over all tokens
  int head_tiles = 1;   // tiles over the outputs of a head
  int copied_rows = 8;  // tokens of one chunk: missing rows cost a copy more than real ones
  int stages = 0;
  size_t shared_bytes = 0;
  size_t pushed_at = 0;  // of pushed sums, behind the first stage; 0: sums are not pushed
  double cycles = 0;     // estimated
};

struct SkinnyGemmDevice {
  int num_sms = 0;
  size_t max_shared_bytes = 0;  // of a block
};

// A way to tile a product.
struct SkinnyGemmForm {
  int columns, outputs;
  bool alone;   // one block on a multiprocessor, with all of its shared memory
  bool pushes;  // its sums
};

// No stages where the form does not fit.
SkinnyGemmTiles skinny_gemm_tiles_of(const SkinnyGemmForm& form, int num_tokens, int num_heads,
                                     int outputs, int inputs, const SkinnyGemmDevice& device);

// The form that is estimated to take the least time.
SkinnyGemmTiles skinny_gemm_tiles(int num_tokens, int num_heads, int outputs, int inputs,
                                  const SkinnyGemmDevice& device);

}  // namespace coppice::kernels
