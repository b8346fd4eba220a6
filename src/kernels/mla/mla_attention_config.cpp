#include "kernels/mla/mla_attention_config.h"

#include <algorithm>

namespace coppice::kernels {
namespace {

constexpr size_t kHeaderBytes = 256;
constexpr size_t kFragmentBytes = 96;
constexpr size_t kTileBytes = 80;
constexpr size_t kMaxRounds = 4;  // fragments of a CTA when tiles are cut into parts
constexpr size_t kPassBytes = 32 + 4 * kMlaStepPositions + 8 * kMlaStepPositions;
constexpr size_t kSlotStatsBytes = 2 * 8 * kMlaTileRows;
constexpr size_t kSlotBytes = size_t{2} * kMlaTileRows * 512;  // half precision

size_t align(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

MlaChunkTable mla_chunk_table(int num_heads) {
  // Few heads: a step is short of CTAs, so chunks are small. Many heads: a chunk's partial result
  // costs as much as two steps, so chunks are large.
  if (num_heads <= 16) return {{4096, 16384, 65536}, {1, 2, 3, 4}};
  return {{4096, 16384, 65536}, {3, 3, 4, 5}};
}

MlaChunkTable mla_prompt_chunk_table() {
  return {{1 << 30, 1 << 30, 1 << 30}, {12, 12, 12, 12}};
}

int mla_padded_heads(int num_heads) {
  int padded = 8;
  while (padded < num_heads) padded *= 2;
  return padded;
}

bool mla_uses_tensor_cores(int num_heads, int kv_lora_rank, int qk_rope_head_dim) {
  return num_heads <= kMlaTileRows && kv_lora_rank == 512 && qk_rope_head_dim == 64;
}

MlaWorkspaceLayout mla_workspace_layout(int max_rows, int max_path, int num_ctas) {
  MlaWorkspaceLayout layout = {};
  const size_t rows = static_cast<size_t>(max_rows);
  const size_t ctas = static_cast<size_t>(num_ctas);
  const size_t slots = ctas * kMlaSlotsPerCta;
  layout.passes_per_row = (max_path + 2 * kMlaStepPositions + 7) / kMlaStepPositions + 1;
  size_t offset = kHeaderBytes;
  const auto take = [&offset](size_t bytes) {
    const size_t at = offset;
    offset += align(bytes);
    return at;
  };
  layout.header = 0;
  layout.fragments = take(kFragmentBytes * std::max(rows, ctas * kMaxRounds));
  layout.tiles = take(kTileBytes * rows);
  layout.tile_of_row = take(sizeof(int32_t) * rows);
  layout.passes = take(kPassBytes * rows * static_cast<size_t>(layout.passes_per_row));
  layout.slot_stats = take(kSlotStatsBytes * slots);
  layout.slots = take(kSlotBytes * slots);
  layout.total = offset;
  return layout;
}

}  // namespace coppice::kernels
