#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
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

/// The program's certificate, in PEM form: tls.cert and tls.key. Empty: the program has none.
struct MetricsTls {
  std::string cert;
  std::string key;
};

inline constexpr size_t kMetricsTokenBytesMin = 16;
inline constexpr size_t kMetricsTokenBytesMax = 4096;

/// Checks the options and the files that they name. InvalidArgument and PermissionDenied name the
/// key to change.
Status CheckMetrics(const MetricsOptions& options, const MetricsTls& tls);

/// Reads a token, without white space at its end. PermissionDenied when other users may access the
/// file.
Result<std::string> ReadMetricsToken(const std::string& path);

}  // namespace holdfast::coord
