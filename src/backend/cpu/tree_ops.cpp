#include "backend/cpu/ops.h"

namespace coppice::cpu {

void compile_draft(const CompileDraftArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}
void top_k_log_probs(const TopKLogProbsArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}
void build_tree(const BuildTreeArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}
void ngram_propose(const NgramProposeArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}
void compile_tree(const CompileTreeArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}

}  // namespace coppice::cpu
