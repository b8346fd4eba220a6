// Layout of routed-expert weights for the decode kernels: INT4, one bf16 scale per 32 inputs.
//
// A matrix [rows, k] is cut into cells of 32 rows x 64 inputs. A cell is what one warp multiplies
// without touching another cell: 1024 bytes of nibbles in the order of the MMA fragments, then 128
// bytes of scales. Eight cells, one per warp of a block, make a step; the steps of a block of rows
// lie one behind the other, so a block is a single contiguous stream.
//
// The eight warps share the inputs of 32 rows when k is long and take 32 rows each when it is
// short. That choice depends on k alone: it fixes the order in which a row's products are added.
#pragma once

#include <cstdint>

namespace coppice::kernels {

// Stands in files that hold this layout; changes with it.
inline constexpr char kExpertBlobLayout[] = "int4-group32 cells 32x64, 1";

inline constexpr int kCellRows = 32;
inline constexpr int kCellInputs = 64;
inline constexpr int kCellBytes = kCellRows * kCellInputs / 2 + kCellRows * 2 * 2;
inline constexpr int kStepCells = 8;
inline constexpr int kStepBytes = kStepCells * kCellBytes;
inline constexpr int kQuantGroup = 32;

struct ExpertBlobShape {
  int rows = 0;     // outputs; for gate and up together 2 * intermediate_size
  int inputs = 0;   // k
  int warps_k = 0;  // warps that share the inputs of a row: 1 or 8
  int steps = 0;    // steps along the inputs, even; padded with zeros
  int blocks = 0;   // blocks of 32 * 8 / warps_k rows, the last one padded with zeros
};

constexpr ExpertBlobShape expert_blob_shape(int rows, int inputs) {
  const int warps_k = inputs >= 1024 ? kStepCells : 1;
  const int step_inputs = warps_k * kCellInputs;
  const int block_rows = kStepCells / warps_k * kCellRows;
  return {rows, inputs, warps_k, (inputs + 2 * step_inputs - 1) / (2 * step_inputs) * 2,
          (rows + block_rows - 1) / block_rows};
}

constexpr int64_t expert_blob_block_bytes(const ExpertBlobShape& shape) {
  return int64_t{shape.steps} * kStepBytes;
}

// Bytes of one expert's matrix; experts follow one another without gaps.
constexpr int64_t expert_blob_bytes(const ExpertBlobShape& shape) {
  return shape.blocks * expert_blob_block_bytes(shape);
}

}  // namespace coppice::kernels
