#include "kernels/gemm/skinny_gemm_config.h"

#include <algorithm>

namespace coppice::kernels {

namespace {

constexpr int kWarps = 8;
// Work items that fill the largest of the GPUs twice.
constexpr int kWantedItems = 264;

}  // namespace

SkinnyGemmSplit skinny_gemm_split(int num_heads, int outputs, int inputs) {
  SkinnyGemmSplit split;
  const int cells = inputs / kSkinnyCellInputs;
  while (split.warps_k < kWarps && cells % (2 * split.warps_k) == 0) split.warps_k *= 2;
  const int steps = cells / split.warps_k;
  const int item_outputs = 16 * kWarps / split.warps_k;
  const int items = num_heads * ((outputs + item_outputs - 1) / item_outputs);
  split.segments = 1;
  while (split.segments < steps &&
         (steps % split.segments != 0 || items * split.segments < kWantedItems)) {
    ++split.segments;
  }
  split.steps = steps / split.segments;
  return split;
}

SkinnyGemmTiles skinny_gemm_tiles(int num_tokens, int num_heads, int outputs,
                                  const SkinnyGemmSplit& split, size_t max_shared_bytes) {
  SkinnyGemmTiles t;
  t.columns = num_tokens <= 8 ? 1 : num_tokens <= 16 ? 2 : num_tokens <= 32 ? 4 : 8;
  // Two tiles halve the traffic of inputs; worth it when that is large and the items still fill the
  // GPU.
  const int item_outputs = 2 * 16 * kWarps / split.warps_k;
  const int items = num_heads * ((outputs + item_outputs - 1) / item_outputs) * split.segments;
  t.tiles = t.columns > 2 && items >= kWantedItems ? 2 : 1;
  t.chunks = (num_tokens + 8 * t.columns - 1) / (8 * t.columns);
  const int rows = 16 * t.tiles * kWarps / split.warps_k + std::min(num_tokens, 8 * t.columns);
  t.stage_bytes = rows * (split.warps_k * kSkinnyCellInputs * 2 + 64);
  const size_t fixed = size_t{kSkinnySumSlots} * (kWarps * 512 + 16);
  const size_t stage = size_t(t.stage_bytes) + 3 * 8;
  t.stages = std::min<int>(16, static_cast<int>((max_shared_bytes - fixed) / stage));
  t.shared_bytes = fixed + t.stages * stage;
  return t;
}

}  // namespace coppice::kernels
