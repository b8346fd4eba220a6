// How tiles are cut into parts: arithmetic that the planning kernel and the host share.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define COPPICE_MLA_SHARED __host__ __device__ __forceinline__
#else
#define COPPICE_MLA_SHARED inline
#endif

namespace coppice::kernels {

constexpr int kMlaUncut = 1 << 13;  // no limit to the steps of a fragment: longer than any tile
constexpr int kMlaMaxRounds = 4;    // fragments of a CTA when tiles are cut into parts
constexpr int kMlaFixedSteps = 6;   // of a fragment: queries, tail, partial results
constexpr int kMlaJoinedSteps = 2;  // of a joined chunk

// Tiles of one sequence, as the search for parts sees them.
struct MlaGroup {
  int size, chunks, log2_steps;
  int whole_chunks;  // without a last chunk that is less than half full
  int steps;
};

// `last_step`: the largest of the tiles; -1 without keys.
COPPICE_MLA_SHARED MlaGroup mla_group(int size, int last_step, int log2_steps) {
  const int steps = last_step < 0 ? 1 : last_step + 1;
  const int whole = (steps + ((1 << log2_steps) - 1) / 2) >> log2_steps;
  return {size, ((steps - 1) >> log2_steps) + 1, log2_steps, whole < 1 ? 1 : whole, steps};
}

// A way to cut all groups: parts of at most `steps` steps (or one chunk); with `join`, a last chunk
// that is less than half full belongs to the part before it.
struct MlaCut {
  int steps;
  bool join;
};

// floor(log2(x)), of a positive number.
COPPICE_MLA_SHARED int mla_log2(int x) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(x);
#else
  return 31 - __builtin_clz(static_cast<unsigned>(x));
#endif
}

// Zeros below the lowest one, of a positive number.
COPPICE_MLA_SHARED int mla_low_zeros(int x) {
#ifdef __CUDA_ARCH__
  return __ffs(x) - 1;
#else
  return __builtin_ctz(static_cast<unsigned>(x));
#endif
}

// Shares are rounded to so many bits: an eighth of a long share.
COPPICE_MLA_SHARED int mla_share_align(int chunks, int parts) {
  const int share = chunks / parts;
  return share < 16 ? 0 : mla_log2(share) - 3;
}

// First chunk of a part: even shares, long ones rounded to an eighth of a share, so that a part is
// few blocks of the merge tree.
COPPICE_MLA_SHARED int mla_part_begin(int chunks, int parts, int part) {
  if (part >= parts) return chunks;
  const int align = mla_share_align(chunks, parts);
  // At most 8192 x 8192; a division of 64 bits would cost a GPU four times as much.
  const auto share =
      static_cast<uint32_t>(chunks) * static_cast<uint32_t>(part) / static_cast<uint32_t>(parts);
  return static_cast<int>(share) >> align << align;
}

// The most chunks a part can have.
COPPICE_MLA_SHARED int mla_longest_part(int chunks, int parts) {
  if (parts == 1) return chunks;
  return (chunks + parts - 1) / parts + (1 << mla_share_align(chunks, parts)) - 1;
}

COPPICE_MLA_SHARED int mla_cut_chunks(const MlaGroup& group, const MlaCut& cut) {
  return cut.join ? group.whole_chunks : group.chunks;
}

// The most chunks of a part, but for rounding.
COPPICE_MLA_SHARED int mla_cut_longest(const MlaGroup& group, const MlaCut& cut) {
  const int steps = cut.steps >> group.log2_steps;
  return steps < 1 ? 1 : steps;
}

COPPICE_MLA_SHARED int mla_parts(const MlaGroup& group, const MlaCut& cut) {
  const int longest = mla_cut_longest(group, cut);
  return (mla_cut_chunks(group, cut) + longest - 1) / longest;
}

// The most partial results at a time while chunks [begin, begin + length) are done in order: blocks
// grow up to the first that is aligned to the whole length, then shrink.
COPPICE_MLA_SHARED int mla_run_slots(int begin, int length) {
  if (length <= 1) return length;
  const int level = mla_log2(length);
  const int zeros = begin == 0 ? level : mla_low_zeros(begin);
  const int aligned = zeros < level ? zeros : level;
  const int slots = 2 * level - aligned + 1;
  return length < slots ? length : slots;
}

// The most that any part of a group needs; a bound where there are many.
COPPICE_MLA_SHARED int mla_part_slots(const MlaGroup& group, const MlaCut& cut, int parts) {
  constexpr int kMostParts = 16;
  const int chunks = mla_cut_chunks(group, cut), joined = group.chunks - chunks;
  if (parts > kMostParts) return mla_run_slots(1, mla_longest_part(chunks, parts) + joined);
  // The parts' first chunks as mla_part_begin has them, without its divisions.
  const int align = mla_share_align(chunks, parts), whole = chunks / parts;
  const int left = chunks - whole * parts;
  int most = 0;
  for (int part = 0, begin = 0, share = 0, rest = 0; part < parts; part++) {
    share += whole, rest += left;
    if (rest >= parts) rest -= parts, share++;
    const bool last = part + 1 == parts;
    const int end = last ? chunks : share >> align << align;
    const int slots = mla_run_slots(begin, end - begin + (last ? joined : 0));
    most = slots > most ? slots : most;
    begin = end;
  }
  return most;
}

// No less than any part needs when parts have at most `longest` chunks before they are rounded.
COPPICE_MLA_SHARED int mla_most_slots(const MlaGroup& group, const MlaCut& cut, int longest) {
  const int length = longest + longest / 8 + group.chunks - mla_cut_chunks(group, cut);
  return mla_run_slots(1, length < group.chunks ? length : group.chunks);
}

// Groups of one size laid end to end, their chunks shared evenly among teams of one CTA a tile. A
// team does its part of one group after the other.
struct MlaLine {
  int chunks;  // of all groups
  int teams;   // 0: there is no line
  int align;   // bits that the parts of a group are rounded to
};

// `coarser`: rounded as other parts; else half as much, which takes more partial results.
COPPICE_MLA_SHARED MlaLine mla_line(int chunks, int teams, bool coarser) {
  const int align = mla_share_align(chunks, teams);
  return {chunks, teams, coarser || align == 0 ? align : align - 1};
}

// The last team at work on the chunks before `end`, a place on the line.
COPPICE_MLA_SHARED int mla_line_team(const MlaLine& line, int end) {
  return static_cast<int>((static_cast<uint32_t>(end) * static_cast<uint32_t>(line.teams) - 1) /
                          static_cast<uint32_t>(line.chunks));
}

// First chunk that a team does of a group, whose chunks begin at `offset` on the line.
COPPICE_MLA_SHARED int mla_line_begin(const MlaLine& line, int team, int offset) {
  const auto share =
      static_cast<int>(static_cast<uint32_t>(line.chunks) * static_cast<uint32_t>(team) /
                       static_cast<uint32_t>(line.teams));
  return (share > offset ? share - offset : 0) >> line.align << line.align;
}

// What a group on the line needs to know.
struct MlaLinePlace {
  int offset;       // of the group's first chunk
  int first, last;  // teams
};

COPPICE_MLA_SHARED MlaLinePlace mla_line_place(const MlaLine& line, int offset, int chunks) {
  return {offset, mla_line_team(line, offset + 1), mla_line_team(line, offset + chunks)};
}

// A team's run of a group's chunks.
struct MlaRun {
  int begin, end;
};

COPPICE_MLA_SHARED MlaRun mla_line_run(const MlaLine& line, const MlaLinePlace& place,
                                       const MlaGroup& group, int team) {
  return {mla_line_begin(line, team, place.offset),
          team == place.last ? group.chunks : mla_line_begin(line, team + 1, place.offset)};
}

// Steps of such a run and what comes with a fragment, as the search counts them.
COPPICE_MLA_SHARED int mla_run_cost(const MlaRun& run, const MlaGroup& group) {
  const int end = run.end << group.log2_steps;
  return (end < group.steps ? end : group.steps) - (run.begin << group.log2_steps) + kMlaFixedSteps;
}

}  // namespace coppice::kernels
