#pragma once

#include <prometheus/metric_family.h>

#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::coord {

enum class MetricKind { kGauge, kCounter, kSummary };

/// The specification of a metric. Each is a constant, used to serve the values and to check the
/// documentation.
struct MetricSpec {
  std::string_view name;
  MetricKind kind = MetricKind::kGauge;
  std::string_view help;
  std::array<std::string_view, 3> labels = {};  // unused ones are empty
};

using MetricSpecs = std::span<const MetricSpec* const>;

/// Most series of one metric on a page, so that labels stay bounded with any number of jobs.
inline constexpr size_t kSeriesMax = 10'000;
/// On the page of every program.
inline constexpr MetricSpec kDroppedSeries{
    "holdfast_metrics_dropped_series", MetricKind::kGauge,
    "Series that this page lacks: a metric has at most 10,000."};

/// On the page of every program.
inline constexpr MetricSpec kInvariantViolations{
    "holdfast_invariant_violations_total", MetricKind::kCounter,
    "Invariants that did not hold since the start of the process. From the first one on, a part of "
    "it serves no more; its log names the part."};

/// The values of metrics at one instant. Thread-compatible.
class MetricsPage {
 public:
  /// Makes a family for each of `specs`, in their order, even if it gets no values. A metric keeps
  /// its first kSeriesMax series; further ones count in kDroppedSeries.
  explicit MetricsPage(MetricSpecs specs);

  /// Sets a gauge or counter. `labels` are the values of the labels of `spec`, in order.
  void Set(const MetricSpec& spec, double value,
           std::initializer_list<std::string_view> labels = {});
  /// Sets count, sum and the quantiles 0.5, 0.9 and 1 of `seen`.
  void SetSummary(const MetricSpec& spec, std::vector<double> seen,
                  std::initializer_list<std::string_view> labels = {});

  std::vector<prometheus::MetricFamily> Take() &&;

 private:
  prometheus::ClientMetric& Add(const MetricSpec& spec,
                                std::initializer_list<std::string_view> labels);

  std::vector<prometheus::MetricFamily> families_;
  prometheus::ClientMetric dropped_;  // takes the value of a series that the page lacks
  size_t dropped_count_ = 0;
};

/// Returns the rows of the table in docs/metrics.md.
std::string DescribeMetrics(MetricSpecs specs);

}  // namespace holdfast::coord
