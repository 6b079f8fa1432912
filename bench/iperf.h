#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace holdfast::bench {

/// An iperf3 server on a free loopback port; the destructor ends it.
class IperfServer {
 public:
  /// NotFound when iperf3 is not installed.
  static Result<IperfServer> Start();
  ~IperfServer();
  IperfServer(IperfServer&& other) noexcept;
  IperfServer& operator=(IperfServer&&) = delete;

  /// Returns the bytes per second that the server received over `streams` streams in `seconds`
  /// seconds, as iperf3 reports them.
  Result<double> Run(int streams, int seconds) const;

 private:
  IperfServer(pid_t pid, uint16_t port) : pid_(pid), port_(port) {}
  pid_t pid_;
  uint16_t port_;
};

}  // namespace holdfast::bench
