// The kernel benchmark checks before it times, and finds what a spoiled op got wrong.
#include "benchmark/kernel_bench.h"

#include <gtest/gtest.h>

#include <limits>

#include "backend/factory/make_backend.h"
#include "backend/trace/forwarding_backend.h"
#include "base/error.h"

namespace coppice {
namespace {

const BackendOptions kCpu = {.device = "cpu", .num_threads = 1};

// Ops that come out a little wrong in one element.
class SpoiledBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void linear(const LinearArgs& args) override {
    inner_->linear(args);
    if (spoiled == "linear") args.out.row<float>(0)[0] += 1;
  }
  void moe_experts(const MoeExpertsArgs& args) override {
    inner_->moe_experts(args);
    if (spoiled == "moe_experts") args.out.row<float>(args.out.shape(0) - 1)[0] += 1;
  }
  void moe_block(const MoeBlockArgs& args) override {
    inner_->moe_block(args);
    if (spoiled == "moe_block") args.out.row<float>(args.out.shape(0) - 1)[0] += 1;
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    inner_->mla_attention(args);
    if (spoiled == "mla_attention") args.out.row<float>(0)[3] += 1;
  }
  void add_rms_norm(const AddRmsNormArgs& args) override {
    inner_->add_rms_norm(args);
    if (spoiled == "add_rms_norm")
      args.out.row<float>(0)[5] = std::numeric_limits<float>::quiet_NaN();
  }
  void mla_queries(const MlaQueriesArgs& args) override {
    inner_->mla_queries(args);
    if (spoiled == "mla_queries") args.q_pe().row<float>(args.q.shape(0) - 1)[1] += 1;
  }
  void gqa_attention(const GqaAttentionArgs& args) override {
    inner_->gqa_attention(args);
    if (spoiled == "gqa_attention") args.out.row<float>(args.out.shape(0) - 1)[2] += 1;
  }
  void embed(const EmbedArgs& args) override {
    inner_->embed(args);
    if (spoiled == "embed") args.out.row<float>(args.out.shape(0) - 1)[4] += 1;
  }
  void compile_draft(const CompileDraftArgs& args) override {
    inner_->compile_draft(args);
    if (spoiled == "compile_draft") args.slots.row<std::int32_t>(3)[0] += 1;
  }
  void ngram_propose(const NgramProposeArgs& args) override {
    inner_->ngram_propose(args);
    if (spoiled == "ngram_propose") args.trees.tokens.row<std::int32_t>(0)[2] += 1;
  }
  void sample_rows(const SampleRowsArgs& args) override {
    inner_->sample_rows(args);
    if (spoiled == "log_probs") args.log_probs.row<float>(0)[0] += 1;
  }
  void build_tree(const BuildTreeArgs& args) override {
    inner_->build_tree(args);
    if (spoiled == "build_tree") args.trees.tokens.row<std::int32_t>(0)[2] += 1;
  }
  void move_kv(const MoveKvArgs& args) override {
    if (spoiled != "move_kv") inner_->move_kv(args);
  }

  std::string spoiled;
};

KernelReport run(const std::string& filter, const std::string& spoiled) {
  auto inner = make_backend(kCpu);
  const auto meter = make_device_meter(*inner, kCpu);
  SpoiledBackend backend(std::move(inner));
  backend.spoiled = spoiled;
  return run_kernel_bench(backend, *meter, {.filter = filter, .peers = {}, .command = "test"},
                          {.begin = [](std::size_t, std::size_t, const std::string&) {},
                           .end = [](const KernelReport&) {}});
}

TEST(KernelBenchTest, TimesWhatIsRight) {
  const KernelReport report = run("route tiny M=1,add_norm tiny M=1", "");
  EXPECT_TRUE(report.all_right());
  ASSERT_GE(report.results.size(), 2u);
  for (const KernelResult& result : report.results) EXPECT_GT(result.us.median, 0);
  const Json json = report.as_json();
  EXPECT_EQ(json.find("schema")->as_string(), "coppice-bench-kernels-1");
  EXPECT_EQ(json.find("cases")->size(), report.results.size());
}

TEST(KernelBenchTest, NeverTimesAWrongResult) {
  for (const auto& [filter, spoiled] :
       std::map<std::string, std::string>{{"qkv_a tiny M=8", "linear"},
                                          {"experts tiny M=4", "moe_experts"},
                                          {"prompt experts tiny M=256", "moe_experts"},
                                          {"mla tiny B=1 L=1024 T=17", "mla_attention"},
                                          {"mla prompt tiny", "mla_attention"},
                                          {"mla_queries tiny M=17", "mla_queries"},
                                          {"qkv_a prompt tiny", "linear"},
                                          {"gqa drafter B=1 L=1024 T=8", "gqa_attention"},
                                          {"gqa 32/8 B=1 L=2048 T=1", "gqa_attention"},
                                          {"embed tiny M=64", "embed"},
                                          {"compile_draft B=8", "compile_draft"},
                                          {"ngram B=1 L=1024", "ngram_propose"},
                                          {"greedy with log_probs rows=17", "log_probs"},
                                          {"add_norm tiny M=17", "add_rms_norm"},
                                          {"ffn block tiny M=1", "moe_block"},
                                          {"trees B=8 budget=16", "build_tree"},
                                          {"commit B=1", "move_kv"}}) {
    EXPECT_TRUE(run(filter, "").all_right()) << filter;
    const KernelReport report = run(filter, spoiled);
    EXPECT_FALSE(report.all_right()) << filter;
    EXPECT_EQ(report.results[0].us.median, 0) << filter;
    EXPECT_NE(table_line(report.results[0], report.ceiling).find("WRONG"), std::string::npos);
  }
}

TEST(KernelBenchTest, ShowsTheFastestPeer) {
  auto backend = make_backend(kCpu);
  const auto meter = make_device_meter(*backend, kCpu);
  const Json peers = parse_json(
      R"({"peers": {"silu tiny M=1": [{"name": "slow", "us": 9.0}, {"name": "fast", "us": 2.5}]}})",
      "peers");
  const KernelReport report = run_kernel_bench(
      *backend, *meter, {.filter = "silu tiny M=1", .peers = peers, .command = "test"},
      {.begin = [](std::size_t, std::size_t, const std::string&) {},
       .end = [](const KernelReport&) {}});
  EXPECT_EQ(report.results[0].peer.name, "fast");
  EXPECT_EQ(report.results[0].peer.us, 2.5);
}

TEST(KernelBenchTest, AFilterThatMatchesNothingIsAnError) {
  EXPECT_THROW(run("no such case", ""), Error);
}

}  // namespace
}  // namespace coppice
