// Figures as SVG text, for reports that open without a network.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace coppice {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x
  bool dashed = false;
  int color = -1;      // of the palette; negative: the series' own place
  int highlight = -1;  // index of the point that gets a ring
};

struct Axes {
  std::string x_label, y_label;
  bool log_x = false, log_y = false;
  bool from_zero = true;             // y starts at 0 (linear axes)
  std::vector<double> x_ticks = {};  // empty: chosen
};

// Lines with a marker at each point, named at their ends.
std::string line_plot(const Axes& axes, const std::vector<Series>& series);

// Areas one on the other; all series have the same x.
std::string stacked_areas(const Axes& axes, const std::vector<Series>& series);

struct Bar {
  std::string name;
  std::vector<double> parts;  // one for each of the names
  std::string note;           // behind the bar
};
// Horizontal bars of parts, with a legend.
std::string stacked_bars(const std::string& x_label, const std::vector<std::string>& part_names,
                         const std::vector<Bar>& bars);

// For text and attributes of HTML and SVG.
std::string escape_html(const std::string& text);

}  // namespace coppice
