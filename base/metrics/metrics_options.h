#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "base/http/http_options.h"
#include "base/status.h"

namespace holdfast::coord {

/// Where a program publishes its metrics: the section [metrics] of its configuration.
struct MetricsOptions {
  std::string listen{};
  std::string token_file{};
  std::string textfile{};
  int64_t textfile_period_s = 15;

  /// Adds every field to `schema`. The options must outlive the schema.
  void Bind(ConfigSchema& schema);
  bool enabled() const { return !listen.empty() || !textfile.empty(); }
};

/// The HTTP part of the options.
HttpOptions HttpOf(const MetricsOptions& options);

/// Checks the options and the files that they name. InvalidArgument and PermissionDenied name the
/// key to change.
Status CheckMetrics(const MetricsOptions& options, const HttpCertificate& tls);

}  // namespace holdfast::coord
