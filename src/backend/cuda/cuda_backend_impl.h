// The op table on one GPU: each op turns its tensors into a kernel's params. One stream; nothing
// waits. Internal to backend/cuda: everybody else uses cuda_backend.h.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <string>
#include <type_traits>

#include "backend/backend.h"
#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/graph_cache.h"
#include "backend/cuda/peer_memory.h"
#include "backend/cuda/staged_copy.h"
#include "kernels/mla/mla_attention.h"

namespace coppice {

// Kernels with a workspace that counts rows are sized for this many once, so that the counters at
// its front stay in place.
inline constexpr int kMaxSampleRows = 4096;

class CudaBackend final : public Backend {
 public:
  // communicator: of this rank, outlives the backend; null: one rank.
  CudaBackend(int index, Communicator* communicator)
      : device_(open_cuda_device(index)),
        stream_(make_stream()),
        peers_(communicator == nullptr
                   ? nullptr
                   : std::make_unique<PeerMemory>(*communicator, device_.index, stream())) {}
  ~CudaBackend() override;

  std::string name() const override {
    return "cuda sm_" + std::to_string(device_.compute_capability) + " " + device_.name;
  }
  Device device() const override { return Device::kCuda; }
  DType activation_dtype() const override { return DType::kBF16; }
  DType kv_dtype() const override { return DType::kBF16; }

  Buffer allocate(std::size_t num_bytes) override { return allocate_device(num_bytes, stream()); }
  void upload(const Tensor& dst, const void* src) override;
  void download(void* dst, const Tensor& src) override;
  cudaStream_t stream() const { return stream_.get(); }
  const CudaDevice& cuda_device() const { return device_; }
  void synchronize() override;

  Buffer allocate_host(std::size_t num_bytes) override { return allocate_pinned(num_bytes); }
  std::int64_t start_download(void* dst, const Tensor& src) override;
  void wait_for(std::int64_t ticket) override;
  void start_upload(const Tensor& dst, const void* src) override;
  void write_time(const Tensor& out) override;
  void push_range(const char* name) override;
  void pop_range() override;
  Memory memory() const override;

  LinearWeight load_linear(std::span<const HostMatrix> parts) override;
  ExpertWeights load_experts(std::span<const ExpertSource> experts) override;
  std::string expert_layout() const override;
  ExpertWeights load_repacked_experts(const RepackedExperts& experts) override;

  void run_graph(const GraphKey& key, const std::function<void()>& body) override {
    graphs_.run(key, stream(), body);
  }
  void forget_graphs() override { graphs_.clear(); }

  void embed(const EmbedArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void add_rms_norm(const AddRmsNormArgs& args) override;
  void linear(const LinearArgs& args) override;
  void head_linear(const HeadLinearArgs& args) override;
  void silu_mul(const SiluMulArgs& args) override;
  void moe_route(const MoeRouteArgs& args) override;
  void moe_experts(const MoeExpertsArgs& args) override;
  void moe_block(const MoeBlockArgs& args) override;
  void all_reduce(const AllReduceArgs& args) override;
  void sum_add_rms_norm(const AddRmsNormArgs& args) override;
  void all_gather(const AllGatherArgs& args) override;
  void gather_rows(const GatherRowsArgs& args) override;

  void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) override;
  void mla_queries(const MlaQueriesArgs& args) override;
  void plan_mla_attention(const PlanMlaAttentionArgs& args) override;
  void mla_attention(const MlaAttentionArgs& args) override;
  void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) override;
  void gqa_attention(const GqaAttentionArgs& args) override;

  void compile_draft(const CompileDraftArgs& args) override;
  void top_k_log_probs(const TopKLogProbsArgs& args) override;
  void build_tree(const BuildTreeArgs& args) override;
  void ngram_propose(const NgramProposeArgs& args) override;
  void compile_tree(const CompileTreeArgs& args) override;
  void sample_rows(const SampleRowsArgs& args) override;
  void accept_path(const AcceptPathArgs& args) override;
  void move_kv(const MoveKvArgs& args) override;

 private:
  struct StreamDeleter {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;

  static Stream make_stream() {
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
    return Stream(stream);
  }

  // Whether the tensor-core kernels take a product of these rows, `outputs` x `inputs` a head.
  bool fits_tensor_cores(const Tensor& x, const Tensor& out, std::int64_t outputs,
                         std::int64_t inputs) const;
  // out[t, h] = W[h] x[t, h]; x and out [T, num_heads * n].
  void product(const Tensor& x, const LinearWeight& weight, const Tensor& out,
               std::int64_t num_heads, Provenance provenance);
  // The same by cuBLASLt; false if it is not there or has no fitting algorithm for the shape.
  bool prompt_product(const Tensor& x, const LinearWeight& weight, const Tensor& out,
                      std::int64_t num_heads);
  StagedCopy& staging();
  kernels::MlaAttentionParams mla_params(const AttentionMetadata& metadata, std::int64_t num_heads);

  CudaWorkspace make_workspace() const { return {stream(), peers_.get()}; }
  // With several ranks: waits until none has work under way. Before and after what may hold up the
  // driver, on all ranks alike.
  void settle() {
    if (peers_ != nullptr) peers_->settle(stream());
  }

  CudaDevice device_;
  Stream stream_;
  std::unique_ptr<PeerMemory> peers_;  // null: one rank
  CudaTickets tickets_{kMaxTickets};
  // Each kernel family keeps counters at the front of its own workspace, zero between calls.
  std::map<std::size_t, CudaWorkspace> moe_workspaces_;  // by bytes of counters
  CudaWorkspace mla_workspace_{make_workspace()}, gqa_workspace_{make_workspace()},
      top_k_workspace_{make_workspace()}, greedy_workspace_{make_workspace()},
      counts_workspace_{make_workspace()}, ticket_workspace_{make_workspace()};
  std::unique_ptr<StagedCopy> staging_;  // made for the first weights
  std::unique_ptr<CublasLt> cublas_lt_;
  bool cublas_lt_tried_ = false;  // loaded at the first prompt
  GraphCache graphs_{peers_.get()};
};

}  // namespace coppice
