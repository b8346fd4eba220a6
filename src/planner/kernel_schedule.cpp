#include "planner/kernel_schedule.h"

#include <algorithm>
#include <cmath>
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

// Of one group, for `sequences` groups alike.
struct Shape {
  MlaGroup group;
  std::int64_t sequences, rows, last_step;  // rows of a sequence
  int octets;                               // of a tile
  std::int64_t num_sms;
};

// Parts of a tile: the fragments of one tile.
struct Parts {
  int count = 1, chunks = 0;  // chunks that are shared out; the last part takes those that are left
  bool cut = false;

  int begin(int part) const { return kernels::mla_part_begin(chunks, count, part); }
  int end(const MlaGroup& group, int part) const {
    return part + 1 == count ? group.chunks : begin(part + 1);
  }
};

// As the planning kernel searches. `cost` as there.
struct Choice {
  Parts parts;
  int cost = std::numeric_limits<int>::max();
};

Choice search(const Shape& shape, int rounds, bool join) {
  const MlaGroup& group = shape.group;
  const auto sequences = static_cast<int>(shape.sequences), sms = static_cast<int>(shape.num_sms);
  int low = 0, high = kernels::kMlaUncut;
  while (high - low > 1) {
    const MlaCut cut = {(low + high) / 2, join};
    const int parts = kernels::mla_parts(group, cut);
    const int fragments = sequences * group.size * parts;
    const bool fits =
        fragments <= rounds * sms &&
        fragments * kernels::mla_part_slots(group, cut, parts) <= sms * kernels::kMlaSlotsPerCta;
    (fits ? high : low) = cut.steps;
  }
  if (high == kernels::kMlaUncut) return {};
  const MlaCut cut = {high, join};
  const int chunks = kernels::mla_cut_chunks(group, cut), parts = kernels::mla_parts(group, cut);
  const int joined = chunks < group.chunks ? kernels::kMlaJoinedSteps : 0;
  const int longest = (kernels::mla_longest_part(chunks, parts) << group.log2_steps) + joined;
  return {.parts = {.count = parts, .chunks = chunks, .cut = true},
          .cost = rounds * (longest + kernels::kMlaFixedSteps)};
}

Parts best_parts(const Shape& shape) {
  Choice best{.parts = {.chunks = shape.group.chunks}};
  const std::int64_t tiles = shape.sequences * shape.group.size;
  if (tiles <=
      std::min<std::int64_t>(kernels::kMlaMaxCutTiles, kernels::kMlaMaxRounds * shape.num_sms))
    for (int rounds = 1; rounds <= kernels::kMlaMaxRounds; ++rounds)
      for (const bool join : {false, true}) {
        const Choice choice = search(shape, rounds, join);
        if (choice.cost < best.cost) best = choice;
      }
  return best.parts;
}

// What a fragment does beside its steps of keys, in steps: 3400 clocks each (docs/results/
// mla-h200.md has the clocks of steps and merges; the rest is from rounds of 1, 8 and 64 rows at 1k
// and 32k). A chunk's result alone leaves while the next chunk begins.
constexpr double kMergeSteps = 2.2;       // a chunk's result merged with the one before it
constexpr double kTailSteps = 3;          // keys of a tree's own nodes, where nothing precedes them
constexpr double kJoinedTailSteps = 4.5;  // the same behind other chunks
constexpr double kOctetSteps = 0.06;      // queries of eight rows, and their partial results
constexpr double kTurnSteps = 1.3;        // all steps of a chunk, in a cluster

struct Fragment {
  double chain = 0;
  std::int64_t loads = 0;
};

Fragment walk(const Shape& shape, const Parts& parts, int part) {
  const MlaGroup& group = shape.group;
  const int begin = parts.begin(part), end = parts.end(group, part);
  const bool last = part + 1 == parts.count;
  // Rows of a tree find the keys of the last step by their paths.
  const bool tail = last && shape.rows > 1;
  const std::int64_t until = std::min(std::int64_t{end} << group.log2_steps, shape.last_step + 1);
  Fragment fragment{.loads = until - (std::int64_t{begin} << group.log2_steps) - (tail ? 1 : 0)};
  int merges = 0, depth = 0;
  for (int chunk = begin; chunk < end; ++chunk, ++depth)
    for (int level = 0, start = chunk;
         depth > 0 && (start >> level & 1) != 0 && start - (1 << level) >= begin;
         start -= 1 << level, ++level)
      ++merges, --depth;
  if (parts.count == 1) merges += std::max(depth - 1, 0);
  fragment.chain =
      static_cast<double>(fragment.loads) + kMergeSteps * merges + kOctetSteps * shape.octets;
  if (tail) fragment.chain += fragment.loads > 0 ? kJoinedTailSteps : kTailSteps;
  return fragment;
}

// The most partial results that one warp of the merging kernel takes, and all of a tile.
struct Merges {
  int most = 0, all = 0;
};

// `octets` of all rows. With few, the warps of a block take aligned runs of chunks.
Merges merges_of(const MlaGroup& group, const Parts& parts, std::int64_t octets) {
  const bool many_rows = octets >= kernels::kMlaManyOctets;
  const int log2_warps =
      kernels::mla_log2(octets <= kernels::kMlaFewestOctets ? kernels::kMlaFewestCombineWarps
                                                            : kernels::kMlaCombineWarps);
  const int level =
      group.chunks == 1 ? 0 : std::max(0, kernels::mla_log2(group.chunks - 1) + 1 - log2_warps);
  Merges merges;
  int run = -1, in_run = 0;
  for (int part = 0; part < parts.count; ++part) {
    const int end = parts.end(group, part);
    for (int chunk = parts.begin(part); chunk < end;) {
      in_run = many_rows || chunk >> level == run ? in_run + 1 : 1;
      run = chunk >> level;
      merges.most = std::max(merges.most, in_run);
      merges.all += 1;
      const int fits = kernels::mla_log2(end - chunk);
      chunk += 1 << (chunk == 0 ? fits : std::min(fits, kernels::mla_low_zeros(chunk)));
    }
  }
  if (!many_rows) merges.most += log2_warps;  // the runs', in pairs
  return merges;
}

void add_merges(const Shape& shape, int padded_heads, const Parts& parts, std::int64_t busy_sms,
                MlaSchedule& schedule) {
  constexpr double kShare = 0.27;          // of a merge that a further block of a multiprocessor
                                           // takes from the others
  constexpr std::int64_t kBlocksOfSm = 4;  // that find room at the same time
  const std::int64_t octets = shape.sequences * shape.rows * padded_heads / 8;
  const bool many_rows = octets >= kernels::kMlaManyOctets;
  const Merges merges = merges_of(shape.group, parts, octets);
  const std::int64_t blocks =
      octets * kernels::kMlaCombineSplit / (many_rows ? kernels::kMlaCombineWarps : 1);
  const double of_sm = static_cast<double>(blocks) / static_cast<double>(shape.num_sms);
  schedule.partials = schedule.tiles * merges.all;
  schedule.merges = merges.most * std::hypot(1, kShare * of_sm);
  const std::int64_t room = kBlocksOfSm * std::max<std::int64_t>(shape.num_sms - busy_sms, 0);
  schedule.late = 1 - static_cast<double>(std::min(room, blocks)) / static_cast<double>(blocks);
}

// Blocks of a cluster bring two of the four steps of a turn whole and, of the others, the columns
// that they turn into values.
constexpr double kBroughtTwice = 4.0 / 9;

MlaSchedule in_clusters(const Shape& shape, int padded_heads) {
  const MlaGroup& group = shape.group;
  MlaSchedule schedule{.tiles = 1,
                       .fragments = group.chunks,
                       .rounds = 1,
                       .chain = kTurnSteps + kOctetSteps * shape.octets,
                       .burst = static_cast<double>(shape.last_step + 1) * (1 + kBroughtTwice)};
  add_merges(shape, padded_heads, {.count = group.chunks, .chunks = group.chunks, .cut = true},
             std::int64_t{group.chunks} * kernels::kMlaClusterBlocks, schedule);
  return schedule;
}

}  // namespace

MlaSchedule mla_schedule(std::int64_t num_heads, std::int64_t sequences, std::int64_t rows,
                         std::int64_t context, std::int64_t num_sms) {
  const int padded_heads = kernels::mla_padded_heads(static_cast<int>(num_heads));
  const std::int64_t nodes = kernels::kMlaTileRows / padded_heads;
  const Shape shape{.group = group_of(static_cast<int>(num_heads), rows, context),
                    .sequences = sequences,
                    .rows = rows,
                    .last_step = context / kernels::kMlaStepPositions,
                    .octets = static_cast<int>(std::min(rows, nodes)) * padded_heads / 8,
                    .num_sms = num_sms};
  if (sequences * rows == 1 && padded_heads == 8 &&
      1 << shape.group.log2_steps <= kernels::kMlaTurnSteps &&
      shape.group.chunks <= kernels::kMlaSingleChunks)
    return in_clusters(shape, padded_heads);
  const Parts parts = best_parts(shape);
  MlaSchedule schedule{.tiles = sequences * shape.group.size, .streams = sequences * parts.count};
  schedule.fragments = schedule.tiles * parts.count;
  schedule.rounds = divide_up(schedule.fragments, num_sms);
  for (int part = 0; part < parts.count; ++part) {
    const Fragment fragment = walk(shape, parts, part);
    schedule.chain = std::max(schedule.chain, fragment.chain);
    schedule.loads = std::max(schedule.loads, fragment.loads);
  }
  const auto rounds = static_cast<double>(schedule.rounds);
  schedule.chain = rounds * schedule.chain + (rounds - 1) * kernels::kMlaFixedSteps;
  schedule.loads *= schedule.rounds;
  if (parts.count > 1) add_merges(shape, padded_heads, parts, schedule.fragments, schedule);
  return schedule;
}

ProductTime product_time(std::int64_t rows, std::int64_t num_heads, std::int64_t outputs,
                         std::int64_t inputs, const DeviceSpec& device) {
  constexpr std::size_t kSharedBytes = 232448;  // of a block on sm_90 and sm_100
  constexpr double kCopyBytes = 64;             // a clock and multiprocessor, out of the L2 cache
  constexpr double kSums = 2.4;  // a clock and multiprocessor; from products of 256 rows alone
  // Of the rate of one short product: those of a round follow each other, and clocks sink.
  constexpr double kSustained = 0.95;
  // Two cluster barriers and a read where sums are not pushed: a layer of 17 or 32 rows, some of
  // whose split products push, gained 1.1 and 2.2 us more than one of 64, where none does
  // (docs/results/attention-block-h200.md).
  constexpr double kExchangeUs = 0.5;
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
  const double reached = kSustained * device.bf16_reached;
  const double math_us = flops * static_cast<double>(device.num_sms) / reached * 1e-6;
  const double copy_us = bytes / (kCopyBytes * device.clock_ghz) * 1e-3;
  // Blocks of a cluster multiply a segment of the inputs each and share the sums.
  const double exchange_us = segments > 1 && tiles.pushed_at == 0 ? kExchangeUs : 0;
  const double tiles_of_sm = waves * together;
  const double sums = outputs_of_tile * tiles.copied_rows / static_cast<double>(segments);
  return {.multiply_us = tiles_of_sm * steps * std::max(math_us, copy_us),
          .finish_us = exchange_us + tiles_of_sm * sums / (kSums * device.clock_ghz) * 1e-3};
}

}  // namespace coppice
