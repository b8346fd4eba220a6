#include "engine/metrics.h"

#include <cstdio>

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

std::string describe_times(const EngineMetrics& metrics) {
  std::string text;
  std::int64_t total = 0;
  for (const std::int64_t ns : metrics.verb_ns) total += ns;
  for (std::size_t i = 0; i < kNumVerbs; ++i) {
    const auto ns = static_cast<double>(metrics.verb_ns[i]);
    char line[128];
    std::snprintf(line, sizeof line, "%-16s %9.1f ms  %5.1f %%  %8.3f ms a round\n",
                  name_of(static_cast<Verb>(i)), ns / 1e6,
                  total > 0 ? 100 * ns / static_cast<double>(total) : 0.0,
                  metrics.num_rounds > 0 ? ns / 1e6 / static_cast<double>(metrics.num_rounds) : 0);
    text += line;
  }
  return text;
}

}  // namespace coppice
