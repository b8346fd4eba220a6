#include "kernels/common/launch.h"
#include "kernels/tree/build_tree.cuh"
#include "kernels/tree/build_tree_rounds.cuh"

namespace coppice::kernels {
namespace {

void (*build_tree_instance(const BuildTreeConfig& config))(BuildTreeParams) {
  if (!config.by_rounds) return build_tree_kernel<1>;
  switch (config.slots) {
    case 1:
    case 2:
      return build_tree_rounds_kernel<2>;
    case 4:
      return build_tree_rounds_kernel<4>;
    case 8:
      return build_tree_rounds_kernel<8>;
    default:
      return build_tree_rounds_kernel<16>;
  }
}

}  // namespace

cudaError_t build_tree(const BuildTreeParams& params, cudaStream_t stream) {
  const BuildTreeConfig config = choose_build_tree(params.depth, params.k, params.trees.max_nodes);
  const bool legal = params.depth >= 1 && params.depth <= 16 && params.k >= 1 && params.k <= 64 &&
                     params.trees.max_nodes >= 1 && config.slots != 0 && params.num_seqs >= 0;
  if (!legal) return cudaErrorInvalidValue;
  if (params.num_seqs == 0) return cudaSuccess;
  return launch_dependent(build_tree_instance(config), dim3(static_cast<unsigned>(params.num_seqs)),
                          config.by_rounds ? kRoundsThreads : kBuildTreeThreads,
                          config.shared_bytes, stream, params);
}

}  // namespace coppice::kernels
