// Host tensors that own their memory, and the tensor groups of tree rounds, for op tests.
#pragma once

#include <initializer_list>
#include <limits>
#include <vector>

#include "backend/op_args.h"
#include "tensor/buffer.h"

namespace coppice::testing {

// Hands out zero-filled host tensors that live as long as the pool.
class HostTensors {
 public:
  template <typename T>
  Tensor make(std::initializer_list<std::int64_t> shape, T fill = T{}) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    buffers_.push_back(Buffer::host(static_cast<std::size_t>(count) * sizeof(T)));
    const Tensor tensor = buffers_.back().tensor(detail::DTypeOf<T>::value, shape);
    for (std::int64_t i = 0; i < count; ++i) tensor.data<T>()[i] = fill;
    return tensor;
  }
  template <typename T>
  Tensor of(std::initializer_list<std::int64_t> shape, const std::vector<T>& values) {
    const Tensor tensor = make<T>(shape);
    COPPICE_CHECK_EQ(static_cast<std::int64_t>(values.size()), tensor.num_elements());
    for (std::size_t i = 0; i < values.size(); ++i) tensor.data<T>()[i] = values[i];
    return tensor;
  }

 private:
  std::vector<Buffer> buffers_;
};

inline TreeBuffers make_trees(HostTensors& pool, std::int64_t batch, std::int64_t max_nodes) {
  return {.tokens = pool.make<std::int32_t>({batch, max_nodes + 1}, -7),
          .parents = pool.make<std::int32_t>({batch, max_nodes + 1}, -7),
          .depths = pool.make<std::int32_t>({batch, max_nodes + 1}, -7),
          .scores = pool.make<float>({batch, max_nodes + 1}, -7.0f),
          .counts = pool.make<std::int32_t>({batch}, -1)};
}

struct Node {
  std::int32_t token;
  std::int32_t parent;
  float score = 0;
};

// Writes tree b: the root's token, then nodes in order.
inline void set_tree(const TreeBuffers& trees, std::int64_t b, std::int32_t root,
                     const std::vector<Node>& nodes) {
  trees.tokens.row<std::int32_t>(b)[0] = root;
  trees.parents.row<std::int32_t>(b)[0] = -1;
  trees.depths.row<std::int32_t>(b)[0] = 0;
  trees.scores.row<float>(b)[0] = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    trees.tokens.row<std::int32_t>(b)[i + 1] = nodes[i].token;
    trees.parents.row<std::int32_t>(b)[i + 1] = nodes[i].parent;
    trees.depths.row<std::int32_t>(b)[i + 1] =
        trees.depths.row<std::int32_t>(b)[nodes[i].parent] + 1;
    trees.scores.row<float>(b)[i + 1] = nodes[i].score;
  }
  trees.counts.data<std::int32_t>()[b] = static_cast<std::int32_t>(nodes.size());
}

inline SamplingBuffers make_sampling(HostTensors& pool, std::int64_t batch, std::int64_t max_len) {
  return {.temperature = pool.make<float>({batch}),
          .top_k = pool.make<std::int32_t>({batch}),
          .top_p = pool.make<float>({batch}, 1.0f),
          .min_p = pool.make<float>({batch}),
          .repetition_penalty = pool.make<float>({batch}, 1.0f),
          .presence_penalty = pool.make<float>({batch}),
          .frequency_penalty = pool.make<float>({batch}),
          .seed = pool.make<std::int64_t>({batch}),
          .choice_index = pool.make<std::int32_t>({batch}),
          .prompt_len = pool.make<std::int32_t>({batch}),
          .history = pool.make<std::int32_t>({batch, max_len}, -1),
          .history_len = pool.make<std::int32_t>({batch}),
          .bias_ids = pool.make<std::int32_t>({batch, 4}, -1),
          .bias_values = pool.make<float>({batch, 4}),
          .min_tokens = pool.make<std::int32_t>({batch}),
          .stop_ids = pool.make<std::int32_t>({batch, 4}, -1),
          .max_tokens = pool.make<std::int32_t>({batch}, 1 << 20)};
}

template <typename T>
std::vector<T> values(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.num_elements()};
}

}  // namespace coppice::testing
