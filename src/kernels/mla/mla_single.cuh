// MLA attention for a single token on Hopper: clusters of two CTAs share a chunk of one octet of
// rows, four steps at a time.
//
// In a turn block r of a cluster computes the scores of steps r and r + 2 of the four, each by one
// warpgroup, and sends them to the other block. Both blocks do the softmax of all four steps and
// apply the weights to their own 256 value columns, in position order. So a turn takes one step's
// scores, and its bits are those of mla_attention.cuh: the same operations on the same numbers,
// with keys and columns on the M side of mma.sync and rows on the N side
// (docs/results/mla-h200.md).
#pragma once

#include "kernels/common/cluster.cuh"
#include "kernels/mla/mla_attention.cuh"

namespace coppice::kernels {

constexpr int kMlaSingleRows = 8;  // one token with up to 8 heads
constexpr int kMlaSliceColumns = kMlaRank / kMlaClusterBlocks;
constexpr int kMlaSliceBytes = kMlaStepPositions * kMlaSliceColumns * 2;
constexpr int kMlaPieceBytes = 2 * kMlaColumnBlockBytes;
constexpr int kMlaSingleBarrier = 5;
constexpr int kMlaSingleWarps = kMlaMathThreads / 32;

struct MlaSingleShared {
  char tiles[2][kMlaKeyTileBytes];  // keys of steps rank and rank + 2
  char slices[2][kMlaSliceBytes];   // this block's value columns of the other two steps
  char q[kMlaColumnBlocks][1024];   // [column block][8 rows][64], swizzled
  // Later a row's weights lie in the first half of its scores: bf16 [64 positions], swizzled.
  float scores[kMlaTurnSteps][kMlaSingleRows][kMlaStepPositions];
  float rescale[kMlaTurnSteps][kMlaSingleRows];      // factor of O at a step
  float sum_rescale[kMlaTurnSteps][kMlaSingleRows];  // factor of the sum of the step's parity
  float row_max[kMlaSingleRows];                     // after the turn
  float end_rescale[2][kMlaSingleRows];              // by parity: factor of its sum there
  uint64_t tile_full[2][kMlaPieces];                 // a piece of the tile has arrived
  uint64_t slices_full;
  uint64_t scores_full;  // all warps of the cluster have sent their scores
  uint64_t free;         // all warps of the cluster have used the turn's keys and scores
};
static_assert(sizeof(MlaSingleShared) <= sizeof(MlaShared));

// Walks the turns of a cluster: its fragments are chunks, every number-of-clusters-th.
struct MlaSingleCursor {
  int index;  // of the fragment
  MlaFragment f;
  int first_step;  // of the fragment
  int num_steps;
  int done;  // steps in earlier turns

  __device__ __forceinline__ void read(const MlaWorkspace& ws, int num_fragments) {
    done = num_steps = 0;
    if (index >= num_fragments) return;
    f = ws.fragments[index];
    first_step = f.chunk_begin << f.tile.log2_steps;
    num_steps = min(f.chunk_end << f.tile.log2_steps, f.tile.last_step + 1) - first_step;
  }
  __device__ __forceinline__ void start(const MlaWorkspace& ws, int num_fragments) {
    index = blockIdx.x / kMlaClusterBlocks;
    read(ws, num_fragments);
  }
  __device__ __forceinline__ bool at_end() const { return num_steps == 0; }
  __device__ __forceinline__ int turn_steps() const { return min(num_steps - done, kMlaTurnSteps); }
  __device__ __forceinline__ bool last_turn() const { return done + kMlaTurnSteps >= num_steps; }
  __device__ __forceinline__ void advance(const MlaWorkspace& ws, int num_fragments) {
    done += kMlaTurnSteps;
    if (done < num_steps) return;
    index += gridDim.x / kMlaClusterBlocks;
    read(ws, num_fragments);
  }
};

// Where this block finds its value columns of a step of the turn.
__device__ __forceinline__ uint32_t mla_single_slice(MlaSingleShared* sm, int step, int rank) {
  return step % 2 == rank ? shared_address(sm->tiles[step / 2]) + rank * kMlaSliceBytes
                          : shared_address(sm->slices[step / 2]);
}

// The thread that brings keys. Those that were in the cache before this step of the model can be
// had before the previous kernel has finished; for the others it waits once.
struct MlaSingleProducer {
  const int32_t* block_tables;
  int max_blocks;
  const MlaCacheMaps* maps;
  int rank;
  uint64_t policy;
  bool waited = false;

  struct Turn {
    int row[kMlaTurnSteps];  // of the cache, where a step's keys begin
    int steps;
    int old_steps;
  };

  __device__ __forceinline__ Turn read(const MlaSingleCursor& at) const {
    Turn turn;
    turn.steps = at.turn_steps();
    turn.old_steps = at.f.tile.old_steps - at.first_step - at.done;
    const int32_t* blocks =
        block_tables + int64_t{at.f.tile.seq} * max_blocks + at.first_step + at.done;
#pragma unroll
    for (int i = 0; i < kMlaTurnSteps; i++)
      turn.row[i] = i < turn.steps ? blocks[i] * kMlaStepPositions : 0;
    return turn;
  }

  __device__ __forceinline__ void await(const Turn& turn, int step) {
    if (waited || step < turn.old_steps) return;
    grid_dependency_wait();
    waited = true;
  }

  // The pieces of a tile in the order in which they are read.
  __device__ __forceinline__ void load_tile(MlaSingleShared* sm, const Turn& turn, int slot) {
    uint64_t* full = sm->tile_full[slot];
    const int step = rank + 2 * slot;
    if (step >= turn.steps) {
      for (int piece = 0; piece < kMlaPieces; piece++) mbarrier_arrive(full + piece);
      return;
    }
    await(turn, step);
    const int row = rank == 0 ? turn.row[2 * slot] : turn.row[2 * slot + 1];
    const uint32_t tile = shared_address(sm->tiles[slot]);
    for (int i = 0; i < kMlaPieces - 1; i++) {
      const int piece = i ^ (rank * 2);
      mbarrier_arrive_expect(full + piece, kMlaPieceBytes);
      mla_copy_keys(tile + piece * kMlaPieceBytes, &maps->latent, row, piece * 2, full + piece,
                    policy);
    }
    mbarrier_arrive_expect(full + kMlaPieces - 1, kMlaColumnBlockBytes);
    mla_copy_keys(tile + kMlaRopeBlock, &maps->rope, row, 8, full + kMlaPieces - 1, policy);
  }

  __device__ __forceinline__ void load_slices(MlaSingleShared* sm, const Turn& turn) {
    const int others = (turn.steps + rank) / 2;
    mbarrier_arrive_expect(&sm->slices_full, others * kMlaSliceBytes);
#pragma unroll
    for (int i = 0; i < kMlaTurnSteps; i++) {
      if (i >= turn.steps || i % 2 == rank) continue;
      await(turn, i);
      for (int piece = 0; piece < 2; piece++)
        mla_copy_keys(shared_address(sm->slices[i / 2]) + piece * kMlaPieceBytes, &maps->latent,
                      turn.row[i], rank * 4 + piece * 2, &sm->slices_full, policy);
    }
  }
};

__device__ __forceinline__ void mla_single_produce(MlaSingleShared* sm, const MlaAttentionParams& p,
                                                   const MlaWorkspace& ws, int num_fragments,
                                                   const MlaCacheMaps* maps, int rank) {
  MlaSingleProducer producer = {p.block_tables, p.max_blocks, maps, rank, mla_key_policy(false)};
  MlaSingleCursor cursor;
  cursor.start(ws, num_fragments);
  for (uint32_t index = 0; !cursor.at_end(); index++) {
    const MlaSingleProducer::Turn turn = producer.read(cursor);
    if (index > 0) mbarrier_wait(&sm->free, (index - 1) & 1);
    for (int slot = 0; slot < 2; slot++) producer.load_tile(sm, turn, slot);
    producer.load_slices(sm, turn);
    cursor.advance(ws, num_fragments);
  }
}

__device__ __forceinline__ void mla_single_load_queries(MlaSingleShared* sm,
                                                        const MlaAttentionParams& p,
                                                        const MlaTile& tile) {
  const int64_t row = tile.first_row;
  for (int i = threadIdx.x; i < kMlaSingleRows * kMlaColumnBlocks * 8; i += kMlaMathThreads) {
    const int head = i / (kMlaColumnBlocks * 8), chunk = i % (kMlaColumnBlocks * 8);
    const bool valid = head < p.num_heads;
    const int64_t h = valid ? head : 0;
    const char* from = chunk < 64 ? static_cast<const char*>(p.q_lat) +
                                        (row * p.num_heads + h) * kMlaRank * 2 + chunk * 16
                                  : static_cast<const char*>(p.q_pe) +
                                        (row * p.q_pe_row_stride + h * p.q_pe_head_stride) * 2 +
                                        (chunk - 64) * 16;
    copy_async_16(shared_address(sm->q[chunk / 8]) + head * 128 + ((chunk % 8 ^ head) << 4), from,
                  valid);
  }
  copy_async_wait_all();
  named_barrier_sync(kMlaSingleBarrier, kMlaMathThreads);
}

// A warp's scores: 16 keys of a step against all rows, summed over columns as wgmma does it; sent
// to all blocks.
__device__ __forceinline__ void mla_single_scores(MlaSingleShared* sm, uint32_t tile, int parity,
                                                  uint32_t scores, uint64_t* full, uint32_t phase) {
  const int lane = threadIdx.x % 32, key = threadIdx.x / 32 % 4 * 16 + lane % 16;
  float4 d = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kMlaColumnBlocks; i++) {
    const int block = i == 8 ? 8 : i ^ (parity * 4);
    if (i % 2 == 0) mbarrier_wait(full + block / 2, phase);
    uint32_t q[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++)
      ldmatrix_x4(q[half], shared_address(sm->q) + block * 1024 + lane % 8 * 128 +
                               (((4 * half + lane / 8) ^ (lane % 8)) << 4));
#pragma unroll
    for (int j = 0; j < 4; j++) {
      uint32_t a[4];
      ldmatrix_x4(a, tile + block * kMlaColumnBlockBytes + key * 128 +
                         (((2 * j + lane / 16) ^ (key & 7)) << 4));
      d = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], q[j / 2][j % 2 * 2], q[j / 2][j % 2 * 2 + 1],
                            d);
    }
  }
  const int first = threadIdx.x / 32 % 4 * 16 + lane / 4, row = lane % 4 * 2;
  const int swizzle = lane % 4 * 8;
  const uint32_t at = scores + row * 256 + ((first ^ swizzle) << 2);
  const uint32_t at8 = scores + row * 256 + (((first + 8) ^ swizzle) << 2);
#pragma unroll
  for (int r = 0; r < kMlaClusterBlocks; r++) {
    const uint32_t to = cluster_address(at, r), to8 = cluster_address(at8, r);
    cluster_store(to, __float_as_uint(d.x));
    cluster_store(to + 256, __float_as_uint(d.y));
    cluster_store(to8, __float_as_uint(d.z));
    cluster_store(to8 + 256, __float_as_uint(d.w));
  }
}

// What the warp of a row keeps of it during a chunk.
struct MlaSingleRow {
  float m;         // running maximum of raw scores
  float m_own[2];  // the maximum that the sum of a parity's steps is scaled by
};

// Softmax of one row over the turn's steps, by one warp: mla_softmax as both warpgroups together do
// it. Columns of step `masked` from `keys_end` on are not seen.
__device__ __forceinline__ void mla_single_softmax(MlaSingleShared* sm, MlaSingleRow& st,
                                                   int num_steps, int masked, int keys_end,
                                                   float scale) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  float2 s[kMlaTurnSteps];
  float top[kMlaTurnSteps];
#pragma unroll
  for (int i = 0; i < kMlaTurnSteps; i++) {
    if (i >= num_steps) continue;
    s[i] = *reinterpret_cast<const float2*>(&sm->scores[i][row][(2 * lane) ^ (row / 2 * 8)]);
    if (i == masked && 2 * lane >= keys_end) s[i].x = -INFINITY;
    if (i == masked && 2 * lane + 1 >= keys_end) s[i].y = -INFINITY;
    top[i] = fmaxf(s[i].x, s[i].y);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], d));
  }
  __syncwarp();  // the row's scores have been read
  float base = 0;
#pragma unroll
  for (int i = 0; i < kMlaTurnSteps; i++) {
    if (i >= num_steps) continue;
    const float before = st.m;
    float& own = st.m_own[i & 1];
    st.m = fmaxf(st.m, top[i]);
    base = st.m == -INFINITY ? 0.f : __fmul_rn(st.m, scale);
    const float alpha =
        st.m == -INFINITY ? 1.f : exp2_approx(__fsub_rn(__fmul_rn(before, scale), base));
    const bool seen = top[i] != -INFINITY;
    const float sum_alpha = seen ? exp2_approx(__fsub_rn(__fmul_rn(own, scale), base)) : 1.f;
    if (seen) own = st.m;
    reinterpret_cast<uint32_t*>(sm->scores[i][row])[(lane / 4 ^ row) * 4 + lane % 4] = mla_pack(
        exp2_approx(__fmaf_rn(s[i].x, scale, -base)), exp2_approx(__fmaf_rn(s[i].y, scale, -base)));
    if (lane == 0) sm->rescale[i][row] = alpha, sm->sum_rescale[i][row] = sum_alpha;
  }
  if (lane == 0) {
    sm->row_max[row] = st.m;
#pragma unroll
    for (int k = 0; k < 2; k++)
      sm->end_rescale[k][row] = exp2_approx(__fsub_rn(__fmul_rn(st.m_own[k], scale), base));
  }
}

// Keys of the last step that are not there yet: NaN times 0 is NaN.
__device__ __forceinline__ void mla_single_clear(uint32_t slice, int keys_end) {
  for (int i = threadIdx.x; i < (kMlaStepPositions - keys_end) * 32; i += kMlaMathThreads) {
    const int row = keys_end + i / 32, chunk = i % 32;
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                     slice + chunk / 8 * kMlaColumnBlockBytes + row * 128 + chunk % 8 * 16),
                 "r"(0)
                 : "memory");
  }
}

// A warp's part of a chunk's result: 32 columns and 8 rows. A thread has columns lane / 4 + 8k of
// rows 2 (lane % 4) and + 1: o[2k + row % 2].
struct MlaSingleState {
  float o[8];
  float sum[2][2];  // [parity of the step][row % 2]
};

__device__ __forceinline__ uint32_t mla_transpose(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The result as a partial one, where mla_store_slot would put it.
__device__ __forceinline__ void mla_single_store(const MlaSingleState& st, const float (&m)[2],
                                                 const float (&l)[2], const MlaWorkspace& ws,
                                                 int64_t slot, int rank) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t packed[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const __half2 v = __floats2half2_rn(st.o[2 * k], st.o[2 * k + 1]);
    packed[k] = mla_transpose(*reinterpret_cast<const uint32_t*>(&v));
  }
  __stcg(ws.slots + slot * 4096 + rank * 256 + warp * 32 + lane,
         make_uint4(packed[0], packed[1], packed[2], packed[3]));
  if (warp == 0 && lane < 4) {
#pragma unroll
    for (int e = 0; e < 2; e++)
      __stcg(ws.slot_stats + (slot * 2 + rank) * kMlaTileRows + 2 * lane + e,
             make_float2(m[e], l[e]));
  }
}

// The result as the row's output.
__device__ __forceinline__ void mla_single_output(const MlaSingleState& st,
                                                  const MlaAttentionParams& p, const MlaTile& tile,
                                                  int rank) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = lane / 4;
  uint32_t v[4];
#pragma unroll
  for (int k = 0; k < 4; k++)
    v[k] =
        mla_transpose(mla_pack(mla_round_partial(st.o[2 * k]), mla_round_partial(st.o[2 * k + 1])));
  if (head >= p.num_heads) return;
  uint32_t* out = static_cast<uint32_t*>(p.o_lat) +
                  ((int64_t{tile.first_row} * p.num_heads + head) * kMlaRank +
                   rank * kMlaSliceColumns + warp * 32) /
                      2 +
                  lane % 4;
#pragma unroll
  for (int k = 0; k < 4; k++) out[4 * k] = v[k];
}

// O += values weights for a step, and the sum of its weights.
__device__ __forceinline__ void mla_single_step(MlaSingleShared* sm, int step, uint32_t slice,
                                                MlaSingleState& st) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = lane % 4 * 2, key = lane % 8 + lane / 16 * 8;
  const float2 alpha = *reinterpret_cast<const float2*>(&sm->rescale[step][row]);
  const float2 sum_alpha = *reinterpret_cast<const float2*>(&sm->sum_rescale[step][row]);
  float4 o[2];
#pragma unroll
  for (int t = 0; t < 2; t++)
    o[t] = make_float4(__fmul_rn(st.o[4 * t], alpha.x), __fmul_rn(st.o[4 * t + 1], alpha.y),
                       __fmul_rn(st.o[4 * t + 2], alpha.x), __fmul_rn(st.o[4 * t + 3], alpha.y));
  float(&sum)[2] = st.sum[step & 1];
  float4 l = make_float4(__fmul_rn(sum[0], sum_alpha.x), __fmul_rn(sum[1], sum_alpha.y), 0, 0);
  l.z = l.x, l.w = l.y;
  constexpr uint32_t kOnes = 0x3F803F80;
  uint32_t b[2][4];
#pragma unroll
  for (int half = 0; half < 2; half++)
    ldmatrix_x4(b[half], shared_address(sm->scores[step]) + lane % 8 * 256 +
                             (((4 * half + lane / 8) ^ (lane % 8)) << 4));
  const uint32_t from = slice + warp / 2 * kMlaColumnBlockBytes + key * 128;
#pragma unroll
  for (int g = 0; g < 4; g++) {
    const uint32_t b0 = b[g / 2][g % 2 * 2], b1 = b[g / 2][g % 2 * 2 + 1];
#pragma unroll
    for (int t = 0; t < 2; t++) {
      uint32_t a[4];
      ldmatrix_x4_transposed(
          a, from + g * 2048 + (((warp % 2 * 4 + 2 * t + lane / 8 % 2) ^ (lane % 8)) << 4));
      o[t] = mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], b0, b1, o[t]);
    }
    l = mma_m16n8k16_bf16(kOnes, kOnes, kOnes, kOnes, b0, b1, l);
  }
#pragma unroll
  for (int t = 0; t < 2; t++)
    st.o[4 * t] = o[t].x, st.o[4 * t + 1] = o[t].y, st.o[4 * t + 2] = o[t].z,
             st.o[4 * t + 3] = o[t].w;
  sum[0] = l.x, sum[1] = l.y;
}

// The end of a chunk.
__device__ __forceinline__ void mla_single_finish(const MlaSingleShared* sm, MlaSingleState& st,
                                                  const MlaAttentionParams& p,
                                                  const MlaWorkspace& ws, const MlaFragment& f,
                                                  int rank) {
  const int row = threadIdx.x % 4 * 2;
  float m[2], l[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    m[e] = sm->row_max[row + e];
    l[e] = __fadd_rn(__fmul_rn(st.sum[0][e], sm->end_rescale[0][row + e]),
                     __fmul_rn(st.sum[1][e], sm->end_rescale[1][row + e]));
    const float inverse = l[e] > 0 ? __frcp_rn(l[e]) : 0.f;
#pragma unroll
    for (int k = 0; k < 4; k++) st.o[2 * k + e] = __fmul_rn(st.o[2 * k + e], inverse);
  }
  if (f.tile.parts == 1)
    mla_single_output(st, p, f.tile, rank);
  else
    mla_single_store(st, m, l, ws, f.slot, rank);
}

// A warp has done its part: tells all blocks of the cluster.
__device__ __forceinline__ void mla_single_arrive(uint64_t* barrier) {
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
  __syncwarp();
  const int lane = threadIdx.x % 32;
  if (lane >= kMlaClusterBlocks) return;
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   cluster_address(shared_address(barrier), lane))
               : "memory");
}

__device__ __forceinline__ void mla_single_math(MlaSingleShared* sm, const MlaAttentionParams& p,
                                                const MlaWorkspace& ws, int num_fragments, int rank,
                                                float scale) {
  MlaSingleCursor at;
  at.start(ws, num_fragments);
  grid_dependency_wait();
  const int slot = threadIdx.x / 128;
  int queries = -1;  // the row they are of
  for (uint32_t turn = 0; !at.at_end();) {
    const MlaFragment f = at.f;
    const MlaTile& tile = f.tile;
    if (queries != tile.first_row) mla_single_load_queries(sm, p, tile);
    queries = tile.first_row;
    const int length = p.kv_len[tile.first_row] + p.path_len[tile.first_row];
    const int keys_end = length - tile.last_step * kMlaStepPositions;
    MlaSingleRow row = {-INFINITY, {-INFINITY, -INFINITY}};
    MlaSingleState st = {};
    for (bool last = false; !last; turn++) {
      const int steps = at.turn_steps(), masked = tile.last_step - at.first_step - at.done;
      last = at.last_turn();
      const uint32_t phase = turn & 1;
      if (turn > 0) mbarrier_wait_cluster(&sm->free, phase ^ 1);
      const int step = rank + 2 * slot;
      if (step < steps)
        mla_single_scores(sm, shared_address(sm->tiles[slot]), rank,
                          shared_address(sm->scores[step]), sm->tile_full[slot], phase);
      mla_single_arrive(&sm->scores_full);
      mbarrier_wait_cluster(&sm->scores_full, phase);
      mla_single_softmax(sm, row, steps, masked, keys_end, scale);
      for (int i = 0; i < 4; i++)  // pieces of this block's columns
        mbarrier_wait(&sm->tile_full[i / 2][2 * rank + i % 2], phase);
      mbarrier_wait(&sm->slices_full, phase);
      if (masked < steps) {
        mla_single_clear(mla_single_slice(sm, masked, rank), keys_end);
        fence_proxy_async();  // before the copies of a next turn
      }
      named_barrier_sync(kMlaSingleBarrier, kMlaMathThreads);
#pragma unroll
      for (int i = 0; i < kMlaTurnSteps; i++) {
        if (i < steps) mla_single_step(sm, i, mla_single_slice(sm, i, rank), st);
      }
      if (last) mla_single_finish(sm, st, p, ws, f, rank);
      at.advance(ws, num_fragments);
      // After the last turn the other block may have left.
      if (!at.at_end()) mla_single_arrive(&sm->free);
    }
  }
}

// What mla_attention_sm90<false> does.
__device__ __forceinline__ void mla_alone(MlaShared* sm, const MlaAttentionParams& p,
                                          const MlaWorkspace& ws, int num_fragments,
                                          int padded_heads, const MlaCacheMaps* maps) {
  mla_init_barriers(sm);
  if (threadIdx.x >= kMlaMathThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < kMlaMathThreads + 32) mla_produce<false>(sm, p, ws, num_fragments, maps);
    grid_dependency_wait();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    mla_math<false>(sm, p, ws, num_fragments, padded_heads, log2_scale(p.softmax_scale));
  }
}

// Attention for one row, in clusters of kMlaClusterBlocks: as mla_attention_sm90<false>, or as
// above if the plan says so.
__global__ void __launch_bounds__(kMlaThreads, 1)
    mla_attention_single_sm90(MlaAttentionParams p, MlaWorkspace ws, int padded_heads,
                              const __grid_constant__ MlaCacheMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char dynamic_shared[];
  grid_dependency_launch();
  const MlaHeader header = *ws.header;
  if (!header.single_token) {
    mla_alone(reinterpret_cast<MlaShared*>(dynamic_shared), p, ws, header.num_fragments,
              padded_heads, &maps);
    return;
  }
  MlaSingleShared* sm = reinterpret_cast<MlaSingleShared*>(dynamic_shared);
  const int rank = blockIdx.x % kMlaClusterBlocks;
  if (threadIdx.x == 0) {
    for (int t = 0; t < 2; t++)
      for (int i = 0; i < kMlaPieces; i++) mbarrier_init(&sm->tile_full[t][i], 1);
    mbarrier_init(&sm->slices_full, 1);
    mbarrier_init(&sm->scores_full, kMlaClusterBlocks * kMlaSingleWarps);
    mbarrier_init(&sm->free, kMlaClusterBlocks * kMlaSingleWarps);
    mbarrier_init_fence();
  }
  cluster_sync();  // the other may now send
  if (threadIdx.x < kMlaMathThreads)
    mla_single_math(sm, p, ws, header.num_fragments, rank, log2_scale(p.softmax_scale));
  else if (threadIdx.x == kMlaMathThreads)
    mla_single_produce(sm, p, ws, header.num_fragments, &maps, rank);
  grid_dependency_wait();
#endif
}

}  // namespace coppice::kernels
