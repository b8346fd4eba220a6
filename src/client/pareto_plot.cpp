#include "client/pareto_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace coppice {
namespace {

constexpr double kWidth = 640, kHeight = 420, kLeft = 70, kBottom = 50, kTop = 20, kRight = 20;

std::string format(const char* pattern, double a, double b = 0) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, a, b);
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

// The next of 1, 2, 5 times a power of ten.
double round_up(double value) {
  if (!(value > 0)) return 1;
  const double decade = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0})
    if (decade * step >= value) return decade * step;
  return decade * 10;
}

struct Axes {
  double x_max = 1, y_max = 1;
  double x(double value) const { return kLeft + value / x_max * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - value / y_max * (kHeight - kBottom - kTop);
  }
};

std::string grid(const Axes& axes) {
  std::string svg;
  for (int i = 0; i <= 5; ++i) {
    const double x = axes.x_max * i / 5, y = axes.y_max * i / 5;
    svg += format("<path d='M%.1f 20V370' stroke='#ddd'/>", axes.x(x));
    svg += format("<path d='M70 %.1fH620' stroke='#ddd'/>", axes.y(y));
    svg += format("<text x='%.1f' y='388' text-anchor='middle'>%g</text>", axes.x(x), x);
    svg += format("<text x='64' y='%.1f' text-anchor='end'>%g</text>", axes.y(y) + 4, y);
  }
  return svg;
}

}  // namespace

std::vector<PlotPoint> pareto_front(std::vector<PlotPoint> points) {
  std::sort(points.begin(), points.end(), [](const PlotPoint& a, const PlotPoint& b) {
    return a.x != b.x ? a.x > b.x : a.y > b.y;
  });
  std::vector<PlotPoint> front;
  for (const PlotPoint& point : points)
    if (front.empty() || point.y > front.back().y) front.push_back(point);
  std::reverse(front.begin(), front.end());
  return front;
}

std::string pareto_svg(const std::vector<PlotPoint>& points, const std::string& x_title,
                       const std::string& y_title) {
  double x_max = 0, y_max = 0;
  for (const PlotPoint& point : points) {
    x_max = std::max(x_max, point.x);
    y_max = std::max(y_max, point.y);
  }
  const Axes axes{round_up(x_max), round_up(y_max)};
  std::string svg =
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 640 420' font-family='sans-serif' "
      "font-size='11'><rect width='640' height='420' fill='#fff'/>";
  svg += grid(axes);
  std::string line;
  for (const PlotPoint& point : pareto_front(points))
    line += (line.empty() ? "M" : "L") + format("%.1f %.1f", axes.x(point.x), axes.y(point.y));
  svg += "<path d='" + line + "' fill='none' stroke='#06c' stroke-width='2'/>";
  for (const PlotPoint& point : points) {
    svg +=
        format("<circle cx='%.1f' cy='%.1f' r='4' fill='#06c'/>", axes.x(point.x), axes.y(point.y));
    svg += format("<text x='%.1f' y='%.1f'>", axes.x(point.x) + 6, axes.y(point.y) - 5) +
           escaped(point.label) + "</text>";
  }
  svg += "<text x='345' y='410' text-anchor='middle'>" + escaped(x_title) + "</text>";
  svg += "<text transform='translate(14 195) rotate(-90)' text-anchor='middle'>" +
         escaped(y_title) + "</text></svg>\n";
  return svg;
}

}  // namespace coppice
