// The CPU ops, one file per family. Each computes rows (or heads, or sequences) independently and
// in a fixed order, so neither the number of threads nor the other rows show in a result.
#pragma once

#include "backend/op_args.h"
#include "base/thread_pool.h"

namespace coppice::cpu {

// Row ops hand a thread at least this many rows: below, waking threads costs more than the work.
inline constexpr std::int64_t kMinRowsPerThread = 8;

// row_ops.cpp
void embed(const EmbedArgs& args, ThreadPool& pool);
void rms_norm(const RmsNormArgs& args, ThreadPool& pool);
void add_rms_norm(const AddRmsNormArgs& args, ThreadPool& pool);
void silu_mul(const SiluMulArgs& args, ThreadPool& pool);
void gather_rows(const GatherRowsArgs& args, ThreadPool& pool);

// attention_ops.cpp, rope_ops.cpp
void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args, ThreadPool& pool);
void mla_attention(const MlaAttentionArgs& args, ThreadPool& pool);
void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args, ThreadPool& pool);
void gqa_attention(const GqaAttentionArgs& args, ThreadPool& pool);

// moe_ops.cpp
void moe_route(const MoeRouteArgs& args, ThreadPool& pool);

// tree_ops.cpp, compile_tree.cpp
void compile_draft(const CompileDraftArgs& args, ThreadPool& pool);
void top_k_log_probs(const TopKLogProbsArgs& args, ThreadPool& pool);
void build_tree(const BuildTreeArgs& args, ThreadPool& pool);
void ngram_propose(const NgramProposeArgs& args, ThreadPool& pool);
void compile_tree(const CompileTreeArgs& args, ThreadPool& pool);

// sample_ops.cpp
void sample_rows(const SampleRowsArgs& args, ThreadPool& pool);

// commit_ops.cpp
void accept_path(const AcceptPathArgs& args, ThreadPool& pool);
void move_kv(const MoveKvArgs& args, ThreadPool& pool);

}  // namespace coppice::cpu
