#include "planner/kernel_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/gemm/skinny_gemm_config.h"
#include "kernels/mla/mla_attention_config.h"
#include "kernels/mla/mla_cut.h"

namespace coppice {
namespace {

using kernels::MlaCut;
using kernels::MlaGroup;
using kernels::MlaLine;
using kernels::MlaLinePlace;
using kernels::MlaRun;

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
  return kernels::mla_group(static_cast<int>((rows + nodes - 1) / nodes), last_step,
                            log2_steps_at(num_heads, context));
}

// Of one group, for `sequences` groups alike.
struct Shape {
  MlaGroup group;
  std::int64_t sequences, rows, last_step;  // rows of a sequence
  int octets;                               // of a tile
  std::int64_t num_sms;
};

// As the planning kernel searches. `cost` as there.
struct Choice {
  MlaCut cut = {.steps = kernels::kMlaUncut, .join = false};
  MlaLine line = {};
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
  return {.cut = cut, .cost = rounds * (longest + kernels::kMlaFixedSteps)};
}

// A sequence's runs of chunks, one for each fragment of a tile, and the team of the first.
struct Runs {
  std::vector<MlaRun> runs;
  std::size_t team = 0;
};

Runs even_runs(const MlaGroup& group, const MlaCut& cut) {
  const int chunks = kernels::mla_cut_chunks(group, cut), parts = kernels::mla_parts(group, cut);
  Runs result;
  for (int part = 0; part < parts; ++part)
    result.runs.push_back(
        {kernels::mla_part_begin(chunks, parts, part),
         part + 1 == parts ? group.chunks : kernels::mla_part_begin(chunks, parts, part + 1)});
  return result;
}

std::vector<Runs> line_runs(const Shape& shape, const MlaLine& line) {
  const int chunks = shape.group.chunks;
  std::vector<Runs> sequences(static_cast<std::size_t>(shape.sequences));
  int offset = 0;
  for (Runs& sequence : sequences) {
    const MlaLinePlace place = kernels::mla_line_place(line, offset, chunks);
    sequence.team = static_cast<std::size_t>(place.first);
    for (int team = place.first; team <= place.last; ++team)
      sequence.runs.push_back(kernels::mla_line_run(line, place, shape.group, team));
    offset += chunks;
  }
  return sequences;
}

Choice search_line(const Shape& shape, bool coarser) {
  const MlaGroup& group = shape.group;
  const auto sequences = static_cast<int>(shape.sequences), sms = static_cast<int>(shape.num_sms);
  if (sequences < 2 || group.size > sms) return {};
  const MlaLine line = kernels::mla_line(group.chunks * sequences, sms / group.size, coarser);
  std::vector<int> costs(static_cast<std::size_t>(line.teams)), turns = costs;
  int slots = 0, fragments = 0;
  for (const auto& [runs, first] : line_runs(shape, line))
    for (std::size_t part = 0; part < runs.size(); ++part) {
      costs[first + part] += kernels::mla_run_cost(runs[part], group);
      turns[first + part] += 1;
      slots = std::max(slots,
                       kernels::mla_run_slots(runs[part].begin, runs[part].end - runs[part].begin));
      fragments += group.size;
    }
  if (*std::ranges::max_element(turns) > kernels::kMlaMaxRounds ||
      fragments * slots > sms * kernels::kMlaSlotsPerCta)
    return {};
  return {.line = line, .cost = *std::ranges::max_element(costs)};
}

Choice best_choice(const Shape& shape, std::int64_t octets) {
  Choice best;
  const std::int64_t tiles = shape.sequences * shape.group.size;
  if (tiles >
      std::min<std::int64_t>(kernels::kMlaMaxCutTiles, kernels::kMlaMaxRounds * shape.num_sms))
    return best;
  const auto consider = [&](const Choice& choice) {
    if (choice.cost < best.cost) best = choice;
  };
  for (int rounds = 1; rounds <= kernels::kMlaMaxRounds; ++rounds)
    for (const bool join : {false, true}) consider(search(shape, rounds, join));
  if (octets >= kernels::kMlaManyOctets)
    for (const bool coarser : {false, true}) consider(search_line(shape, coarser));
  return best;
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

// `whole`: it is all of its tile.
Fragment walk(const Shape& shape, const MlaRun& run, bool whole) {
  const MlaGroup& group = shape.group;
  const auto [begin, end] = run;
  // Rows of a tree find the keys of the last step by their paths.
  const bool tail = end == group.chunks && begin < end && shape.rows > 1;
  const std::int64_t until = std::min(std::int64_t{end} << group.log2_steps, shape.last_step + 1);
  Fragment fragment{.loads = until - (std::int64_t{begin} << group.log2_steps) - (tail ? 1 : 0)};
  int merges = 0, depth = 0;
  for (int chunk = begin; chunk < end; ++chunk, ++depth)
    for (int level = 0, start = chunk;
         depth > 0 && (start >> level & 1) != 0 && start - (1 << level) >= begin;
         start -= 1 << level, ++level)
      ++merges, --depth;
  if (whole) merges += std::max(depth - 1, 0);
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
Merges merges_of(const MlaGroup& group, std::span<const MlaRun> runs, std::int64_t octets) {
  const bool many_rows = octets >= kernels::kMlaManyOctets;
  const int log2_warps =
      kernels::mla_log2(octets <= kernels::kMlaFewestOctets ? kernels::kMlaFewestCombineWarps
                                                            : kernels::kMlaCombineWarps);
  const int level =
      group.chunks == 1 ? 0 : std::max(0, kernels::mla_log2(group.chunks - 1) + 1 - log2_warps);
  Merges merges;
  int run = -1, in_run = 0;
  for (const auto& [begin, end] : runs)
    for (int chunk = begin; chunk < end;) {
      in_run = many_rows || chunk >> level == run ? in_run + 1 : 1;
      run = chunk >> level;
      merges.most = std::max(merges.most, in_run);
      merges.all += 1;
      const int fits = kernels::mla_log2(end - chunk);
      chunk += 1 << (chunk == 0 ? fits : std::min(fits, kernels::mla_low_zeros(chunk)));
    }
  if (!many_rows) merges.most += log2_warps;  // the runs', in pairs
  return merges;
}

// `sequences`: the different ones.
void add_merges(const Shape& shape, int padded_heads, std::span<const Runs> sequences,
                std::int64_t busy_sms, MlaSchedule& schedule) {
  constexpr double kShare = 0.24;          // of a merge that a further block of a multiprocessor
                                           // takes from the others
  constexpr std::int64_t kBlocksOfSm = 4;  // that find room at the same time
  const std::int64_t octets = shape.sequences * shape.rows * padded_heads / 8;
  const bool many_rows = octets >= kernels::kMlaManyOctets;
  const std::int64_t blocks =
      octets * kernels::kMlaCombineSplit / (many_rows ? kernels::kMlaCombineWarps : 1);
  const double of_sm = static_cast<double>(blocks) / static_cast<double>(shape.num_sms);
  const auto alike = shape.sequences / static_cast<std::int64_t>(sequences.size());
  int most = 0;
  for (const Runs& sequence : sequences) {
    if (sequence.runs.size() < 2) continue;
    const Merges merges = merges_of(shape.group, sequence.runs, octets);
    schedule.partials += alike * shape.group.size * merges.all;
    most = std::max(most, merges.most);
  }
  if (most == 0) return;
  schedule.merges = most * std::hypot(1, kShare * of_sm);
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
  const std::vector<Runs> sequences = {even_runs(group, {.steps = 1, .join = false})};
  add_merges(shape, padded_heads, sequences,
             std::int64_t{group.chunks} * kernels::kMlaClusterBlocks, schedule);
  return schedule;
}

// Fragments of a line, by the multiprocessors that do them one after the other.
MlaSchedule on_line(const Shape& shape, int padded_heads, const Choice& choice) {
  const auto teams = static_cast<std::size_t>(choice.line.teams);
  MlaSchedule schedule{.tiles = shape.sequences * shape.group.size, .streams = choice.line.teams};
  const std::vector<Runs> sequences = line_runs(shape, choice.line);
  std::vector<MlaSchedule> of_team(teams);
  for (const auto& [runs, first] : sequences)
    for (std::size_t part = 0; part < runs.size(); ++part) {
      MlaSchedule& team = of_team[first + part];
      const Fragment fragment = walk(shape, runs[part], runs.size() == 1);
      team.chain += fragment.chain + (team.rounds > 0 ? kernels::kMlaFixedSteps : 0);
      team.loads += fragment.loads;
      team.rounds += 1;
      schedule.fragments += shape.group.size;
    }
  for (const MlaSchedule& team : of_team) {
    schedule.chain = std::max(schedule.chain, team.chain);
    schedule.loads = std::max(schedule.loads, team.loads);
    schedule.rounds = std::max(schedule.rounds, team.rounds);
  }
  add_merges(shape, padded_heads, sequences, std::int64_t{choice.line.teams} * shape.group.size,
             schedule);
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
  const Choice choice = best_choice(shape, sequences * rows * padded_heads / 8);
  if (choice.line.teams > 0) return on_line(shape, padded_heads, choice);
  const std::vector<Runs> alike = {even_runs(shape.group, choice.cut)};
  const std::vector<MlaRun>& runs = alike.front().runs;
  const auto parts = static_cast<std::int64_t>(runs.size());
  MlaSchedule schedule{.tiles = sequences * shape.group.size, .streams = sequences * parts};
  schedule.fragments = schedule.tiles * parts;
  schedule.rounds = divide_up(schedule.fragments, num_sms);
  for (const MlaRun& run : runs) {
    const Fragment fragment = walk(shape, run, parts == 1);
    schedule.chain = std::max(schedule.chain, fragment.chain);
    schedule.loads = std::max(schedule.loads, fragment.loads);
  }
  const auto rounds = static_cast<double>(schedule.rounds);
  schedule.chain = rounds * schedule.chain + (rounds - 1) * kernels::kMlaFixedSteps;
  schedule.loads *= schedule.rounds;
  add_merges(shape, padded_heads, alike, schedule.fragments, schedule);
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
  // whose split products push, gained 1.1 and 2.2 us more than one of 64, where none did
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
  const double outputs_of_tile = tiles.outputs;
  const double flops = 2 * 64.0 * tiles.warpgroups * tiles.columns * kernels::kSkinnyStepInputs;
  const double bytes = 2 * kernels::kSkinnyStepInputs * (outputs_of_tile + tiles.columns);
  const double reached = kSustained * device.bf16_reached;
  const double math_us = flops * static_cast<double>(device.num_sms) / reached * 1e-6;
  const double copy_us = bytes / (kCopyBytes * device.clock_ghz) * 1e-3;
  // Blocks of a cluster multiply a segment of the inputs each and share the sums.
  const double exchange_us = segments > 1 && tiles.pushed_at == 0 ? kExchangeUs : 0;
  const double tiles_of_sm = waves * together;
  const double sums = outputs_of_tile * tiles.copied_rows / static_cast<double>(segments);
  // Where there are too few blocks for all multiprocessors, several share one if they fit, and
  // memory is read more slowly (docs/results/planner-h200.md).
  constexpr double kShared = 0.12;
  const double read_us =
      2 * static_cast<double>(num_heads * outputs * inputs) / device.read_tb_s * 1e-6;
  const bool few = segments == 1 && blocks <= device.num_sms && 2 * blocks > device.num_sms;
  const double slower_us = few && resident > 1 ? kShared * read_us : 0;
  return {.multiply_us = tiles_of_sm * steps * std::max(math_us, copy_us),
          .finish_us =
              exchange_us + slower_us + tiles_of_sm * sums / (kSums * device.clock_ghz) * 1e-3};
}

}  // namespace coppice
