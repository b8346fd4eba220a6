// Draft trees of a batch in device memory. Node 0 is the root (the anchor token); nodes 1 ..
// counts[b] follow in pop order, so a parent precedes its children and any prefix is a legal tree.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace coppice::kernels {

struct TreeArrays {
  int32_t* tokens = nullptr;   // [num_seqs, max_nodes + 1]
  int32_t* parents = nullptr;  // [num_seqs, max_nodes + 1]; -1 for the root
  int32_t* depths = nullptr;   // [num_seqs, max_nodes + 1]; 0 for the root
  float* scores = nullptr;     // [num_seqs, max_nodes + 1]: joint log-probability; 0 for the root
  int32_t* counts = nullptr;   // [num_seqs]: nodes without the root; -1 marks an empty batch place
  int max_nodes = 0;
};

}  // namespace coppice::kernels
