#include "base/http/http_options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/endpoint.h"
#include "base/fd.h"
#include "base/http/http_connection.h"

namespace holdfast {
namespace {
constexpr mode_t kOthersMask = 07;
}  // namespace

Status CheckHttp(const HttpOptions& options, const HttpCertificate& tls) {
  auto endpoint = ParseEndpoint(options.listen);
  if (!endpoint) return endpoint.error().WithContext(options.section + ".listen");
  const bool has_token = !options.token_file.empty();
  if (endpoint->kind == Endpoint::Kind::kUnix && has_token) {
    return InvalidArgumentError(
        fmt::format("{}.token_file is for addresses with a port: the mode of the socket decides "
                    "who reads {} from a unix socket",
                    options.section, options.section));
  }
  const bool has_tls = !tls.cert.empty() && !tls.key.empty();
  if (!endpoint->IsLocal() && (!has_token || !has_tls)) {
    return InvalidArgumentError(fmt::format(
        "{0}.listen {1} is reachable from other machines: set {0}.token_file, and tls.cert and "
        "tls.key, or use a loopback address or unix:/path",
        options.section, options.listen));
  }
  if (!has_token) return Status::Ok();
  auto token = ReadHttpToken(options.section + ".token_file", options.token_file);
  if (!token) return token.error();
  if (!has_tls) return Status::Ok();
  auto loaded = HttpTls::Load(tls);
  return loaded ? Status::Ok() : loaded.error();
}

Result<std::string> ReadHttpToken(std::string_view key, const std::string& path) {
  const auto named = [&key, &path](const Status& status) {
    return Fail(status.WithContext(std::string(key) + " " + path));
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
  std::string token(kHttpTokenBytesMax + 1, '\0');
  const ssize_t got = ::pread(fd.get(), token.data(), token.size(), 0);
  if (got < 0) return named(ErrnoStatus(errno, "read"));
  token.resize(static_cast<size_t>(got));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  // httplib decodes %41 in headers as A. RFC 6750 does not allow % in tokens.
  const auto is_allowed = [](char c) { return c > ' ' && c < '\x7f' && c != '%'; };
  if (token.size() < kHttpTokenBytesMin || token.size() > kHttpTokenBytesMax ||
      !std::all_of(token.begin(), token.end(), is_allowed)) {
    return named(InvalidArgumentError(
        fmt::format("needs one line of {} to {} visible characters except %, e.g. from: openssl "
                    "rand -hex 32",
                    kHttpTokenBytesMin, kHttpTokenBytesMax)));
  }
  return token;
}

}  // namespace holdfast
