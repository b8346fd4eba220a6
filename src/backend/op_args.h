// Arguments of every op in backend.h: plain structs filled by designated initialisers. Tensors are
// views the caller owns; an empty tensor is an absent optional argument. "act" is
// Backend::activation_dtype(). T = rows of the step, B = sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace coppice {

// Where a row's token came from. It alone picks the kernel family of a row (never the number of
// rows), so that a token's result does not depend on what else is in the step. A step holds rows of
// one provenance.
enum class Provenance : std::uint8_t {
  kPrompt,   // given by the user: prefill ops
  kDecided,  // chosen by the model, or a draft under verification: decode ops
};

inline constexpr std::int64_t kBlockSize = 64;  // positions in one block of the paged cache

// ---- Weights

enum class WeightFormat : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8Block128,   // E4M3, one f32 scale per 128x128 block (DeepSeek-V3)
  kInt4Group32,  // compressed-tensors pack-quantized, symmetric
  kQ4_0,         // GGUF blocks of 32: f16 scale, 16 bytes of nibbles
  kQ4_1,         // GGUF blocks of 32: f16 scale, f16 minimum, 16 bytes of nibbles
  kQ8_0,         // GGUF blocks of 32: f16 scale, 32 int8
};

// A matrix as a checkpoint stores it, dense and row-major; views into the mapped file. y = W x, W
// is [rows, cols].
struct HostMatrix {
  WeightFormat format = WeightFormat::kBF16;
  std::int64_t rows = 0;  // out_features
  std::int64_t cols = 0;  // in_features
  // kInt4Group32: int32 [rows, cols / 8], lowest nibble first, value = nibble - 8.
  const void* data = nullptr;
  // kInt4Group32: bf16 [rows, cols / 32]; kF8Block128: f32 [ceil(rows/128), ceil(cols/128)].
  const void* scales = nullptr;
};

// A matrix in a backend's own layout. Cheap to copy; the backend's storage is shared.
struct LinearWeight {
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  std::shared_ptr<const void> packed;  // only the backend that made it knows the type
};

// The routed experts of one layer (or of one rank's shard of it).
struct ExpertWeights {
  std::int64_t num_experts = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::shared_ptr<const void> packed;
};

struct ExpertSource {
  HostMatrix gate;  // [intermediate, hidden]
  HostMatrix up;    // [intermediate, hidden]
  HostMatrix down;  // [hidden, intermediate]
};

// The routed experts of a layer in the layout that a backend computes with (expert_layout()).
struct RepackedExperts {
  std::int64_t num_experts = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // of this rank
  std::span<const std::byte> w13;      // gate and up of all experts
  std::span<const std::byte> w2;       // down of all experts
};

// What a conversion to such a layout gives.
struct RepackedBlobs {
  std::vector<std::byte> w13, w2;  // as above
};

// ---- Rows, projections, experts

struct EmbedArgs {
  Tensor token_ids;  // [T] i32; a negative id gives a row of zeros
  Tensor table;      // [vocab_size, hidden_size] bf16 or f32
  Tensor out;        // [T, hidden_size] act
};

// out = x / sqrt(mean(x^2) + eps) * weight, statistics in fp32.
struct RmsNormArgs {
  Tensor x;       // [T, hidden_size] act; rows may have gaps
  Tensor weight;  // [hidden_size] f32
  float eps = 0;
  Tensor out;  // [T, hidden_size] act
};

// residual += delta; out = rms_norm(residual). Equal to the two steps bit for bit. Where the op
// sums over ranks first, delta is this rank's part and its contents are lost.
struct AddRmsNormArgs {
  Tensor residual;  // [T, hidden_size] act, updated
  Tensor delta;     // [T, hidden_size] act
  Tensor weight;    // [hidden_size] f32
  float eps = 0;
  Tensor out;  // [T, hidden_size] act
};

struct LinearArgs {
  Tensor x;  // [T, in_features] act; rows may have gaps
  const LinearWeight* weight = nullptr;
  Tensor out;  // [T, out_features] act or f32
  Provenance provenance = Provenance::kDecided;
};

// One matrix per head: out[t, h] = W[h] x[t, h], with W [num_heads * n, k] stored as one stacked
// matrix.
struct HeadLinearArgs {
  Tensor x;  // [T, num_heads, k] act; rows may have gaps
  const LinearWeight* weight = nullptr;
  Tensor out;  // [T, num_heads, n] act
  Provenance provenance = Provenance::kDecided;
};

struct SiluMulArgs {
  Tensor gate_up;  // [T, 2 * intermediate_size] act: gate columns, then up columns
  Tensor out;      // [T, intermediate_size] act
};

// DeepSeek-V3 noaux_tc routing with n_group 1: the top_k largest sigmoid(logit) + bias (ties:
// lowest id), in descending order; weights from the unbiased scores, normalised if asked, times
// routed_scaling_factor.
struct MoeRouteArgs {
  Tensor logits;      // [T, num_experts] f32
  Tensor bias;        // [num_experts] f32: e_score_correction_bias
  Tensor seq_of_row;  // [T] i32; rows with -1 get expert ids of -1
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
  Tensor topk_ids;      // [T, top_k] i32
  Tensor topk_weights;  // [T, top_k] f32
};

// out[t] = shared[t] + sum over k in order of topk_weights[t, k] * down(silu(gate x) * up x), in
// fp32, rounded once.
struct MoeExpertsArgs {
  Tensor x;             // [T, hidden_size] act
  Tensor topk_ids;      // [T, top_k] i32; -1 is skipped
  Tensor topk_weights;  // [T, top_k] f32
  const ExpertWeights* experts = nullptr;
  Tensor shared;  // [T, hidden_size] act, optional
  Tensor out;     // [T, hidden_size] act
  Provenance provenance = Provenance::kDecided;
};

// The feed-forward half of a routed layer: router, choice of experts, shared expert (optional) and
// routed experts. Equal bit for bit to linear, moe_route, linear, silu_mul, linear and moe_experts.
struct MoeBlockArgs {
  Tensor x;                              // [T, hidden_size] act
  const LinearWeight* router = nullptr;  // [num_experts, hidden_size]
  Tensor bias;                           // as of MoeRouteArgs, like the next three
  Tensor seq_of_row;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
  const LinearWeight* shared_gate_up = nullptr;  // [2 * width, hidden_size], with shared_down
  const LinearWeight* shared_down = nullptr;     // [hidden_size, width]
  const ExpertWeights* experts = nullptr;
  Tensor out;  // [T, hidden_size] act
  Provenance provenance = Provenance::kDecided;
  Tensor topk_ids;      // [T, top_k] i32 out
  Tensor topk_weights;  // [T, top_k] f32 out
  // Scratch: left as it is or overwritten.
  Tensor router_logits;  // [T, num_experts] f32
  Tensor gate_up;        // [T, 2 * width] act, like the next two with a shared expert only
  Tensor act;            // [T, width] act
  Tensor shared;         // [T, hidden_size] act

  bool has_shared() const { return shared_gate_up != nullptr; }
};

struct AllReduceArgs {
  // [T, hidden_size] act: sum over ranks in fp32 and in rank order, in place; every rank gets the
  // same bits.
  Tensor x;
};

// Ranks hold equal runs of columns, in rank order: all of them, on every rank.
struct AllGatherArgs {
  Tensor x;    // [T, n] f32: this rank's
  Tensor out;  // [T, num_ranks * n] f32
};

// out[i] = src[rows[i]]; a negative row leaves out[i] as it is.
struct GatherRowsArgs {
  Tensor src;   // [T, n] any type; rows may have gaps
  Tensor rows;  // [count] i32
  Tensor out;   // [count, n] the same type; rows may have gaps
};

// ---- Attention

// Which keys a row sees: positions 0 .. kv_len-1 through its sequence's block table, then positions
// kv_len .. kv_len + path_len - 1 at the slots path[row][0 .. path_len-1] (the row's undecided
// ancestors, root first, and itself). A slot is block * kBlockSize + offset. Prompt rows have
// path_len 0 and kv_len = position + 1.
struct AttentionMetadata {
  Tensor seq_of_row;    // [T] i32; -1 marks a padded row: it reads nothing and its output is zero
  Tensor kv_len;        // [T] i32
  Tensor path_len;      // [T] i32
  Tensor path;          // [T, max_path] i32
  Tensor block_tables;  // [B, max_blocks] i32
  // Host bound on kv_len + path_len over the step, for grid sizes only.
  std::int64_t max_kv_len = 0;
  Provenance provenance = Provenance::kDecided;
};

// Normalises the latent, rotates k_pe and q_pe (interleaved pairs: dims 2i, 2i+1) and writes
// [latent | k_pe] to the cache.
struct MlaRopeAndWriteKvArgs {
  Tensor q_pe;     // [T, num_heads, rope_dim] act, rotated in place; rows may have gaps
  Tensor kv_a;     // [T, kv_lora_rank + rope_dim] act; rows may have gaps
  Tensor kv_norm;  // [kv_lora_rank] f32
  float eps = 0;
  Tensor cos_sin;    // [max_positions, rope_dim] f32: rope_dim/2 cosines, then as many sines
  Tensor positions;  // [T] i32
  Tensor slots;      // [T] i32; -1 writes nothing
  Tensor cache;      // [num_blocks, kBlockSize, kv_lora_rank + rope_dim] kv dtype
};

// From the first projection of an MLA layer to what its attention reads. Equal bit for bit to
// rms_norm, linear, head_linear and mla_rope_and_write_kv:
//   c_q = rms_norm(qkv_a's query part), q = q_b c_q, q_lat[h] = k_absorbed[h] q_nope[h],
//   q_pe rotated in place, [norm of the latent | rotated k_pe] to the cache.
struct MlaQueriesArgs {
  Tensor qkv_a;    // [T, q_lora_rank + kv_lora_rank + rope_dim] act
  Tensor q_norm;   // [q_lora_rank] f32
  Tensor kv_norm;  // [kv_lora_rank] f32
  float eps = 0;
  const LinearWeight* q_b = nullptr;         // [num_heads * (nope_dim + rope_dim), q_lora_rank]
  const LinearWeight* k_absorbed = nullptr;  // [num_heads * kv_lora_rank, nope_dim]
  Tensor cos_sin;                            // as of MlaRopeAndWriteKvArgs, like the next three
  Tensor positions;
  Tensor slots;
  Tensor cache;
  Provenance provenance = Provenance::kDecided;
  Tensor c_q;    // [T, q_lora_rank] act, scratch: left as it is or overwritten
  Tensor q;      // [T, num_heads * nope_dim + num_heads * rope_dim] act: scratch, then q_pe
  Tensor q_lat;  // [T, num_heads, kv_lora_rank] act

  // Of q.
  Tensor q_nope() const {
    return q.columns(0, num_heads() * nope_dim()).reshape({q.shape(0), num_heads(), nope_dim()});
  }
  Tensor q_pe() const {
    return q.columns(num_heads() * nope_dim(), num_heads() * rope_dim())
        .reshape({q.shape(0), num_heads(), rope_dim()});
  }
  Tensor kv_a() const { return qkv_a.columns(q_norm.shape(0), kv_norm.shape(0) + rope_dim()); }
  std::int64_t num_heads() const { return q_lat.shape(1); }
  std::int64_t nope_dim() const { return k_absorbed->in_features; }
  std::int64_t rope_dim() const { return q.shape(1) / num_heads() - nope_dim(); }
};

struct PlanMlaAttentionArgs {
  const AttentionMetadata* metadata = nullptr;
  std::int64_t num_heads = 0;
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_rope_head_dim = 0;
};

// Weight-absorbed MLA: every head reads the same cache row; values are its first kv_lora_rank
// columns.
struct MlaAttentionArgs {
  Tensor q_lat;  // [T, num_heads, kv_lora_rank] act
  Tensor q_pe;   // [T, num_heads, rope_dim] act; rows may have gaps
  Tensor cache;  // [num_blocks, kBlockSize, kv_lora_rank + rope_dim] kv dtype
  const AttentionMetadata* metadata = nullptr;
  float scale = 0;
  Tensor out;  // [T, num_heads, kv_lora_rank] act
};

// Optional per-head RMS norm of q and k (Qwen3, DFlash), rotation over the whole head, write of k
// and v to the cache.
struct GqaRopeAndWriteKvArgs {
  // [T, num_heads, head_dim] act, updated in place; empty when only K/V are wanted; rows may have
  // gaps.
  Tensor q;
  Tensor k;       // [T, num_kv_heads, head_dim] act; rows may have gaps
  Tensor v;       // [T, num_kv_heads, head_dim] act; rows may have gaps
  Tensor q_norm;  // [head_dim] f32, optional
  Tensor k_norm;  // [head_dim] f32, optional
  float eps = 0;
  // Pairs (2i, 2i+1) as in GGUF Llama files; otherwise (i, i + head_dim/2).
  bool interleaved = false;
  Tensor cos_sin;    // [max_positions, head_dim] f32: head_dim/2 cosines, then as many sines
  Tensor positions;  // [T] i32
  Tensor slots;      // [T] i32; -1 writes nothing
  Tensor k_cache;    // [num_blocks, kBlockSize, num_kv_heads * head_dim] kv dtype
  Tensor v_cache;    // the same shape
};

struct GqaAttentionArgs {
  Tensor q;        // [T, num_heads, head_dim] act; rows may have gaps
  Tensor k_cache;  // [num_blocks, kBlockSize, num_kv_heads * head_dim] kv dtype
  Tensor v_cache;  // the same shape
  const AttentionMetadata* metadata = nullptr;
  Tensor positions;  // [T] i32: a row's own position, for the sliding window
  // 0: none; otherwise keys at positions > position - sliding_window.
  std::int64_t sliding_window = 0;
  bool causal = false;  // keys beyond the row's own position are not seen, whatever kv_len says
  float scale = 0;
  Tensor out;  // [T, num_heads, head_dim] act
};

// ---- Trees: facts of the algorithm in DDTree (arXiv 2604.12989)

// Draft trees of a batch, at fixed addresses. Node 0 is the root (the anchor token);
// nodes 1..counts[b] follow in pop order, so a parent precedes its children and any prefix is a
// legal tree.
struct TreeBuffers {
  Tensor tokens;   // [B, max_nodes + 1] i32
  Tensor parents;  // [B, max_nodes + 1] i32; -1 for the root
  Tensor depths;   // [B, max_nodes + 1] i32; 0 for the root
  Tensor scores;   // [B, max_nodes + 1] f32: joint log-probability; 0 for the root
  Tensor counts;   // [B] i32: nodes without the root; -1 marks an empty batch place
};

// Top-k of log_softmax over the vocabulary at temperature 1; ties by lowest id; no sort of the
// vocabulary.
struct TopKLogProbsArgs {
  Tensor logits;     // [T, vocab_size] f32 or bf16
  Tensor ids;        // [T, k] i32
  Tensor log_probs;  // [T, k] f32
};

// Best-first trees, ties by rank tuple (lexicographic, shorter first), fp32 scores added in the
// reference's order. Growth of sequence b stops at budgets[b] nodes or when the next score is below
// min_scores[b].
struct BuildTreeArgs {
  Tensor ids;         // [B, depth, k] i32 from top_k_log_probs; row d-1 proposes for depth d
  Tensor log_probs;   // [B, depth, k] f32
  Tensor anchors;     // [B] i32: token of the root; negative marks an empty batch place
  Tensor budgets;     // [B] i32, at most max_nodes
  Tensor min_scores;  // [B] f32; -inf: no limit
  TreeBuffers trees;
};

// Rows of one draft pass: for every sequence of the batch its block [anchor, mask x (block_size -
// 1)], row-major by sequence. A sequence with a negative anchor gets padded rows.
struct CompileDraftArgs {
  Tensor anchors;       // [B] i32
  Tensor context_len;   // [B] i32: the anchor's own position
  Tensor block_tables;  // [B, max_blocks] i32
  std::int32_t mask_token_id = 0;
  Tensor token_ids;   // [B * block_size] i32 out
  Tensor positions;   // [B * block_size] i32 out: context_len + j
  Tensor slots;       // [B * block_size] i32 out: of the same positions
  Tensor seq_of_row;  // [B * block_size] i32 out
  Tensor kv_len;      // [B * block_size] i32 out: context_len + block_size, the whole block
  Tensor path_len;    // [B * block_size] i32 out: 0
};

// Prompt lookup: the longest suffix of the history (max_ngram down to min_ngram tokens, the anchor
// included) that occurred earlier proposes the tokens that followed its most recent occurrence, as
// a chain of at most budgets[b] nodes.
struct NgramProposeArgs {
  Tensor history;      // [B, max_len] i32: prompt and emitted tokens, the anchor last
  Tensor history_len;  // [B] i32
  Tensor anchors;      // [B] i32
  Tensor budgets;      // [B] i32
  std::int32_t min_ngram = 2;
  std::int32_t max_ngram = 4;
  TreeBuffers trees;
};

// Writes the rows of a verify step: for every sequence its root and nodes, ragged, then padding up
// to T (inert rows). Node i of sequence b is stored at cache position context_len[b] + i and has
// position context_len[b] + depth. Without cost_ms the trees are cut only where their rows exceed
// T. A cut merges the trees by value = exp(score) * calibration[depth]: the best next node of any
// sequence (ties: lowest sequence) until the bucket is full; the bucket with the largest (sequences
// + sum of values) / cost_ms wins (ties: the first). counts is lowered to what is kept.
struct CompileTreeArgs {
  TreeBuffers trees;
  Tensor context_len;   // [B] i32: positions in the cache, the anchor's own position
  Tensor block_tables;  // [B, max_blocks] i32
  Tensor cost_ms;       // [num_buckets] f32, optional: predicted round time per total-row bucket
  // [num_buckets] i32, optional: with cost_ms, cuts all trees to the bucket with most tokens per
  // ms.
  Tensor bucket_rows;
  // [max_depth + 1] f32, optional, with cost_ms: measured over predicted acceptance, multiplies
  // exp(score) at that depth.
  Tensor calibration;
  Tensor token_ids;    // [T] i32 out
  Tensor positions;    // [T] i32 out
  Tensor slots;        // [T] i32 out
  Tensor seq_of_row;   // [T] i32 out
  Tensor node_of_row;  // [T] i32 out
  Tensor kv_len;       // [T] i32 out: context_len
  Tensor path_len;     // [T] i32 out: depth + 1
  Tensor path;         // [T, max_path] i32 out
  // [B + 1] i32 out: rows of sequence b are row_offsets[b] .. row_offsets[b + 1] - 1.
  Tensor row_offsets;
};

// ---- Sampling and commit

// Per-sequence sampling state, device memory. Order of the filters: penalties, logit bias,
// temperature, top-k, top-p, min-p, then Gumbel-max over the surviving ids: the largest
// z + g, g = -log(-log(u)), u = uniform_open(philox4x32({token id, absolute position, choice index,
// 0}, seed)[0]). Equal values rank by lowest id everywhere. Penalties in vLLM's order (repetition,
// frequency, presence); top-p keeps ids while the probability before them is below top_p; min-p
// keeps probabilities of at least min_p times the largest. Banned ids (min_tokens, `allowed`) drop
// out before everything.
struct SamplingBuffers {
  Tensor temperature;         // [B] f32; 0 is greedy
  Tensor top_k;               // [B] i32; 0: all
  Tensor top_p;               // [B] f32
  Tensor min_p;               // [B] f32
  Tensor repetition_penalty;  // [B] f32; 1: none; over prompt and output
  Tensor presence_penalty;    // [B] f32; over output
  Tensor frequency_penalty;   // [B] f32; over output
  Tensor seed;                // [B] i64
  Tensor choice_index;        // [B] i32
  Tensor prompt_len;          // [B] i32: where the output starts in history
  Tensor history;             // [B, max_len] i32: prompt and emitted tokens, the anchor last
  Tensor history_len;         // [B] i32
  Tensor bias_ids;            // [B, max_bias] i32; -1: unused
  Tensor bias_values;         // [B, max_bias] f32
  Tensor min_tokens;          // [B] i32: stop ids are banned while fewer tokens have been emitted
  Tensor stop_ids;            // [B, max_stop_ids] i32; -1: unused
  Tensor max_tokens;          // [B] i32: emitted tokens at which the sequence ends
};

// One choice per row: the token that the target puts after the row's token, at position
// positions[row] + 1.
struct SampleRowsArgs {
  Tensor logits;       // [T, vocab_size] f32
  Tensor positions;    // [T] i32
  Tensor seq_of_row;   // [T] i32; -1: no choice (-1)
  Tensor node_of_row;  // [T] i32
  TreeBuffers trees;   // for the row's own path; penalties count the nodes on it
  SamplingBuffers sampling;
  // Every sequence has temperature 0 and no filter, penalty or bias; `allowed` still counts.
  bool greedy = false;
  Tensor allowed;    // [T, ceil(vocab_size / 32)] i32 bit mask, optional (grammar)
  Tensor choices;    // [T] i32 out
  Tensor finite;     // [T] i32 out: 0 if the row's logits hold NaN or infinity
  Tensor log_probs;  // [T] f32 out, optional: log_softmax of the raw logits at the choice
};

enum class FinishReason : std::int32_t { kNone = 0, kStop = 1, kLength = 2, kNotFinite = 3 };

// Follows the choices down each tree, truncates at a stop id or max_tokens, and advances the
// sequence state. A row that is not finite emits nothing and ends its sequence; what came before it
// in the path stands. A stop id wins over max_tokens reached by the same token.
struct AcceptPathArgs {
  TreeBuffers trees;
  Tensor row_offsets;        // [B + 1] i32
  Tensor choices;            // [T] i32
  Tensor finite;             // [T] i32
  Tensor slots;              // [T] i32
  Tensor block_tables;       // [B, max_blocks] i32
  SamplingBuffers sampling;  // history, history_len updated
  // [B] i32, advanced by the emitted count (the new anchor stays outside the cache).
  Tensor context_len;
  Tensor anchors;  // [B] i32, updated; -1 once finished: rounds already launched skip it
  // [B, max_path] i32 out: rows whose tokens are now decided, root first; -1 beyond num_emitted.
  Tensor accepted_rows;
  Tensor emitted;        // [B, max_path] i32 out: tokens emitted this round, the new anchor last
  Tensor num_emitted;    // [B] i32 out: accepted drafts + 1, less what a stop cuts
  Tensor finish_reason;  // [B] i32 out: FinishReason
  Tensor move_src;       // [B * max_path] i32 out: slot pairs for move_kv; -1 where nothing moves
  Tensor move_dst;       // [B * max_path] i32 out
  // [B * max_path] i32 out: accepted_rows flattened, for the drafter's context.
  Tensor feature_rows;
  Tensor feature_positions;  // [B * max_path] i32 out
  Tensor feature_slots;      // [B * max_path] i32 out; -1 where there is no row
};

// Copies cache rows src[i] -> dst[i] in every plane at once; sources may be destinations of other
// pairs.
struct MoveKvArgs {
  std::span<const Tensor> planes;  // each [num_blocks, kBlockSize, n]
  Tensor src;                      // [count] i32; -1: nothing
  Tensor dst;                      // [count] i32
};

}  // namespace coppice
