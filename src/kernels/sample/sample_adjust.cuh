// The logits a row samples from: penalties, bias, bans and temperature, computed on the fly.
#pragma once

#include "kernels/sample/sample_rows.h"

namespace coppice::kernels {

inline constexpr int kMaxPathTokens = 32;
inline constexpr uint32_t kInPrompt = 0x80000000u;  // bit of token_counts; the rest counts output

struct RowContext {
  const float* logits;      // [vocab_size]
  const uint32_t* counts;   // [vocab_size], or null without penalties
  const uint32_t* allowed;  // bit mask, or null
  const uint32_t* marks;    // shared bit set: ids that need adjust_marked; null when empty
  const int32_t* path_tokens;
  int num_path_tokens;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  float inverse_temperature;
  const int32_t* bias_ids;
  const float* bias_values;
  int num_bias;
  const int32_t* stop_ids;
  int num_stop_ids;  // 0 once min_tokens have been emitted
};

__device__ __forceinline__ float apply_penalties(const RowContext& row, float logit,
                                                 uint32_t count) {
  if (count == 0) return logit;
  logit = logit > 0 ? __fdiv_rn(logit, row.repetition_penalty)
                    : __fmul_rn(logit, row.repetition_penalty);
  const uint32_t output = count & ~kInPrompt;
  logit = __fsub_rn(logit, __fmul_rn(row.frequency_penalty, static_cast<float>(output)));
  return output != 0 ? __fsub_rn(logit, row.presence_penalty) : logit;
}

// Ids with a mark: everything, through the lists.
__device__ __noinline__ float adjust_marked(const RowContext& row, float logit, int id) {
  if (row.counts != nullptr) {
    uint32_t count = row.counts[id];
    for (int i = 0; i < row.num_path_tokens; ++i) count += row.path_tokens[i] == id;
    logit = apply_penalties(row, logit, count);
  }
  for (int i = 0; i < row.num_bias; ++i) {
    if (row.bias_ids[i] == id) logit = __fadd_rn(logit, row.bias_values[i]);
  }
  for (int i = 0; i < row.num_stop_ids; ++i) {
    if (row.stop_ids[i] == id) logit = -INFINITY;
  }
  return logit;
}

// No penalties, bias, bans or mask: temperature alone.
__device__ __forceinline__ bool is_plain(const RowContext& row) {
  return row.counts == nullptr && row.marks == nullptr && row.allowed == nullptr;
}

// NaN gives -inf.
template <bool kPlain>
__device__ __forceinline__ float adjusted_logit(const RowContext& row, float logit, int id) {
  logit = fmaxf(logit, -INFINITY);
  if (!kPlain) {
    if (row.marks != nullptr && (row.marks[id / 32] >> (id % 32) & 1u) != 0) {
      logit = adjust_marked(row, logit, id);
    } else if (row.counts != nullptr) {
      logit = apply_penalties(row, logit, row.counts[id]);
    }
    if (row.allowed != nullptr && (row.allowed[id / 32] >> (id % 32) & 1u) == 0) logit = -INFINITY;
  }
  return __fmul_rn(logit, row.inverse_temperature);
}

__device__ __forceinline__ bool has_penalties(const SampleRowsParams& params, int seq) {
  return params.repetition_penalty[seq] != 1.0f || params.presence_penalty[seq] != 0.0f ||
         params.frequency_penalty[seq] != 0.0f;
}

}  // namespace coppice::kernels
