// How many tokens a round commits, as a function of the tree's budget: rounds are simulated with a
// drafter whose confidence varies from place to place.
//
// At depth d the drafter's first choice is right with a probability drawn from a Beta distribution
// of mean first[d - 1]; its rank-r choice (r >= 2) takes the share (1 - tail) tail^(r - 2) of what
// is left. A block-diffusion drafter proposes each depth without knowing the path that leads there,
// so below a choice that was not its first its numbers are too high: the truth is `aside` times
// them. Trees are the best-first trees of DDTree over what the drafter believes, their tokens what
// the truth gives. Same seed, same result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coppice {

struct AcceptanceModel {
  std::string name;           // for reports
  std::string source;         // where its numbers are from
  std::vector<double> first;  // mean probability of the first choice, by depth
  double spread = 1;          // Beta's alpha + beta: the smaller, the more confidence varies
  double tail = 0.6;
  double aside = 0.5;

  std::int64_t max_depth() const { return static_cast<std::int64_t>(first.size()); }
};

// "coding", "chat", "tiny-k2", or "A:B:..." with means by depth ("0.9:0.85:0.8"). Throws
// Error(kInvalidArgument). max_depth: the drafter's block size less one.
AcceptanceModel acceptance_model(const std::string& name, std::int64_t max_depth);

// Mean tokens a round (accepted drafts and the bonus) with trees of each budget, 0 .. max_budget.
std::vector<double> tokens_per_round(const AcceptanceModel& model, std::int64_t max_budget,
                                     std::int64_t num_rounds = 4000, std::uint64_t seed = 1);
// Of the chain of first choices, whole block deep.
double chain_tokens(const AcceptanceModel& model);

}  // namespace coppice
