#include "planner/acceptance.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <random>

#include "base/error.h"

namespace coppice {
namespace {

constexpr std::int64_t kMaxRank = 16;  // deeper ranks carry next to nothing

// A candidate of the lattice: the rank-th choice after its parent.
struct Candidate {
  double probability = 0;  // joint, as the drafter believes
  double parent = 0;       // the same of its parent
  double real_parent = 0;  // what the parent's is in fact
  bool is_aside = false;   // some ancestor is no first choice
  std::int64_t depth = 0;
  std::int64_t rank = 0;
  bool operator<(const Candidate& other) const { return probability < other.probability; }
};

// Uniform in (0, 1) from a fixed algorithm, so that plans are equal everywhere.
class Uniform {
 public:
  explicit Uniform(std::uint64_t seed) : engine_(seed) {}
  double next() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

// Johnk's rejection: a draw of Beta(a, b), a and b around 1.
double draw_beta(Uniform& uniform, double a, double b) {
  for (;;) {
    const double x = std::pow(uniform.next(), 1 / a), y = std::pow(uniform.next(), 1 / b);
    if (x + y <= 1 && x + y > 0) return x / (x + y);
  }
}

class Round {
 public:
  Round(const AcceptanceModel& model, Uniform& uniform) : model_(model) {
    for (const double mean : model.first)
      confidence_.push_back(draw_beta(uniform, std::max(model.spread * mean, 1e-3),
                                      std::max(model.spread * (1 - mean), 1e-3)));
  }

  // Expected tokens with the first n nodes of the best-first tree, added to sums[n]: the bonus, and
  // every node with the probability that its path is the text.
  void add_expected(std::vector<double>& sums) const {
    std::priority_queue<Candidate> frontier;
    frontier.push({share(1, 1), 1, 1, false, 1, 1});
    double expected = 1;
    sums[0] += expected;
    for (std::size_t n = 1; n < sums.size(); ++n) {
      if (!frontier.empty()) {
        const Candidate node = frontier.top();
        frontier.pop();
        const double real =
            node.real_parent * share(node.depth, node.rank) * (node.is_aside ? model_.aside : 1.0);
        expected += real;
        if (node.rank < kMaxRank)
          frontier.push({node.parent * share(node.depth, node.rank + 1), node.parent,
                         node.real_parent, node.is_aside, node.depth, node.rank + 1});
        if (node.depth < model_.max_depth())
          frontier.push({node.probability * share(node.depth + 1, 1), node.probability, real,
                         node.is_aside || node.rank > 1, node.depth + 1, 1});
      }
      sums[n] += expected;
    }
  }

  double expected_chain() const {
    double joint = 1, expected = 1;
    for (const double confidence : confidence_) expected += joint *= confidence;
    return expected;
  }

 private:
  double share(std::int64_t depth, std::int64_t rank) const {
    const double first = confidence_[static_cast<std::size_t>(depth - 1)];
    if (rank == 1) return first;
    return (1 - first) * (1 - model_.tail) * std::pow(model_.tail, static_cast<double>(rank - 2));
  }

  const AcceptanceModel& model_;
  std::vector<double> confidence_;
};

std::vector<double> parse_means(const std::string& text) {
  std::vector<double> means;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    char* stop = nullptr;
    const double mean = std::strtod(part.c_str(), &stop);
    if (part.empty() || *stop != '\0' || !(mean > 0) || mean >= 1)
      throw Error(ErrorKind::kInvalidArgument,
                  "--acceptance: '" + text +
                      "' is none of coding, chat, tiny-k2, and no list of probabilities such as "
                      "0.9:0.85:0.8");
    means.push_back(mean);
    begin = end + 1;
  }
  return means;
}

// Means that fall by a factor a depth.
std::vector<double> falling(double first, double factor, std::int64_t depth) {
  std::vector<double> means;
  for (std::int64_t d = 0; d < depth; ++d) {
    means.push_back(first);
    first *= factor;
  }
  return means;
}

}  // namespace

AcceptanceModel acceptance_model(const std::string& name, std::int64_t max_depth) {
  // First choices fitted so that the chain of seven commits what was published.
  if (name == "coding")
    return {.name = name,
            .source = "chain of 7 commits 5.3 tokens: Kimi-K2.5-DFlash on HumanEval (model card)",
            .first = falling(0.903, 0.985, max_depth)};
  if (name == "chat")
    return {.name = name,
            .source = "chain of 7 commits 3.7 tokens: Kimi-K2.5-DFlash on MT-Bench (model card)",
            .first = falling(0.8, 0.97, max_depth)};
  if (name == "tiny-k2")
    return {.name = name,
            .source =
                "chain of 7 commits 4.06 tokens, trees of 8 / 16 / 64 4.42 / 4.81 / 5.25: "
                "tiny-k2 on code, measured",
            .first = falling(0.826, 0.972, max_depth)};
  AcceptanceModel model{.name = "given", .source = "--acceptance", .first = parse_means(name)};
  while (model.max_depth() < max_depth) model.first.push_back(model.first.back());
  model.first.resize(static_cast<std::size_t>(max_depth));
  return model;
}

std::vector<double> tokens_per_round(const AcceptanceModel& model, std::int64_t max_budget,
                                     std::int64_t num_rounds, std::uint64_t seed) {
  std::vector<double> sums(static_cast<std::size_t>(max_budget + 1));
  if (model.first.empty()) return std::vector<double>(sums.size(), 1.0);
  Uniform uniform(seed);
  for (std::int64_t i = 0; i < num_rounds; ++i) Round(model, uniform).add_expected(sums);
  for (double& sum : sums) sum /= static_cast<double>(num_rounds);
  return sums;
}

double chain_tokens(const AcceptanceModel& model) {
  constexpr std::int64_t kRounds = 4000;
  Uniform uniform(1);
  double sum = 0;
  for (std::int64_t i = 0; i < kRounds; ++i) sum += Round(model, uniform).expected_chain();
  return sum / static_cast<double>(kRounds);
}

}  // namespace coppice
