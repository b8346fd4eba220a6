// Which tensors a checkpoint lacks, judged from its own names and the counts in config.json, for
// any architecture whose layers are called "layers.N." and whose experts are called "experts.E.".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/json_field.h"

namespace coppice {

// Names, at most `limit`, that others of their kind imply: a tensor of one layer is expected in all
// num_hidden_layers, one of an expert in all n_routed_experts (or num_experts). Tensors of ".mlp."
// may be confined to the first_k_dense_replace leading layers, or to those after them.
std::vector<std::string> missing_tensors(const Checkpoint& checkpoint, const JsonField& config,
                                         std::size_t limit);

}  // namespace coppice
