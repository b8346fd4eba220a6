// The time of a kind of work, fitted to measured calls of it:
//
//   us = launches x fixed + row x spread + merge x merges + stream x memory + step x steps
//        + node x serial + arithmetic
//
// with no coefficient below zero, stream and node not below 1: nothing is faster than its bytes.
// What the fit leaves at the measured points stays as a factor, interpolated between them in rows
// and in cached positions, constant outside.
#pragma once

#include <map>
#include <vector>

namespace coppice {

// What the time depends on. Floors are those of the GPU in question.
struct CostFeatures {
  double launches = 0;
  double spread = 0;     // multiprocessors that take part in row by row work, over the launches
  double merges = 0;     // partial results of attention, one after the other
  double memory_us = 0;  // bytes at the read rate
  double steps_us = 0;   // the longest chain of a multiprocessor that waits for its own results
  double math_us = 0;    // arithmetic beyond that, at the product rate
  double serial_us = 0;  // nodes of a tree, one after the other
  // Where on the curves of what is left.
  double rows = 0;
  double context = 0;  // cached positions read, over all sequences
  int form = 0;        // what is left is not interpolated between kernels of another form

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
  double serial() const { return serial_; }

 private:
  struct Residual {
    double rows = 0, context = 0, factor = 1;
    int form = 0;
  };
  double residual(const CostFeatures& at) const;
  Parts before_residual(const CostFeatures& at) const;

  static constexpr double kLeastStream = 1;
  double fixed_ = 0, row_ = 0, merge_ = 0, stream_ = kLeastStream, step_ = 0, serial_ = 1;
  std::vector<Residual> residuals_;
};

// Linear in log(1 + x) between points, constant outside them. At least one point.
double interpolate_log(const std::map<double, double>& points, double x);

}  // namespace coppice
