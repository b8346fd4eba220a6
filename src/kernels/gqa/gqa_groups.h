// What a block of the grouped-query attention kernel keeps of its rows, in shared memory.
#pragma once

#include <cstdint>

#include "kernels/gqa/gqa_attention_config.h"

namespace coppice::kernels {

// Rows of a window. A group is a run of rows of one sequence, as many as a block's tiles hold;
// `table_end`: positions below it are read through the block table by every row of the group.
struct alignas(16) GqaGroups {
  int32_t seq[kGqaWindowRows];
  int32_t row_begin[kGqaWindowRows], row_end[kGqaWindowRows], kv_len[kGqaWindowRows];
  int32_t first_row[kGqaWindowRows + 1];  // of a group, inside the window
  int32_t num_rows[kGqaWindowRows];
  int32_t begin[kGqaWindowRows], end[kGqaWindowRows];
  int32_t table_end[kGqaWindowRows], longest[kGqaWindowRows];  // the most keys of the table
  int32_t first_item[kGqaWindowRows + 1];                      // chunks of the groups in front
  int32_t first_work[kGqaWindowRows + 1];
  uint8_t group_of_row[kGqaWindowRows];
  int32_t count;
  // Of a step whose keys differ from row to row: rows of the pool, and the keys of the rows in
  // front of a row.
  int32_t pool_slots[kGqaMaxStages * kGqaStep];
  int32_t pool_first[kGqaMaxTiles * kGqaTileRows + 1];
};

}  // namespace coppice::kernels
