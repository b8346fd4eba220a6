#include "engine/engine_config.h"

#include <cstdint>

#include "base/error.h"

namespace coppice {

SpeculativeMethod parse_speculative_method(const std::string& name) {
  if (name == "none" || name == "off") return SpeculativeMethod::kNone;
  if (name == "chain" || name == "dflash") return SpeculativeMethod::kChain;
  if (name == "ddtree") return SpeculativeMethod::kDdtree;
  if (name == "ngram") return SpeculativeMethod::kNgram;
  throw Error(ErrorKind::kInvalidArgument, "speculative method is '" + name +
                                               "': must be none, chain (dflash), ddtree or ngram");
}

void EngineConfig::validate() const {
  // Slots, rows and nodes are 32-bit on devices; these limits keep every product far from that.
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 24, kMaxRows = 1 << 16, kMaxNodes = 4096,
                         kMaxLen = 1 << 24, kAny = INT64_MAX;
  const auto require = [](const char* field, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
    if (value >= low && value <= high) return;
    throw Error(ErrorKind::kInvalidArgument,
                std::string(field) + " is " + std::to_string(value) + ": must be at least " +
                    std::to_string(low) +
                    (high == kAny ? "" : " and at most " + std::to_string(high)));
  };
  require("ddtree_budget", speculative.ddtree_budget, kAutoBudget, kMaxNodes);
  require("max_ddtree_budget", speculative.max_ddtree_budget, 1, kMaxNodes);
  require("num_speculative_tokens", speculative.num_speculative_tokens, 0, kMaxNodes);
  require("prompt_lookup_min", speculative.prompt_lookup_min, 1, kMaxNodes);
  if (speculative.prompt_lookup_max < speculative.prompt_lookup_min)
    throw Error(ErrorKind::kInvalidArgument,
                "prompt_lookup_max is " + std::to_string(speculative.prompt_lookup_max) +
                    ": must be at least prompt_lookup_min (" +
                    std::to_string(speculative.prompt_lookup_min) + ")");
  require("prompt_lookup_max", speculative.prompt_lookup_max, 1, kMaxNodes);
  require("draft_window_size", speculative.draft_window_size, 0, kAny);
  if (const auto factor = speculative.draft_attention_factor;
      factor && !(*factor > 0 && *factor <= 100))
    throw Error(ErrorKind::kInvalidArgument, "draft_attention_factor is " +
                                                 std::to_string(*factor) +
                                                 ": must be above 0 and at most 100");
  require("max_model_len", max_model_len, 0, kMaxLen);
  require("num_kv_blocks", num_kv_blocks, 0, kMaxBlocks);
  require("kv_cache_bytes", kv_cache_bytes, 0, kAny);
  require("max_num_seqs", max_num_seqs, 1, kMaxRows);
  require("max_num_batched_tokens", max_num_batched_tokens, 1, kMaxRows);
  require("max_verify_rows", max_verify_rows, 1, kMaxRows);
  require("tensor_parallel_size", tensor_parallel_size, 1, kMaxRanks);
  require("max_rounds_ahead", max_rounds_ahead, -1, kMaxRoundsAhead);
}

const char* name_of(SpeculativeMethod method) {
  switch (method) {
    case SpeculativeMethod::kNone:
      return "none";
    case SpeculativeMethod::kChain:
      return "chain";
    case SpeculativeMethod::kDdtree:
      return "ddtree";
    case SpeculativeMethod::kNgram:
      return "ngram";
  }
  return "?";
}

}  // namespace coppice
