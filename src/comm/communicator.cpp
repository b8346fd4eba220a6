#include "comm/communicator.h"

#include <algorithm>

namespace coppice {

void all_reduce_sum(Communicator& communicator, std::span<float> x, std::vector<float>& workspace) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::size_t part = (x.size() + size - 1) / size;  // of one rank; the last may be padded
  workspace.assign(2 * size * part, 0.0f);
  const std::span<float> all(workspace.data(), size * part);
  const std::span<float> parts(workspace.data() + size * part, size * part);
  std::copy(x.begin(), x.end(), all.begin());
  communicator.exchange(std::as_bytes(all), std::as_writable_bytes(parts));
  const std::span<float> sum = parts.first(part);
  for (std::size_t rank = 1; rank < size; ++rank)
    for (std::size_t i = 0; i < part; ++i) sum[i] += parts[rank * part + i];
  communicator.all_gather(std::as_bytes(sum), std::as_writable_bytes(all));
  std::copy(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(x.size()), x.begin());
}

}  // namespace coppice
