#include "kernels/common/launch.h"
#include "kernels/tree/compile_tree.cuh"

namespace coppice::kernels {

cudaError_t compile_tree(const CompileTreeParams& params, cudaStream_t stream) {
  constexpr size_t kSharedLimit = 200 * 1024;
  const CompileTreeConfig config =
      choose_compile_tree(params.num_seqs, params.trees.max_nodes, params.max_path);
  const bool legal = params.num_seqs >= 0 && params.num_seqs <= kCompileThreads &&
                     params.num_buckets >= 0 && params.num_buckets <= 32 && params.max_path >= 1 &&
                     params.max_path <= 32 && params.num_rows >= 0 && params.trees.max_nodes >= 1 &&
                     config.shared_bytes <= kSharedLimit;
  if (!legal) return cudaErrorInvalidValue;
  const cudaError_t status = cudaFuncSetAttribute(
      config.single ? compile_single_kernel : compile_batch_kernel,
      cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(config.shared_bytes));
  if (status != cudaSuccess) return status;
  if (config.single) {
    return launch_dependent(compile_single_kernel, dim3(1), kSingleThreads, config.shared_bytes,
                            stream, params);
  }
  const int blocks = params.num_seqs > 0 ? params.num_seqs : 1;
  return launch_dependent(compile_batch_kernel, dim3(static_cast<unsigned>(blocks)),
                          kCompileThreads, config.shared_bytes, stream, params);
}

}  // namespace coppice::kernels
