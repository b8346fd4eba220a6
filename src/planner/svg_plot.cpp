#include "planner/svg_plot.h"

#include <algorithm>
#include <cmath>

#include "planner/print.h"

namespace coppice {
namespace {

constexpr double kWidth = 860, kHeight = 380;
constexpr double kLeft = 64, kRight = 172, kTop = 14, kBottom = 46;
// Okabe and Ito's palette, told apart by most eyes, and two greys.
constexpr const char* kColors[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                   "#E69F00", "#56B4E9", "#6b6b6b", "#8A6FBF",
                                   "#A3A31A", "#7A4B2A", "#2F4B7C", "#B0B0B0"};

std::string color_of(int index) {
  return kColors[static_cast<std::size_t>(index) % std::size(kColors)];
}

std::string tick_text(double value) {
  if (value >= 1e6) return print("%gM", value / 1e6);
  if (value >= 1e4) return print("%gk", value / 1e3);
  return print("%g", value);
}

// 1, 2 or 5 times a power of ten.
double nice_step(double span, double count) {
  const double raw = span / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) return factor * power;
  return 10 * power;
}

// One axis: data to a place in [0, 1].
struct Scale {
  double low = 0, high = 1;
  bool log = false;
  std::vector<double> ticks;

  double place(double value) const {
    if (log) return std::log(value / low) / std::log(high / low);
    return (value - low) / (high - low);
  }
};

Scale make_scale(double low, double high, bool log, bool from_zero,
                 const std::vector<double>& ticks) {
  Scale scale{.low = low, .high = high, .log = log, .ticks = ticks};
  if (log) {
    if (high <= low) scale.high = low * 2;
    if (!ticks.empty()) return scale;
    for (double power = std::pow(10, std::floor(std::log10(low))); power <= scale.high; power *= 10)
      for (const double factor : {1.0, 2.0, 5.0})
        if (factor * power >= low * 0.999 && factor * power <= scale.high * 1.001)
          scale.ticks.push_back(factor * power);
    return scale;
  }
  if (from_zero) scale.low = 0;
  if (scale.high <= scale.low) scale.high = scale.low + 1;
  const double step = nice_step(scale.high - scale.low, 6);
  if (from_zero) scale.high = std::ceil(scale.high / step) * step;
  if (ticks.empty())
    for (double tick = std::ceil(scale.low / step) * step; tick <= scale.high * 1.0001;
         tick += step)
      scale.ticks.push_back(tick);
  return scale;
}

class Figure {
 public:
  Figure(const Axes& axes, Scale x, Scale y) : axes_(axes), x_(std::move(x)), y_(std::move(y)) {
    out_ = print("<svg viewBox='0 0 %g %g' role='img' xmlns='http://www.w3.org/2000/svg'>\n",
                 kWidth, kHeight);
    draw_axes();
  }

  double at_x(double value) const { return kLeft + x_.place(value) * (kWidth - kLeft - kRight); }
  double at_y(double value) const {
    return kHeight - kBottom - y_.place(value) * (kHeight - kTop - kBottom);
  }
  void add(const std::string& text) { out_ += text; }
  // A name right of the plot, at a height where it meets no other.
  void add_name(double value, const std::string& name, const std::string& color) {
    names_.push_back({at_y(value), name, color});
  }
  std::string finish() {
    draw_names();
    return out_ + "</svg>\n";
  }

 private:
  struct Name {
    double y;
    std::string text, color;
  };

  void draw_axes() {
    const double right = kWidth - kRight, bottom = kHeight - kBottom;
    for (const double tick : y_.ticks) {
      const double y = at_y(tick);
      out_ += print(
          "<line x1='%g' y1='%.1f' x2='%g' y2='%.1f' class='grid'/>"
          "<text x='%g' y='%.1f' class='tick' text-anchor='end'>%s</text>\n",
          kLeft, y, right, y, kLeft - 8, y + 4, tick_text(tick).c_str());
    }
    for (const double tick : x_.ticks) {
      const double x = at_x(tick);
      out_ += print(
          "<line x1='%.1f' y1='%g' x2='%.1f' y2='%g' class='axis'/>"
          "<text x='%.1f' y='%g' class='tick' text-anchor='middle'>%s</text>\n",
          x, bottom, x, bottom + 4, x, bottom + 18, tick_text(tick).c_str());
    }
    out_ += print("<line x1='%g' y1='%g' x2='%g' y2='%g' class='axis'/>\n", kLeft, bottom, right,
                  bottom);
    out_ += print("<text x='%g' y='%g' class='label' text-anchor='middle'>%s</text>\n",
                  (kLeft + right) / 2, kHeight - 8, escape_html(axes_.x_label).c_str());
    out_ += print(
        "<text transform='translate(14 %g) rotate(-90)' class='label' text-anchor='middle'>%s"
        "</text>\n",
        (kTop + bottom) / 2, escape_html(axes_.y_label).c_str());
  }

  void draw_names() {
    std::ranges::stable_sort(names_, {}, &Name::y);
    constexpr double kLine = 15;
    double lowest = kTop;
    for (Name& name : names_) {
      name.y = std::max(name.y, lowest);
      lowest = name.y + kLine;
    }
    // Where the last ones fell off the bottom, all move up.
    const double bottom = kHeight - kBottom + 4;
    double highest = bottom;
    for (std::size_t i = names_.size(); i-- > 0;) {
      names_[i].y = std::min(names_[i].y, highest);
      highest = names_[i].y - kLine;
    }
    for (const Name& name : names_)
      out_ +=
          print("<text x='%g' y='%.1f' class='name' fill='%s'>%s</text>\n", kWidth - kRight + 10,
                name.y + 4, name.color.c_str(), escape_html(name.text).c_str());
  }

  const Axes& axes_;
  Scale x_, y_;
  std::string out_;
  std::vector<Name> names_;
};

struct Range {
  double low = 1e300, high = -1e300;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

Figure make_figure(const Axes& axes, const Range& x, const Range& y) {
  return {axes, make_scale(x.low, x.high, axes.log_x, false, axes.x_ticks),
          make_scale(y.low, y.high, axes.log_y, axes.from_zero, {})};
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string line_plot(const Axes& axes, const std::vector<Series>& series) {
  Range x, y;
  for (const Series& line : series)
    for (const auto& [px, py] : line.points) {
      x.add(px);
      y.add(py);
    }
  if (x.high < x.low) return "";
  Figure figure = make_figure(axes, x, y);
  for (std::size_t i = 0; i < series.size(); ++i) {
    const Series& line = series[i];
    if (line.points.empty()) continue;
    const std::string color = color_of(line.color < 0 ? static_cast<int>(i) : line.color);
    std::string path, marks;
    for (std::size_t p = 0; p < line.points.size(); ++p) {
      const double px = figure.at_x(line.points[p].first), py = figure.at_y(line.points[p].second);
      path += print("%s%.1f %.1f ", p == 0 ? "M" : "L", px, py);
      marks += print("<circle cx='%.1f' cy='%.1f' r='2.6' fill='%s'/>", px, py, color.c_str());
      if (line.highlight == static_cast<int>(p))
        marks += print(
            "<circle cx='%.1f' cy='%.1f' r='6' fill='none' stroke='%s' "
            "stroke-width='1.6'/>",
            px, py, color.c_str());
    }
    figure.add(print("<path d='%s' fill='none' stroke='%s' stroke-width='2'%s/>%s\n", path.c_str(),
                     color.c_str(), line.dashed ? " stroke-dasharray='6 4'" : "", marks.c_str()));
    figure.add_name(line.points.back().second, line.name, color);
  }
  return figure.finish();
}

std::string stacked_areas(const Axes& axes, const std::vector<Series>& series) {
  if (series.empty() || series[0].points.empty()) return "";
  const std::size_t count = series[0].points.size();
  std::vector<double> sums(count);
  Range x, y;
  for (const Series& area : series)
    for (std::size_t p = 0; p < count; ++p) sums[p] += area.points[p].second;
  for (std::size_t p = 0; p < count; ++p) {
    x.add(series[0].points[p].first);
    y.add(sums[p]);
  }
  Figure figure = make_figure(axes, x, y);
  std::vector<double> below(count);
  for (std::size_t i = 0; i < series.size(); ++i) {
    const Series& area = series[i];
    const std::string color = color_of(area.color < 0 ? static_cast<int>(i) : area.color);
    std::string upper, lower;
    double middle = 0;
    for (std::size_t p = 0; p < count; ++p) {
      const double px = figure.at_x(area.points[p].first);
      lower = print("L%.1f %.1f ", px, figure.at_y(below[p])) + lower;
      middle = below[p] + area.points[p].second / 2;
      below[p] += area.points[p].second;
      upper += print("%s%.1f %.1f ", p == 0 ? "M" : "L", px, figure.at_y(below[p]));
    }
    figure.add(
        print("<path d='%s%sZ' fill='%s' fill-opacity='0.82' stroke='#fff' "
              "stroke-width='0.8'/>\n",
              upper.c_str(), lower.c_str(), color.c_str()));
    figure.add_name(middle, area.name, color);
  }
  return figure.finish();
}

std::string stacked_bars(const std::string& x_label, const std::vector<std::string>& part_names,
                         const std::vector<Bar>& bars) {
  constexpr double kNames = 190, kNotes = 150, kRow = 28, kLegendRow = 18;
  constexpr std::size_t kLegendColumns = 6;
  double most = 0;
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const double part : bar.parts) sum += part;
    most = std::max(most, sum);
  }
  Scale scale = make_scale(0, most, false, true, {});
  // Shares end where they are whole.
  if (std::abs(most - 100) < 0.5) scale = make_scale(0, 100, false, true, {0, 20, 40, 60, 80, 100});
  if (std::abs(most - 100) < 0.5) scale.high = 100;
  const double legend =
      kLegendRow * std::ceil(static_cast<double>(part_names.size()) / kLegendColumns);
  const double bottom = legend + 10 + kRow * static_cast<double>(bars.size());
  const auto at = [&](double value) {
    return kNames + scale.place(value) * (kWidth - kNames - kNotes);
  };
  std::string out = print(
      "<svg viewBox='0 0 %g %.0f' role='img' "
      "xmlns='http://www.w3.org/2000/svg'>\n",
      kWidth, bottom + 42);
  for (std::size_t i = 0; i < part_names.size(); ++i) {
    const double x = 8 + static_cast<double>(i % kLegendColumns) * 140;
    const double y = 12 + kLegendRow * std::floor(static_cast<double>(i) / kLegendColumns);
    out += print(
        "<rect x='%g' y='%.0f' width='11' height='11' fill='%s'/>"
        "<text x='%g' y='%.0f' class='tick'>%s</text>\n",
        x, y - 10, color_of(static_cast<int>(i)).c_str(), x + 16, y,
        escape_html(part_names[i]).c_str());
  }
  for (const double tick : scale.ticks)
    out += print(
        "<line x1='%.1f' y1='%.0f' x2='%.1f' y2='%.0f' class='grid'/>"
        "<text x='%.1f' y='%.0f' class='tick' text-anchor='middle'>%s</text>\n",
        at(tick), legend + 6, at(tick), bottom, at(tick), bottom + 16, tick_text(tick).c_str());
  for (std::size_t b = 0; b < bars.size(); ++b) {
    const double y = legend + 12 + kRow * static_cast<double>(b);
    out += print("<text x='%g' y='%.0f' class='tick' text-anchor='end'>%s</text>\n", kNames - 8,
                 y + 14, escape_html(bars[b].name).c_str());
    double sum = 0;
    for (std::size_t i = 0; i < bars[b].parts.size(); ++i) {
      const double part = bars[b].parts[i];
      if (part > 0)
        out += print("<rect x='%.1f' y='%.0f' width='%.2f' height='20' fill='%s'/>", at(sum), y,
                     at(sum + part) - at(sum), color_of(static_cast<int>(i)).c_str());
      sum += part;
    }
    out += print("<text x='%.1f' y='%.0f' class='tick'>%s</text>\n", at(sum) + 6, y + 14,
                 escape_html(bars[b].note).c_str());
  }
  out += print("<text x='%g' y='%.0f' class='label' text-anchor='middle'>%s</text>\n",
               (kNames + kWidth - kNotes) / 2, bottom + 36, escape_html(x_label).c_str());
  return out + "</svg>\n";
}

}  // namespace coppice
