// The op table: everything a model, a drafter and a decode round ask of a device.
//
// Contract
//  1. An op only enqueues. It returns nothing, allocates nothing, reads nothing back, and takes
//     sizes from tensor shapes.
//  2. Whatever varies between rounds (positions, slots, block tables, paths, counts) is device
//     memory at a fixed address.
//  3. Padded rows (seq_of_row -1, slot -1, expert id -1) are inert: they route to no expert, touch
//     no cache, and their contents, NaN included, never reach a live row.
//  4. Primitive ops are pure virtual: a new op does not compile until every backend has it. Fused
//     ops default to their steps (composite.cpp), which they equal bit for bit. A test fails until
//     tests/ops/op_cases.h has a row for an op.
//  5. Row independence: a row's bits do not depend on the other rows, their number, or the number
//     of threads.
//
// Thread-safety: one thread enqueues on one backend; different backends are independent.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "backend/op_args.h"
#include "tensor/buffer.h"

namespace coppice {

// Names a captured round: two rounds with equal keys enqueue the same ops with the same shapes and
// addresses.
struct GraphKey {
  std::int32_t kind = 0;     // which body: the caller's enum
  std::int32_t batch = 0;    // sequences
  std::int32_t rows = 0;     // total rows
  std::int32_t variant = 0;  // e.g. greedy or general sampling
  auto operator<=>(const GraphKey&) const = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // For messages and the exactness fingerprint, e.g. "cpu avx512", "cuda sm_90 NVIDIA H200".
  virtual std::string name() const = 0;
  virtual Device device() const = 0;
  virtual DType activation_dtype() const = 0;
  virtual DType kv_dtype() const = 0;

  // ---- Memory and weights: start-up only, except upload and download.

  // Zero-filled device memory; throws Error(kOutOfMemory) with the numbers.
  virtual Buffer allocate(std::size_t num_bytes) = 0;
  // Copies host bytes into a dense tensor; the source may be reused at return, later ops see the
  // data.
  virtual void upload(const Tensor& dst, const void* src) = 0;
  // Copies a dense tensor to the host after everything enqueued before; waits.
  virtual void download(void* dst, const Tensor& src) = 0;
  virtual void synchronize() = 0;

  // ---- Copies without waiting. Backends that compute at once copy at once.

  // Host memory that start_download may fill, and start_upload read, while the caller goes on.
  virtual Buffer allocate_host(std::size_t num_bytes) { return Buffer::host(num_bytes); }
  // Enqueues a copy of a dense tensor to memory of allocate_host. The bytes are there once
  // wait_for(ticket) has returned; tickets of the last kMaxTickets copies are known.
  static constexpr std::int64_t kMaxTickets = 16;
  virtual std::int64_t start_download(void* dst, const Tensor& src) {
    download(dst, src);
    return 0;
  }
  virtual void wait_for(std::int64_t /*ticket*/) {}
  // Enqueues a copy of memory of allocate_host to a dense tensor. It may be written again once
  // something that was enqueued later has been waited for.
  virtual void start_upload(const Tensor& dst, const void* src) { upload(dst, src); }

  // ---- Measuring

  // Enqueues: out[0] (i64) = nanoseconds of the device's clock. Nothing where rounds run at once:
  // there the caller's own clock tells.
  virtual void write_time(const Tensor& /*out*/) {}
  // A named range around what is enqueued until pop_range, for profilers.
  virtual void push_range(const char* /*name*/) {}
  virtual void pop_range() {}
  // Bytes free and in all on the device; zeros where that is not a limit.
  struct Memory {
    std::size_t free_bytes = 0, total_bytes = 0;
  };
  virtual Memory memory() const { return {}; }

  // The parts stacked along rows (fused q/kv, gate/up) in this backend's layout. All parts share
  // cols.
  virtual LinearWeight load_linear(std::span<const HostMatrix> parts) = 0;
  virtual ExpertWeights load_experts(std::span<const ExpertSource> experts) = 0;
  // Names the layout in which load_repacked_experts takes experts; empty: none.
  virtual std::string expert_layout() const { return ""; }
  virtual ExpertWeights load_repacked_experts(const RepackedExperts& experts);

  // Runs body eagerly the first time a key is seen, then captures it; later calls replay. body has
  // no host side effects. Backends without graphs call body.
  virtual void run_graph(const GraphKey& key, const std::function<void()>& body) = 0;
  // Drops every captured round: the addresses that bodies use are about to change.
  virtual void forget_graphs() = 0;

  // ---- Rows, projections, experts
  virtual void embed(const EmbedArgs& args) = 0;
  virtual void rms_norm(const RmsNormArgs& args) = 0;
  virtual void add_rms_norm(const AddRmsNormArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void head_linear(const HeadLinearArgs& args) = 0;
  virtual void silu_mul(const SiluMulArgs& args) = 0;
  virtual void moe_route(const MoeRouteArgs& args) = 0;
  virtual void moe_experts(const MoeExpertsArgs& args) = 0;
  virtual void moe_block(const MoeBlockArgs& args);  // fused
  virtual void all_reduce(const AllReduceArgs& args) = 0;
  virtual void sum_add_rms_norm(const AddRmsNormArgs& args);  // fused: all_reduce, add_rms_norm
  virtual void all_gather(const AllGatherArgs& args) = 0;
  virtual void gather_rows(const GatherRowsArgs& args) = 0;

  // ---- Attention
  virtual void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) = 0;
  virtual void mla_queries(const MlaQueriesArgs& args);  // fused
  // Once per forward pass, before the first mla_attention with this metadata: lays out its work.
  virtual void plan_mla_attention(const PlanMlaAttentionArgs& args) = 0;
  virtual void mla_attention(const MlaAttentionArgs& args) = 0;
  virtual void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) = 0;
  virtual void gqa_attention(const GqaAttentionArgs& args) = 0;

  // ---- Trees, sampling, commit
  virtual void compile_draft(const CompileDraftArgs& args) = 0;
  virtual void top_k_log_probs(const TopKLogProbsArgs& args) = 0;
  virtual void build_tree(const BuildTreeArgs& args) = 0;
  virtual void ngram_propose(const NgramProposeArgs& args) = 0;
  virtual void compile_tree(const CompileTreeArgs& args) = 0;
  virtual void sample_rows(const SampleRowsArgs& args) = 0;
  virtual void accept_path(const AcceptPathArgs& args) = 0;
  virtual void move_kv(const MoveKvArgs& args) = 0;
};

}  // namespace coppice
