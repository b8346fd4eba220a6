// A backend that knows to which part of a decode round each op belongs, from the order of the ops,
// and can leave parts out: so that a part is timed alone while the engine's own code enqueues it.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "backend/trace/forwarding_backend.h"

namespace coppice {

// The verbs of a round; verify in its parts. kRanks: sums over ranks, with the norm behind
// each, and gathers.
enum class RoundPart {
  kDraft,
  kTreeBuild,
  kCompile,
  kAttention,
  kExperts,
  kDense,
  kLmHead,
  kNorms,
  kRanks,
  kSampling,
  kCommit
};
inline constexpr std::size_t kNumRoundParts = 11;
const char* name_of(RoundPart part);
constexpr bool is_verify(RoundPart part) {
  return part >= RoundPart::kAttention && part <= RoundPart::kSampling;
}

// What the routed layers of the verify passes chose.
struct ExpertCounts {
  std::vector<double> loads;     // experts with 1 to 8 rows, 9 to 16 rows and so on, a mean a layer
  std::vector<double> distinct;  // experts with any row, of each layer in turn
};

class RoundTracer final : public ForwardingBackend {
 public:
  // vocab_size tells the lm_head from other projections.
  RoundTracer(std::unique_ptr<Backend> inner, std::int64_t vocab_size)
      : ForwardingBackend(std::move(inner)), vocab_size_(vocab_size) {
    enabled_.fill(true);
  }

  // A new round begins.
  void begin() { stage_ = Stage::kDraft; }
  void enable_all() { enabled_.fill(true); }
  void enable_only(const std::function<bool(RoundPart)>& wanted) {
    for (std::size_t i = 0; i < kNumRoundParts; ++i) enabled_[i] = wanted(RoundPart(i));
  }

  // While counting, every choice of experts is read back.
  void start_counting();
  ExpertCounts stop_counting();
  // Of the first sequence's last draft while counting: the log-probabilities of its best tokens,
  // [depth, k]. What a tree takes follows from them.
  const std::vector<float>& draft() const { return draft_; }

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
  enum class Stage { kDraft, kVerify, kCommit };

  // The part of an op that is `in_verify` in the verify pass.
  RoundPart part_of(RoundPart in_verify) const {
    return stage_ == Stage::kDraft    ? RoundPart::kDraft
           : stage_ == Stage::kCommit ? RoundPart::kCommit
                                      : in_verify;
  }
  bool takes(RoundPart in_verify) const { return takes_part(part_of(in_verify)); }
  bool takes_part(RoundPart part) const { return enabled_[static_cast<std::size_t>(part)]; }

  // Reads back the choice of a layer, while counting.
  void count_experts(const Tensor& topk_ids);

  std::int64_t vocab_size_;
  Stage stage_ = Stage::kDraft;
  std::array<bool, kNumRoundParts> enabled_{};
  bool counting_ = false;
  ExpertCounts counts_;
  std::vector<float> draft_;
};

}  // namespace coppice
