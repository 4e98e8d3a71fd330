// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

constexpr double kMargin = 24;
constexpr double kHead = 84;  // above the plotting area
constexpr double kFoot = 56;  // below it
constexpr double kLeft = 62;
constexpr double kRight = 48;
constexpr double kWidth = 340;  // of the plotting area
constexpr double kHeight = 230;

constexpr std::string_view kStyle = R"(
svg { background: #ffffff; }
text { font-family: ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; font-size: 11px; fill: #5d6873; }
.title { font-size: 15px; font-weight: 700; fill: #1c232b; }
.chart { font-size: 13px; font-weight: 600; fill: #1c232b; }
.value { fill: #1c232b; stroke: #ffffff; stroke-width: 3px; paint-order: stroke; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.grid { stroke: #e3e7eb; stroke-width: 1; }
.axis { stroke: #9aa5b0; stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.s0 { stroke: #1f6fb2; } .f0 { fill: #1f6fb2; }
.s1 { stroke: #d98324; } .f1 { fill: #b0650f; }
.s2 { stroke: #b8405e; } .f2 { fill: #b8405e; }
circle { stroke-width: 2; fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { background: #14181d; }
  text { fill: #9aa7b3; }
  .title, .chart, .value { fill: #e8ecf0; }
  .value { stroke: #14181d; }
  .grid { stroke: #262d35; }
  .axis { stroke: #56626e; }
  circle { fill: #14181d; }
  .s0 { stroke: #5aa9e6; } .f0 { fill: #5aa9e6; }
  .s1 { stroke: #f0a952; } .f1 { fill: #f0a952; }
  .s2 { stroke: #e87b95; } .f2 { fill: #e87b95; }
}
)";
constexpr size_t kColours = 3;

std::string Escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

std::string Text(double x, double y, std::string_view style, std::string_view text) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style, x, y,
                     Escaped(text));
}

std::string Line(double x0, double y0, double x1, double y1, std::string_view style) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style, x0,
      y0, x1, y1);
}

// "1.5k", "200", "0.05"
std::string Short(double value) {
  if (value >= 10'000) return fmt::format("{:.3g}k", value / 1000);
  return fmt::format("{:.{}f}", value, value >= 100 || value == std::floor(value) ? 0 : 1);
}

// 1, 2 or 5 times a power of ten, of which at most six make `most`.
double StepFor(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / 6)));
  for (double factor : {1., 2., 5., 10.}) {
    if (most / (factor * power) <= 6) return factor * power;
  }
  return 10 * power;
}

// Where values are on the y axis, and which are written there.
class Axis {
 public:
  explicit Axis(const LineChart& chart) : logarithmic_(chart.logarithmic) {
    double least = 1e300;
    double most = 0;
    for (const LineSeries& s : chart.series) {
      for (double v : s.values) {
        most = std::max(most, v);
        if (v > 0) least = std::min(least, v);
      }
    }
    if (most <= 0) most = least = 1;
    if (logarithmic_) {
      from_ = std::floor(std::log10(least));
      to_ = std::max(std::log10(most * 1.15), from_ + 1);
      const bool wide = to_ - from_ > 2;
      for (double power = from_; power <= to_; ++power) {
        for (double factor : {1., 2., 5.}) {
          const double tick = factor * std::pow(10, power);
          if ((factor == 1 || !wide) && std::log10(tick) <= to_) ticks_.push_back(tick);
        }
      }
    } else {
      const double step = StepFor(most);
      to_ = step * std::ceil(most / step * 1.04);
      for (int i = 0; i * step <= to_ * 1.001; ++i) ticks_.push_back(i * step);
    }
  }

  // 0 at the bottom, 1 at the top.
  double At(double value) const {
    if (!logarithmic_) return value / to_;
    return (std::log10(std::max(value, std::pow(10, from_))) - from_) / (to_ - from_);
  }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  bool logarithmic_;
  double from_ = 0;
  double to_ = 0;
  std::vector<double> ticks_;
};

std::string ChartText(const LineChart& chart, double left, double top) {
  const Axis axis(chart);
  const double bottom = top + kHeight;
  const auto x_of = [&](size_t i) {
    const auto n = static_cast<double>(chart.x.size());
    return left + kWidth * (static_cast<double>(i) + 0.5) / n;
  };
  const auto y_of = [&](double value) { return bottom - kHeight * axis.At(value); };
  std::string out = Text(left, top - 28, "chart", chart.title) +
                    Text(left, top - 12, "note", chart.y_label) +
                    Text(left + kWidth / 2, bottom + 40, "middle", chart.x_label);
  for (double tick : axis.ticks()) {
    out += Line(left, y_of(tick), left + kWidth, y_of(tick), "grid") +
           Text(left - 8, y_of(tick) + 4, "end", Short(tick));
  }
  out += Line(left, bottom, left + kWidth, bottom, "axis");
  for (size_t i = 0; i < chart.x.size(); ++i)
    out += Text(x_of(i), bottom + 18, "middle", Short(chart.x[i]));
  double label = 1e300;  // labels of ends keep a distance
  std::vector<size_t> order(chart.series.size());
  for (size_t s = 0; s < order.size(); ++s) order[s] = s;
  std::ranges::sort(order, {}, [&](size_t s) { return chart.series[s].values.back(); });
  for (size_t s : order) {
    const LineSeries& series = chart.series[s];
    SB_CHECK(series.values.size() == chart.x.size()) << chart.title;
    const size_t colour = s % kColours;
    std::string points;
    for (size_t i = 0; i < series.values.size(); ++i)
      points += fmt::format("{:.1f},{:.1f} ", x_of(i), y_of(series.values[i]));
    out += fmt::format("<polyline class=\"line s{}\" points=\"{}\"/>\n", colour, points);
    for (size_t i = 0; i < series.values.size(); ++i) {
      const double y = y_of(series.values[i]);
      out += fmt::format("<circle class=\"s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"/>\n", colour,
                         x_of(i), y);
      if (series.name.empty()) out += Text(x_of(i), y - 9, "value middle", Short(series.values[i]));
    }
    if (series.name.empty()) continue;
    label = std::min(label - 13, y_of(series.values.back()) + 4);
    out += Text(x_of(chart.x.size() - 1) + 10, label, fmt::format("f{}", colour), series.name);
  }
  return out;
}

}  // namespace

std::string LineChartsToSvg(const std::string& title, const std::vector<LineChart>& charts) {
  const double each = kLeft + kWidth + kRight;
  const double width = 2 * kMargin + each * static_cast<double>(charts.size());
  const double height = kHead + kHeight + kFoot;
  std::string body = Text(kMargin, 32, "title", title);
  for (size_t i = 0; i < charts.size(); ++i)
    body += ChartText(charts[i], kMargin + kLeft + each * static_cast<double>(i), kHead);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<style>{2}</style>\n{3}</svg>\n",
      width, height, kStyle, body);
}

}  // namespace signalbox
