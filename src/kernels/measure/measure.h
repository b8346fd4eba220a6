// Device side of benchmarks: random contents (base/random_values.h) and a read-only stream. Every
// function enqueues on `stream` and returns the launch's status; capturable.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace coppice::kernels {

// Element i becomes random_uniform(seed, i, amplitude).
cudaError_t fill_uniform(void* to, bool is_bf16, size_t count, uint64_t seed, float amplitude,
                         cudaStream_t stream);

// Element i becomes random_bell(seed, i, deviation).
cudaError_t fill_bell(void* to, bool is_bf16, size_t count, uint64_t seed, float deviation,
                      cudaStream_t stream);

// Word i becomes random_nibbles(seed, first + i).
cudaError_t fill_nibbles(uint32_t* to, size_t count, uint64_t seed, size_t first,
                         cudaStream_t stream);

// bf16 scale i becomes random_scale(seed, first + i, typical).
cudaError_t fill_scales(void* to, size_t count, uint64_t seed, size_t first, float typical,
                        cudaStream_t stream);

// Reads `num_bytes` (a multiple of kReadChunk) once, as fast as the device can; `never` is written
// only if the data is what it never is.
inline constexpr size_t kReadChunk = 32768;
cudaError_t read_stream(const void* from, size_t num_bytes, uint32_t* never, cudaStream_t stream);

// A kernel that depends on the one before it and does nothing.
cudaError_t empty_node(cudaStream_t stream);

}  // namespace coppice::kernels
