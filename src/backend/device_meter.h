// What benchmarks ask of a device beyond the op table: time stamps, random contents that need no
// upload, and how fast it reads. Works on the stream of the backend it was made for, which must
// outlive it. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"

namespace coppice {

struct DeviceFacts {
  std::string name;              // "NVIDIA H200"
  std::int64_t num_units = 0;    // multiprocessors, or threads
  std::int64_t cache_bytes = 0;  // the last cache before memory
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;  // of it now
};

class DeviceMeter {
 public:
  virtual ~DeviceMeter() = default;

  virtual DeviceFacts facts() const = 0;

  // Puts stamp `index` (0 to 63) behind everything enqueued so far.
  virtual void stamp(int index) = 0;
  // Microseconds of the device between two stamps; waits for the second.
  virtual double microseconds(int from, int to) = 0;

  // Element i of a dense bf16 or f32 tensor becomes random_uniform(seed, i, amplitude).
  virtual void fill(const Tensor& dst, std::uint64_t seed, float amplitude) = 0;

  // The same with random_bell.
  virtual void fill_bell(const Tensor& dst, std::uint64_t seed, float deviation) = 0;

  // bf16 [rows, cols] of random_uniform(seed, i, amplitude).
  virtual LinearWeight random_linear(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                                     float amplitude) = 0;
  // INT4 group 32. Matrix m (0 gate, 1 up, 2 down) of all experts is one stream: nibbles
  // random_nibbles(seed + 2m), scales random_scale(seed + 2m + 1, i, expert_scale(cols)).
  virtual ExpertWeights random_experts(std::int64_t num_experts, std::int64_t hidden_size,
                                       std::int64_t intermediate_size, std::uint64_t seed) = 0;

  // Kernels and copies that body enqueues, found by recording it; nothing runs. 0 where ops run at
  // once.
  virtual std::int64_t count_launches(const std::function<void()>& body) = 0;

  // Reads `src` once and drops it: what a perfect kernel would cost.
  virtual void read(const Tensor& src) = 0;
  // The least a dependent step can be; nothing where ops run at once.
  virtual void empty_step() = 0;
};

// Keeps the size of activations: 1 / (standard deviation of the integers * sqrt(cols)).
float expert_scale(std::int64_t cols);

}  // namespace coppice
