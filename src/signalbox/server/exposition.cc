// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/exposition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace signalbox {
namespace {

// A label's value may hold anything but these three, and help texts may hold quotes.
std::string Escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
  return out;
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string LabelsText(const MetricLabels& labels) {
  std::string text;
  for (const MetricLabel& label : labels) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}=\"{}\"", label.name, Escaped(label.value, /*quotes=*/true));
  }
  return text;
}

}  // namespace

std::string_view ToString(MetricType type) {
  static constexpr std::string_view kNames[] = {"counter", "gauge", "histogram"};
  return kNames[static_cast<size_t>(type)];
}

void Histogram::Add(double value, int64_t times) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())] += times;
  sum_ += value * static_cast<double>(times);
}

Exposition::Exposition(const MetricLabels& common) : common_(LabelsText(common)) {}

void Exposition::Family(std::string_view name, MetricType type, std::string_view help) {
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name,
                 Escaped(help, /*quotes=*/false), name, ToString(type));
}

void Exposition::Sample(std::string_view name, const MetricLabels& labels, double value) {
  const std::string own = LabelsText(labels);
  const std::string_view comma = common_.empty() || own.empty() ? "" : ",";
  fmt::format_to(std::back_inserter(text_), "{}{{{}{}{}}} {}\n", name, common_, comma, own,
                 NumberText(value));
}

void Exposition::Samples(std::string_view name, const MetricLabels& labels,
                         const Histogram& histogram) {
  MetricLabels with_bound = labels;
  with_bound.push_back({"le", ""});
  int64_t so_far = 0;
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    so_far += histogram.counts()[i];
    with_bound.back().value =
        i < histogram.bounds().size() ? NumberText(histogram.bounds()[i]) : "+Inf";
    Sample(fmt::format("{}_bucket", name), with_bound, static_cast<double>(so_far));
  }
  Sample(fmt::format("{}_sum", name), labels, histogram.sum());
  Sample(fmt::format("{}_count", name), labels, static_cast<double>(so_far));
}

}  // namespace signalbox
