// One decode round as five verbs: draft, tree build, cut and compile, verify, commit.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "base/clock.h"
#include "engine/context_backlog.h"
#include "engine/metrics.h"
#include "engine/round_buffers.h"
#include "sampling/sampling_state.h"
#include "spec/drafter.h"
#include "spec/verifier.h"

namespace coppice {

// Fills the masks of a verify step, one row of ceil(vocab_size / 32) words a row of the step. The
// trees, as cut, and row_offsets of `results` are valid.
using MaskSource = std::function<void(const RoundResults& results, std::span<std::int32_t> masks)>;

// GraphKey::kind of what the engine captures: a round, its three parts where it is masked, and a
// verify step alone, to measure it.
enum class GraphKind : std::int32_t { kRound = 1, kPropose, kForward, kJudge, kMeasure };

struct RoundShape {
  std::int64_t batch = 0;     // places 0 .. batch - 1
  std::int64_t max_rows = 0;  // of the verify step; trees are cut to fit
  bool drafting = false;      // false: every budget is 0
  bool cut_by_cost = false;   // trees are cut to the best bucket of the cost table
  bool eager = false;         // op by op, never from a captured graph
  SampleOptions sample = {};
  MaskSource fill_masks = {};  // with sample.masked
};

// What a round works on; everything outlives it.
struct RoundParts {
  Backend& backend;
  RoundBuffers& buffers;
  SamplingState& sampling;
  Verifier& verifier;
  PagedKvCache& cache;  // the target's
  Drafter& drafter;
  Drafter& no_drafter;          // for rounds that do not draft
  DflashModel* drafter_model;   // null: no features are kept
  PagedKvCache* drafter_cache;  // with drafter_model
  ContextBacklog* backlog;      // with drafter_model: features of rounds that do not draft
  const Clock& clock;
};

// Time of each verb of a finished round.
std::array<std::int64_t, kNumVerbs> verb_ns(const RoundResults& results);

class DecodeRound {
 public:
  explicit DecodeRound(const RoundParts& parts);

  // Enqueues the five verbs, one graph, and the copy of what they found. Returns the step, whose
  // results RoundBuffers has. With masks it is three graphs (up to the trees, the forward pass, the
  // choices and the rest), and the host fills the masks while the second runs: then no other round
  // may be in flight.
  std::int64_t launch(const RoundShape& shape);
  // For prefill steps too. Follows the choices of `out`, whose rows lie at `slots`, down the trees,
  // emits them and says which keys must move.
  void accept(std::int64_t batch, const Verifier::Choices& out, const Tensor& slots);
  // Of the emitted tokens, behind accept; as far as `options` ask for them.
  void gather_log_probs(std::int64_t batch, const Verifier::Choices& out,
                        const SampleOptions& options);

  // Of the last launched round: where its logits are.
  const Verifier::Choices& choices() const { return choices_; }

 private:
  void run(GraphKind kind, const RoundShape& shape, const std::function<void()>& body);
  void mask(const RoundShape& shape, std::int64_t rows, std::int64_t proposed);
  void draft(const RoundShape& shape);
  void build_trees(const RoundShape& shape);
  void cut_and_compile(const RoundShape& shape);
  void forward(const RoundShape& shape, std::int64_t rows);
  void choose(const RoundShape& shape, std::int64_t rows);
  void commit(const RoundShape& shape, std::int64_t rows);

  std::int64_t rows_to_verify(const RoundShape& shape);
  void start();
  void finish(Verb verb);
  void stamp(std::size_t i);

  RoundParts parts_;
  Verifier::Choices choices_;
  Buffer host_masks_;  // of the latest masked round, for the largest
};

}  // namespace coppice
