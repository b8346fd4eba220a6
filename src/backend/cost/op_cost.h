// What one op of a step asks of a GPU: bytes by where they live, arithmetic, link traffic, kernels.
#pragma once

#include <cstdint>
#include <vector>

namespace coppice {

// What a planner treats alike: one efficiency for each.
enum class CostKind : std::uint8_t {
  kDense,       // projections: weights stream past few rows
  kExperts,     // routed experts
  kAttention,   // reads of the cache
  kRows,        // norms, rotations, activations, gathers: bound by launch and latency
  kVocab,       // top-k, sampling: rows of logits
  kTree,        // building and compiling trees
  kCommit,      // accepting paths, moving keys
  kCollective,  // over the links
};

struct OpCost {
  const char* op = "";  // its name in backend.h
  CostKind kind = CostKind::kRows;
  // The shape: rows of the step, and for products out_features x in_features of the weight.
  std::int64_t rows = 0;  // trees: nodes of one; commit: sequences
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::int64_t heads = 0;      // attention, head_linear
  std::int64_t sequences = 0;  // attention, trees
  double live_rows = 0;        // attention: rows that are not padding
  double context = 0;  // attention: cached positions read, over all sequences; trees: sequences

  double weight_bytes = 0;      // read once, from memory
  double kv_bytes = 0;          // cache read and written, each position once a sequence
  double activation_bytes = 0;  // read and written; small steps keep them in the L2 cache
  double flops = 0;
  double packed_weights = 0;    // INT4 weights among the bytes
  double unit_weights = 0;      // the same, counted for every unit of rows that converts them
  double column_weights = 0;    // the same, counted for every eight rows of a unit
  double distinct_experts = 0;  // of moe_experts
  double message_bytes = 0;     // of one rank's part in a collective
  double serial_steps = 0;      // one after the other: nodes of a tree being built
  std::int32_t launches = 1;    // kernels; 0: done by the launch of another op
  bool in_moe_block = false;    // of Backend::moe_block
  bool in_mla_queries = false;  // of Backend::mla_queries
};

// Of a list of ops.
struct CostTotals {
  double weight_bytes = 0, kv_bytes = 0, activation_bytes = 0, flops = 0, message_bytes = 0;
  std::int64_t launches = 0;

  void add(const OpCost& cost) {
    weight_bytes += cost.weight_bytes;
    kv_bytes += cost.kv_bytes;
    activation_bytes += cost.activation_bytes;
    flops += cost.flops;
    message_bytes += cost.message_bytes;
    launches += cost.launches;
  }
};

// How many of `num_experts` any of `rows` rows chooses, top_k each. Independent uniform choices:
// E (1 - (1 - k/E)^rows). `overlap` in [0, 1] is the measured share of the growth past one row that
// does not happen, because rows of one text choose alike: k + (uniform - k) (1 - overlap).
double distinct_experts(std::int64_t num_experts, std::int64_t top_k, double rows, double overlap);

// How many experts have 1 to 8 rows, 9 to 16 rows and so on: independent choices among so many
// experts that distinct_experts() of them are chosen. Their sum is that number.
std::vector<double> expert_loads(std::int64_t num_experts, std::int64_t top_k, std::int64_t rows,
                                 double overlap);

}  // namespace coppice
