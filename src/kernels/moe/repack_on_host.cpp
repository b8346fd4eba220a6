#include "kernels/moe/repack_on_host.h"

#include <cstring>

#include "kernels/moe/expert_blob.h"

namespace coppice::kernels {
namespace {

constexpr std::uint32_t kZeros = 0x88888888;  // eight times the value 0
constexpr int kLanes = 32;

// Nibbles 0..7 to the order 0 2 4 6 1 3 5 7.
std::uint32_t interleave_nibbles(std::uint32_t word) {
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= (word >> (8 * i) & 0xF) << (4 * i);
    result |= (word >> (8 * i + 4) & 0xF) << (4 * i + 16);
  }
  return result;
}

// What one thread of the device writes: of four rows eight nibbles of each of the cell's two
// groups, and in every fourth lane their scales.
void write_lane(const HostExpertMatrix& m, int tile, int first_input, int lane,
                std::uint8_t* cell) {
  const int g = lane / 4, q = lane % 4;
  for (int group = 0; group < 2; ++group) {
    const int input = first_input + group * kQuantGroup;
    for (int half = 0; half < 4; ++half) {  // (m16 tile, row g or g + 8)
      const int tile16 = tile * 2 + half / 2;
      const bool second = half % 2 == 1;
      const bool up = second && m.packed_up != nullptr;
      const int row = m.packed_up != nullptr ? tile16 * 8 + g : tile16 * 16 + (second ? 8 : 0) + g;
      const bool exists = row < m.rows && input < m.inputs;
      const std::int64_t groups = m.inputs / kQuantGroup;
      const std::int64_t at = row * groups + input / kQuantGroup;
      std::uint32_t word = kZeros;
      if (exists) std::memcpy(&word, (up ? m.packed_up : m.packed) + at * 4 + q, sizeof word);
      word = interleave_nibbles(word);
      std::memcpy(cell + (group * 128 + lane * 4 + half) * 4, &word, sizeof word);
      if (q != 0) continue;
      std::uint16_t scale = 0;
      if (exists) std::memcpy(&scale, (up ? m.scale_up : m.scale) + at, sizeof scale);
      std::memcpy(cell + 1024 + (g * 8 + group * 4 + half) * 2, &scale, sizeof scale);
    }
  }
}

}  // namespace

void repack_on_host(const HostExpertMatrix& matrix, std::uint8_t* blob) {
  const int outputs = matrix.packed_up != nullptr ? 2 * matrix.rows : matrix.rows;
  const ExpertBlobShape shape = expert_blob_shape(outputs, matrix.inputs);
  for (int block = 0; block < shape.blocks; ++block)
    for (int step = 0; step < shape.steps; ++step)
      for (int warp = 0; warp < kStepCells; ++warp, blob += kCellBytes) {
        const int tile = block * (kStepCells / shape.warps_k) + warp / shape.warps_k;
        const int first_input = (step * shape.warps_k + warp % shape.warps_k) * kCellInputs;
        for (int lane = 0; lane < kLanes; ++lane) write_lane(matrix, tile, first_input, lane, blob);
      }
}

}  // namespace coppice::kernels
