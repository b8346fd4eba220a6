// Dense host tensors as a .safetensors file, in one go.
#pragma once

#include <algorithm>

#include "io/safetensors_writer.h"
#include "tensor/tensor.h"

namespace coppice::test {

inline void write_safetensors(const std::filesystem::path& path,
                              const std::vector<std::pair<std::string, Tensor>>& tensors,
                              const SafetensorsMetadata& metadata = {}) {
  auto order = tensors;
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return size_of(a.second.dtype()) > size_of(b.second.dtype());
  });
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : order) {
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < tensor.ndim(); ++dim) shape.push_back(tensor.shape(dim));
    specs.push_back({name, storage_of(tensor.dtype()), std::move(shape)});
  }
  SafetensorsWriter writer(path, specs, metadata);
  for (const auto& [name, tensor] : order)
    writer.write({static_cast<const std::byte*>(tensor.raw()),
                  static_cast<std::size_t>(tensor.num_bytes())});
  writer.finish();
}

}  // namespace coppice::test
