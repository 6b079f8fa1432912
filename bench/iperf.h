#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "storage/base/status.h"

namespace holdfast::bench {

/// An iperf3 server on a free loopback port, for as long as it lives.
class IperfServer {
 public:
  /// NotFound when iperf3 is not installed.
  static Result<IperfServer> Start();
  ~IperfServer();
  IperfServer(IperfServer&& other) noexcept;
  IperfServer& operator=(IperfServer&&) = delete;

  /// Bytes a second that arrive over so many streams in so many seconds, by iperf3's own account.
  Result<double> Run(int streams, int seconds) const;

 private:
  IperfServer(pid_t pid, uint16_t port) : pid_(pid), port_(port) {}
  pid_t pid_;
  uint16_t port_;
};

}  // namespace holdfast::bench
