#include "kernels/gemm/skinny_gemm_config.h"

#include <algorithm>

namespace coppice::kernels {

namespace {

constexpr int kWantedBlocks = 96;  // that keep the memory of the largest GPUs busy
constexpr int kRowBytes = 2 * kSkinnyStepInputs;

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// One way to tile a product.
struct Candidate {
  int columns, warpgroups;
  bool alone;  // one block on a multiprocessor, with all of its shared memory
};

struct Product {
  int tokens, heads, outputs, segments, steps;  // steps: of the longest segment
};

SkinnyGemmTiles make_tiles(const Product& p, const Candidate& c, const SkinnyGemmDevice& device) {
  SkinnyGemmTiles t = {.columns = c.columns, .warpgroups = c.warpgroups};
  t.chunks = divide_up(p.tokens, t.columns);
  t.head_tiles = divide_up(p.outputs, 64 * t.warpgroups);
  t.copied_rows = std::min(p.tokens, divide_up(divide_up(p.tokens, t.chunks), 8) * 8);
  const size_t stage = size_t(kRowBytes) * (64 * t.warpgroups + t.columns);
  const size_t fixed = 1024;  // barriers
  // With two blocks on a multiprocessor the next kernel's weights arrive under this one's end.
  const size_t budget =
      c.alone ? device.max_shared_bytes : (device.max_shared_bytes + 1024) / 2 - 1024;
  t.stages = std::min<int>({p.steps, static_cast<int>((budget - fixed) / stage), 32});
  const size_t staged = t.stages * stage;
  const size_t pushed = sizeof(float) * 64 * p.segments * divide_up(t.copied_rows, p.segments);
  if (p.segments > 1 && t.columns <= kSkinnyMostPushed && fixed + staged + pushed <= budget) {
    t.pushed_at = staged;
    t.shared_bytes = fixed + staged + pushed;
    return t;
  }
  const size_t exchange = sizeof(float) * skinny_sum_pitch(64 * t.warpgroups) * t.columns;
  t.shared_bytes = fixed + std::max(staged, exchange);
  return t;
}

// Estimated cycles; the constants were fitted to a sweep on an H200 (lab/gemm, docs/results).
double estimated_cycles(const Product& p, const SkinnyGemmTiles& t, bool alone,
                        const SkinnyGemmDevice& device) {
  constexpr double kLatency = 3600;      // of a loaded memory system, from copy to use
  constexpr double kFixed = 4000;        // of a block: start, exchange of sums, end
  constexpr double kMemoryBytes = 2600;  // a cycle, of device memory
  constexpr double kCopyBytes = 64;      // a cycle and multiprocessor, from the L2 cache
  const int blocks = p.heads * t.head_tiles * p.segments * t.chunks;
  const int resident = alone ? 1 : 2;
  // Clusters leave some multiprocessors unused, large ones more.
  const int clusters = device.num_sms / p.segments - (p.segments == 8 ? 2 : p.segments == 4);
  const int places = resident * clusters * p.segments;
  const int together = std::min(resident, divide_up(blocks, device.num_sms));
  const double products = 2.0 * t.columns * t.warpgroups * together;
  const double copies = kRowBytes * (64.0 * t.warpgroups + t.columns) / kCopyBytes * together;
  const double waiting = (kLatency + 1.2 * copies) / t.stages;
  const double memory =
      std::min(blocks, places) / t.chunks * (64.0 * kRowBytes * t.warpgroups) / kMemoryBytes;
  return divide_up(blocks, places) *
         (p.steps * std::max({products, copies, waiting, memory}) + kFixed);
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
  const int segments = skinny_gemm_segments(num_heads, outputs, inputs);
  const Product product = {num_tokens, num_heads, outputs, segments,
                           divide_up(inputs / kSkinnyStepInputs, segments)};
  SkinnyGemmTiles best;
  const auto consider = [&](const Candidate& c) {
    const SkinnyGemmTiles t = make_tiles(product, c, device);
    const bool fits = t.stages >= std::min(2, product.steps) &&
                      t.shared_bytes <= device.max_shared_bytes / (c.alone ? 1 : 2);
    const double cycles = estimated_cycles(product, t, c.alone, device);
    if (!fits || (best.stages > 0 && cycles >= best.cycles)) return;
    best = t;
    best.cycles = cycles;
  };
  bool covers = false;  // all tokens in one tile
  for (const int columns : kSkinnyColumns) {
    const bool wide = columns >= 128;
    if (covers || (!wide && columns < num_tokens)) continue;
    covers = columns >= num_tokens;
    for (const bool alone : {false, true}) {
      consider({columns, 1, alone});
      if (wide) consider({columns, 2, alone});
    }
  }
  return best;
}

}  // namespace coppice::kernels
