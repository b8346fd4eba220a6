// Masks over a vocabulary, as ops take them: bit id % 32 of word id / 32 says whether a token may
// be chosen.
#pragma once

#include <cstdint>
#include <span>

namespace coppice {

// Words of one mask.
inline std::size_t mask_words(std::int64_t vocab_size) {
  return static_cast<std::size_t>((vocab_size + 31) / 32);
}

inline bool mask_has(std::span<const std::int32_t> mask, std::int64_t id) {
  const auto word = static_cast<std::uint32_t>(mask[static_cast<std::size_t>(id / 32)]);
  return (word >> (id % 32) & 1u) != 0;
}

inline void set_in_mask(std::span<std::int32_t> mask, std::int64_t id, bool allowed) {
  const auto bit = static_cast<std::int32_t>(1u << (id % 32));
  std::int32_t& word = mask[static_cast<std::size_t>(id / 32)];
  word = allowed ? word | bit : word & ~bit;
}

}  // namespace coppice
