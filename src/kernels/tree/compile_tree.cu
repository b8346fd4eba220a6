#include "kernels/common/launch.h"
#include "kernels/tree/compile_tree.cuh"

namespace coppice::kernels {
namespace {

void (*compile_instance(const CompileTreeConfig& config))(CompileTreeParams) {
  if (config.single) {
    return config.threads == 128 ? compile_single_kernel<128> : compile_single_kernel<512>;
  }
  return config.threads == 512 ? compile_batch_kernel<512> : compile_batch_kernel<1024>;
}

}  // namespace

cudaError_t compile_tree(const CompileTreeParams& params, cudaStream_t stream) {
  constexpr size_t kSharedLimit = 200 * 1024;
  const CompileTreeConfig config = choose_compile_tree(params.num_seqs, params.trees.max_nodes);
  const bool legal = params.num_seqs >= 0 && params.num_seqs <= kMaxCompileSeqs &&
                     params.num_buckets >= 0 && params.num_buckets <= 32 && params.max_path >= 1 &&
                     params.max_path <= 32 && params.num_rows >= 0 && params.trees.max_nodes >= 1 &&
                     config.shared_bytes <= kSharedLimit;
  if (!legal) return cudaErrorInvalidValue;
  auto* kernel = compile_instance(config);
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(config.shared_bytes));
  if (status != cudaSuccess) return status;
  const int blocks = params.num_seqs > 0 ? params.num_seqs : 1;
  return launch_dependent(kernel, dim3(static_cast<unsigned>(blocks)), config.threads,
                          config.shared_bytes, stream, params);
}

}  // namespace coppice::kernels
