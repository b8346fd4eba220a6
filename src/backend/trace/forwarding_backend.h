// A backend that passes every op on: derived ones override the few they watch, leave out or spoil.
#pragma once

#include <memory>
#include <utility>

#include "backend/backend.h"

namespace coppice {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  Device device() const override { return inner_->device(); }
  DType activation_dtype() const override { return inner_->activation_dtype(); }
  DType kv_dtype() const override { return inner_->kv_dtype(); }
  Buffer allocate(std::size_t num_bytes) override { return inner_->allocate(num_bytes); }
  void upload(const Tensor& dst, const void* src) override { inner_->upload(dst, src); }
  void download(void* dst, const Tensor& src) override { inner_->download(dst, src); }
  void synchronize() override { inner_->synchronize(); }
  Buffer allocate_host(std::size_t num_bytes) override { return inner_->allocate_host(num_bytes); }
  std::int64_t start_download(void* dst, const Tensor& src) override {
    return inner_->start_download(dst, src);
  }
  void wait_for(std::int64_t ticket) override { inner_->wait_for(ticket); }
  void start_upload(const Tensor& dst, const void* src) override { inner_->start_upload(dst, src); }
  void write_time(const Tensor& out) override { inner_->write_time(out); }
  void push_range(const char* name) override { inner_->push_range(name); }
  void pop_range() override { inner_->pop_range(); }
  Memory memory() const override { return inner_->memory(); }
  LinearWeight load_linear(std::span<const HostMatrix> parts) override {
    return inner_->load_linear(parts);
  }
  ExpertWeights load_experts(std::span<const ExpertSource> experts) override {
    return inner_->load_experts(experts);
  }
  std::string expert_layout() const override { return inner_->expert_layout(); }
  ExpertWeights load_repacked_experts(const RepackedExperts& experts) override {
    return inner_->load_repacked_experts(experts);
  }
  void run_graph(const GraphKey& key, const std::function<void()>& body) override {
    inner_->run_graph(key, body);
  }
  void forget_graphs() override { inner_->forget_graphs(); }
  void plan_mla_attention(const PlanMlaAttentionArgs& args) override {
    inner_->plan_mla_attention(args);
  }
  void embed(const EmbedArgs& args) override { inner_->embed(args); }
  void rms_norm(const RmsNormArgs& args) override { inner_->rms_norm(args); }
  void add_rms_norm(const AddRmsNormArgs& args) override { inner_->add_rms_norm(args); }
  void linear(const LinearArgs& args) override { inner_->linear(args); }
  void head_linear(const HeadLinearArgs& args) override { inner_->head_linear(args); }
  void silu_mul(const SiluMulArgs& args) override { inner_->silu_mul(args); }
  void moe_route(const MoeRouteArgs& args) override { inner_->moe_route(args); }
  void moe_experts(const MoeExpertsArgs& args) override { inner_->moe_experts(args); }
  void moe_block(const MoeBlockArgs& args) override { inner_->moe_block(args); }
  void all_reduce(const AllReduceArgs& args) override { inner_->all_reduce(args); }
  void sum_add_rms_norm(const AddRmsNormArgs& args) override { inner_->sum_add_rms_norm(args); }
  void all_gather(const AllGatherArgs& args) override { inner_->all_gather(args); }
  void gather_rows(const GatherRowsArgs& args) override { inner_->gather_rows(args); }
  void mla_rope_and_write_kv(const MlaRopeAndWriteKvArgs& args) override {
    inner_->mla_rope_and_write_kv(args);
  }
  void mla_queries(const MlaQueriesArgs& args) override { inner_->mla_queries(args); }
  void mla_attention(const MlaAttentionArgs& args) override { inner_->mla_attention(args); }
  void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) override {
    inner_->gqa_rope_and_write_kv(args);
  }
  void gqa_attention(const GqaAttentionArgs& args) override { inner_->gqa_attention(args); }
  void compile_draft(const CompileDraftArgs& args) override { inner_->compile_draft(args); }
  void top_k_log_probs(const TopKLogProbsArgs& args) override { inner_->top_k_log_probs(args); }
  void build_tree(const BuildTreeArgs& args) override { inner_->build_tree(args); }
  void ngram_propose(const NgramProposeArgs& args) override { inner_->ngram_propose(args); }
  void compile_tree(const CompileTreeArgs& args) override { inner_->compile_tree(args); }
  void sample_rows(const SampleRowsArgs& args) override { inner_->sample_rows(args); }
  void accept_path(const AcceptPathArgs& args) override { inner_->accept_path(args); }
  void move_kv(const MoveKvArgs& args) override { inner_->move_kv(args); }

 protected:
  std::unique_ptr<Backend> inner_;
};

}  // namespace coppice
