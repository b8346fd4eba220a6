// The fast path: packed weights and the kernels of one instruction set. Ops without a kernel here
// are the reference ones.
#include "backend/cpu/cpu_backend_base.h"
#include "backend/cpu/fast_attention.h"
#include "backend/cpu/fast_linear.h"
#include "backend/cpu/fast_moe.h"

namespace coppice::cpu {
namespace {

class FastBackend final : public CpuBackendBase {
 public:
  FastBackend(const simd::Kernels& kernels, int num_threads, Communicator* communicator)
      : CpuBackendBase(num_threads, communicator), kernels_(kernels) {}

  std::string name() const override { return std::string("cpu ") + kernels_.name; }

  LinearWeight load_linear(std::span<const HostMatrix> parts) override {
    auto matrix = std::make_shared<OwnedMatrix>(pack(parts, memory_, pool()));
    return {.out_features = matrix->view.rows, .in_features = parts[0].cols, .packed = matrix};
  }

  ExpertWeights load_experts(std::span<const ExpertSource> sources) override {
    auto experts = std::make_shared<std::vector<PackedExpert>>();
    for (const ExpertSource& source : sources) {
      check_expert(source, sources[0]);
      experts->push_back({.gate = pack({&source.gate, 1}, memory_, pool()),
                          .up = pack({&source.up, 1}, memory_, pool()),
                          .down = pack({&source.down, 1}, memory_, pool())});
      COPPICE_CHECK(experts->back().gate.view.layout == experts->front().gate.view.layout);
      COPPICE_CHECK(experts->back().up.view.layout == experts->front().gate.view.layout);
      COPPICE_CHECK(experts->back().down.view.layout == experts->front().down.view.layout);
    }
    return describe_experts(sources, experts);
  }

  void linear(const LinearArgs& args) override {
    fast_linear(kernels_, args, *static_cast<const OwnedMatrix*>(args.weight->packed.get()),
                workspace_, pool());
  }
  void head_linear(const HeadLinearArgs& args) override {
    fast_head_linear(kernels_, args, *static_cast<const OwnedMatrix*>(args.weight->packed.get()),
                     workspace_, pool());
  }
  void moe_experts(const MoeExpertsArgs& args) override {
    moe_.run(kernels_, args,
             *static_cast<const std::vector<PackedExpert>*>(args.experts->packed.get()), pool());
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    fast_mla_attention(kernels_, args, pool());
  }
  void gqa_attention(const GqaAttentionArgs& args) override {
    fast_gqa_attention(kernels_, args, pool());
  }

  void rms_norm(const RmsNormArgs& args) override {
    COPPICE_CHECK_EQ(args.weight.shape(0), args.x.row_size());
    for_rows(args.x.shape(0), [&](std::int64_t t) {
      kernels_.rms_norm(args.x.row<float>(t), args.weight.data<float>(), args.eps,
                        args.x.row_size(), args.out.row<float>(t));
    });
  }
  void add_rms_norm(const AddRmsNormArgs& args) override {
    const std::int64_t size = args.residual.row_size();
    COPPICE_CHECK_EQ(args.weight.shape(0), size);
    COPPICE_CHECK_EQ(args.delta.row_size(), size);
    for_rows(args.residual.shape(0), [&](std::int64_t t) {
      float* const residual = args.residual.row<float>(t);
      kernels_.add(residual, args.delta.row<float>(t), size);
      kernels_.rms_norm(residual, args.weight.data<float>(), args.eps, size,
                        args.out.row<float>(t));
    });
  }
  void silu_mul(const SiluMulArgs& args) override {
    const std::int64_t size = args.out.row_size();
    COPPICE_CHECK_EQ(args.gate_up.row_size(), 2 * size);
    for_rows(args.out.shape(0), [&](std::int64_t t) {
      const float* const gate = args.gate_up.row<float>(t);
      kernels_.silu_mul(gate, gate + size, size, args.out.row<float>(t));
    });
  }

 private:
  template <typename Body>
  void for_rows(std::int64_t count, const Body& body) {
    pool().parallel_for(count, kMinRowsPerThread, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) body(t);
    });
  }

  const simd::Kernels& kernels_;
  WeightMemory memory_;
  Workspace workspace_;
  FastMoe moe_;
};

}  // namespace

std::unique_ptr<Backend> make_fast_backend(const simd::Kernels& kernels, int num_threads,
                                           Communicator* communicator) {
  return std::make_unique<FastBackend>(kernels, num_threads, communicator);
}

}  // namespace coppice::cpu
