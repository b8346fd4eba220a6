// Decides what the next step computes. Integers only: knows no tensor, clock or model.
//
// A step is prefill or decode, never both, and all rows of a prefill step have one provenance. Both
// kinds alternate while both have work. Sequences are served in order of arrival. A sequence that
// cannot reserve room for two more rounds takes it from the newest one, which goes back to the
// queue and later resumes exactly: its prompt through prefill, then its decided tokens through the
// decode ops.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/op_args.h"
#include "cache/prefix_index.h"
#include "engine/sequence.h"

namespace coppice {

inline constexpr std::int64_t kMaxScoredRows = 64;  // of a prefill step, for prompt_logprobs

struct SchedulerLimits {
  std::int64_t max_num_seqs = 1;
  std::int64_t max_num_batched_tokens = 512;  // rows of a prefill step
  std::int64_t reserve = 0;  // cache positions past the computed ones that two rounds may touch
  bool prefix_caching = false;
  bool prefix_cache_exact = false;
};

struct PrefillChunk {
  Sequence* sequence = nullptr;
  std::int64_t begin = 0;  // position of the first row
  std::int64_t count = 0;
  bool samples = false;  // the last row chooses the first output token
  // Rows that tell the log-probability of the prompt token behind them: the first num_scored ones.
  std::int64_t num_scored = 0;
};

struct StepPlan {
  enum class Kind { kIdle, kPrefill, kDecode };
  Kind kind = Kind::kIdle;
  Provenance provenance = Provenance::kPrompt;  // of a prefill step
  std::vector<PrefillChunk> chunks;             // prefill
  std::vector<Sequence*> decoding;              // decode
  std::int64_t batch = 0;                       // places 0 .. batch - 1 hold all running sequences
};

class Scheduler {
 public:
  // `on_vacate` is told before a running sequence leaves its place.
  Scheduler(const SchedulerLimits& limits, BlockAllocator& allocator, PrefixIndex& index,
            std::function<void(std::int64_t place)> on_vacate);

  void add(std::unique_ptr<Sequence> sequence);
  // Frees place and blocks and forgets the sequence.
  void remove(Sequence& sequence);
  // Back to the queue, resumes later.
  void preempt(Sequence& sequence);
  Sequence* find(RequestId id) const;
  // Any sequence, or null.
  Sequence* first();
  void set_reserve(std::int64_t reserve) { limits_.reserve = reserve; }

  StepPlan plan();
  // True if plan() would be the decode step of all running sequences, at the places they have, and
  // take nothing from anybody: then it needs no result of the rounds that are in flight.
  bool is_steady() const;
  // Names the full blocks of the first num_positions in the prefix index, as far as computed.
  void index_blocks(Sequence& sequence, std::int64_t num_positions);

  std::int64_t num_running() const { return std::ssize(running_); }
  std::int64_t num_waiting() const { return std::ssize(waiting_); }
  std::int64_t num_preemptions() const { return num_preemptions_; }
  bool has_work() const { return !running_.empty() || !waiting_.empty(); }

 private:
  void admit();
  bool try_admit(Sequence& sequence);
  void plan_prefill(StepPlan& plan);
  void plan_decode(StepPlan& plan);
  bool reserve_or_preempt(Sequence& sequence);
  void vacate(Sequence& sequence);
  void close_gaps();
  std::int64_t batch() const;

  SchedulerLimits limits_;
  BlockAllocator& allocator_;
  PrefixIndex& index_;
  std::function<void(std::int64_t)> on_vacate_;
  std::vector<std::unique_ptr<Sequence>> waiting_;  // by arrival
  std::vector<std::unique_ptr<Sequence>> running_;  // by arrival
  std::vector<Sequence*> places_;                   // [max_num_seqs]
  bool last_was_prefill_ = false;
  std::int64_t num_preemptions_ = 0;
};

}  // namespace coppice
