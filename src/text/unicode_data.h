// Raw tables behind text/unicode.h and text/normalizer.h, written by scripts/gen_unicode_tables.py.
#pragma once

#include <cstdint>
#include <span>

namespace coppice::unicode_data {

struct CombiningRun {
  std::uint32_t first, last;  // inclusive
  std::uint8_t order;         // rank of the canonical combining class, from 1
};

struct Composition {
  std::uint32_t first, second, composed;
};

// Start of each run of equal classes: code point in the low 24 bits, class byte in the high 8.
std::span<const std::uint32_t> class_runs();
// Marks that canonical ordering moves, ascending.
std::span<const CombiningRun> combining_runs();
// Ascending by code point: (length << 24 | code point), then `length` code points. No Hangul.
std::span<const std::uint32_t> decompositions();
// Ascending by (first, second). No Hangul.
std::span<const Composition> compositions();

}  // namespace coppice::unicode_data
