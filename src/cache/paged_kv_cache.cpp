#include "cache/paged_kv_cache.h"

namespace coppice {

std::int64_t bytes_per_block(const KvLayout& layout, DType dtype) {
  return layout.num_layers * layout.planes_per_layer * kBlockSize * layout.row_size *
         static_cast<std::int64_t>(size_of(dtype));
}

PagedKvCache::PagedKvCache(Backend& backend, const KvLayout& layout, std::int64_t num_blocks)
    : layout_(layout),
      num_blocks_(num_blocks),
      buffer_(backend.allocate(
          static_cast<std::size_t>(num_blocks * bytes_per_block(layout, backend.kv_dtype())))) {
  const std::int64_t num_planes = layout.num_layers * layout.planes_per_layer;
  const std::int64_t plane_bytes = num_blocks * kBlockSize * layout.row_size *
                                   static_cast<std::int64_t>(size_of(backend.kv_dtype()));
  for (std::int64_t i = 0; i < num_planes; ++i)
    planes_.push_back(buffer_.tensor(backend.kv_dtype(), {num_blocks, kBlockSize, layout.row_size},
                                     static_cast<std::size_t>(i * plane_bytes)));
}

const Tensor& PagedKvCache::plane(std::int64_t layer, std::int64_t index) const {
  COPPICE_CHECK_LT(layer, layout_.num_layers);
  COPPICE_CHECK_LT(index, layout_.planes_per_layer);
  return planes_[static_cast<std::size_t>(layer * layout_.planes_per_layer + index)];
}

}  // namespace coppice
