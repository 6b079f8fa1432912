#include "agent/peers/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace holdfast::agent {
namespace {
constexpr mode_t kOthersMask = 07;
}  // namespace

Result<std::string> ReadPeerSecret(const std::string& path) {
  const auto named = [&path](const Status& status) {
    return status.WithContext("peers.secret_file " + path);
  };
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Fail(named(ErrnoStatus(errno, "open")));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Fail(named(ErrnoStatus(errno, "stat")));
  if (!S_ISREG(info.st_mode)) return Fail(named(InvalidArgumentError("is not a file")));
  if ((info.st_mode & kOthersMask) != 0) {
    return Fail(named(PermissionDeniedError(
        fmt::format("all users of this machine can access it (mode {:04o}); run: chmod o= {}",
                    info.st_mode & 07777U, path))));
  }
  // One byte more than allowed, to detect longer files.
  std::string secret(kPeerSecretBytesMax + 1, '\0');
  size_t have = 0;
  while (have < secret.size()) {
    const ssize_t got = ::read(fd.get(), secret.data() + have, secret.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fail(named(ErrnoStatus(errno, "read")));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  if (have < kPeerSecretBytesMin || have > kPeerSecretBytesMax) {
    return Fail(named(InvalidArgumentError(
        fmt::format("has {} bytes; {} to {} are needed, e.g. from: openssl rand -hex 32",
                    have > kPeerSecretBytesMax ? "more than 4096" : std::to_string(have),
                    kPeerSecretBytesMin, kPeerSecretBytesMax))));
  }
  secret.resize(have);
  return secret;
}

Status RequireTls(const Endpoint& address, bool has_tls, std::string_view what) {
  if (has_tls || address.IsLocal()) return Status::Ok();
  return InvalidArgumentError(fmt::format(
      "{} {} is reachable from other machines and no TLS is configured: join the cluster with "
      "`holdfast join`, or set tls.ca, tls.cert and tls.key, or use a loopback address or "
      "unix:/path. A peer secret protects no bytes after the handshake",
      what, address.ToString()));
}

}  // namespace holdfast::agent
