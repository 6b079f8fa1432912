#pragma once

#include <cstdint>
#include <string>

#include "cli/core/output.h"

namespace holdfast::cli {

inline constexpr const char* kDefaultEndpoint = "unix:/run/holdfast/coordinator.sock";
inline constexpr const char* kEndpointVariable = "HOLDFAST_ENDPOINT";

/// The options of every command.
struct GlobalOptions {
  std::string endpoint = kDefaultEndpoint;
  /// Longest wait for an answer; for streams, the longest silence.
  int64_t timeout_ms = 10'000;
  Format format = Format::kTable;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  bool insecure_loopback = false;
};

/// The environment variables that affect the output.
struct Environment {
  bool no_colour = false;      // NO_COLOR is set and not empty (no-color.org)
  bool dumb_terminal = false;  // TERM=dumb
  std::string home;            // HOME
};
Environment ReadEnvironment();

/// Returns the file with the operator's options: cli.toml in ~/.config/holdfast if it is there,
/// else in /etc/holdfast.
std::string DefaultConfigFile();

/// "10s", "500ms", "2m", "1.5" (seconds) → milliseconds; at least 1.
Result<int64_t> ParseDurationMs(const std::string& text);
/// "5%" or "0.05" → 0.05; above 0, at most 1.
Result<double> ParseShare(const std::string& text);

}  // namespace holdfast::cli
