// The oracle: every op a readable fp32 loop.
#include <cstring>

#include "backend/cpu/cpu_backend_base.h"
#include "backend/cpu/linear_ops.h"
#include "backend/cpu/moe_ops.h"
#include "backend/cpu/workspace.h"

namespace coppice::cpu {
namespace {

class ReferenceBackend final : public CpuBackendBase {
 public:
  using CpuBackendBase::CpuBackendBase;

  std::string name() const override { return "cpu reference"; }

  LinearWeight load_linear(std::span<const HostMatrix> parts) override {
    auto matrix = std::make_shared<DenseMatrix>(load_dense(parts, pool()));
    return {.out_features = matrix->rows, .in_features = matrix->cols, .packed = matrix};
  }

  ExpertWeights load_experts(std::span<const ExpertSource> sources) override {
    auto experts = std::make_shared<std::vector<DenseExpert>>();
    for (const ExpertSource& source : sources) {
      check_expert(source, sources[0]);
      const HostMatrix gate_up[] = {source.gate, source.up};
      experts->push_back(
          {.gate_up = load_dense(gate_up, pool()), .down = load_dense({&source.down, 1}, pool())});
    }
    return describe_experts(sources, experts);
  }

  void linear(const LinearArgs& args) override {
    cpu::linear(args, *static_cast<const DenseMatrix*>(args.weight->packed.get()), pool());
  }
  void head_linear(const HeadLinearArgs& args) override {
    cpu::head_linear(args, *static_cast<const DenseMatrix*>(args.weight->packed.get()), pool());
  }
  void moe_experts(const MoeExpertsArgs& args) override {
    const auto& experts = *static_cast<const std::vector<DenseExpert>*>(args.experts->packed.get());
    float* const hidden =
        workspace_.get<float>(args.topk_ids.num_elements() * args.experts->intermediate_size);
    cpu::moe_experts(args, experts, hidden, pool());
  }

  void rms_norm(const RmsNormArgs& args) override { cpu::rms_norm(args, pool()); }
  void add_rms_norm(const AddRmsNormArgs& args) override { cpu::add_rms_norm(args, pool()); }
  void silu_mul(const SiluMulArgs& args) override { cpu::silu_mul(args, pool()); }
  void mla_attention(const MlaAttentionArgs& args) override { cpu::mla_attention(args, pool()); }
  void gqa_attention(const GqaAttentionArgs& args) override { cpu::gqa_attention(args, pool()); }

 private:
  Workspace workspace_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(int num_threads, Communicator* communicator) {
  return std::make_unique<ReferenceBackend>(num_threads, communicator);
}

}  // namespace coppice::cpu
