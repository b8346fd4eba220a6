#include "engine/metrics.h"

namespace coppice {

const char* name_of(Verb verb) {
  switch (verb) {
    case Verb::kDraft:
      return "draft";
    case Verb::kTreeBuild:
      return "tree_build";
    case Verb::kCutAndCompile:
      return "cut_and_compile";
    case Verb::kVerify:
      return "verify";
    case Verb::kCommit:
      return "commit";
  }
  return "?";
}

double EngineMetrics::tokens_per_round() const {
  return num_sequence_rounds == 0
             ? 0.0
             : static_cast<double>(num_decode_tokens) / static_cast<double>(num_sequence_rounds);
}

}  // namespace coppice
