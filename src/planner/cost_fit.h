// The time of a kind of work, fitted to measured calls of it:
//
//   us = launches x (fixed + row x rows) + stream x (bytes / read rate)
//        + math x (flops / product rate)
//
// with no coefficient below zero and stream not below 1: nothing is faster than its bytes. What the
// fit leaves at the measured points stays as a factor, interpolated between them in rows and in
// cached positions, constant outside.
#pragma once

#include <map>
#include <vector>

namespace coppice {

// What the time depends on. Floors are those of the GPU in question.
struct CostFeatures {
  double launches = 0;
  double memory_us = 0;  // bytes at the read rate
  double math_us = 0;    // flops at the product rate
  double rows = 0;
  double context = 0;  // cached positions read, over all sequences

  double row_calls() const { return launches * rows; }
  CostFeatures& operator+=(const CostFeatures& other);
};

struct CostPoint {
  CostFeatures at;
  double us = 0;
};

class CostFit {
 public:
  // Relative least squares. At least one point.
  explicit CostFit(const std::vector<CostPoint>& points);

  struct Parts {
    double fixed_us = 0, memory_us = 0, math_us = 0;
    double us() const { return fixed_us + memory_us + math_us; }
  };
  // `launch_ratio`: latency of the GPU in question over that of the measured one.
  Parts predict(const CostFeatures& features, double launch_ratio = 1) const;

  double fixed_us() const { return fixed_; }  // of a launch
  double stream() const { return stream_; }
  double math() const { return math_; }

 private:
  struct Residual {
    double rows = 0, context = 0, factor = 1;
  };
  double residual(double rows, double context) const;
  Parts before_residual(const CostFeatures& at) const;

  double fixed_ = 0, stream_ = 0, math_ = 0, row_ = 0;
  std::vector<Residual> residuals_;
};

// Linear in log(1 + x) between points, constant outside them. At least one point.
double interpolate_log(const std::map<double, double>& points, double x);

}  // namespace coppice
