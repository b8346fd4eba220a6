// The networks written down once more, in double precision, without cache, absorption, fusion or
// batching: every function is the formula of its paper over whole sequences. Oracle of small tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/weight_source.h"

namespace coppice::test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // [positions][width]

// Whether the query at row i may see the key at row j.
using Mask = std::function<bool(std::size_t query, std::size_t key)>;

class NaiveNetwork {
 public:
  // Weights by their published names.
  NaiveNetwork(WeightSource& source, const ModelConfig& config)
      : source_(source), config_(config) {}

  // Residual stream after every layer, [layers + 1][positions][hidden_size]; 0 is the embedding.
  std::vector<Rows> hidden_states(const std::vector<std::int32_t>& tokens);
  // lm_head of rows that are normed already.
  Rows head(const Rows& normed);
  // lm_head(norm(hidden)).
  Rows logits(const Rows& hidden);

  // Drafts of a DFlash network: features of positions 0 .. n-1 as context, then the block at
  // positions n, n + 1, ... Returns the normed rows of the block, slot 0 included. mask_of(layer)
  // is over positions; contexts come first.
  Rows draft(const DflashConfig& drafter, const Rows& features, const Rows& block,
             const std::function<Mask(std::size_t layer)>& mask_of);

 private:
  Rows matrix(const std::string& name, std::int64_t rows, std::int64_t cols);
  Row vector(const std::string& name, std::int64_t n);
  Rows linear(const Rows& x, const std::string& name, std::int64_t rows);
  Rows norm(const Rows& x, const std::string& name);
  Rows mlp(const Rows& x, const std::string& prefix, std::int64_t width);
  Rows mla(const Rows& x, const std::string& prefix);
  Rows gqa(const Rows& queries, const Rows& keys, const std::string& prefix, const Mask& mask);
  Rows experts(const Rows& x, const std::string& prefix);
  void rotate(double* values, std::int64_t dim, std::size_t position) const;

  WeightSource& source_;
  ModelConfig config_;
};

}  // namespace coppice::test
