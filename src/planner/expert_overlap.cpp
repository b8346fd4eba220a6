#include "planner/expert_overlap.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "io/json_field.h"
#include "planner/cost_fit.h"
#include "planner/measured_field.h"

namespace coppice {

ExpertOverlap ExpertOverlap::parse(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0') {
    if (!(number >= 0 && number <= 1))
      throw Error(ErrorKind::kInvalidArgument, "--expert-overlap " + text + ": 0 to 1");
    return number > 0 ? ExpertOverlap(number) : ExpertOverlap();
  }
  constexpr double kMostRows = 1 << 20;
  const Json document = read_json_file(text);
  const JsonField root(document, text);
  if (root.get<std::string>("schema") != "coppice-expert-overlap-1")
    root.at("schema").fail("is not coppice-expert-overlap-1 (bench_expert_overlap)");
  ExpertOverlap overlap;
  for (const JsonField& point : root.at("points").elements())
    overlap.by_rows_.emplace(read_between(point.at("rows"), 1, kMostRows),
                             std::clamp(point.get<double>("overlap"), 0.0, 1.0));
  if (overlap.by_rows_.empty()) root.at("points").fail("is empty");
  overlap.source_ = "measured on " + root.get<std::string>("model");
  return overlap;
}

double ExpertOverlap::at(double rows) const {
  return by_rows_.empty() ? 0 : interpolate_log(by_rows_, rows);
}

}  // namespace coppice
