#include "base/metrics/metrics_options.h"

#include <fmt/format.h>

#include <string_view>

namespace holdfast::coord {
namespace {
constexpr std::string_view kTextfileSuffix = ".prom";

Status CheckTextfile(const std::string& path) {
  if (path.front() != '/' || path.back() == '/') {
    return InvalidArgumentError(
        fmt::format("metrics.textfile '{}' is not an absolute path of a file", path));
  }
  if (!std::string_view(path).ends_with(kTextfileSuffix)) {
    return InvalidArgumentError(
        fmt::format("metrics.textfile '{}' must end in {}: collectors ignore other files", path,
                    kTextfileSuffix));
  }
  return Status::Ok();
}
}  // namespace

HttpOptions HttpOf(const MetricsOptions& options) {
  return {"metrics", options.listen, options.token_file};
}

void MetricsOptions::Bind(ConfigSchema& schema) {
  schema.Add(
      "metrics.listen", &listen,
      "Serve metrics to Prometheus at http://HOST:PORT/metrics or at unix:/path (the socket "
      "is for this user and its group). Beyond loopback only by https, with "
      "metrics.token_file and [tls]. Port 0 takes a free one and logs it. Empty: no server.");
  schema.Add("metrics.token_file", &token_file,
             "File of the token that requests must have (Authorization: Bearer TOKEN), 16 to 4096 "
             "characters, unreadable for other users. With [tls] the address is then https, also "
             "on loopback. A changed file applies at once.");
  schema.Add("metrics.textfile", &textfile,
             "Also write metrics to this file, which ends in .prom, for the textfile collector of "
             "Prometheus' node exporter. Empty: no file.");
  schema.Add("metrics.textfile_period_s", &textfile_period_s,
             "Time between two such writes, in seconds.", 1, 3600);
}

Status CheckMetrics(const MetricsOptions& options, const HttpCertificate& tls) {
  if (!options.listen.empty()) HOLDFAST_RETURN_IF_ERROR(CheckHttp(HttpOf(options), tls));
  return options.textfile.empty() ? Status::Ok() : CheckTextfile(options.textfile);
}

}  // namespace holdfast::coord
