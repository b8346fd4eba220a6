// Plain host versions of the tree, sampling and commit kernels: one sequence or row at a time, no
// cleverness. Every check compares with these.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <vector>

#include "base/rng.h"

namespace coppice::kernels::checks {

struct TopK {
  std::vector<int32_t> ids;
  std::vector<double> log_probs;
};

// Ids by (logit descending, id ascending).
inline TopK reference_top_k(const std::vector<float>& logits, int k) {
  std::vector<float> clean(logits);
  for (float& x : clean) {
    if (std::isnan(x)) x = -INFINITY;
    x = std::min(x, 3.3895313892515355e38f);
  }
  std::vector<int32_t> order(clean.size());
  std::iota(order.begin(), order.end(), 0);
  const auto n = std::min<size_t>(static_cast<size_t>(k), order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<long>(n), order.end(),
      [&](int a, int b) { return clean[a] != clean[b] ? clean[a] > clean[b] : a < b; });
  const double maximum = clean[order[0]];
  double sum = 0;
  for (float x : clean) sum += std::exp(x - maximum);
  TopK out;
  for (size_t i = 0; i < n; ++i) {
    out.ids.push_back(clean[order[i]] > -INFINITY ? order[i] : -1);
    out.log_probs.push_back(clean[order[i]] - maximum - std::log(sum));
  }
  return out;
}

struct Tree {
  std::vector<int32_t> tokens, parents, depths;  // node 0 is the root
  std::vector<float> scores;
  int count = -1;
};

// The algorithm as published, with a heap of (score, rank tuple).
inline Tree reference_tree(const int32_t* ids, const float* log_probs, int depth, int k,
                           int32_t anchor, int budget, int depth_limit, float min_score) {
  struct Candidate {
    float score;
    std::vector<int> ranks;
    int parent;
    bool operator<(const Candidate& o) const {  // true: o comes first
      return score != o.score ? score < o.score : ranks > o.ranks;
    }
  };
  Tree tree;
  if (anchor < 0) return tree;
  tree = {{anchor}, {-1}, {0}, {0.0f}, 0};
  std::priority_queue<Candidate> heap;
  const int limit = std::min(depth, depth_limit);
  const auto lp = [&](int d, int r) { return log_probs[(d - 1) * k + r]; };
  const auto push = [&](Candidate c) {
    if (c.score > -INFINITY) heap.push(std::move(c));
  };
  if (limit >= 1) push({lp(1, 0), {0}, 0});
  while (tree.count < budget && !heap.empty()) {
    const Candidate top = heap.top();
    if (top.score < min_score) break;
    heap.pop();
    const int d = static_cast<int>(top.ranks.size());
    const int r = top.ranks.back();
    tree.tokens.push_back(ids[(d - 1) * k + r]);
    tree.parents.push_back(top.parent);
    tree.depths.push_back(d);
    tree.scores.push_back(top.score);
    const int node = ++tree.count;
    if (r + 1 < k) {
      Candidate next = top;
      next.ranks.back() = r + 1;
      volatile float less = top.score - lp(d, r);
      next.score = less + lp(d, r + 1);
      push(next);
    }
    if (d < limit) {
      Candidate child{top.score + lp(d + 1, 0), top.ranks, node};
      child.ranks.push_back(0);
      push(child);
    }
  }
  return tree;
}

// ---- Cut

// Worth of a node, exp(score) * calibration[depth], as a logarithm.
inline float reference_log_worth(const Tree& tree, int node,
                                 const std::vector<float>& calibration) {
  if (calibration.empty()) return tree.scores[node];
  return tree.scores[node] + std::log(calibration[tree.depths[node]]);
}

// Merges the trees by their next nodes, best first, until `capacity` nodes are kept.
inline std::vector<int> reference_keep(const std::vector<Tree>& trees, int capacity,
                                       const std::vector<float>& calibration, double* worth) {
  struct Head {
    float key;
    int seq;
    bool operator<(const Head& o) const { return key != o.key ? key < o.key : seq > o.seq; }
  };
  std::priority_queue<Head> heads;
  std::vector<int> kept(trees.size(), 0);
  const auto push = [&](int seq) {
    if (kept[seq] < trees[seq].count) {
      heads.push({reference_log_worth(trees[seq], kept[seq] + 1, calibration), seq});
    }
  };
  for (size_t s = 0; s < trees.size(); ++s) push(static_cast<int>(s));
  for (int i = 0; i < capacity && !heads.empty(); ++i) {
    const Head head = heads.top();
    heads.pop();
    ++kept[head.seq];
    *worth += std::exp(static_cast<double>(head.key));
    push(head.seq);
  }
  return kept;
}

// ---- Sampling

struct SampleSpec {
  float temperature = 1;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition = 1;
  float presence = 0;
  float frequency = 0;
  int64_t seed = 0;
  int32_t choice_index = 0;
  int prompt_len = 0;
  std::vector<int32_t> history;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> stop_ids;
  int min_tokens = 0;
};

inline std::vector<float> reference_adjust(const std::vector<float>& logits, const SampleSpec& spec,
                                           const std::vector<int32_t>& path,
                                           const std::vector<bool>* allowed) {
  std::vector<float> x(logits);
  std::vector<int> output(x.size(), 0);
  std::vector<bool> seen(x.size(), false);
  for (size_t i = 0; i < spec.history.size(); ++i) {
    seen[spec.history[i]] = true;
    if (static_cast<int>(i) >= spec.prompt_len) ++output[spec.history[i]];
  }
  for (int32_t token : path) {
    seen[token] = true;
    ++output[token];
  }
  const bool penalties = spec.repetition != 1 || spec.presence != 0 || spec.frequency != 0;
  const int emitted =
      static_cast<int>(spec.history.size()) - spec.prompt_len + static_cast<int>(path.size());
  for (size_t id = 0; id < x.size(); ++id) {
    if (std::isnan(x[id])) x[id] = -INFINITY;
    if (penalties && seen[id]) {
      x[id] = x[id] > 0 ? x[id] / spec.repetition : x[id] * spec.repetition;
      volatile float loss = spec.frequency * static_cast<float>(output[id]);
      x[id] = x[id] - loss;
      if (output[id] > 0) x[id] -= spec.presence;
    }
  }
  for (const auto& [id, value] : spec.bias) x[id] += value;
  if (emitted < spec.min_tokens) {
    for (int32_t id : spec.stop_ids) x[id] = -INFINITY;
  }
  if (allowed != nullptr) {
    for (size_t id = 0; id < x.size(); ++id) {
      if (!(*allowed)[id]) x[id] = -INFINITY;
    }
  }
  return x;
}

inline int32_t reference_sample(const std::vector<float>& logits, const SampleSpec& spec,
                                const std::vector<int32_t>& path, int position,
                                const std::vector<bool>* allowed) {
  std::vector<float> x = reference_adjust(logits, spec, path, allowed);
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  const float inverse = spec.temperature > 0 ? 1.0f / spec.temperature : 1.0f;
  for (float& value : x) value *= inverse;
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  const float maximum = x[order[0]];
  for (float value : logits) {
    if (!std::isfinite(value)) return -1;
  }
  if (!(maximum > -INFINITY)) return -1;
  if (spec.temperature == 0) return order[0];
  if (spec.top_k > 0 && spec.top_k < static_cast<int>(order.size())) order.resize(spec.top_k);
  if (spec.top_p < 1) {
    double total = 0;
    for (int id : order) total += std::exp(static_cast<double>(x[id] - maximum));
    double before = 0;
    size_t n = 0;
    while (n < order.size() && (n == 0 || before < spec.top_p * total)) {
      before += std::exp(static_cast<double>(x[order[n++]] - maximum));
    }
    order.resize(n);
  }
  int32_t best = order[0];
  float best_score = -INFINITY;
  for (int id : order) {
    if (spec.min_p > 0 && x[id] < maximum + std::log(spec.min_p)) continue;
    const auto bits =
        coppice::philox4x32({static_cast<uint32_t>(id), static_cast<uint32_t>(position + 1),
                             static_cast<uint32_t>(spec.choice_index), 0},
                            static_cast<uint64_t>(spec.seed))[0];
    const float score = x[id] - std::log(-std::log(coppice::uniform_open(bits)));
    if (score > best_score || (score == best_score && id < best)) {
      best_score = score;
      best = id;
    }
  }
  return best;
}

// ---- Commit

struct Accepted {
  std::vector<int> path;  // node indices, root first, one per emitted token
  std::vector<int32_t> emitted;
  int reason = 0;
};

inline Accepted reference_accept(const Tree& tree, int kept, const std::vector<int32_t>& choices,
                                 const std::vector<int32_t>& finite,
                                 const std::vector<int32_t>& stop_ids, int emitted_before,
                                 int max_tokens) {
  Accepted out;
  int at = 0;
  while (true) {
    if (finite[at] == 0) {
      out.reason = 3;
      return out;
    }
    const int32_t token = choices[at];
    const int before = emitted_before + static_cast<int>(out.emitted.size());
    out.path.push_back(at);
    out.emitted.push_back(token);
    if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
      out.reason = 1;
      return out;
    }
    if (before + 1 >= max_tokens) {
      out.reason = 2;
      return out;
    }
    int child = -1;
    for (int i = 1; i <= kept; ++i) {
      if (tree.parents[i] == at && tree.tokens[i] == token) child = i;
    }
    if (child < 0) return out;
    at = child;
  }
}

}  // namespace coppice::kernels::checks
