// How much less than independently the rows of a step choose their experts.
#pragma once

#include <map>
#include <string>

namespace coppice {

class ExpertOverlap {
 public:
  ExpertOverlap() = default;  // rows choose independently
  explicit ExpertOverlap(double everywhere) : by_rows_{{1, everywhere}}, source_("given") {}

  // A number from 0 to 1, or a file that bench_expert_overlap wrote. Throws Error naming it.
  static ExpertOverlap parse(const std::string& text);

  // As in distinct_experts (backend/cost/op_cost.h).
  double at(double rows) const;
  bool is_none() const { return by_rows_.empty(); }
  const std::string& source() const { return source_; }

 private:
  std::map<double, double> by_rows_;
  std::string source_;
};

}  // namespace coppice
