#include "kernels/gemm/skinny_gemm_config.h"

#include <algorithm>

namespace coppice::kernels {

namespace {

constexpr int kWantedBlocks = 96;  // that keep the memory of the largest GPUs busy
constexpr int kRowBytes = 2 * kSkinnyStepInputs;
constexpr int kLongSteps = 64;  // of a segment that takes longer than a launch

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

struct Product {
  int tokens, heads, outputs, segments, steps;  // steps: of the longest segment
};

Product make_product(int tokens, int heads, int outputs, int inputs) {
  const int segments = skinny_gemm_segments(heads, outputs, inputs);
  return {tokens, heads, outputs, segments, divide_up(inputs / kSkinnyStepInputs, segments)};
}

// Clusters that run at the same time, one block on a multiprocessor: large ones leave some unused.
int clusters_at_once(int segments, const SkinnyGemmDevice& device) {
  constexpr double kReached = 0.85;
  return segments < 4 ? device.num_sms / segments
                      : static_cast<int>(kReached * device.num_sms / segments);
}

// Outputs of a tile with which the blocks take whole waves, all as long.
int even_outputs(const Product& p, int columns, const SkinnyGemmDevice& device) {
  constexpr int kMost = 64 * kSkinnyMaxWarpgroups;
  const int shared_by = p.heads * divide_up(p.tokens, columns);
  const int tiles = std::max(1, clusters_at_once(p.segments, device) / shared_by);
  const int waves = divide_up(p.outputs, tiles * kMost);
  return std::max(64, divide_up(divide_up(p.outputs, tiles * waves), 8) * 8);
}

// Whether a tile's sums are pushed: many, by few blocks, take longer than two cluster barriers.
bool pushes(const Product& p, int columns) {
  return p.segments > 1 && columns <= kSkinnyMostPushed &&
         p.tokens <= (p.segments == kSkinnyMaxSegments ? 64 : 40);
}

SkinnyGemmTiles tiles_of(const Product& p, const SkinnyGemmForm& form,
                         const SkinnyGemmDevice& device) {
  SkinnyGemmTiles t = {.columns = form.columns, .outputs = form.outputs};
  t.warpgroups = divide_up(t.outputs, 64);
  t.chunks = divide_up(p.tokens, t.columns);
  t.head_tiles = divide_up(p.outputs, t.outputs);
  t.copied_rows = std::min(p.tokens, divide_up(divide_up(p.tokens, t.chunks), 8) * 8);
  const int rows = t.outputs + t.columns;  // of a stage
  const size_t stage = size_t(kRowBytes) * rows;
  // Barriers, and what products of whole warpgroups read behind the last stage.
  const size_t fixed = 1024 + size_t(kRowBytes) * std::max(0, 64 * t.warpgroups - rows);
  // With two blocks on a multiprocessor the next kernel's weights arrive under this one's end.
  const size_t budget =
      form.alone ? device.max_shared_bytes : (device.max_shared_bytes + 1024) / 2 - 1024;
  const size_t pushed = form.pushes ? sizeof(float) * 64 * t.warpgroups * p.segments *
                                          divide_up(t.copied_rows, p.segments)
                                    : 0;
  const size_t room = budget > fixed + pushed ? budget - fixed - pushed : 0;
  t.stages = std::min<int>({p.steps, static_cast<int>(room / stage), 32});
  const size_t staged = t.stages * stage;
  if (form.pushes) t.pushed_at = staged;
  const size_t exchange =
      form.pushes ? 0 : sizeof(float) * skinny_sum_pitch(64 * t.warpgroups) * t.columns;
  t.shared_bytes = fixed + std::max(staged + pushed, exchange);
  if (t.stages < std::min(2, p.steps) || t.shared_bytes > budget) t.stages = 0;
  return t;
}

// Estimated cycles; the constants were fitted to a sweep on an H200 (lab/gemm, docs/results).
double estimated_cycles(const Product& p, const SkinnyGemmTiles& t, bool alone,
                        const SkinnyGemmDevice& device) {
  constexpr double kLatency = 3600;      // of a loaded memory system, from copy to use
  constexpr double kFixed = 4000;        // of a block: start, exchange of sums, end
  constexpr double kExchange = 900;      // two cluster barriers and a read in place of pushed sums
  constexpr double kAlone = 1.05;        // the next kernel's weights wait for this one's end
  constexpr double kMemoryBytes = 2600;  // a cycle, of device memory
  constexpr double kSmBytes = 31;        // of it, for one multiprocessor
  constexpr double kCopyBytes = 64;      // a cycle and multiprocessor, from the L2 cache
  const int blocks = p.heads * t.head_tiles * p.segments * t.chunks;
  const bool registers_for_two = t.columns <= 128 || t.warpgroups == 1;
  const int resident = alone || !registers_for_two ? 1 : 2;
  const int places = resident * clusters_at_once(p.segments, device) * p.segments;
  const int together = std::min(resident, divide_up(blocks, device.num_sms));
  // Of the tensor cores, and of shared memory: each warpgroup reads its outputs and all tokens.
  const int brought = t.outputs + t.columns;
  const double products =
      std::max(2.0 * t.columns * t.warpgroups, double(t.warpgroups * (64 + t.columns) + brought)) *
      together;
  const double copies = kRowBytes * double(brought) / kCopyBytes * together;
  const double waiting = (kLatency + 1.2 * copies) / t.stages;
  const double weights = kRowBytes * t.outputs;
  const double memory = std::max(std::min(blocks, places) / t.chunks * weights / kMemoryBytes,
                                 together * weights / kSmBytes);
  const double exchange = p.segments > 1 && t.pushed_at == 0 ? kExchange : 0;
  return (alone ? kAlone : 1) * divide_up(blocks, places) *
         (p.steps * std::max({products, copies, waiting, memory}) + kFixed + exchange);
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

SkinnyGemmTiles skinny_gemm_tiles_of(const SkinnyGemmForm& form, int num_tokens, int num_heads,
                                     int outputs, int inputs, const SkinnyGemmDevice& device) {
  return tiles_of(make_product(num_tokens, num_heads, outputs, inputs), form, device);
}

SkinnyGemmTiles skinny_gemm_tiles(int num_tokens, int num_heads, int outputs, int inputs,
                                  const SkinnyGemmDevice& device) {
  const Product product = make_product(num_tokens, num_heads, outputs, inputs);
  SkinnyGemmTiles best;
  const auto consider = [&](const SkinnyGemmForm& form) {
    const SkinnyGemmTiles t = tiles_of(product, form, device);
    if (t.stages == 0) return;
    // Launched while the kernels before it hold multiprocessors, few blocks would share some that
    // have room for two and leave others unused; a long product does not make up for that.
    const int blocks = num_heads * t.head_tiles * product.segments * t.chunks;
    if (!form.alone && product.steps >= kLongSteps && blocks <= device.num_sms) return;
    const double cycles = estimated_cycles(product, t, form.alone, device);
    if (best.stages > 0 && cycles >= best.cycles) return;
    best = t;
    best.cycles = cycles;
  };
  bool covers = false;  // all tokens in one tile
  for (const int columns : kSkinnyColumns) {
    const bool wide = columns >= 128;
    if (covers || (!wide && columns < num_tokens)) continue;
    covers = columns >= num_tokens;
    const bool push = pushes(product, columns);
    const int even = even_outputs(product, columns, device);
    for (const bool alone : {false, true}) {
      if (push) consider({columns, 64, alone, true});
      consider({columns, 64, alone, false});
      if (wide) consider({columns, 128, alone, false});
    }
    // In clusters it pays for many tokens only: alone on a multiprocessor, blocks leave the kernels
    // around them no room.
    if (columns <= 128 && even > 64 && (product.segments == 1 || num_tokens > 48)) {
      consider({columns, even, true, push});
    }
  }
  return best;
}

}  // namespace coppice::kernels
