// One choice of the target per row: filters in the documented order, then argmax or Gumbel-max.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/ops.h"
#include "base/rng.h"

namespace coppice::cpu {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr float kMaxGumbel = 17.0f;  // -log(-log(1 - 2^-24)) is 16.6

struct Candidate {
  float z = 0;
  std::int32_t id = 0;
};

bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.z != b.z ? a.z > b.z : a.id < b.id;
}

std::int32_t int_at(const Tensor& tensor, std::int64_t i) {
  return tensor.data<std::int32_t>()[i];
}
float float_at(const Tensor& tensor, std::int64_t i) {
  return tensor.data<float>()[i];
}

// Samples rows one after the other; owns scratch so that a range of rows allocates once.
class RowSampler {
 public:
  explicit RowSampler(const SampleRowsArgs& args) : args_(args), sampling_(args.sampling) {}

  void sample(std::int64_t t) {
    const std::int32_t b = int_at(args_.seq_of_row, t);
    std::int32_t choice = -1;
    bool finite = true;
    if (b >= 0) {
      const float* logits = args_.logits.row<float>(t);
      const std::int64_t vocab_size = args_.logits.shape(1);
      // No filter can change the arg max, which needs no copy of the row.
      const bool greedy = args_.greedy && args_.allowed.empty();
      for (std::int64_t id = 0; id < vocab_size; ++id) finite = finite && std::isfinite(logits[id]);
      if (finite) choice = greedy ? argmax(logits, vocab_size) : choose(t, b, logits, vocab_size);
      finite = choice >= 0;
      if (finite && !args_.log_probs.empty())
        args_.log_probs.data<float>()[t] = log_prob(logits, vocab_size, choice);
    }
    args_.choices.data<std::int32_t>()[t] = choice;
    args_.finite.data<std::int32_t>()[t] = finite ? 1 : 0;
  }

 private:
  // The chosen id, or -1 when every id is banned.
  std::int32_t choose(std::int64_t t, std::int32_t b, const float* logits,
                      std::int64_t vocab_size) {
    z_.assign(logits, logits + vocab_size);
    ban(t, b);
    penalise(t, b);
    add_bias(b);
    const float temperature = float_at(sampling_.temperature, b);
    if (temperature <= 0) return argmax(z_.data(), vocab_size);
    candidates_.clear();
    for (std::int64_t id = 0; id < vocab_size; ++id)
      if (z_[static_cast<std::size_t>(id)] > kBanned)
        candidates_.push_back(
            {z_[static_cast<std::size_t>(id)] / temperature, static_cast<std::int32_t>(id)});
    if (candidates_.empty()) return -1;
    keep_top_k(int_at(sampling_.top_k, b));
    keep_top_p(float_at(sampling_.top_p, b));
    keep_min_p(float_at(sampling_.min_p, b));
    return gumbel_max(static_cast<std::uint64_t>(sampling_.seed.data<std::int64_t>()[b]),
                      int_at(args_.positions, t) + 1, int_at(sampling_.choice_index, b));
  }

  float& z(std::int64_t id) { return z_[static_cast<std::size_t>(id)]; }
  bool in_vocab(std::int32_t id) const {
    return id >= 0 && id < static_cast<std::int32_t>(z_.size());
  }

  std::int32_t node_depth(std::int32_t b, std::int32_t node) const {
    return node > 0 ? args_.trees.depths.row<std::int32_t>(b)[node] : 0;
  }

  void ban(std::int64_t t, std::int32_t b) {
    const std::int32_t emitted = int_at(sampling_.history_len, b) -
                                 int_at(sampling_.prompt_len, b) +
                                 node_depth(b, int_at(args_.node_of_row, t));
    if (emitted < int_at(sampling_.min_tokens, b)) {
      const std::int32_t* ids = sampling_.stop_ids.row<std::int32_t>(b);
      for (std::int64_t i = 0; i < sampling_.stop_ids.shape(1); ++i)
        if (in_vocab(ids[i])) z(ids[i]) = kBanned;
    }
    if (args_.allowed.empty()) return;
    const std::int32_t* mask = args_.allowed.row<std::int32_t>(t);
    for (std::size_t id = 0; id < z_.size(); ++id)
      if (((static_cast<std::uint32_t>(mask[id / 32]) >> (id % 32)) & 1u) == 0) z_[id] = kBanned;
  }

  // Counts the prompt, the emitted tokens and the nodes on the row's own path.
  void penalise(std::int64_t t, std::int32_t b) {
    const float repetition = float_at(sampling_.repetition_penalty, b);
    const float presence = float_at(sampling_.presence_penalty, b);
    const float frequency = float_at(sampling_.frequency_penalty, b);
    if (repetition == 1 && presence == 0 && frequency == 0) return;
    seen_.assign(z_.size(), 0);
    output_count_.assign(z_.size(), 0);
    const std::int32_t* history = sampling_.history.row<std::int32_t>(b);
    const std::int32_t prompt_len = int_at(sampling_.prompt_len, b);
    for (std::int32_t i = 0; i < int_at(sampling_.history_len, b); ++i)
      count_token(history[i], i >= prompt_len);
    for (std::int32_t node = int_at(args_.node_of_row, t); node > 0;
         node = args_.trees.parents.row<std::int32_t>(b)[node])
      count_token(args_.trees.tokens.row<std::int32_t>(b)[node], true);
    for (std::size_t id = 0; id < z_.size(); ++id) {
      if (!seen_[id]) continue;
      z_[id] = z_[id] > 0 ? z_[id] / repetition : z_[id] * repetition;
      if (output_count_[id] == 0) continue;
      z_[id] -= frequency * static_cast<float>(output_count_[id]);
      z_[id] -= presence;
    }
  }

  void count_token(std::int32_t token, bool is_output) {
    if (!in_vocab(token)) return;
    seen_[static_cast<std::size_t>(token)] = true;
    if (is_output) ++output_count_[static_cast<std::size_t>(token)];
  }

  void add_bias(std::int32_t b) {
    const std::int32_t* ids = sampling_.bias_ids.row<std::int32_t>(b);
    const float* values = sampling_.bias_values.row<float>(b);
    for (std::int64_t i = 0; i < sampling_.bias_ids.shape(1); ++i)
      if (in_vocab(ids[i])) z(ids[i]) += values[i];
  }

  static std::int32_t argmax(const float* values, std::int64_t count) {
    std::int32_t best = -1;
    float best_value = kBanned;
    for (std::int64_t id = 0; id < count; ++id)
      if (values[id] > best_value) {
        best_value = values[id];
        best = static_cast<std::int32_t>(id);
      }
    return best;
  }

  void keep_top_k(std::int32_t top_k) {
    if (top_k <= 0 || top_k >= static_cast<std::int32_t>(candidates_.size())) return;
    std::nth_element(candidates_.begin(), candidates_.begin() + top_k - 1, candidates_.end(),
                     ranks_before);
    candidates_.resize(static_cast<std::size_t>(top_k));
  }

  void keep_top_p(float top_p) {
    if (top_p >= 1) return;
    const float top = std::min_element(candidates_.begin(), candidates_.end(), ranks_before)->z;
    double sum = 0;
    for (const Candidate& candidate : candidates_)
      sum += static_cast<double>(std::exp(candidate.z - top));
    // Pops in rank order until the probability before the next id reaches top_p.
    const auto ranks_after = [](const Candidate& a, const Candidate& b) {
      return ranks_before(b, a);
    };
    std::make_heap(candidates_.begin(), candidates_.end(), ranks_after);
    auto heap_end = candidates_.end();
    double before = 0;
    do {
      std::pop_heap(candidates_.begin(), heap_end, ranks_after);
      --heap_end;
      before += static_cast<double>(std::exp(heap_end->z - top)) / sum;
    } while (heap_end != candidates_.begin() && before < static_cast<double>(top_p));
    candidates_.erase(candidates_.begin(), heap_end);
  }

  void keep_min_p(float min_p) {
    if (min_p <= 0) return;
    const float top = std::min_element(candidates_.begin(), candidates_.end(), ranks_before)->z;
    std::erase_if(candidates_,
                  [&](const Candidate& candidate) { return std::exp(candidate.z - top) < min_p; });
  }

  // Ids whose largest possible key is below the best key are skipped without drawing their noise:
  // the result is the same.
  std::int32_t gumbel_max(std::uint64_t seed, std::int32_t position, std::int32_t choice_index) {
    const auto key = [&](const Candidate& candidate) {
      const PhiloxCounter bits = philox4x32(
          {static_cast<std::uint32_t>(candidate.id), static_cast<std::uint32_t>(position),
           static_cast<std::uint32_t>(choice_index), 0},
          seed);
      return candidate.z - std::log(-std::log(uniform_open(bits[0])));
    };
    const Candidate top = *std::min_element(candidates_.begin(), candidates_.end(), ranks_before);
    Candidate best{key(top), top.id};
    for (const Candidate& candidate : candidates_) {
      if (candidate.z + kMaxGumbel < best.z) continue;
      const Candidate next{key(candidate), candidate.id};
      if (ranks_before(next, best)) best = next;
    }
    return best.id;
  }

  static float log_prob(const float* logits, std::int64_t vocab_size, std::int32_t choice) {
    const float top = *std::max_element(logits, logits + vocab_size);
    double sum = 0;
    for (std::int64_t id = 0; id < vocab_size; ++id)
      sum += static_cast<double>(std::exp(logits[id] - top));
    return (logits[choice] - top) - static_cast<float>(std::log(sum));
  }

  const SampleRowsArgs& args_;
  const SamplingBuffers& sampling_;
  std::vector<float> z_;                    // [vocab_size] logits, changed in place
  std::vector<bool> seen_;                  // [vocab_size]
  std::vector<std::int32_t> output_count_;  // [vocab_size]
  std::vector<Candidate> candidates_;
};

}  // namespace

void sample_rows(const SampleRowsArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.logits.shape(0), 1, [&](std::int64_t begin, std::int64_t end) {
    RowSampler sampler(args);
    for (std::int64_t t = begin; t < end; ++t) sampler.sample(t);
  });
}

}  // namespace coppice::cpu
