// What both CPU paths share: host memory, and every op that has no fast variant.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cpu/ops.h"
#include "backend/cpu/simd/kernels.h"
#include "comm/communicator.h"

namespace coppice::cpu {

class CpuBackendBase : public Backend {
 public:
  CpuBackendBase(int num_threads, Communicator* communicator)
      : pool_(num_threads), communicator_(communicator) {}

  Device device() const override { return Device::kCpu; }
  DType activation_dtype() const override { return DType::kF32; }
  DType kv_dtype() const override { return DType::kF32; }

  Buffer allocate(std::size_t num_bytes) override { return Buffer::host(num_bytes); }
  void upload(const Tensor& dst, const void* src) override;
  void download(void* dst, const Tensor& src) override;
  void synchronize() override {}
  void run_graph(const GraphKey&, const std::function<void()>& body) override { body(); }
  void forget_graphs() override {}

  void embed(const EmbedArgs& args) override { cpu::embed(args, pool_); }
  void moe_route(const MoeRouteArgs& args) override { cpu::moe_route(args, pool_); }
  void all_reduce(const AllReduceArgs& args) override;
  void all_gather(const AllGatherArgs& args) override;
  void gather_rows(const GatherRowsArgs& args) override { cpu::gather_rows(args, pool_); }
  void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) override {
    cpu::mla_rope_and_write_kv(args, pool_);
  }
  void plan_mla_attention(const PlanMlaAttentionArgs&) override {}
  void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) override {
    cpu::gqa_rope_and_write_kv(args, pool_);
  }
  void compile_draft(const CompileDraftArgs& args) override { cpu::compile_draft(args, pool_); }
  void top_k_log_probs(const TopKLogProbsArgs& args) override { cpu::top_k_log_probs(args, pool_); }
  void build_tree(const BuildTreeArgs& args) override { cpu::build_tree(args, pool_); }
  void ngram_propose(const NgramProposeArgs& args) override { cpu::ngram_propose(args, pool_); }
  void compile_tree(const CompileTreeArgs& args) override { cpu::compile_tree(args, pool_); }
  void sample_rows(const SampleRowsArgs& args) override { cpu::sample_rows(args, pool_); }
  void accept_path(const AcceptPathArgs& args) override { cpu::accept_path(args, pool_); }
  void move_kv(const MoveKvArgs& args) override { cpu::move_kv(args, pool_); }

 protected:
  ThreadPool& pool() { return pool_; }

  // Aborts unless the three matrices fit each other and those of the first expert.
  static void check_expert(const ExpertSource& source, const ExpertSource& first);
  static ExpertWeights describe_experts(std::span<const ExpertSource> sources,
                                        std::shared_ptr<const void> packed);

 private:
  ThreadPool pool_;
  Communicator* communicator_;         // null: one rank
  std::vector<float> rank_workspace_;  // of collectives
};

std::unique_ptr<Backend> make_reference_backend(int num_threads, Communicator* communicator);
std::unique_ptr<Backend> make_fast_backend(const simd::Kernels& kernels, int num_threads,
                                           Communicator* communicator);

}  // namespace coppice::cpu
