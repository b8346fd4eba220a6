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
  if (config.single) {
    return launch_dependent(compile_single_kernel, dim3(1), dim3(kSingleThreads),
                            config.shared_bytes, params, stream);
  }
  const int blocks = params.num_seqs > 0 ? params.num_seqs : 1;
  return launch_dependent(compile_batch_kernel, dim3(static_cast<unsigned>(blocks)),
                          dim3(kCompileThreads), config.shared_bytes, params, stream);
}

}  // namespace coppice::kernels
