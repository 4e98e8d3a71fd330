// SPDX-License-Identifier: Apache-2.0
//
// Line charts as one SVG picture, side by side, in colours for light and dark paper. The x axis has
// a place for each measured value, evenly spaced; the y axis begins at 0, or is logarithmic.
//
//   LineChartsToSvg("tiny at 8 threads", {{.title = "Throughput", .x_label = "requests",
//       .y_label = "tok/s", .x = {1, 8}, .series = {{"", {110, 600}}}}});
#pragma once

#include <string>
#include <vector>

namespace signalbox {

struct LineSeries {
  std::string name;            // written at its end; empty: the values are written at its points
  std::vector<double> values;  // one for each x
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<double> x;
  std::vector<LineSeries> series;
  bool logarithmic = false;  // of values above 0
};

// REQUIRES: every series has a value for each x.
std::string LineChartsToSvg(const std::string& title, const std::vector<LineChart>& charts);

}  // namespace signalbox
