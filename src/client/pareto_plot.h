// A scatter plot with its Pareto front, as SVG text without scripts.
#pragma once

#include <string>
#include <vector>

namespace coppice {

struct PlotPoint {
  double x = 0, y = 0;  // more is better in both
  std::string label;
};

// Those that no other beats in both, by ascending x.
std::vector<PlotPoint> pareto_front(std::vector<PlotPoint> points);
std::string pareto_svg(const std::vector<PlotPoint>& points, const std::string& x_title,
                       const std::string& y_title);

}  // namespace coppice
