// One block per row. The survivors of top-k and top-p are a prefix of the ids ordered by
// ranked_key, so each filter is one key: a histogram over classes of 1/64 nat below the maximum
// finds the class where the prefix ends, the ids of that class are listed and decide exactly.
#pragma once

#include "kernels/common/grid_dependency.cuh"
#include "kernels/sample/order_key.cuh"
#include "kernels/sample/philox.cuh"
#include "kernels/sample/sample_adjust.cuh"
#include "kernels/sample/sample_rows_config.h"

namespace coppice::kernels {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kHistoryThreads = 256;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kSampleClasses = 2048;
inline constexpr float kSampleClassesPerNat = 64.0f;
inline constexpr int kSampleListCapacity = 2048;
inline constexpr int kSampleRankLimit = 256;
inline constexpr float kMassUnits = 1099511627776.0f;  // 2^40

struct SampleShared {
  unsigned long long mass[kSampleClasses];  // probability per class, then inclusive prefix sums
  unsigned long long list[kSampleListCapacity];
  unsigned long long warp_values[kSampleWarps];
  unsigned long long cut;
  uint32_t count[kSampleClasses];  // ids per class, then inclusive prefix sums
  uint32_t warp_counts[kSampleWarps];
  int32_t path_tokens[kMaxPathTokens];
  int num_path_tokens;
  int listed;
  RowContext context;
};

__device__ __forceinline__ int class_below(float maximum, float logit) {
  const float distance = __fmul_rn(__fsub_rn(maximum, logit), kSampleClassesPerNat);
  return static_cast<int>(fminf(distance, static_cast<float>(kSampleClasses - 1)));
}

__device__ __forceinline__ uint64_t mass_of(float maximum, float logit) {
  return static_cast<uint64_t>(__fmul_rn(__expf(__fsub_rn(logit, maximum)), kMassUnits));
}

struct RowView {
  const RowContext& row;
  int vocab_size;
  float maximum;
};

// visit(adjusted logit, id, raw logit) for the thread's share of the row.
template <bool kPlain, typename Visit>
__device__ __forceinline__ void visit_row(const RowView& view, Visit&& visit) {
  const auto* logits = reinterpret_cast<const float4*>(view.row.logits);
#pragma unroll 4
  for (int v = static_cast<int>(threadIdx.x); v < view.vocab_size / 4; v += kSampleThreads) {
    const float4 raw = __ldg(logits + v);
    visit(adjusted_logit<kPlain>(view.row, raw.x, 4 * v), 4 * v, raw.x);
    visit(adjusted_logit<kPlain>(view.row, raw.y, 4 * v + 1), 4 * v + 1, raw.y);
    visit(adjusted_logit<kPlain>(view.row, raw.z, 4 * v + 2), 4 * v + 2, raw.z);
    visit(adjusted_logit<kPlain>(view.row, raw.w, 4 * v + 3), 4 * v + 3, raw.w);
  }
}

__device__ __forceinline__ uint64_t block_max(SampleShared& shared, uint64_t value) {
  const auto thread = static_cast<int>(threadIdx.x);
  value = warp_max(value);
  __syncthreads();
  if ((thread & 31) == 0) shared.warp_values[thread / 32] = value;
  __syncthreads();
  return warp_max(shared.warp_values[thread & 31]);
}

__device__ __forceinline__ uint64_t block_sum(SampleShared& shared, uint64_t value) {
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();
  if ((thread & 31) == 0) shared.warp_values[thread / 32] = value;
  __syncthreads();
  value = shared.warp_values[thread & 31];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Turns count and mass into inclusive prefix sums.
__device__ __forceinline__ void scan_histogram(SampleShared& shared) {
  static_assert(kSampleClasses == 2 * kSampleThreads);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const uint32_t first_count = shared.count[2 * thread];
  const uint64_t first_mass = shared.mass[2 * thread];
  uint32_t count = first_count + shared.count[2 * thread + 1];
  uint64_t mass = first_mass + shared.mass[2 * thread + 1];
  const uint32_t own_count = count - first_count;
  const uint64_t own_mass = mass - first_mass;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t from_count = __shfl_up_sync(0xffffffffu, count, step);
    const uint64_t from_mass = __shfl_up_sync(0xffffffffu, mass, step);
    if (lane >= step) {
      count += from_count;
      mass += from_mass;
    }
  }
  __syncthreads();
  if (lane == 31) {
    shared.warp_counts[thread / 32] = count;
    shared.warp_values[thread / 32] = mass;
  }
  __syncthreads();
  for (int i = 0; i < thread / 32; ++i) {
    count += shared.warp_counts[i];
    mass += shared.warp_values[i];
  }
  shared.count[2 * thread + 1] = count;
  shared.mass[2 * thread + 1] = mass;
  shared.count[2 * thread] = count - own_count;
  shared.mass[2 * thread] = mass - own_mass;
  __syncthreads();
}

// First class whose prefix sum reaches `wanted`; the last class if none does.
template <typename Sum>
__device__ __forceinline__ int reaching_class(const Sum* prefix, uint64_t wanted) {
  int low = 0;
  int high = kSampleClasses - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (prefix[middle] >= wanted) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// What one filter counts: ids (top-k) or probability (top-p).
enum class Measure { kCount, kMass };

template <Measure kMeasure>
__device__ __forceinline__ uint64_t measure(const RowView& view, uint64_t key) {
  return kMeasure == Measure::kCount ? 1 : mass_of(view.maximum, ranked_key_value(key));
}

// Sum over the ids of class `at` with key in [least, ..) that also reach `floor`, over the whole
// row or over the list.
template <Measure kMeasure, bool kPlain>
__device__ __forceinline__ uint64_t sum_reaching(SampleShared& shared, const RowView& view, int at,
                                                 uint64_t least, bool from_list) {
  uint64_t sum = 0;
  if (from_list) {
    for (int i = static_cast<int>(threadIdx.x); i < shared.listed; i += kSampleThreads) {
      if (shared.list[i] >= least) sum += measure<kMeasure>(view, shared.list[i]);
    }
  } else {
    visit_row<kPlain>(view, [&](float logit, int id, float) {
      const uint64_t key = ranked_key(logit, static_cast<uint32_t>(id));
      if (key >= least && class_below(view.maximum, logit) == at) {
        sum += measure<kMeasure>(view, key);
      }
    });
  }
  return block_sum(shared, sum);
}

// The largest key such that the ids of class `at` that reach it (and `floor`) measure at least
// `wanted` (more than 0, at most their total).
template <Measure kMeasure, bool kPlain>
__device__ __noinline__ uint64_t cut_class(SampleShared& shared, const RowView& view, int at,
                                           uint64_t floor, uint64_t wanted) {
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread == 0) {
    shared.listed = 0;
    shared.cut = floor;
  }
  __syncthreads();
  visit_row<kPlain>(view, [&](float logit, int id, float) {
    if (class_below(view.maximum, logit) != at) return;
    const uint64_t key = ranked_key(logit, static_cast<uint32_t>(id));
    if (key < floor) return;
    const int place = atomicAdd(&shared.listed, 1);
    if (place < kSampleListCapacity) shared.list[place] = key;
  });
  __syncthreads();
  const int listed = shared.listed;
  if (listed <= kSampleRankLimit) {
    if (thread < listed) {
      const uint64_t key = shared.list[thread];
      uint64_t before = 0;
      for (int i = 0; i < listed; ++i) {
        if (shared.list[i] > key) before += measure<kMeasure>(view, shared.list[i]);
      }
      if (before < wanted && before + measure<kMeasure>(view, key) >= wanted) shared.cut = key;
    }
    __syncthreads();
    return shared.cut;
  }
  uint64_t cut = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t candidate = cut | 1ull << bit;
    const uint64_t sum = sum_reaching<kMeasure, kPlain>(shared, view, at, max(candidate, floor),
                                                        listed <= kSampleListCapacity);
    if (sum >= wanted) cut = candidate;
  }
  return max(cut, floor);
}

__device__ __forceinline__ void clear_histogram(SampleShared& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kSampleClasses; i += kSampleThreads) {
    shared.count[i] = 0;
    shared.mass[i] = 0;
  }
  __syncthreads();
}

// A class that no survivor lies beyond. With top-k: that of the k-th largest of the threads' own
// maxima (`best` is the thread's). With top-p alone: ids below (1 - top_p) / vocab_size of the
// largest probability sum to less than 1 - top_p.
__device__ __forceinline__ int last_useful_class(SampleShared& shared, const RowView& view,
                                                 int top_k, float top_p, uint64_t best) {
  if (top_k > kSampleThreads) return kSampleClasses - 2;
  if (top_k <= 0) {
    const float nats = -logf(fmaxf(1.0f - top_p, 1e-9f) / static_cast<float>(view.vocab_size));
    return min(static_cast<int>(nats * kSampleClassesPerNat) + 2, kSampleClasses - 2);
  }
  clear_histogram(shared);
  atomicAdd(&shared.count[class_below(view.maximum, ranked_key_value(best))], 1u);
  __syncthreads();
  scan_histogram(shared);
  const int at = reaching_class(shared.count, static_cast<uint64_t>(top_k));
  __syncthreads();
  return min(at, kSampleClasses - 2);
}

// The key that survivors of top-k and top-p reach. best: the thread's largest ranked key.
template <bool kPlain>
__device__ __forceinline__ uint64_t filter_row(SampleShared& shared, const RowView& view, int top_k,
                                               float top_p, uint64_t best) {
  if (top_k >= view.vocab_size) top_k = 0;
  const int useful = last_useful_class(shared, view, top_k, top_p, best);
  clear_histogram(shared);
  uint64_t total = 0;
  visit_row<kPlain>(view, [&](float logit, int, float) {
    const int at = class_below(view.maximum, logit);
    if (at == kSampleClasses - 1) return;  // 32 nats below: no probability in units of 2^-40
    if (at > useful && top_k > 0) return;
    const uint64_t mass = mass_of(view.maximum, logit);
    total += mass;
    if (at > useful) return;
    atomicAdd(&shared.count[at], 1u);
    atomicAdd(&shared.mass[at], static_cast<unsigned long long>(mass));
  });
  total = block_sum(shared, total);
  scan_histogram(shared);
  uint64_t cut = 0;
  if (top_k > 0) {
    const auto wanted = static_cast<uint64_t>(top_k);
    const int at = reaching_class(shared.count, wanted);
    if (at < kSampleClasses - 1) {  // otherwise k reaches further down than noise can
      const uint32_t before = at == 0 ? 0 : shared.count[at - 1];
      cut = cut_class<Measure::kCount, kPlain>(shared, view, at, 0, wanted - before);
      const uint64_t mass_before = at == 0 ? 0 : shared.mass[at - 1];
      const bool listed = shared.listed <= kSampleListCapacity;
      total = mass_before + sum_reaching<Measure::kMass, kPlain>(shared, view, at, cut, listed);
    }
  }
  if (top_p < 1.0f) {
    const double target = static_cast<double>(fmaxf(top_p, 0.0f)) * static_cast<double>(total);
    const uint64_t wanted = max(static_cast<uint64_t>(ceil(target)), uint64_t{1});
    const int at = reaching_class(shared.mass, wanted);
    const uint64_t before = at == 0 ? 0 : shared.mass[at - 1];
    cut = max(cut, cut_class<Measure::kMass, kPlain>(shared, view, at, cut, wanted - before));
  }
  return cut;
}

// Threads of the block copy the tree's links, then thread 0 walks up from the row's node.
__device__ __forceinline__ void collect_path(const SampleRowsParams& params, SampleShared& shared,
                                             int seq, int node) {
  auto* parents = reinterpret_cast<int32_t*>(shared.list);
  int32_t* tokens = parents + kSampleListCapacity;
  const int64_t base = static_cast<int64_t>(seq) * (params.trees.max_nodes + 1);
  for (int i = static_cast<int>(threadIdx.x); i <= node; i += kSampleThreads) {
    parents[i] = params.trees.parents[base + i];
    tokens[i] = params.trees.tokens[base + i];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int n = 0;
    for (int at = node; at > 0 && n < kMaxPathTokens; at = parents[at]) {
      shared.path_tokens[n++] = tokens[at];
    }
    shared.num_path_tokens = n;
  }
  __syncthreads();
}

__device__ __forceinline__ void mark(uint32_t* marks, int id, int vocab_size) {
  if (id >= 0 && id < vocab_size) atomicOr(marks + id / 32, 1u << (id % 32));
}

// Everything about the row but its logits. All threads call and get the same context.
__device__ __forceinline__ RowContext make_context(const SampleRowsParams& params,
                                                   SampleShared& shared, uint32_t* marks, int row,
                                                   int seq) {
  const auto thread = static_cast<int>(threadIdx.x);
  RowContext context{};
  context.logits = params.logits + row * params.row_stride;
  const float temperature = params.temperature[seq];
  context.inverse_temperature = temperature > 0 ? __fdiv_rn(1.0f, temperature) : 1.0f;
  context.repetition_penalty = params.repetition_penalty[seq];
  context.presence_penalty = params.presence_penalty[seq];
  context.frequency_penalty = params.frequency_penalty[seq];
  context.path_tokens = shared.path_tokens;
  context.bias_ids = params.bias_ids + static_cast<int64_t>(seq) * params.max_bias;
  context.bias_values = params.bias_values + static_cast<int64_t>(seq) * params.max_bias;
  context.stop_ids = params.stop_ids + static_cast<int64_t>(seq) * params.max_stop_ids;
  if (params.allowed != nullptr) {
    context.allowed = params.allowed + static_cast<int64_t>(row) * ((params.vocab_size + 31) / 32);
  }
  const int node = params.node_of_row[row];
  if (has_penalties(params, seq)) {
    context.counts = params.token_counts + static_cast<int64_t>(seq) * params.vocab_size;
    collect_path(params, shared, seq, min(node, kSampleListCapacity - 1));
    context.num_path_tokens = shared.num_path_tokens;
  }
  const bool some_bias = params.max_bias > 0 && context.bias_ids[0] >= 0;
  context.num_bias = some_bias ? params.max_bias : 0;
  const int64_t base = static_cast<int64_t>(seq) * (params.trees.max_nodes + 1);
  const int emitted =
      params.history_len[seq] - params.prompt_len[seq] + params.trees.depths[base + node];
  context.num_stop_ids = emitted < params.min_tokens[seq] ? params.max_stop_ids : 0;
  if (context.num_path_tokens + context.num_bias + context.num_stop_ids == 0) return context;
  for (int i = thread; i < (params.vocab_size + 31) / 32; i += kSampleThreads) marks[i] = 0;
  __syncthreads();
  if (thread < context.num_path_tokens) mark(marks, context.path_tokens[thread], params.vocab_size);
  for (int i = thread; i < context.num_bias; i += kSampleThreads) {
    mark(marks, context.bias_ids[i], params.vocab_size);
  }
  for (int i = thread; i < context.num_stop_ids; i += kSampleThreads) {
    mark(marks, context.stop_ids[i], params.vocab_size);
  }
  __syncthreads();
  context.marks = marks;
  return context;
}

// The whole block: one row whose context is in shared memory.
template <bool kPlain>
__device__ __forceinline__ void sample_row(const SampleRowsParams& params, SampleShared& shared,
                                           int row, int seq) {
  RowView view{shared.context, params.vocab_size, 0};
  uint64_t own = 0;
  uint32_t magnitude = 0;
  visit_row<kPlain>(view, [&](float logit, int id, float raw) {
    magnitude = max(magnitude, __float_as_uint(raw) & 0x7fffffffu);
    own = max(own, ranked_key(logit, static_cast<uint32_t>(id)));
  });
  const bool bad = __syncthreads_or(magnitude >= 0x7f800000u) != 0;
  uint64_t best = block_max(shared, own);
  const float maximum = ranked_key_value(best);
  view.maximum = maximum;
  if (params.temperature[seq] > 0 && maximum > -INFINITY) {
    const bool filters = (params.top_k[seq] > 0 && params.top_k[seq] < params.vocab_size) ||
                         params.top_p[seq] < 1.0f;
    const uint64_t cut =
        filters ? filter_row<kPlain>(shared, view, params.top_k[seq], params.top_p[seq], own) : 0;
    const float min_p = params.min_p[seq];
    const float reach = __fsub_rn(maximum, kGumbelMax - kGumbelMin);  // nothing below can win
    const float least = min_p > 0 ? fmaxf(reach, __fadd_rn(maximum, logf(min_p))) : reach;
    const auto position = static_cast<uint32_t>(params.positions[row] + 1);
    const auto choice_index = static_cast<uint32_t>(params.choice_index[seq]);
    const auto seed = static_cast<uint64_t>(params.seed[seq]);
    best = 0;
    visit_row<kPlain>(view, [&](float logit, int id, float) {
      const auto token = static_cast<uint32_t>(id);
      if (!(logit >= least) || ranked_key(logit, token) < cut) return;
      const float noise = gumbel_noise(token, position, choice_index, seed);
      best = max(best, ranked_key(__fadd_rn(logit, noise), token));
    });
    best = block_max(shared, best);
  }
  if (threadIdx.x == 0) {
    const bool fine = !bad && maximum > -INFINITY;
    params.choices[row] = fine ? static_cast<int32_t>(ranked_key_index(best)) : -1;
    params.finite[row] = fine;
  }
}

// grid: one block per row. Dynamic shared memory: SampleShared, then the marks.
__global__ __launch_bounds__(kSampleThreads, 1) void sample_rows_kernel(
    const __grid_constant__ SampleRowsParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<SampleShared*>(memory);
  auto* marks = reinterpret_cast<uint32_t*>(memory + sizeof(SampleShared));
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.x);
  const int seq = params.seq_of_row[row];
  if (seq < 0) {
    if (threadIdx.x == 0) {
      params.choices[row] = -1;
      params.finite[row] = 1;
    }
    return;
  }
  const RowContext context = make_context(params, shared, marks, row, seq);
  if (threadIdx.x == 0) shared.context = context;
  __syncthreads();
  if (is_plain(shared.context)) {
    sample_row<true>(params, shared, row, seq);
  } else {
    sample_row<false>(params, shared, row, seq);
  }
}

// grid: (parts, num_seqs). kClear undoes what the other instance counted.
template <bool kClear>
__global__ __launch_bounds__(kHistoryThreads) void count_history_kernel(
    const __grid_constant__ SampleRowsParams params) {
  grid_dependency_wait();
  grid_dependency_launch();
  const int seq = static_cast<int>(blockIdx.y);
  if (!has_penalties(params, seq)) return;
  const int32_t* history = params.history + static_cast<int64_t>(seq) * params.history_stride;
  uint32_t* counts = params.token_counts + static_cast<int64_t>(seq) * params.vocab_size;
  const int prompt_len = params.prompt_len[seq];
  const int end = min(params.history_len[seq], params.history_stride);
  const int step = static_cast<int>(gridDim.x) * kHistoryThreads;
  for (int i = static_cast<int>(blockIdx.x) * kHistoryThreads + static_cast<int>(threadIdx.x);
       i < end; i += step) {
    const int32_t id = history[i];
    if (id < 0 || id >= params.vocab_size) continue;
    if (kClear) {
      counts[id] = 0;
    } else if (i < prompt_len) {
      atomicOr(counts + id, kInPrompt);
    } else {
      atomicAdd(counts + id, 1u);
    }
  }
}

}  // namespace coppice::kernels
