#include "engine/step_masks.h"

#include <algorithm>
#include <exception>

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
                      std::span<std::int32_t> masks, std::size_t words_per_row,
                      ThreadPool* threads) {
  const std::int32_t* offsets = results.row_offsets.data<std::int32_t>();
  std::vector<const Sequence*> bound;
  for (const Sequence* sequence : plan.decoding)
    if (sequence->constraint && offsets[sequence->place + 1] > offsets[sequence->place])
      bound.push_back(sequence);
  const auto fill_one = [&](const Sequence& sequence) {
    const std::int64_t place = sequence.place;
    const auto first = static_cast<std::size_t>(offsets[place]);
    const std::size_t count = static_cast<std::size_t>(offsets[place + 1]) - first;
    fill_tree(*sequence.constraint, {results.trees.tokens.row<std::int32_t>(place), count},
              {results.trees.parents.row<std::int32_t>(place), count},
              masks.subspan(first * words_per_row, count * words_per_row));
  };
  if (threads == nullptr || bound.size() < 2) {
    for (const Sequence* sequence : bound) fill_one(*sequence);
    return;
  }
  std::vector<std::exception_ptr> faults(bound.size());
  threads->parallel_for(std::ssize(bound), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      try {
        fill_one(*bound[i]);
      } catch (...) {
        faults[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
}

}  // namespace coppice
