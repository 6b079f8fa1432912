#include "base/metrics/metrics_options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/endpoint.h"
#include "base/fd.h"
#include "base/metrics/scrape_connection.h"

namespace holdfast::coord {
namespace {
constexpr mode_t kOthersMask = 07;
constexpr std::string_view kTextfileSuffix = ".prom";

Status CheckListen(const MetricsOptions& options, const MetricsTls& tls) {
  auto endpoint = ParseEndpoint(options.listen);
  if (!endpoint) return endpoint.error().WithContext("metrics.listen");
  const bool has_token = !options.token_file.empty();
  if (endpoint->kind == Endpoint::Kind::kUnix && has_token) {
    return InvalidArgumentError(
        "metrics.token_file is for addresses with a port: the mode of the socket decides who reads "
        "metrics from a unix socket");
  }
  const bool has_tls = !tls.cert.empty() && !tls.key.empty();
  if (!endpoint->IsLocal() && (!has_token || !has_tls)) {
    return InvalidArgumentError(fmt::format(
        "metrics.listen {} is reachable from other machines: set metrics.token_file, and tls.cert "
        "and tls.key, or use a loopback address or unix:/path",
        options.listen));
  }
  if (!has_token) return Status::Ok();
  auto token = ReadMetricsToken(options.token_file);
  if (!token) return token.error();
  if (!has_tls) return Status::Ok();
  auto loaded = ScrapeTls::Load(tls);
  return loaded ? Status::Ok() : loaded.error();
}

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

Result<std::string> ReadMetricsToken(const std::string& path) {
  const auto named = [&path](const Status& status) {
    return Fail(status.WithContext("metrics.token_file " + path));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return named(ErrnoStatus(errno, "open"));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return named(ErrnoStatus(errno, "stat"));
  if (!S_ISREG(info.st_mode)) return named(InvalidArgumentError("is not a file"));
  if ((info.st_mode & kOthersMask) != 0) {
    return named(PermissionDeniedError(
        fmt::format("all users of this machine can access it (mode {:04o}); run: chmod o= {}",
                    info.st_mode & 07777U, path)));
  }
  // One byte more than allowed, to detect longer files.
  std::string token(kMetricsTokenBytesMax + 1, '\0');
  const ssize_t got = ::pread(fd.get(), token.data(), token.size(), 0);
  if (got < 0) return named(ErrnoStatus(errno, "read"));
  token.resize(static_cast<size_t>(got));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  // httplib decodes %41 in headers as A. RFC 6750 does not allow % in tokens.
  const auto is_allowed = [](char c) { return c > ' ' && c < '\x7f' && c != '%'; };
  if (token.size() < kMetricsTokenBytesMin || token.size() > kMetricsTokenBytesMax ||
      !std::all_of(token.begin(), token.end(), is_allowed)) {
    return named(InvalidArgumentError(
        fmt::format("needs one line of {} to {} visible characters except %, e.g. from: openssl "
                    "rand -hex 32",
                    kMetricsTokenBytesMin, kMetricsTokenBytesMax)));
  }
  return token;
}

Status CheckMetrics(const MetricsOptions& options, const MetricsTls& tls) {
  if (!options.listen.empty()) HOLDFAST_RETURN_IF_ERROR(CheckListen(options, tls));
  return options.textfile.empty() ? Status::Ok() : CheckTextfile(options.textfile);
}

}  // namespace holdfast::coord
