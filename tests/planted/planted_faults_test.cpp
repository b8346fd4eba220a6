// The exactness test must be able to fail on a GPU: kernels that reduce by the number of rows or
// by the batch, or let a padded row in, are put in place of ours one at a time, and its comparison
// must find each. The same kernels without the fault must pass.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_weights.h"
#include "tests/engine/support/exactness.h"
#include "tests/planted/support/planted_kernels.h"

namespace coppice {
namespace {

using namespace testing;

enum class Fault {
  kNone,
  kSegmentsByRows,   // a GEMM's K segments follow from M
  kOrderByRows,      // the order of a reduction follows from M
  kThreadsByRows,    // a norm's threads follow from M
  kSplitByBatch,     // attention splits a row's keys by the batch
  kUnmaskedPadding,  // a padded row that holds NaN is multiplied by zero
};

struct PlantedCase {
  std::string name;
  Fault fault;
  std::string op;  // the first that differs; a row that is not finite has none
};

// Decided rows go through the planted kernels; what padding there is, is NaN from the start.
class PlantedBackend : public OpRecorder {
 public:
  PlantedBackend(std::unique_ptr<Backend> inner, Fault fault)
      : OpRecorder(std::move(inner)), fault_(fault) {}

  void embed(const EmbedArgs& args) override {
    ForwardingBackend::embed(args);
    synchronize();
    if (args.out.dtype() == DType::kBF16)
      poison_rows(args.out.raw(), args.out.row_stride(), static_cast<int>(args.out.shape(0)),
                  static_cast<int>(args.out.shape(1)), args.token_ids.data<std::int32_t>());
    begin_pass();
    note("embed", args.out);
  }
  void linear(const LinearArgs& args) override {
    if (args.provenance == Provenance::kPrompt) return OpRecorder::linear(args);
    synchronize();
    const bool many = args.x.shape(0) > 4;
    planted_linear(
        {.x = args.x.raw(),
         .weight = static_cast<const CudaMatrix*>(args.weight->packed.get())->data.data(),
         .out = args.out.raw(),
         .x_stride = args.x.row_stride(),
         .out_stride = args.out.row_stride(),
         .num_rows = static_cast<int>(args.x.shape(0)),
         .outputs = static_cast<int>(args.weight->out_features),
         .inputs = static_cast<int>(args.weight->in_features),
         .segments = many && fault_ == Fault::kSegmentsByRows ? 8 : 4,
         .out_is_f32 = args.out.dtype() == DType::kF32,
         .reversed = many && fault_ == Fault::kOrderByRows,
         .leak = fault_ == Fault::kUnmaskedPadding});
    note("linear", args.out);
  }
  void rms_norm(const RmsNormArgs& args) override {
    norm(args.x, {}, args.weight, args.eps, args.out);
    note("rms_norm", args.out);
  }
  void add_rms_norm(const AddRmsNormArgs& args) override {
    norm(args.residual, args.delta, args.weight, args.eps, args.out);
    note("add_rms_norm", args.out);
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    const AttentionMetadata& metadata = *args.metadata;
    if (metadata.provenance == Provenance::kPrompt) return OpRecorder::mla_attention(args);
    synchronize();
    const bool batch = read_values<std::int32_t>(*this, metadata.seq_of_row).back() != 0;
    planted_mla({.q_lat = args.q_lat.raw(),
                 .q_pe = args.q_pe.raw(),
                 .q_pe_stride = args.q_pe.row_stride(),
                 .cache = args.cache.raw(),
                 .out = args.out.raw(),
                 .seq_of_row = metadata.seq_of_row.data<std::int32_t>(),
                 .kv_len = metadata.kv_len.data<std::int32_t>(),
                 .path_len = metadata.path_len.data<std::int32_t>(),
                 .path = metadata.path.data<std::int32_t>(),
                 .block_tables = metadata.block_tables.data<std::int32_t>(),
                 .num_rows = static_cast<int>(args.q_lat.shape(0)),
                 .num_heads = static_cast<int>(args.q_lat.shape(1)),
                 .rank = static_cast<int>(args.q_lat.shape(2)),
                 .rope_dim = static_cast<int>(args.q_pe.shape(2)),
                 .max_path = static_cast<int>(metadata.path.shape(1)),
                 .max_blocks = static_cast<int>(metadata.block_tables.shape(1)),
                 .splits = batch && fault_ == Fault::kSplitByBatch ? 2 : 1,
                 .scale = args.scale});
    note("mla_attention", args.out);
  }

 private:
  void norm(const Tensor& x, const Tensor& delta, const Tensor& weight, float eps,
            const Tensor& out) {
    synchronize();
    planted_norm({.x = x.raw(),
                  .delta = delta.raw(),
                  .weight = weight.data<float>(),
                  .out = out.raw(),
                  .x_stride = x.row_stride(),
                  .out_stride = out.row_stride(),
                  .num_rows = static_cast<int>(x.shape(0)),
                  .size = static_cast<int>(x.shape(1)),
                  .threads = x.shape(0) > 4 && fault_ == Fault::kThreadsByRows ? 1 : 256,
                  .eps = eps});
  }

  Fault fault_;
};

class PlantedFaultsTest : public ::testing::TestWithParam<PlantedCase> {
 protected:
  void SetUp() override {
    try {
      make_backend({.device = "cuda"});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      GTEST_SKIP() << error.what();
    }
  }
};

struct PlantedRun {
  Trail trail;
  std::map<std::int64_t, OpRecorder::Ops> ops;  // by position
};

PlantedRun decode(Fault fault, const SpeculativeConfig& speculative, bool with_stranger) {
  constexpr std::int64_t kSeed = 3;
  PlantedBackend* recorder = nullptr;
  auto engine =
      make_tiny_engine({.device = "cuda",
                        .speculative = speculative,
                        .max_num_batched_tokens =
                            512,  // prompts in one piece: norms are not told what rows they have
                        .wrap_backend = [&](auto inner) {
                          auto made = std::make_unique<PlantedBackend>(std::move(inner), fault);
                          recorder = made.get();
                          return made;
                        }});
  TrailRecorder trails(*engine);
  Finished result, other;
  if (with_stranger) add(*engine, greedy(golden_prompt("prose_mid"), 100), other);
  Request request = greedy(golden_prompt("code_long"), 96);
  request.sampling.seed = kSeed;
  request.sampling.ignore_eos = true;
  const RequestId id = add(*engine, request, result);
  while (engine->step()) {
  }
  PlantedRun run{.trail = trails.trail(id), .ops = {}};
  run.trail.tokens = result.tokens;
  run.trail.stats = result.stats;
  for (const auto& [position, row] : run.trail.rows)
    run.ops[position] = recorder->ops(kSeed, position);
  return run;
}

TEST_P(PlantedFaultsTest, IsFoundAndTheFirstOpIsNamed) {
  const PlantedCase& planted = GetParam();
  const PlantedRun plain_alone = decode(planted.fault, plain(), false);
  PlantedRun tree_in_batch = decode(planted.fault, tree(16), true);
  const Difference difference = compare(plain_alone.trail, tree_in_batch.trail);
  if (planted.fault == Fault::kNone) {
    EXPECT_FALSE(difference) << difference.what;
    return;
  }
  ASSERT_TRUE(difference) << planted.name << " was not found";
  ASSERT_GE(difference.position, 0) << difference.what;
  const std::string first = OpRecorder::first_difference(plain_alone.ops.at(difference.position),
                                                         tree_in_batch.ops[difference.position]);
  EXPECT_NE(first.find(planted.op), std::string::npos) << "first differing op: " << first;
  std::printf("%s: %s; first differing op: %s\n", planted.name.c_str(), difference.what.c_str(),
              first.c_str());
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, PlantedFaultsTest,
    ::testing::Values(PlantedCase{"None", Fault::kNone, ""},
                      PlantedCase{"SegmentsByRows", Fault::kSegmentsByRows, "linear"},
                      PlantedCase{"OrderByRows", Fault::kOrderByRows, "linear"},
                      PlantedCase{"NormThreadsByRows", Fault::kThreadsByRows, "rms_norm"},
                      PlantedCase{"SplitByBatch", Fault::kSplitByBatch, "mla_attention"},
                      PlantedCase{"UnmaskedPadding", Fault::kUnmaskedPadding, "number of ops"}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace coppice
