// One row by one block, or by a cluster of eight blocks when there are few rows: a block then has
// an eighth of the ids, and what the blocks find meets in distributed shared memory. It meets in
// maxima and integer sums, which do not depend on an order, so both give the same bits.
//
// The survivors of top-k and top-p are a prefix of the ids ordered by ranked_key, so each filter is
// one key: a histogram over classes of 1/64 nat below the maximum finds the class where the prefix
// ends, the ids of that class are listed and decide exactly.
#pragma once

#include <cooperative_groups.h>

#include "kernels/common/grid_dependency.cuh"
#include "kernels/sample/order_key.cuh"
#include "kernels/sample/philox.cuh"
#include "kernels/sample/sample_adjust.cuh"
#include "kernels/sample/sample_rows_config.h"

namespace coppice::kernels {

inline constexpr int kHistoryThreads = 256;
inline constexpr int kMaxSampleBlocks = 8;
inline constexpr int kSampleClasses = 2048;
inline constexpr float kSampleClassesPerNat = 64.0f;
inline constexpr int kSampleListCapacity = 2048;
inline constexpr int kSampleRankLimit = 256;
inline constexpr float kMassUnits = 1099511627776.0f;  // 2^40
inline constexpr float kMassReach = 28.0f;             // nats below the maximum: less than a unit
inline constexpr unsigned kWholeWarp = 0xffffffffu;

// Where a filter's search ended.
struct alignas(16) SampleCrossing {
  unsigned long long mass_before;  // of the classes above
  uint32_t count_before;
  int at;  // the class
};

struct SampleShared {
  unsigned long long mass[kSampleClasses];           // of this block's ids, per class
  unsigned long long mass_sums[kSampleClasses];      // prefix sums of this block's slice of classes
  unsigned long long own_list[kSampleListCapacity];  // this block's ids of the class that is cut
  unsigned long long list[kSampleListCapacity];      // those of all blocks
  unsigned long long warp_values[32];
  unsigned long long block_values[kMaxSampleBlocks];  // one from every block
  unsigned long long block_masses[kMaxSampleBlocks];
  SampleCrossing crossings[2];  // by measure: a block may read one while another is in the next
  unsigned long long cut;
  uint32_t count[kSampleClasses];       // ids, as mass
  uint32_t count_sums[kSampleClasses];  // as mass_sums
  uint32_t warp_counts[32];
  uint32_t block_counts[kMaxSampleBlocks];
  int own_listed;
  int listed;
  int32_t path_tokens[kMaxPathTokens];
  int num_path_tokens;
  RowContext context;
};

__device__ __forceinline__ int class_below(float maximum, float logit) {
  const float distance = __fmul_rn(__fsub_rn(maximum, logit), kSampleClassesPerNat);
  return static_cast<int>(fminf(distance, static_cast<float>(kSampleClasses - 1)));
}

__device__ __forceinline__ uint64_t mass_of(float maximum, float logit) {
  return static_cast<uint64_t>(__fmul_rn(__expf(__fsub_rn(logit, maximum)), kMassUnits));
}

// What a filter counts: ids (top-k) or probability (top-p).
enum class Measure { kCount, kMass };

template <int kBlocks, bool kPlain>
struct RowSampler {
  static constexpr int kThreads = kBlocks == 1 ? 1024 : 512;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSlice = kSampleClasses / kBlocks;  // classes summed up by one block
  static constexpr int kPerThread = (kSlice + kThreads - 1) / kThreads;

  SampleShared& shared;
  const RowContext& row;
  int vocab_size;
  float maximum;

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int block() {
    return kBlocks == 1 ? 0 : static_cast<int>(blockIdx.x) % kBlocks;
  }

  __device__ static void sync() {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      cooperative_groups::this_cluster().sync();
    }
  }

  // The same variable of another block.
  template <typename T>
  __device__ static T* in_block(T* own, int other) {
    if constexpr (kBlocks == 1) return own;
    return cooperative_groups::this_cluster().map_shared_rank(own, static_cast<unsigned>(other));
  }

  // visit(adjusted logit, id, raw logit) for the thread's share of the row, ids ascending.
  template <typename Visit>
  __device__ __forceinline__ void visit(Visit&& use) const {
    const int vectors = vocab_size / 4;
    const int share = (vectors + kBlocks - 1) / kBlocks;
    const int last = min((block() + 1) * share, vectors);
    const auto* logits = reinterpret_cast<const float4*>(row.logits);
#pragma unroll 4
    for (int v = block() * share + thread(); v < last; v += kThreads) {
      const float4 raw = logits[v];
      use(adjusted_logit<kPlain>(row, raw.x, 4 * v), 4 * v, raw.x);
      use(adjusted_logit<kPlain>(row, raw.y, 4 * v + 1), 4 * v + 1, raw.y);
      use(adjusted_logit<kPlain>(row, raw.z, 4 * v + 2), 4 * v + 2, raw.z);
      use(adjusted_logit<kPlain>(row, raw.w, 4 * v + 3), 4 * v + 3, raw.w);
    }
  }

  // `merge` over all threads of all blocks; everybody gets the result. 0 is neutral.
  template <typename Merge>
  __device__ uint64_t combine(uint64_t value, Merge&& merge) const {
    const int lane = thread() & 31;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      value = merge(value, __shfl_xor_sync(kWholeWarp, value, step));
    }
    __syncthreads();
    if (lane == 0) shared.warp_values[thread() / 32] = value;
    __syncthreads();
    value = lane < kWarps ? shared.warp_values[lane] : 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      value = merge(value, __shfl_xor_sync(kWholeWarp, value, step));
    }
    if constexpr (kBlocks > 1) {
      if (thread() < kBlocks) *in_block(shared.block_values + block(), thread()) = value;
      sync();
      value = 0;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) value = merge(value, shared.block_values[i]);
      sync();
    }
    return value;
  }
  __device__ __noinline__ uint64_t max_of_all(uint64_t value) const {
    return combine(value, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
  __device__ __noinline__ uint64_t sum_of_all(uint64_t value) const {
    return combine(value, [](uint64_t a, uint64_t b) { return a + b; });
  }

  __device__ void clear_histogram() const {
    for (int i = thread(); i < kSampleClasses; i += kThreads) {
      shared.count[i] = 0;
      shared.mass[i] = 0;
    }
    __syncthreads();
  }

  // Prefix sums of this block's slice over all blocks' histograms, and every block's totals.
  __device__ void sum_histogram() const {
    const int lane = thread() & 31;
    uint32_t counts[kPerThread] = {};
    uint64_t masses[kPerThread] = {};
    sync();
    uint32_t count = 0;
    uint64_t mass = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int in_slice = thread() * kPerThread + i;
      if (in_slice < kSlice) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          counts[i] += *in_block(shared.count + block() * kSlice + in_slice, b);
          masses[i] += *in_block(shared.mass + block() * kSlice + in_slice, b);
        }
      }
      count += counts[i];
      mass += masses[i];
    }
    const uint32_t own_count = count;
    const uint64_t own_mass = mass;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t from_count = __shfl_up_sync(kWholeWarp, count, step);
      const uint64_t from_mass = __shfl_up_sync(kWholeWarp, mass, step);
      if (lane >= step) {
        count += from_count;
        mass += from_mass;
      }
    }
    if (lane == 31) {
      shared.warp_counts[thread() / 32] = count;
      shared.warp_values[thread() / 32] = mass;
    }
    __syncthreads();
    for (int i = 0; i < thread() / 32; ++i) {
      count += shared.warp_counts[i];
      mass += shared.warp_values[i];
    }
    if (thread() == kThreads - 1) {
      for (int b = 0; b < kBlocks; ++b) {
        *in_block(shared.block_counts + block(), b) = count;
        *in_block(shared.block_masses + block(), b) = mass;
      }
    }
    count -= own_count;
    mass -= own_mass;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int in_slice = thread() * kPerThread + i;
      count += counts[i];
      mass += masses[i];
      if (in_slice >= kSlice) continue;
      shared.count_sums[in_slice] = count;
      shared.mass_sums[in_slice] = mass;
    }
    sync();
  }

  template <Measure kMeasure>
  __device__ SampleCrossing& crossing() const {
    return shared.crossings[static_cast<int>(kMeasure)];
  }

  // Finds the first class at which the sum over classes reaches `wanted`, the last if none does:
  // sets the measure's crossing in every block.
  template <Measure kMeasure>
  __device__ __noinline__ void find_crossing(uint64_t wanted) const {
    uint32_t count = 0;
    uint64_t mass = 0;
    for (int b = 0; b < block(); ++b) {
      count += shared.block_counts[b];
      mass += shared.block_masses[b];
    }
    const uint64_t before = kMeasure == Measure::kCount ? count : mass;
    const uint64_t own =
        kMeasure == Measure::kCount ? shared.block_counts[block()] : shared.block_masses[block()];
    const bool here = before < wanted && wanted <= before + own;
    const bool beyond = block() == kBlocks - 1 && wanted > before + own;
    if ((here || beyond) && thread() < kBlocks) {
      int low = 0;
      for (int high = kSlice - 1; low < high;) {
        const int middle = (low + high) / 2;
        const uint64_t sum = kMeasure == Measure::kCount ? uint64_t{shared.count_sums[middle]}
                                                         : uint64_t{shared.mass_sums[middle]};
        if (before + sum >= wanted) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      *in_block(&crossing<kMeasure>(), thread()) = {
          .mass_before = mass + (low == 0 ? 0 : shared.mass_sums[low - 1]),
          .count_before = count + (low == 0 ? 0 : shared.count_sums[low - 1]),
          .at = block() * kSlice + low};
    }
    sync();
  }

  template <Measure kMeasure>
  __device__ uint64_t measure(uint64_t key) const {
    return kMeasure == Measure::kCount ? 1 : mass_of(maximum, ranked_key_value(key));
  }

  // Sum over the ids of class `at` whose key reaches `least`, over the whole row or over the lists.
  template <Measure kMeasure>
  __device__ __noinline__ uint64_t sum_reaching(int at, uint64_t least, bool from_lists) const {
    uint64_t sum = 0;
    if (from_lists) {
      for (int i = thread(); i < shared.own_listed; i += kThreads) {
        if (shared.own_list[i] >= least) sum += measure<kMeasure>(shared.own_list[i]);
      }
    } else {
      visit([&](float logit, int id, float) {
        const uint64_t key = ranked_key(logit, static_cast<uint32_t>(id));
        if (key >= least && class_below(maximum, logit) == at) sum += measure<kMeasure>(key);
      });
    }
    return sum_of_all(sum);
  }

  // Lists the keys of class `at` that reach `floor`: own_list in every block, and all of them in
  // list when they fit.
  __device__ __noinline__ void list_class(int at, uint64_t floor) const {
    if (thread() == 0) shared.own_listed = 0;
    __syncthreads();
    // The class within a margin of rounding.
    const float high = maximum - static_cast<float>(at - 1) / kSampleClassesPerNat;
    const float low = maximum - static_cast<float>(at + 2) / kSampleClassesPerNat;
    visit([&](float logit, int id, float) {
      if (!(logit >= low && logit <= high) || class_below(maximum, logit) != at) return;
      const uint64_t key = ranked_key(logit, static_cast<uint32_t>(id));
      if (key < floor) return;
      const int place = atomicAdd(&shared.own_listed, 1);
      if (place < kSampleListCapacity) shared.own_list[place] = key;
    });
    sync();
    int listed = 0;
    for (int b = 0; b < kBlocks; ++b) {
      const int count = *in_block(&shared.own_listed, b);
      if (listed + count <= kSampleListCapacity) {
        const auto* source = in_block(shared.own_list, b);
        for (int i = thread(); i < count; i += kThreads) shared.list[listed + i] = source[i];
      }
      listed += count;
    }
    if (thread() == 0) shared.listed = listed;
    sync();
  }

  // The largest key such that the ids of class `at` that reach it (and `floor`) measure at least
  // `wanted` (more than 0, at most their total).
  template <Measure kMeasure>
  __device__ __noinline__ uint64_t cut_class(int at, uint64_t floor, uint64_t wanted) const {
    if (thread() == 0) shared.cut = floor;
    list_class(at, floor);
    const int listed = shared.listed;
    if (listed <= kSampleRankLimit) {
      if (thread() < listed) {
        const uint64_t key = shared.list[thread()];
        uint64_t before = 0;
#pragma unroll 4
        for (int i = 0; i < listed; ++i) {
          if (shared.list[i] > key) before += measure<kMeasure>(shared.list[i]);
        }
        if (before < wanted && before + measure<kMeasure>(key) >= wanted) shared.cut = key;
      }
      __syncthreads();
      return shared.cut;
    }
    uint64_t cut = 0;
    for (int bit = 63; bit >= 0; --bit) {
      const uint64_t candidate = cut | 1ull << bit;
      const uint64_t sum = sum_reaching<kMeasure>(at, candidate > floor ? candidate : floor,
                                                  listed <= kSampleListCapacity);
      if (sum >= wanted) cut = candidate;
    }
    return cut > floor ? cut : floor;
  }

  // A logit that at least k ids reach: each warp gives the ceil(k / warps)-th largest of its
  // threads' maxima, the least of these serves, and of several blocks the best.
  __device__ float top_k_floor(float own, int k) const {
    if (k > kThreads) return -INFINITY;
    int rank = 0;
#pragma unroll 8
    for (int i = 0; i < 32; ++i) {
      const float other = __shfl_sync(kWholeWarp, own, i);
      rank += other > own || (other == own && i < (thread() & 31));
    }
    __syncthreads();
    if (rank == (k + kWarps - 1) / kWarps - 1) shared.warp_counts[thread() / 32] = order_key(own);
    __syncthreads();
    uint32_t least = shared.warp_counts[0];
    for (int i = 1; i < kWarps; ++i) least = min(least, shared.warp_counts[i]);
    return order_key_value(static_cast<uint32_t>(max_of_all(least)));
  }

  // The key that survivors of top-k and top-p reach. own: the thread's largest logit.
  __device__ uint64_t filter(int top_k, float top_p, float own) const {
    if (top_k >= vocab_size) top_k = 0;
    // Ids below `floor` cannot survive: by top-k as above; by top-p alone because all ids below
    // (1 - top_p) / vocab_size of the largest probability sum to less than 1 - top_p.
    float floor = maximum - kMassReach;
    if (top_k > 0) {
      floor = fmaxf(floor, top_k_floor(own, top_k));
    } else {
      const float ratio = fmaxf(1.0f - top_p, 1e-9f) / static_cast<float>(vocab_size);
      floor = fmaxf(floor, maximum + logf(ratio) - 0.1f);
    }
    clear_histogram();
    uint64_t total = 0;
    const float reach = maximum - kMassReach;
    const float visited = top_k > 0 ? floor : reach;
    visit([&](float logit, int, float) {
      if (!(logit >= visited)) return;
      const uint64_t mass = mass_of(maximum, logit);
      total += mass;
      if (!(logit >= floor)) return;
      const int at = class_below(maximum, logit);
      atomicAdd(&shared.count[at], 1u);
      atomicAdd(&shared.mass[at], static_cast<unsigned long long>(mass));
    });
    total = sum_of_all(total);
    sum_histogram();
    uint64_t cut = 0;
    if (top_k > 0) {
      find_crossing<Measure::kCount>(static_cast<uint64_t>(top_k));
      const SampleCrossing found = crossing<Measure::kCount>();
      if (found.at < kSampleClasses - 1) {  // otherwise k reaches further down than noise can
        cut = cut_class<Measure::kCount>(found.at, 0,
                                         static_cast<uint64_t>(top_k) - found.count_before);
        const bool listed = shared.listed <= kSampleListCapacity;
        total = found.mass_before + sum_reaching<Measure::kMass>(found.at, cut, listed);
      }
    }
    if (top_p < 1.0f) {
      const double target = static_cast<double>(fmaxf(top_p, 0.0f)) * static_cast<double>(total);
      const auto wanted = max(static_cast<uint64_t>(ceil(target)), uint64_t{1});
      find_crossing<Measure::kMass>(wanted);
      const SampleCrossing found = crossing<Measure::kMass>();
      cut = max(cut, cut_class<Measure::kMass>(found.at, cut, wanted - found.mass_before));
    }
    return cut;
  }

  // The surviving id with the largest logit plus noise, as a ranked key.
  __device__ uint64_t draw(const SampleRowsParams& params, int at, int seq, uint64_t cut) const {
    const float min_p = params.min_p[seq];
    float least = __fsub_rn(maximum, kGumbelMax - kGumbelMin);  // nothing below can win
    if (min_p > 0) least = fmaxf(least, __fadd_rn(maximum, logf(min_p)));
    if (cut != 0) least = fmaxf(least, ranked_key_value(cut));
    const auto position = static_cast<uint32_t>(params.positions[at] + 1);
    const auto choice_index = static_cast<uint32_t>(params.choice_index[seq]);
    const auto seed = static_cast<uint64_t>(params.seed[seq]);
    uint64_t best = 0;
    visit([&](float logit, int id, float) {
      if (!(logit >= least)) return;
      const auto token = static_cast<uint32_t>(id);
      if (ranked_key(logit, token) < cut) return;
      const float noise = gumbel_noise(token, position, choice_index, seed);
      best = max(best, ranked_key(__fadd_rn(logit, noise), token));
    });
    return max_of_all(best);
  }

  // All threads of all blocks; row `at` of sequence `seq`.
  __device__ void sample(const SampleRowsParams& params, int at, int seq) {
    if constexpr (kBlocks > 1) sync();  // every block has started: its memory may be written
    float own = -INFINITY;
    int own_id = 0;
    uint32_t magnitude = 0;
    visit([&](float logit, int id, float raw) {
      magnitude = max(magnitude, __float_as_uint(raw) & 0x7fffffffu);
      if (logit > own) {
        own = logit;
        own_id = id;
      }
    });
    const bool bad = max_of_all(magnitude >= 0x7f800000u ? 1 : 0) != 0;
    uint64_t best = max_of_all(ranked_key(own, static_cast<uint32_t>(own_id)));
    maximum = ranked_key_value(best);
    const bool fine = !bad && maximum > -INFINITY;
    if (fine && params.temperature[seq] > 0) {
      const int top_k = params.top_k[seq];
      const float top_p = params.top_p[seq];
      const bool filters = (top_k > 0 && top_k < vocab_size) || top_p < 1.0f;
      best = draw(params, at, seq, filters ? filter(top_k, top_p, own) : 0);
    }
    if (thread() == 0 && block() == 0) {
      params.choices[at] = fine ? static_cast<int32_t>(ranked_key_index(best)) : -1;
      params.finite[at] = fine;
    }
  }
};

// Threads of the block copy the tree's links, then thread 0 walks up from the row's node.
__device__ __forceinline__ void collect_path(const SampleRowsParams& params, SampleShared& shared,
                                             int seq, int node) {
  auto* parents = reinterpret_cast<int32_t*>(shared.list);
  int32_t* tokens = parents + kSampleListCapacity;
  const int64_t base = static_cast<int64_t>(seq) * (params.trees.max_nodes + 1);
  for (int i = static_cast<int>(threadIdx.x); i <= node; i += static_cast<int>(blockDim.x)) {
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
  for (int i = thread; i < (params.vocab_size + 31) / 32; i += static_cast<int>(blockDim.x))
    marks[i] = 0;
  __syncthreads();
  if (thread < context.num_path_tokens) mark(marks, context.path_tokens[thread], params.vocab_size);
  for (int i = thread; i < context.num_bias; i += static_cast<int>(blockDim.x)) {
    mark(marks, context.bias_ids[i], params.vocab_size);
  }
  for (int i = thread; i < context.num_stop_ids; i += static_cast<int>(blockDim.x)) {
    mark(marks, context.stop_ids[i], params.vocab_size);
  }
  __syncthreads();
  context.marks = marks;
  return context;
}

// grid: kBlocks blocks per row, one cluster. Dynamic shared memory: SampleShared, then the marks.
template <int kBlocks>
__device__ __forceinline__ void sample_rows_body(const SampleRowsParams& params) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<SampleShared*>(memory);
  auto* marks = reinterpret_cast<uint32_t*>(memory + sizeof(SampleShared));
  grid_dependency_wait();
  grid_dependency_launch();
  const int row = static_cast<int>(blockIdx.x) / kBlocks;
  const int seq = params.seq_of_row[row];
  if (seq < 0) {
    if (threadIdx.x == 0 && blockIdx.x % kBlocks == 0) {
      params.choices[row] = -1;
      params.finite[row] = 1;
    }
    return;
  }
  const RowContext context = make_context(params, shared, marks, row, seq);
  if (threadIdx.x == 0) shared.context = context;
  __syncthreads();
  if (is_plain(shared.context)) {
    RowSampler<kBlocks, true>{shared, shared.context, params.vocab_size, 0}.sample(params, row,
                                                                                   seq);
  } else {
    RowSampler<kBlocks, false>{shared, shared.context, params.vocab_size, 0}.sample(params, row,
                                                                                    seq);
  }
}

__global__ __launch_bounds__(1024, 1) void sample_rows_kernel(
    const __grid_constant__ SampleRowsParams params) {
  sample_rows_body<1>(params);
}

__global__ __cluster_dims__(kMaxSampleBlocks) __launch_bounds__(
    512, 2) void sample_rows_cluster_kernel(const __grid_constant__ SampleRowsParams params) {
  sample_rows_body<kMaxSampleBlocks>(params);
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
