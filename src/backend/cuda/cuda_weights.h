// Weights in the layouts of the CUDA kernels: dense matrices in bf16, routed experts as INT4 blobs.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>

#include "backend/cuda/staged_copy.h"
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

// Formats other than BF16 are dequantised on the host and rounded to bf16. Host memory may be
// reused at return; later work of the stream sees the matrix.
std::shared_ptr<const CudaMatrix> upload_matrix(std::span<const HostMatrix> parts,
                                                StagedCopy& staging);

// Routed experts in the checkpoint's layout, on the device: packed words [experts, rows, cols / 8]
// i32 and scales [experts, rows, cols / 32] bf16 of each matrix.
struct StagedExperts {
  struct Matrix {
    const void* packed = nullptr;
    const void* scales = nullptr;
  };
  Matrix gate, up, down;
  int num_experts = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
};

// Room for so many experts.
std::shared_ptr<CudaExperts> allocate_experts(int num_experts, int hidden_size,
                                              int intermediate_size, cudaStream_t stream);

// Enqueues the repacking of `staged` to experts first .. first + staged.num_experts - 1.
void repack_staged(const StagedExperts& staged, int first, CudaExperts& experts,
                   cudaStream_t stream);

// kInt4Group32 only; anything else throws Error(kUnsupported). Waits for the repack.
std::shared_ptr<const CudaExperts> upload_experts(std::span<const ExpertSource> sources,
                                                  StagedCopy& staging);

// The bytes must be as many as the experts need.
std::shared_ptr<const CudaExperts> upload_repacked(const RepackedExperts& repacked,
                                                   StagedCopy& staging);

}  // namespace coppice
