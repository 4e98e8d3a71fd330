// SPDX-License-Identifier: Apache-2.0
//
// Exposition: metrics as text in the format that Prometheus scrapes (version 0.0.4). It escapes
// what has to be, and knows nothing of what is measured.
//
//   Exposition out(MetricLabels{{"model_name", "tiny"}});
//   out.Family("signalbox_steps_total", MetricType::kCounter, "Steps of the engine.");
//   out.Sample("signalbox_steps_total", {}, 12);
//   HttpResponse{.content_type = Exposition::kContentType, .body = out.text()};
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace signalbox {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };
std::string_view ToString(MetricType type);

// How often a value was at most each bound.
class Histogram {
 public:
  // Ascending.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

  void Add(double value, int64_t times = 1);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // one more: above all bounds
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

struct MetricLabel {
  std::string name;
  std::string value;  // any bytes
};
using MetricLabels = std::vector<MetricLabel>;

class Exposition {
 public:
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // `common` are labels of every sample.
  explicit Exposition(const MetricLabels& common);

  // All samples of a family follow its head.
  void Family(std::string_view name, MetricType type, std::string_view help);
  void Sample(std::string_view name, const MetricLabels& labels, double value);
  void Samples(std::string_view name, const MetricLabels& labels, const Histogram& histogram);
  const std::string& text() const { return text_; }

 private:
  std::string common_;  // as text
  std::string text_;
};

}  // namespace signalbox
