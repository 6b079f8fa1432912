#include "base/metrics/metrics_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/invariant.h"

namespace holdfast::coord {
namespace {
prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kSummary:
      return prometheus::MetricType::Summary;
  }
  return prometheus::MetricType::Untyped;
}

std::string_view NameOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kSummary:
      return "summary";
  }
  return "";
}

prometheus::MetricFamily FamilyOf(const MetricSpec& spec) {
  return {std::string(spec.name), std::string(spec.help), TypeOf(spec.kind), {}};
}

/// Returns the smallest value such that at least a share `quantile` of the values does not exceed
/// it.
double Quantile(const std::vector<double>& sorted, double quantile) {
  const auto rank = static_cast<size_t>(std::ceil(quantile * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}
}  // namespace

MetricsPage::MetricsPage(MetricSpecs specs) {
  for (const MetricSpec* spec : specs) families_.push_back(FamilyOf(*spec));
}

prometheus::ClientMetric& MetricsPage::Add(const MetricSpec& spec,
                                           std::initializer_list<std::string_view> labels) {
  auto family =
      std::find_if(families_.begin(), families_.end(),
                   [&](const prometheus::MetricFamily& one) { return one.name == spec.name; });
  if (family == families_.end()) family = families_.insert(family, FamilyOf(spec));
  if (family->metric.size() >= kSeriesMax) {
    ++dropped_count_;
    return dropped_ = {};
  }
  prometheus::ClientMetric& metric = family->metric.emplace_back();
  const auto* name = spec.labels.begin();
  for (const std::string_view value : labels) {
    if (name == spec.labels.end()) break;
    metric.label.push_back({std::string(*name++), std::string(value)});
  }
  return metric;
}

void MetricsPage::Set(const MetricSpec& spec, double value,
                      std::initializer_list<std::string_view> labels) {
  prometheus::ClientMetric& metric = Add(spec, labels);
  (spec.kind == MetricKind::kCounter ? metric.counter.value : metric.gauge.value) = value;
}

void MetricsPage::SetSummary(const MetricSpec& spec, std::vector<double> seen,
                             std::initializer_list<std::string_view> labels) {
  prometheus::ClientMetric& metric = Add(spec, labels);
  std::sort(seen.begin(), seen.end());
  metric.summary.sample_count = seen.size();
  metric.summary.sample_sum = std::accumulate(seen.begin(), seen.end(), 0.0);
  if (seen.empty()) return;
  for (const double quantile : {0.5, 0.9, 1.0}) {
    metric.summary.quantile.push_back({quantile, Quantile(seen, quantile)});
  }
}

std::vector<prometheus::MetricFamily> MetricsPage::Take() && {
  Set(kInvariantViolations, static_cast<double>(InvariantViolations()));
  Set(kDroppedSeries, static_cast<double>(dropped_count_));
  return std::move(families_);
}

std::string DescribeMetrics(MetricSpecs specs) {
  std::string text;
  for (const MetricSpec* spec : specs) {
    std::string labels;
    for (const std::string_view label : spec->labels) {
      if (!label.empty()) labels += fmt::format("{}`{}`", labels.empty() ? "" : ", ", label);
    }
    text += fmt::format("| `{}` | {} | {} | {} |\n", spec->name, NameOf(spec->kind), labels,
                        spec->help);
  }
  return text;
}

}  // namespace holdfast::coord
