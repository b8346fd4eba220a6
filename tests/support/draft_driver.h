// Drives a DFlash drafter over the blocks of a ModelDriver in tests.
#pragma once

#include <cstdint>
#include <vector>

#include "model/dflash_model.h"
#include "tests/support/model_driver.h"

namespace coppice::testing {

class DraftDriver {
 public:
  // Shares slots with `target`, as an engine's drafter does.
  DraftDriver(Backend& backend, DflashModel& drafter, const ModelDriver& target)
      : backend_(backend),
        drafter_(drafter),
        target_(target),
        cache_(backend, drafter.kv_layout(),
               static_cast<std::int64_t>(target.block_table().size())),
        scratch_(backend) {}

  // features [count, num_features * hidden_size] of positions begin, begin + 1, ...
  void append(std::span<const float> features, std::int64_t begin, std::int64_t count,
              Provenance provenance) {
    std::vector<std::int32_t> positions, slots;
    for (std::int64_t i = begin; i < begin + count; ++i) {
      positions.push_back(static_cast<std::int32_t>(i));
      slots.push_back(target_.slot(i));
    }
    const std::int64_t width = static_cast<std::int64_t>(features.size()) / count;
    const DType act = backend_.activation_dtype();
    const Tensor tensor = scratch_.make(act, count, width);
    if (act == DType::kF32) {
      backend_.upload(tensor, features.data());
    } else {
      std::vector<bf16> rounded(features.size());
      std::ranges::transform(features, rounded.begin(), to_bf16);
      backend_.upload(tensor, rounded.data());
    }
    drafter_.append_context(tensor, scratch_.ints(positions), scratch_.ints(slots), cache_,
                            provenance);
    backend_.synchronize();
    scratch_.clear();
  }

  // Drafts from `anchor` at `position`; logits [block_size - 1, vocab_size].
  std::vector<float> draft(std::int32_t anchor, std::int64_t position) {
    const std::int64_t size = drafter_.config().block_size;
    std::vector<std::int32_t> tokens, positions, slots;
    for (std::int64_t j = 0; j < size; ++j) {
      tokens.push_back(j == 0 ? anchor
                              : static_cast<std::int32_t>(drafter_.config().mask_token_id));
      positions.push_back(static_cast<std::int32_t>(position + j));
      slots.push_back(target_.slot(position + j));
    }
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(size), 0);
    const std::vector<std::int32_t> kv_len(static_cast<std::size_t>(size),
                                           static_cast<std::int32_t>(position + size));
    const auto& table = target_.block_table();
    const ForwardBatch batch{.token_ids = scratch_.ints(tokens),
                             .positions = scratch_.ints(positions),
                             .slots = scratch_.ints(slots),
                             .attention = {.seq_of_row = scratch_.ints(zeros),
                                           .kv_len = scratch_.ints(kv_len),
                                           .path_len = scratch_.ints(zeros),
                                           .path = scratch_.ints(zeros, size, 1),
                                           .block_tables = scratch_.ints(
                                               table, 1, static_cast<std::int64_t>(table.size())),
                                           .max_kv_len = position + size,
                                           .provenance = Provenance::kDecided},
                             .output_rows = {}};
    const std::int64_t vocab_size = drafter_.config().network.vocab_size;
    const Tensor logits = scratch_.make(DType::kF32, size - 1, vocab_size);
    drafter_.draft(batch, cache_, logits);
    std::vector<float> values = scratch_.floats(logits);
    scratch_.clear();
    return values;
  }

  // One cached row of K (plane 0) or V (plane 1), [num_kv_heads * head_dim].
  std::vector<float> cached(std::int64_t layer, std::int64_t plane, std::int64_t position) {
    const Tensor& whole = cache_.plane(layer, plane);
    return scratch_.floats(whole.reshape({whole.shape(0) * whole.shape(1), whole.shape(2)})
                               .rows(target_.slot(position), 1));
  }

 private:
  Backend& backend_;
  DflashModel& drafter_;
  const ModelDriver& target_;
  PagedKvCache cache_;
  DeviceScratch scratch_;
};

}  // namespace coppice::testing
