// The rows of one forward pass. Everything that varies between rounds is device memory at a fixed
// address, so a captured pass stays valid when it changes.
#pragma once

#include "backend/op_args.h"

namespace coppice {

struct ForwardBatch {
  Tensor token_ids;             // [T] i32; -1: padded
  Tensor positions;             // [T] i32
  Tensor slots;                 // [T] i32: where the row's key goes; -1: padded
  AttentionMetadata attention;  // also says the provenance of all rows
  Tensor output_rows;  // [num_outputs] i32: rows whose logits are wanted (-1: none); empty: all
                       // rows in order

  std::int64_t num_rows() const { return token_ids.shape(0); }
  std::int64_t num_outputs() const {
    return output_rows.empty() ? num_rows() : output_rows.shape(0);
  }
};

}  // namespace coppice
