// A backend that runs nothing and counts everything: a network or a decode round enqueued on it
// leaves a list of ops with their bytes, arithmetic and launches. Its memory has addresses and
// sizes but no contents, so weights need shapes only (a HostMatrix without data) and a model of any
// size fits anywhere. Counts are those of the CUDA backend's formats: activations, cache and dense
// matrices are bf16, routed experts stay as stored.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "backend/cost/op_cost.h"

namespace coppice {

// What a step finds in device memory, where the real backends read it.
struct CostScenario {
  std::int64_t batch = 1;        // sequences of a step
  std::int64_t context_len = 0;  // cached positions of each
  // Rows of a verify step that hold a node; the rest of its bucket is padding.
  std::int64_t verify_rows = 1;
  double tokens_per_round = 1;  // accepted drafts + 1, of each sequence: what commit moves
  double expert_overlap = 0;    // see distinct_experts
  // Counted, for steps of verify_rows rows: as of expert_loads(), which are taken if it is empty.
  std::vector<double> expert_loads;
};

// What cudaMalloc takes for an area: those below a megabyte share pages, others have their own.
inline constexpr std::int64_t kDevicePage = 2 << 20;
std::int64_t reserved_for(std::int64_t num_bytes);

class CostBackend final : public Backend {
 public:
  struct Options {
    DType kv_dtype = DType::kBF16;
    std::int64_t num_ranks = 1;  // of a collective
    bool fuses_blocks = true;    // false: moe_block and mla_queries as their steps
    std::int64_t num_sms = 132;  // multiprocessors: some workspaces have a share for each
  };
  explicit CostBackend(const Options& options);
  CostBackend() : CostBackend(Options{}) {}

  void set_scenario(const CostScenario& scenario) { scenario_ = scenario; }
  const CostScenario& scenario() const { return scenario_; }
  // Ops since the last reset, in order.
  const std::vector<OpCost>& ops() const { return ops_; }
  void reset_ops();
  std::int64_t num_graphs() const { return num_graphs_; }        // launched since the reset
  std::int64_t num_downloads() const { return num_downloads_; }  // waits since the reset

  // Bytes of device memory now, weights included.
  std::int64_t allocated_bytes() const;
  std::int64_t weight_bytes() const;  // of matrices and experts
  // What the driver takes for allocated_bytes(): reserved_for() each area.
  std::int64_t reserved_bytes() const;
  // The largest workspace that ops of each kernel family have asked for.
  const std::map<std::string, std::int64_t>& workspaces() const { return workspaces_; }

  std::string name() const override { return "cost"; }
  Device device() const override { return Device::kCuda; }
  DType activation_dtype() const override { return DType::kBF16; }
  DType kv_dtype() const override { return options_.kv_dtype; }
  // Addresses without memory behind them.
  Buffer allocate(std::size_t num_bytes) override;
  void upload(const Tensor&, const void*) override {}
  // Zeros.
  void download(void* dst, const Tensor& src) override;
  void synchronize() override {}
  LinearWeight load_linear(std::span<const HostMatrix> parts) override;
  ExpertWeights load_experts(std::span<const ExpertSource> experts) override;
  void run_graph(const GraphKey& key, const std::function<void()>& body) override;
  void forget_graphs() override {}

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
  struct Memory;

  void count(const OpCost& cost) { ops_.push_back(cost); }
  void product(const char* op, const Tensor& x, const LinearWeight& weight, const Tensor& out,
               std::int64_t num_heads);
  const std::vector<double>& loads_of(std::int64_t num_experts, std::int64_t top_k,
                                      std::int64_t rows);
  void need_workspace(const char* family, std::size_t num_bytes);
  // Rows of a step that are not padding.
  double live_rows(std::int64_t rows) const;
  std::int64_t nodes_per_tree() const { return scenario_.verify_rows / scenario_.batch - 1; }

  Options options_;
  CostScenario scenario_;
  std::shared_ptr<Memory> memory_;
  std::vector<OpCost> ops_;
  std::map<std::string, std::int64_t> workspaces_;
  // Layers of a step are alike.
  std::tuple<std::int64_t, std::int64_t, std::int64_t, double> loads_key_{};
  std::vector<double> loads_;
  std::int64_t num_graphs_ = 0, num_downloads_ = 0;
  bool is_verifying_ = false;  // between compile_tree and accept_path
};

}  // namespace coppice
