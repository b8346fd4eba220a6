#include "engine/step_masks.h"

#include <algorithm>

namespace coppice {

void fill_prefill_masks(const StepPlan& plan, std::span<std::int32_t> masks) {
  std::vector<Sequence*> sampling;
  for (const PrefillChunk& chunk : plan.chunks)
    if (chunk.samples) sampling.push_back(chunk.sequence);
  std::sort(sampling.begin(), sampling.end(),
            [](const Sequence* a, const Sequence* b) { return a->place < b->place; });
  const std::size_t words = masks.size() / sampling.size();
  for (std::size_t row = 0; row < sampling.size(); ++row)
    if (sampling[row]->constraint)
      sampling[row]->constraint->fill(masks.subspan(row * words, words));
}

void fill_round_masks(const StepPlan& plan, const RoundResults& results,
                      std::span<std::int32_t> masks, std::size_t words_per_row) {
  const std::int32_t* offsets = results.row_offsets.data<std::int32_t>();
  for (const Sequence* sequence : plan.decoding) {
    const std::int64_t place = sequence->place;
    const auto first = static_cast<std::size_t>(offsets[place]);
    const std::size_t count = static_cast<std::size_t>(offsets[place + 1]) - first;
    if (!sequence->constraint || count == 0) continue;
    fill_tree(*sequence->constraint, {results.trees.tokens.row<std::int32_t>(place), count},
              {results.trees.parents.row<std::int32_t>(place), count},
              masks.subspan(first * words_per_row, count * words_per_row));
  }
}

}  // namespace coppice
