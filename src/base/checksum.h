// A 64-bit checksum of bytes that finds damaged and exchanged files; not one against intent.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace coppice {

// The same on every machine (little-endian). Four independent lanes, so that it keeps up with
// memory: each word is mixed into its lane by a multiplication, and the lanes into one at the end.
inline std::uint64_t checksum_of(std::span<const std::byte> bytes, std::uint64_t seed = 0) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u, kOther = 0xc2b2ae3d27d4eb4fu;
  const auto mix = [](std::uint64_t lane, std::uint64_t word) {
    return std::rotl(lane ^ word * kOther, 31) * kOdd;
  };
  std::array<std::uint64_t, 4> lanes = {seed + kOdd, seed ^ kOther, seed, seed - kOdd};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= sizeof lanes; left -= sizeof lanes, at += sizeof lanes) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), at, sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  std::uint64_t sum = bytes.size();
  for (; left > 0; --left) sum = mix(sum, static_cast<std::uint64_t>(*at++));
  for (const std::uint64_t lane : lanes) sum = mix(sum, lane);
  return sum ^ sum >> 29;
}

}  // namespace coppice
