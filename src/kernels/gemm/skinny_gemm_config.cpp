#include "kernels/gemm/skinny_gemm_config.h"

#include <algorithm>

namespace coppice::kernels {

namespace {

constexpr int kWantedBlocks = 96;  // that keep the memory of the largest GPUs busy
constexpr int kRowBytes = 2 * kSkinnyStepInputs;

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Time of one step in cycles: products against copies at 64 bytes a cycle.
int step_cycles(int columns, int warpgroups) {
  return std::max(2 * columns * warpgroups, 2 * (64 * warpgroups + columns));
}

}  // namespace

int skinny_gemm_segments(int num_heads, int outputs, int inputs) {
  const int steps = inputs / kSkinnyStepInputs;
  const int tiles = num_heads * divide_up(outputs, 64);
  int segments = 1;
  while (segments < kSkinnyMaxSegments && tiles * segments < kWantedBlocks &&
         steps >= 4 * segments) {
    segments *= 2;
  }
  return segments;
}

SkinnyGemmTiles skinny_gemm_tiles(int num_tokens, int num_heads, int outputs, int inputs,
                                  const SkinnyGemmDevice& device) {
  SkinnyGemmTiles t;
  while (t.columns < 256 && t.columns < num_tokens) t.columns *= 2;
  t.chunks = divide_up(num_tokens, t.columns);
  t.copied_rows = std::min(num_tokens, t.columns);
  const int segments = skinny_gemm_segments(num_heads, outputs, inputs);
  const auto blocks = [&](int warpgroups) {
    return num_heads * divide_up(outputs, 64 * warpgroups) * segments * t.chunks;
  };
  const auto cycles = [&](int warpgroups) {
    return divide_up(blocks(warpgroups), device.num_sms) * step_cycles(t.columns, warpgroups);
  };
  if (t.columns >= 128 && cycles(2) < cycles(1)) t.warpgroups = 2;
  t.head_tiles = divide_up(outputs, 64 * t.warpgroups);

  const int steps = divide_up(inputs / kSkinnyStepInputs, segments);
  const size_t weights = size_t(kRowBytes) * 64 * t.warpgroups;
  const size_t stage = weights + size_t(kRowBytes) * t.columns;
  const size_t fixed = 1024;  // barriers
  // Two blocks fit on a multiprocessor: the next kernel's weights arrive under this one's end.
  // Large tiles need the room themselves.
  const bool alone = t.columns == 256 || t.warpgroups == 2 ||
                     (t.columns == 128 && blocks(t.warpgroups) <= device.num_sms);
  const size_t budget =
      (alone ? device.max_shared_bytes : (device.max_shared_bytes + 1024) / 2 - 1024) - fixed;
  t.stages = std::min<int>({steps, static_cast<int>(budget / stage), 32});
  const size_t exchange = sizeof(float) * skinny_sum_pitch(64 * t.warpgroups) * t.columns;
  t.shared_bytes = fixed + std::max(t.stages * stage, exchange);
  return t;
}

}  // namespace coppice::kernels
