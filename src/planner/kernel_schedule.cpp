#include "planner/kernel_schedule.h"

#include <algorithm>
#include <limits>

#include "kernels/gemm/skinny_gemm_config.h"
#include "kernels/mla/mla_attention_config.h"
#include "kernels/mla/mla_cut.h"

namespace coppice {
namespace {

using kernels::MlaCut;
using kernels::MlaGroup;

std::int64_t divide_up(std::int64_t total, std::int64_t parts) {
  return (total + parts - 1) / parts;
}

int log2_steps_at(int num_heads, std::int64_t position) {
  const kernels::MlaChunkTable table = kernels::mla_chunk_table(num_heads);
  for (int i = 0; i < 3; ++i)
    if (position < table.until[i]) return table.log2_steps[i];
  return table.log2_steps[3];
}

MlaGroup group_of(int num_heads, std::int64_t rows, std::int64_t context) {
  const int nodes = kernels::kMlaTileRows / kernels::mla_padded_heads(num_heads);
  const int last_step = static_cast<int>(context / kernels::kMlaStepPositions);
  MlaGroup group = {};
  group.size = static_cast<int>((rows + nodes - 1) / nodes);
  group.log2_steps = log2_steps_at(num_heads, context);
  group.chunks = (last_step >> group.log2_steps) + 1;
  group.whole_chunks =
      std::max(1, (last_step + 1 + ((1 << group.log2_steps) - 1) / 2) >> group.log2_steps);
  return group;
}

struct Choice {
  MlaSchedule schedule;
  int cost = std::numeric_limits<int>::max();
};

// As the planning kernel searches, for `sequences` groups alike.
Choice search(const MlaGroup& group, int sequences, int rounds, bool join, int num_sms) {
  int low = 0, high = kernels::kMlaUncut;
  while (high - low > 1) {
    const MlaCut cut = {(low + high) / 2, join};
    const int parts = kernels::mla_parts(group, cut);
    const int fragments = sequences * group.size * parts;
    const bool fits =
        fragments <= rounds * num_sms && fragments * kernels::mla_part_slots(group, cut, parts) <=
                                             num_sms * kernels::kMlaSlotsPerCta;
    (fits ? high : low) = cut.steps;
  }
  if (high == kernels::kMlaUncut) return {};
  const MlaCut cut = {high, join};
  const int chunks = kernels::mla_cut_chunks(group, cut), parts = kernels::mla_parts(group, cut);
  const int joined = chunks < group.chunks ? kernels::kMlaJoinedSteps : 0;
  const int longest = (kernels::mla_longest_part(chunks, parts) << group.log2_steps) + joined;
  const int fragments = sequences * group.size * parts;
  return {.schedule = {.tiles = sequences * group.size,
                       .fragments = fragments,
                       .rounds = divide_up(fragments, num_sms),
                       .steps = longest,
                       .chunks = divide_up(longest, 1 << group.log2_steps),
                       .partials = fragments * kernels::mla_part_slots(group, cut, parts)},
          .cost = rounds * (longest + kernels::kMlaFixedSteps)};
}

}  // namespace

MlaSchedule mla_schedule(std::int64_t num_heads, std::int64_t sequences, std::int64_t rows,
                         std::int64_t context, std::int64_t num_sms) {
  const MlaGroup group = group_of(static_cast<int>(num_heads), rows, context);
  const auto sms = static_cast<int>(num_sms);
  const std::int64_t tiles = sequences * group.size;
  Choice best;
  if (tiles <= std::min(kernels::kMlaMaxCutTiles, kernels::kMlaMaxRounds * sms))
    for (int rounds = 1; rounds <= kernels::kMlaMaxRounds; ++rounds)
      for (const bool join : {false, true}) {
        const Choice choice = search(group, static_cast<int>(sequences), rounds, join, sms);
        if (choice.cost < best.cost) best = choice;
      }
  if (best.schedule.fragments > 0) return best.schedule;
  return {.tiles = tiles,
          .fragments = tiles,
          .rounds = divide_up(tiles, num_sms),
          .steps = context / kernels::kMlaStepPositions + 1,
          .chunks = group.chunks,
          .partials = 0};
}

double MlaSchedule::critical_steps() const {
  constexpr double kStepsOfChunk = 1;
  return static_cast<double>(rounds) *
             (static_cast<double>(steps) + kStepsOfChunk * static_cast<double>(chunks)) +
         static_cast<double>((rounds - 1) * kernels::kMlaFixedSteps);
}

ProductTime product_time(std::int64_t rows, std::int64_t num_heads, std::int64_t outputs,
                         std::int64_t inputs, const DeviceSpec& device) {
  constexpr std::size_t kSharedBytes = 232448;  // of a block on sm_90 and sm_100
  constexpr double kCopyBytes = 64;             // a clock and multiprocessor, out of the L2 cache
  constexpr double kSums = 2.4;  // a clock and multiprocessor; from products of 256 rows alone
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  const kernels::SkinnyGemmTiles tiles = kernels::skinny_gemm_tiles(
      narrow(rows), narrow(num_heads), narrow(outputs), narrow(inputs),
      {.num_sms = narrow(device.num_sms), .max_shared_bytes = kSharedBytes});
  const std::int64_t segments =
      kernels::skinny_gemm_segments(narrow(num_heads), narrow(outputs), narrow(inputs));
  const std::int64_t resident = tiles.shared_bytes > kSharedBytes / 2 ? 1 : 2;
  const std::int64_t blocks = num_heads * tiles.head_tiles * segments * tiles.chunks;
  const auto waves = static_cast<double>(divide_up(blocks, resident * device.num_sms));
  const auto together = static_cast<double>(std::min(resident, divide_up(blocks, device.num_sms)));
  const auto steps = static_cast<double>(divide_up(inputs / kernels::kSkinnyStepInputs, segments));
  const double outputs_of_tile = 64.0 * tiles.warpgroups;
  const double flops = 2 * outputs_of_tile * tiles.columns * kernels::kSkinnyStepInputs;
  const double bytes = 2 * kernels::kSkinnyStepInputs * (outputs_of_tile + tiles.columns);
  const double math_us = flops * static_cast<double>(device.num_sms) / device.bf16_reached * 1e-6;
  const double copy_us = bytes / (kCopyBytes * device.clock_ghz) * 1e-3;
  // Blocks of a cluster multiply a segment of the inputs each and share the sums.
  const double tiles_of_sm = waves * together;
  const double sums = outputs_of_tile * tiles.copied_rows / static_cast<double>(segments);
  return {.multiply_us = tiles_of_sm * steps * std::max(math_us, copy_us),
          .finish_us = tiles_of_sm * sums / (kSums * device.clock_ghz) * 1e-3};
}

}  // namespace coppice
