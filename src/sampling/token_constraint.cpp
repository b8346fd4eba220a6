#include "sampling/token_constraint.h"

#include <algorithm>

#include "base/check.h"

namespace coppice {
namespace {

// Tokens before max_tokens from which on a way to the end is looked for, and those left to spare
// when it is taken: one token may open what takes several to close.
constexpr std::int64_t kClosingWindow = 256;
constexpr std::int64_t kClosingMargin = 32;
// Where more than this is left beyond the way, as it was when it was last looked for, the tokens
// behind are free. It is looked for again after a quarter of what is left beyond both, at least
// four tokens; where there was none, after 32.
constexpr std::int64_t kClosingRoom = 96;
constexpr std::int64_t kClosingStep = 4;
constexpr std::int64_t kNoWayStep = 32;

bool is_empty(std::span<const std::int32_t> mask) {
  return std::all_of(mask.begin(), mask.end(), [](std::int32_t word) { return word == 0; });
}

}  // namespace

TokenConstraint::TokenConstraint(const SamplingParams& params,
                                 std::span<const std::int64_t> stop_ids, std::int64_t vocab_size)
    : structured_(params.structured),
      bad_words_(params.bad_words_token_ids),
      stop_ids_(stop_ids.begin(), stop_ids.end()),
      min_tokens_(params.min_tokens),
      max_tokens_(params.max_tokens),
      vocab_size_(vocab_size),
      budget_(params.thinking_budget) {
  if (budget_) thought_.push_back(budget_->open.value_or(-1));
  if (structured_.grammar) {
    matcher_ = structured_.grammar->start();
    if (!structured_.start_token_id) started_at_ = 0;
  }
  if (!params.allowed_token_ids.empty()) allowed_.assign(mask_words(vocab_size), 0);
  for (const std::int64_t id : params.allowed_token_ids) set_in_mask(allowed_, id, true);
  if (matcher_) look_for_end();
}

std::unique_ptr<TokenConstraint> TokenConstraint::make(const SamplingParams& params,
                                                       std::span<const std::int64_t> stop_ids,
                                                       std::int64_t vocab_size) {
  if (!params.structured.grammar && params.allowed_token_ids.empty() &&
      params.bad_words_token_ids.empty() && !params.thinking_budget &&
      !(params.prompt_logprobs && params.min_tokens > 0))
    return nullptr;
  return std::make_unique<TokenConstraint>(params, stop_ids, vocab_size);
}

bool TokenConstraint::accept(std::int32_t id) {
  if (id < 0 || id >= vocab_size_) return false;
  const bool forced = must_end_thought();
  if (forced && id != budget_->end_id) return false;
  if (!forced && !allowed_.empty() && !mask_has(allowed_, id)) return false;
  if (grammar_started()) {
    if (!matcher_->accept(id)) return false;
  } else if (matcher_ && id == structured_.start_token_id) {
    started_at_ = std::ssize(output_) + 1;
  }
  output_.push_back(id);
  if (budget_) follow_thought(id);
  if (matcher_) look_for_end();
  return true;
}

// A function of the tokens so far, whichever of them were asked for a mask.
void TokenConstraint::look_for_end() {
  const std::int64_t left = max_tokens_ - std::ssize(output_);
  if (looking_ || left > kClosingWindow || (!ways_.empty() && left > ways_.back().next_left))
    return;
  const std::vector<std::int32_t> way = way_to_end(left);
  const std::int64_t length = std::ssize(way);
  const std::int64_t step =
      way.empty() ? kNoWayStep : std::max(kClosingStep, (left - length - kClosingRoom) / 4);
  ways_.push_back({.at = std::ssize(output_), .length = length, .next_left = left - step});
}

void TokenConstraint::follow_thought(std::int32_t id) {
  std::int64_t count = thought_.back();
  if (count < 0)
    count = id == budget_->begin_id ? 0 : -1;
  else
    count = id == budget_->end_id ? -1 : count + 1;
  thought_.push_back(count);
}

bool TokenConstraint::must_end_thought() const {
  return budget_ && thought_.back() >= budget_->num_tokens;
}

void TokenConstraint::undo() {
  COPPICE_CHECK(!output_.empty(), "nothing to take back");
  if (grammar_started()) {
    if (started_at_ < std::ssize(output_))
      matcher_->undo();
    else
      started_at_ = -1;
  }
  if (!looking_ && !ways_.empty() && ways_.back().at == std::ssize(output_)) ways_.pop_back();
  output_.pop_back();
  if (budget_) thought_.pop_back();
}

void TokenConstraint::fill(std::span<std::int32_t> mask) {
  fill_open(mask);
  const std::int64_t left = max_tokens_ - std::ssize(output_);
  if (!matcher_ || left > kClosingWindow) return;
  const Way& last = ways_.back();
  if (last.length == 0 || left > last.length + kClosingRoom) return;
  const std::int64_t margin = std::min(kClosingMargin, max_tokens_ / 8);
  const std::vector<std::int32_t> way = way_to_end(left);
  if (way.empty() || left > std::ssize(way) + margin) return;
  std::fill(mask.begin(), mask.end(), 0);
  set_in_mask(mask, way.front(), true);
}

bool TokenConstraint::is_dead_end() {
  std::vector<std::int32_t> mask(mask_words(vocab_size_));
  fill(mask);
  return is_empty(mask);
}

std::vector<std::int32_t> TokenConstraint::way_to_end(std::int64_t most) {
  std::vector<std::int32_t> way;
  std::vector<std::int32_t> mask(mask_words(vocab_size_));
  looking_ = true;
  bool ended = false;
  while (!ended && std::ssize(way) < most) {
    fill_open(mask);
    const std::int32_t id =
        grammar_started() ? matcher_->closing_id(mask) : *structured_.start_token_id;
    if (id < 0 || !accept(id)) break;
    way.push_back(id);
    ended = std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
  }
  for (std::size_t i = 0; i < way.size(); ++i) undo();
  looking_ = false;
  if (!ended) way.clear();
  return way;
}

void TokenConstraint::fill_open(std::span<std::int32_t> mask) {
  COPPICE_CHECK_EQ(mask.size(), mask_words(vocab_size_));
  if (must_end_thought()) {
    std::fill(mask.begin(), mask.end(), 0);
    return set_in_mask(mask, budget_->end_id, true);
  }
  if (grammar_started())
    matcher_->fill(mask);
  else
    fill_before_grammar(mask);
  for (std::size_t i = 0; i < allowed_.size(); ++i) mask[i] &= allowed_[i];
  ban_bad_words(mask);
  if (std::ssize(output_) < min_tokens_) ban_stop_ids(mask);
}

void TokenConstraint::fill_before_grammar(std::span<std::int32_t> mask) const {
  std::fill(mask.begin(), mask.end(), -1);
  if (!matcher_) return;
  // A thought may not end the output, nor begin what belongs behind it.
  for (const std::int64_t id : stop_ids_) set_in_mask(mask, id, false);
  for (const std::int32_t id : structured_.banned_before_start) set_in_mask(mask, id, false);
}

// vLLM's rule: the last token of a word is banned where the output ends with the tokens before it.
void TokenConstraint::ban_bad_words(std::span<std::int32_t> mask) const {
  for (const std::vector<std::int32_t>& word : bad_words_) {
    const std::size_t before = word.size() - 1;
    if (before > output_.size()) continue;
    const auto tail = output_.end() - static_cast<std::ptrdiff_t>(before);
    if (std::equal(tail, output_.end(), word.begin())) set_in_mask(mask, word.back(), false);
  }
}

// Where only a stop id is left the output ends, min_tokens or not.
void TokenConstraint::ban_stop_ids(std::span<std::int32_t> mask) const {
  std::vector<std::int32_t> without(mask.begin(), mask.end());
  for (const std::int64_t id : stop_ids_) set_in_mask(without, id, false);
  if (!is_empty(without)) std::copy(without.begin(), without.end(), mask.begin());
}

std::string names_of_constraints(const SamplingParams& params) {
  std::string names;
  const auto add = [&](bool is_set, const char* name) {
    if (is_set) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(params.structured.grammar != nullptr, "the grammar");
  add(!params.allowed_token_ids.empty(), "allowed_token_ids");
  add(!params.bad_words_token_ids.empty(), "bad_words");
  return names;
}

void fill_tree(TokenConstraint& constraint, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> parents, std::span<std::int32_t> masks) {
  const std::size_t count = tokens.size();
  const std::size_t words = masks.size() / count;
  std::vector<std::vector<std::size_t>> children(count);
  for (std::size_t node = 1; node < count; ++node)
    children[static_cast<std::size_t>(parents[node])].push_back(node);
  std::fill(masks.begin(), masks.end(), 0);
  const auto visit = [&](const auto& self, std::size_t node) -> void {
    const auto mask = masks.subspan(node * words, words);
    constraint.fill(mask);
    for (const std::size_t child : children[node]) {
      if (!mask_has(mask, tokens[child]) || !constraint.accept(tokens[child])) continue;
      self(self, child);
      constraint.undo();
    }
  };
  visit(visit, 0);
}

}  // namespace coppice
