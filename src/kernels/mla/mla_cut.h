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
};

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

COPPICE_MLA_SHARED int mla_parts(const MlaGroup& group, const MlaCut& cut) {
  const int steps = cut.steps >> group.log2_steps;
  const int longest = steps < 1 ? 1 : steps;
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
  int most = 0;
  for (int part = 0, begin = 0; part < parts; part++) {
    const int end = mla_part_begin(chunks, parts, part + 1);
    const int slots = mla_run_slots(begin, end - begin + (part + 1 == parts ? joined : 0));
    most = slots > most ? slots : most;
    begin = end;
  }
  return most;
}

}  // namespace coppice::kernels
