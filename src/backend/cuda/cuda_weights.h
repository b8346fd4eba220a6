// Weights in the layouts of the CUDA kernels: dense matrices in bf16, routed experts as INT4 blobs.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>

#include "backend/op_args.h"
#include "tensor/buffer.h"

namespace coppice {

struct CudaMatrix {
  Buffer data;  // [out_features, in_features] bf16
};

struct CudaExperts {
  Buffer w13;  // blob of gate and up (kernels/moe/expert_blob.h)
  Buffer w2;   // blob of down
};

// Formats other than BF16 are dequantised on the host and rounded to bf16. Waits for the copy.
std::shared_ptr<const CudaMatrix> upload_matrix(std::span<const HostMatrix> parts,
                                                cudaStream_t stream);

// kInt4Group32 only; anything else throws Error(kUnsupported). Waits for the repack.
std::shared_ptr<const CudaExperts> upload_experts(std::span<const ExpertSource> sources,
                                                  cudaStream_t stream);

}  // namespace coppice
