// Draft trees: candidates, best-first growth (DDTree, arXiv 2604.12989), prompt lookup, and the
// rows of a draft step.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "backend/cpu/ops.h"
#include "backend/cpu/slot.h"

namespace coppice::cpu {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

struct Candidate {
  float value = 0;
  std::int32_t id = 0;
};

// Larger value first, then lower id.
bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

float as_float(float value) {
  return value;
}
float as_float(bf16 value) {
  return to_float(value);
}

// NaN never ranks; ids missing for want of numbers are -1 with log-probability -inf.
template <typename T>
void top_k_of_row(const T* logits, std::int64_t vocab_size, std::int64_t k, std::int32_t* ids,
                  float* log_probs, std::vector<Candidate>& heap) {
  heap.clear();
  for (std::int64_t id = 0; id < vocab_size; ++id) {
    const Candidate next{as_float(logits[id]), static_cast<std::int32_t>(id)};
    if (!(next.value > kNoScore)) continue;
    if (static_cast<std::int64_t>(heap.size()) < k) {
      heap.push_back(next);
      std::push_heap(heap.begin(), heap.end(), ranks_before);
    } else if (next.value > heap.front().value) {  // an equal value has a higher id: it ranks after
      std::pop_heap(heap.begin(), heap.end(), ranks_before);
      heap.back() = next;
      std::push_heap(heap.begin(), heap.end(), ranks_before);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), ranks_before);
  const float top = heap.empty() ? 0.0f : heap.front().value;
  double sum = 0;
  for (std::int64_t id = 0; id < vocab_size; ++id) {
    const float value = as_float(logits[id]);
    if (value > kNoScore) sum += static_cast<double>(std::exp(value - top));
  }
  const auto log_sum = static_cast<float>(std::log(sum));
  for (std::int64_t rank = 0; rank < k; ++rank) {
    const bool found = rank < static_cast<std::int64_t>(heap.size());
    const Candidate candidate = found ? heap[static_cast<std::size_t>(rank)] : Candidate{};
    ids[rank] = found ? candidate.id : -1;
    log_probs[rank] = found ? (candidate.value - top) - log_sum : kNoScore;
  }
}

// Best-first growth of one tree.
class TreeGrower {
 public:
  TreeGrower(const std::int32_t* ids, const float* log_probs, std::int64_t depth, std::int64_t k,
             std::int64_t budget)
      : ids_(ids), log_probs_(log_probs), max_depth_(depth), k_(k) {
    ranks_.assign(static_cast<std::size_t>((budget + 1) * depth), 0);
    heap_.reserve(static_cast<std::size_t>(budget + 2));
  }

  // Fills nodes 1.. of the given rows; returns how many.
  std::int32_t grow(std::int64_t budget, float min_score, std::int32_t* tokens,
                    std::int32_t* parents, std::int32_t* depths, float* scores) {
    std::int32_t count = 0;
    if (max_depth_ > 0 && k_ > 0) push({log_prob(1, 0), 0, 1, 0});
    while (count < budget && !heap_.empty()) {
      const Open best = heap_.front();
      if (best.score < min_score) break;
      std::pop_heap(heap_.begin(), heap_.end(), after_);
      heap_.pop_back();
      const std::int32_t node = ++count;
      tokens[node] = ids_[(best.depth - 1) * k_ + best.rank];
      parents[node] = best.parent;
      depths[node] = best.depth;
      scores[node] = best.score;
      remember_ranks(node, best);
      if (best.rank + 1 < k_) {
        const float score =
            best.score - log_prob(best.depth, best.rank) + log_prob(best.depth, best.rank + 1);
        push({score, best.parent, best.depth, best.rank + 1});
      }
      if (best.depth < max_depth_)
        push({best.score + log_prob(best.depth + 1, 0), node, best.depth + 1, 0});
    }
    return count;
  }

 private:
  struct Open {
    float score = 0;
    std::int32_t parent = 0;
    std::int32_t depth = 0;
    std::int32_t rank = 0;
  };

  float log_prob(std::int32_t depth, std::int32_t rank) const {
    return log_probs_[(depth - 1) * k_ + rank];
  }

  // Impossible and missing candidates never enter.
  void push(const Open& open) {
    if (!(open.score > kNoScore) || ids_[(open.depth - 1) * k_ + open.rank] < 0) return;
    heap_.push_back(open);
    std::push_heap(heap_.begin(), heap_.end(), after_);
  }

  void remember_ranks(std::int32_t node, const Open& open) {
    std::int32_t* own = &ranks_[static_cast<std::size_t>(node * max_depth_)];
    const std::int32_t* parent = &ranks_[static_cast<std::size_t>(open.parent * max_depth_)];
    std::copy(parent, parent + open.depth - 1, own);
    own[open.depth - 1] = open.rank;
  }

  std::int32_t rank_at(const Open& open, std::int32_t depth) const {
    return depth == open.depth
               ? open.rank
               : ranks_[static_cast<std::size_t>(open.parent * max_depth_ + depth - 1)];
  }

  // True if `a` is popped after `b`: lower score, or on a tie the later rank tuple.
  bool comes_after(const Open& a, const Open& b) const {
    if (a.score != b.score) return a.score < b.score;
    for (std::int32_t depth = 1; depth <= std::min(a.depth, b.depth); ++depth)
      if (rank_at(a, depth) != rank_at(b, depth)) return rank_at(a, depth) > rank_at(b, depth);
    return a.depth > b.depth;
  }

  const std::int32_t* ids_;  // [max_depth, k]
  const float* log_probs_;   // [max_depth, k]
  std::int64_t max_depth_;
  std::int64_t k_;
  std::vector<std::int32_t> ranks_;  // [budget + 1, max_depth]: rank tuple of every node
  std::vector<Open> heap_;
  std::function<bool(const Open&, const Open&)> after_ = [this](const Open& a, const Open& b) {
    return comes_after(a, b);
  };
};

void set_root(const TreeBuffers& trees, std::int64_t b, std::int32_t anchor) {
  trees.tokens.row<std::int32_t>(b)[0] = anchor;
  trees.parents.row<std::int32_t>(b)[0] = -1;
  trees.depths.row<std::int32_t>(b)[0] = 0;
  trees.scores.row<float>(b)[0] = 0;
}

// Start in `history` of what followed the most recent earlier occurrence of its last `length`
// tokens, or -1.
std::int64_t find_continuation(const std::int32_t* history, std::int64_t count,
                               std::int64_t length) {
  for (std::int64_t start = count - length - 1; start >= 0; --start)
    if (std::equal(history + start, history + start + length, history + count - length))
      return start + length;
  return -1;
}

void ngram_of_sequence(const NgramProposeArgs& args, std::int64_t b) {
  auto& count = args.trees.counts.data<std::int32_t>()[b];
  const std::int32_t anchor = args.anchors.data<std::int32_t>()[b];
  count = anchor < 0 ? -1 : 0;
  if (anchor < 0) return;
  set_root(args.trees, b, anchor);
  const std::int32_t* history = args.history.row<std::int32_t>(b);
  const std::int64_t len = args.history_len.data<std::int32_t>()[b];
  const std::int64_t budget = args.budgets.data<std::int32_t>()[b];
  for (std::int64_t n = args.max_ngram; n >= args.min_ngram; --n) {
    const std::int64_t from = n < len ? find_continuation(history, len, n) : -1;
    if (from < 0) continue;
    count = static_cast<std::int32_t>(std::min(budget, len - from));
    for (std::int32_t i = 1; i <= count; ++i) {
      args.trees.tokens.row<std::int32_t>(b)[i] = history[from + i - 1];
      args.trees.parents.row<std::int32_t>(b)[i] = i - 1;
      args.trees.depths.row<std::int32_t>(b)[i] = i;
      args.trees.scores.row<float>(b)[i] = 0;
    }
    return;
  }
}

}  // namespace

void top_k_log_probs(const TopKLogProbsArgs& args, ThreadPool& pool) {
  const std::int64_t k = args.ids.shape(1), vocab_size = args.logits.shape(1);
  pool.parallel_for(args.logits.shape(0), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Candidate> heap;
    for (std::int64_t t = begin; t < end; ++t) {
      auto* ids = args.ids.row<std::int32_t>(t);
      auto* log_probs = args.log_probs.row<float>(t);
      if (args.logits.dtype() == DType::kBF16)
        top_k_of_row(args.logits.row<bf16>(t), vocab_size, k, ids, log_probs, heap);
      else
        top_k_of_row(args.logits.row<float>(t), vocab_size, k, ids, log_probs, heap);
    }
  });
}

void build_tree(const BuildTreeArgs& args, ThreadPool& pool) {
  const TreeBuffers& trees = args.trees;
  pool.parallel_for(args.anchors.shape(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int32_t anchor = args.anchors.data<std::int32_t>()[b];
      auto& count = trees.counts.data<std::int32_t>()[b];
      count = anchor < 0 ? -1 : 0;
      if (anchor < 0) continue;
      set_root(trees, b, anchor);
      const std::int64_t budget = args.budgets.data<std::int32_t>()[b];
      COPPICE_CHECK_LT(budget, trees.tokens.shape(1));
      if (budget <= 0) continue;
      TreeGrower grower(args.ids.row<std::int32_t>(b), args.log_probs.row<float>(b),
                        args.ids.shape(1), args.ids.shape(2), budget);
      count = grower.grow(budget, args.min_scores.data<float>()[b],
                          trees.tokens.row<std::int32_t>(b), trees.parents.row<std::int32_t>(b),
                          trees.depths.row<std::int32_t>(b), trees.scores.row<float>(b));
    }
  });
}

void ngram_propose(const NgramProposeArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.anchors.shape(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) ngram_of_sequence(args, b);
  });
}

void compile_draft(const CompileDraftArgs& args, ThreadPool&) {
  const std::int64_t batch = args.anchors.shape(0);
  const std::int64_t block_size = batch > 0 ? args.token_ids.shape(0) / batch : 0;
  for (std::int64_t t = 0; t < batch * block_size; ++t) {
    const std::int64_t b = t / block_size, j = t % block_size;
    const std::int32_t anchor = args.anchors.data<std::int32_t>()[b];
    const bool live = anchor >= 0;
    const std::int64_t context_len = live ? args.context_len.data<std::int32_t>()[b] : 0;
    const std::int64_t position = live ? context_len + j : 0;
    args.token_ids.data<std::int32_t>()[t] = !live ? -1 : j == 0 ? anchor : args.mask_token_id;
    args.positions.data<std::int32_t>()[t] = static_cast<std::int32_t>(position);
    args.slots.data<std::int32_t>()[t] = live ? slot_of(args.block_tables, b, position) : -1;
    args.seq_of_row.data<std::int32_t>()[t] = live ? static_cast<std::int32_t>(b) : -1;
    args.kv_len.data<std::int32_t>()[t] =
        live ? static_cast<std::int32_t>(context_len + block_size) : 0;
    args.path_len.data<std::int32_t>()[t] = 0;
  }
}

}  // namespace coppice::cpu
