#include "benchmark/round_tracer.h"

#include <map>
#include <vector>

namespace coppice {

const char* name_of(RoundPart part) {
  constexpr std::array<const char*, kNumRoundParts> names = {
      "draft",   "tree_build", "compile", "attention", "experts", "dense",
      "lm_head", "norms",      "ranks",   "sampling",  "commit"};
  return names[static_cast<std::size_t>(part)];
}

void RoundTracer::start_counting() {
  counting_ = true;
  counts_ = {};
}

ExpertCounts RoundTracer::stop_counting() {
  counting_ = false;
  for (double& count : counts_.loads) count /= static_cast<double>(counts_.distinct.size());
  return std::move(counts_);
}

void RoundTracer::embed(const EmbedArgs& args) {
  if (takes(RoundPart::kNorms)) inner_->embed(args);
}
void RoundTracer::rms_norm(const RmsNormArgs& args) {
  if (takes(RoundPart::kNorms)) inner_->rms_norm(args);
}
void RoundTracer::add_rms_norm(const AddRmsNormArgs& args) {
  if (takes(RoundPart::kNorms)) inner_->add_rms_norm(args);
}
void RoundTracer::linear(const LinearArgs& args) {
  const bool is_head = args.weight->out_features == vocab_size_;
  if (takes(is_head ? RoundPart::kLmHead : RoundPart::kDense)) inner_->linear(args);
}
void RoundTracer::head_linear(const HeadLinearArgs& args) {
  if (takes(RoundPart::kDense)) inner_->head_linear(args);
}
void RoundTracer::silu_mul(const SiluMulArgs& args) {
  if (takes(RoundPart::kDense)) inner_->silu_mul(args);
}
void RoundTracer::moe_route(const MoeRouteArgs& args) {
  if (takes(RoundPart::kExperts)) inner_->moe_route(args);
  count_experts(args.topk_ids);
}
// Router and shared expert lie between the routed ones.
void RoundTracer::moe_block(const MoeBlockArgs& args) {
  if (takes(RoundPart::kExperts)) inner_->moe_block(args);
  count_experts(args.topk_ids);
}
void RoundTracer::count_experts(const Tensor& topk_ids) {
  if (!counting_) return;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(topk_ids.num_elements()));
  inner_->download(ids.data(), topk_ids);
  constexpr std::size_t kBin = 8;
  std::map<std::int32_t, std::size_t> rows_of_expert;
  for (const std::int32_t id : ids)
    if (id >= 0) ++rows_of_expert[id];
  for (const auto& [expert, rows] : rows_of_expert) {
    const std::size_t bin = (rows - 1) / kBin;
    if (counts_.loads.size() <= bin) counts_.loads.resize(bin + 1);
    counts_.loads[bin] += 1;
  }
  counts_.distinct.push_back(static_cast<double>(rows_of_expert.size()));
}
void RoundTracer::moe_experts(const MoeExpertsArgs& args) {
  if (takes(RoundPart::kExperts)) inner_->moe_experts(args);
}
void RoundTracer::all_reduce(const AllReduceArgs& args) {
  if (takes(RoundPart::kRanks)) inner_->all_reduce(args);
}
void RoundTracer::sum_add_rms_norm(const AddRmsNormArgs& args) {
  if (takes(RoundPart::kRanks)) inner_->sum_add_rms_norm(args);
}
void RoundTracer::all_gather(const AllGatherArgs& args) {
  if (takes(RoundPart::kRanks)) inner_->all_gather(args);
}
void RoundTracer::gather_rows(const GatherRowsArgs& args) {
  if (takes(RoundPart::kNorms)) inner_->gather_rows(args);
}
void RoundTracer::mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) {
  if (takes(RoundPart::kAttention)) inner_->mla_rope_and_write_kv(args);
}
void RoundTracer::mla_queries(const MlaQueriesArgs& args) {
  if (takes(RoundPart::kDense)) inner_->mla_queries(args);
}
void RoundTracer::plan_mla_attention(const PlanMlaAttentionArgs& args) {
  if (takes(RoundPart::kAttention)) inner_->plan_mla_attention(args);
}
void RoundTracer::mla_attention(const MlaAttentionArgs& args) {
  if (takes(RoundPart::kAttention)) inner_->mla_attention(args);
}
void RoundTracer::gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) {
  if (takes(RoundPart::kAttention)) inner_->gqa_rope_and_write_kv(args);
}
void RoundTracer::gqa_attention(const GqaAttentionArgs& args) {
  if (takes(RoundPart::kAttention)) inner_->gqa_attention(args);
}
void RoundTracer::compile_draft(const CompileDraftArgs& args) {
  if (takes_part(RoundPart::kDraft)) inner_->compile_draft(args);
}
void RoundTracer::top_k_log_probs(const TopKLogProbsArgs& args) {
  if (takes(RoundPart::kSampling)) inner_->top_k_log_probs(args);
}
void RoundTracer::build_tree(const BuildTreeArgs& args) {
  if (takes_part(RoundPart::kTreeBuild)) inner_->build_tree(args);
  if (!counting_) return;
  const Tensor first = args.log_probs.rows(0, 1);
  draft_.resize(static_cast<std::size_t>(first.num_elements()));
  inner_->download(draft_.data(), first);
}
void RoundTracer::ngram_propose(const NgramProposeArgs& args) {
  if (takes_part(RoundPart::kTreeBuild)) inner_->ngram_propose(args);
}
void RoundTracer::compile_tree(const CompileTreeArgs& args) {
  if (takes_part(RoundPart::kCompile)) inner_->compile_tree(args);
  stage_ = Stage::kVerify;
}
void RoundTracer::sample_rows(const SampleRowsArgs& args) {
  if (takes(RoundPart::kSampling)) inner_->sample_rows(args);
}
void RoundTracer::accept_path(const AcceptPathArgs& args) {
  stage_ = Stage::kCommit;
  if (takes_part(RoundPart::kCommit)) inner_->accept_path(args);
}
void RoundTracer::move_kv(const MoveKvArgs& args) {
  if (takes_part(RoundPart::kCommit)) inner_->move_kv(args);
}

}  // namespace coppice
