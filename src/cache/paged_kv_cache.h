// The paged cache of one network: for every layer one plane (MLA: normed latent and rotated k_pe
// side by side) or two (GQA: K and V). All planes share block ids, and the drafter's cache shares
// them with the target's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace coppice {

struct KvLayout {
  std::int64_t num_layers = 0;
  std::int64_t planes_per_layer = 1;  // 1: MLA, 2: GQA (K, V)
  std::int64_t row_size = 0;          // elements of one position in one plane
};

// Bytes of one block over all layers.
std::int64_t bytes_per_block(const KvLayout& layout, DType dtype);

// Owns device memory. Not thread-safe: used by the thread that enqueues.
class PagedKvCache {
 public:
  // Throws Error(kOutOfMemory) when the blocks do not fit.
  PagedKvCache(Backend& backend, const KvLayout& layout, std::int64_t num_blocks);

  const KvLayout& layout() const { return layout_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  // [num_blocks, kBlockSize, row_size]
  const Tensor& plane(std::int64_t layer, std::int64_t index = 0) const;
  std::span<const Tensor> planes() const { return planes_; }

 private:
  KvLayout layout_;
  std::int64_t num_blocks_;
  Buffer buffer_;
  std::vector<Tensor> planes_;
};

}  // namespace coppice
