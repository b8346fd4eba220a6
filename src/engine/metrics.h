// What the engine counts. Times are the engine clock's, but for those of verbs and between rounds:
// they are the device's where it has a clock.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace coppice {

// The five verbs of a decode round.
enum class Verb { kDraft, kTreeBuild, kCutAndCompile, kVerify, kCommit };
inline constexpr std::size_t kNumVerbs = 5;
const char* name_of(Verb verb);  // "draft", "tree_build", "cut_and_compile", "verify", "commit"

struct EngineMetrics {
  // Decode rounds, summed over the sequences of each.
  std::int64_t num_rounds = 0;                  // steps
  std::int64_t num_sequence_rounds = 0;         // sequences in them
  std::int64_t num_decode_tokens = 0;           // tokens they emitted
  std::int64_t num_draft_tokens = 0;            // nodes verified, without roots
  std::int64_t num_accepted_tokens = 0;         // nodes accepted
  std::vector<std::int64_t> drafts_at_depth;    // [depth]: rounds whose tree reached it
  std::vector<std::int64_t> accepted_at_depth;  // [depth]: rounds that accepted a node there
  // The part of them in which a grammar masked the nodes.
  std::int64_t num_grammar_rounds = 0, num_grammar_draft_tokens = 0;
  std::int64_t num_grammar_accepted_tokens = 0, mask_ns = 0;
  std::array<std::int64_t, kNumVerbs> verb_ns{};
  std::int64_t decode_ns = 0;
  // Between the end of a round and the start of the next one on the device, where both were
  // launched without a prefill between them.
  std::int64_t idle_ns = 0, num_idle = 0;

  std::int64_t num_prefill_steps = 0;
  std::int64_t num_prefill_tokens = 0;  // rows computed, resumed sequences' included
  std::int64_t prefill_ns = 0;

  std::int64_t num_requests = 0, num_finished = 0, num_preemptions = 0;
  std::int64_t num_not_finite = 0;       // requests that ended on NaN or infinity
  std::int64_t not_finite_in_a_row = 0;  // of them, since one ended well
  std::int64_t num_prefix_queries = 0, num_prefix_hits = 0, num_cached_tokens = 0;

  // Gauges
  std::int64_t num_running = 0, num_waiting = 0;
  std::int64_t num_kv_blocks = 0, num_kv_blocks_used = 0;
  double plain_round_ms = 0;  // what the last round would have taken without drafts; 0: unknown

  // Tokens a sequence gains per round (tau), the bonus included; 0 before the first round.
  double tokens_per_round() const;
};

}  // namespace coppice
