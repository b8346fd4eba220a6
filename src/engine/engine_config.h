// What an engine is made of and how much it may hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace coppice {

enum class SpeculativeMethod { kNone, kChain, kDdtree, kNgram };

// "none", "chain", "ddtree", "ngram"; also "dflash" for the chain. Throws Error(kInvalidArgument).
SpeculativeMethod parse_speculative_method(const std::string& name);
const char* name_of(SpeculativeMethod method);

inline constexpr std::int64_t kAutoBudget = -1;

struct SpeculativeConfig {
  SpeculativeMethod method = SpeculativeMethod::kNone;
  // ddtree: nodes of a tree without its root. kAutoBudget: chosen each round from the measured cost
  // of a row and the measured acceptance, at most max_ddtree_budget; never output-relevant.
  std::int64_t ddtree_budget = kAutoBudget;
  std::int64_t max_ddtree_budget = 64;
  std::int64_t num_speculative_tokens = 0;  // chain, ngram: tokens a round; 0: the longest possible
  std::int64_t prompt_lookup_min = 2;       // ngram: shortest and longest suffix looked up
  std::int64_t prompt_lookup_max = 4;
  std::int64_t draft_window_size = 4096;  // context that the drafter reads; 0: all
  // Of the drafter's rotary cosines and sines, in place of what its file says or implies: published
  // files and engines disagree about YaRN's. Never output-relevant.
  std::optional<double> draft_attention_factor = {};

  // Trees of whatever size the controller chooses.
  bool is_automatic() const {
    return method == SpeculativeMethod::kDdtree && ddtree_budget == kAutoBudget;
  }
};

inline constexpr std::int64_t kMaxRoundsAhead = 2;
inline constexpr std::int64_t kMaxRanks = 64;
// Cache blocks of a sequence beyond its longest text, for what two rounds may touch.
inline constexpr std::int64_t kSpareBlocks = 4;

struct EngineConfig {
  std::string model;              // directory or GGUF file of the target
  std::string speculative_model;  // directory of the DFlash drafter; needed by chain and ddtree
  SpeculativeConfig speculative;

  std::string device = "auto";  // as BackendOptions::device
  int num_threads = 0;          // CPU threads of all ranks; 0: all that this process may use
  std::int64_t tensor_parallel_size = 1;  // ranks that share every layer: a GPU, or a part of the
                                          // CPU threads, each
  std::int64_t seed = 0;                  // of requests that bring none

  std::int64_t max_model_len = 0;  // prompt and output tokens; 0: the model's own
  std::int64_t num_kv_blocks = 0;  // blocks of kBlockSize positions; 0: from kv_cache_bytes
  // Target's and drafter's together; 0: room for max_num_seqs sequences of max_model_len, at most
  // what is left of a GPU, or 1 GiB of a CPU's memory.
  std::int64_t kv_cache_bytes = 0;
  std::int64_t max_num_seqs = 8;              // sequences that run at once
  std::int64_t max_num_batched_tokens = 512;  // rows of a prefill step: the chunk size
  std::int64_t max_verify_rows = 512;         // rows of a decode step
  // Rounds launched before the results of the one before are read, 0 to 2; -1: as many as hide the
  // host's work (0 where rounds run at once). Never output-relevant.
  std::int64_t max_rounds_ahead = -1;
  bool enforce_eager = false;     // GPU: rounds op by op, never from captured graphs
  bool capture_at_start = false;  // GPU: every round's graph before the first request
  bool enable_prefix_caching = true;
  bool prefix_cache_exact = false;  // share only blocks that prefill computed: bit-exact output

  // Throws Error(kInvalidArgument) naming the field, its value and its range.
  void validate() const;
};

}  // namespace coppice
