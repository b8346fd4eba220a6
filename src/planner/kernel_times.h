// How long an op takes on a GPU, from measured kernels: of its own shape where three or more calls
// of that were measured, else of all shapes of the op (cost_fit.h). On another GPU than the
// measured one the fixed part stays but for the cost of a launch; bytes and flops go at that GPU's
// rates. Collectives follow the GPU's all-reduce model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/cost_fit.h"
#include "planner/device_spec.h"
#include "planner/kernel_shape.h"

namespace coppice {

enum class Limit : std::uint8_t { kFixed, kMemory, kMath, kLink };
const char* name_of(Limit limit);

struct OpTime {
  double fixed_us = 0, memory_us = 0, math_us = 0, link_us = 0;
  double us() const { return fixed_us + memory_us + math_us + link_us; }
  Limit limit() const;
  OpTime& operator+=(const OpTime& other);
};

// Launches, the least times for bytes and flops on a GPU, and where in the curves an op lies. Rows
// that fit half of the L2 cache are found there, at a multiple of the memory's rate.
CostFeatures features_of(const OpCost& cost, const DeviceSpec& device);

class KernelTimes {
 public:
  // `measured` on `device`. `source` says where the numbers are from.
  KernelTimes(std::vector<MeasuredKernel> measured, const DeviceSpec& device, std::string source);

  // Shipped: kernels measured on one H200 (docs/results).
  static const KernelTimes& shipped();
  // A file that `coppice bench kernels --json` wrote (docs/bench.md). Its read rate, product rate
  // and launch replace the data sheet's. Throws Error naming the file.
  static KernelTimes from_file(const std::string& path);

  OpTime time(const OpCost& cost, const DeviceSpec& device, std::int64_t num_ranks) const;

  const DeviceSpec& device() const { return device_; }
  const std::string& source() const { return source_; }
  const std::vector<MeasuredKernel>& measured() const { return measured_; }

 private:
  const CostFit* find(const OpCost& cost) const;

  std::vector<MeasuredKernel> measured_;
  DeviceSpec device_;
  std::string source_;
  std::map<std::string, CostFit> by_shape_, by_op_;
};

}  // namespace coppice
