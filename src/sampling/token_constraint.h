// What one sequence may emit next, beyond what the device decides by itself: its grammar, its
// allowed_token_ids, its bad_words, the budget of its thoughts. Answers for every node of a draft
// tree along the node's own path. Host only; not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sampling/grammar.h"
#include "sampling/sampling_params.h"

namespace coppice {

// The state after the tokens accepted so far.
class TokenConstraint {
 public:
  // stop_ids: of the sequence. min_tokens is kept here, where a mask that would ban everything can
  // be seen: the caller takes it from the device's buffers.
  TokenConstraint(const SamplingParams& params, std::span<const std::int64_t> stop_ids,
                  std::int64_t vocab_size);

  // Null when the parameters constrain nothing. With prompt_logprobs and min_tokens there is
  // one: it takes min_tokens from the device, which would ban stop ids within the prompt.
  static std::unique_ptr<TokenConstraint> make(const SamplingParams& params,
                                               std::span<const std::int64_t> stop_ids,
                                               std::int64_t vocab_size);

  // The output goes on with an id. False, and nothing changes, when it may not.
  bool accept(std::int32_t id);
  void undo();  // the last accepted id
  // Bits of the ids that may come next, as GrammarMatcher::fill. All clear: a dead end. When
  // max_tokens is near, a grammar's output is led to its end: open strings, arrays and objects are
  // closed while there is room. That depends on the tokens so far only.
  void fill(std::span<std::int32_t> mask);

  // Nothing may come next.
  bool is_dead_end();

  // Ids, a stop id last, that end the output from here; empty when at most `most` do not do.
  std::vector<std::int32_t> way_to_end(std::int64_t most);

  // The grammar decides from here on; false while the model still thinks.
  bool grammar_started() const { return matcher_ != nullptr && started_at_ >= 0; }

 private:
  void fill_open(std::span<std::int32_t> mask);
  bool must_end_thought() const;
  void follow_thought(std::int32_t id);
  void look_for_end();
  void fill_before_grammar(std::span<std::int32_t> mask) const;
  void ban_bad_words(std::span<std::int32_t> mask) const;
  void ban_stop_ids(std::span<std::int32_t> mask) const;

  StructuredOutput structured_;
  std::unique_ptr<GrammarMatcher> matcher_;
  std::int64_t started_at_ = -1;       // output tokens before the grammar began; -1: not yet
  std::vector<std::int32_t> allowed_;  // mask words of allowed_token_ids; empty: all
  std::vector<std::vector<std::int32_t>> bad_words_;
  std::vector<std::int64_t> stop_ids_;
  std::int64_t min_tokens_;
  std::int64_t max_tokens_;
  std::int64_t vocab_size_;
  std::vector<std::int32_t> output_;
  // Lengths of the way to the end, where they were looked for: near max_tokens, oldest first.
  struct Way {
    std::int64_t at = 0, length = 0;  // output tokens then; 0: there was none
    std::int64_t next_left = 0;       // with so many tokens left it is looked for again
  };
  std::vector<Way> ways_;
  bool looking_ = false;
  std::optional<ThinkingBudget> budget_;
  std::vector<std::int64_t> thought_;  // with a budget: tokens of the open thought (-1: none)
                                       // before the first output token and after each
};

// The fields that a dead end comes from, for messages: "the grammar, allowed_token_ids, bad_words".
std::string names_of_constraints(const SamplingParams& params);

// Masks of a whole tree: row i of `masks` (row-major, mask_words(vocab_size) each) is node i's,
// node 0 the root, whose token has been accepted. Rows of nodes that may not come at all are
// cleared; no choice leads there. tokens, parents: [num_nodes + 1].
void fill_tree(TokenConstraint& constraint, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> parents, std::span<std::int32_t> masks);

}  // namespace coppice
