#include "base/endpoint.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <algorithm>

#include <charconv>
#include <memory>
#include <set>

namespace holdfast {
namespace {
constexpr std::string_view kForms =
    "use HOST:PORT such as 127.0.0.1:7070 or [::1]:7070, or unix:/path/to/socket";

Status Bad(std::string_view text, std::string_view why) {
  return InvalidArgumentError(fmt::format("address '{}': {}; {}", text, why, kForms));
}

Result<Endpoint> ParseUnix(std::string_view text) {
  Endpoint endpoint;
  endpoint.kind = Endpoint::Kind::kUnix;
  endpoint.path = text.substr(5);
  if (endpoint.path.empty() || endpoint.path[0] != '/') {
    return Fail(Bad(text, "the socket's path must be absolute"));
  }
  if (endpoint.path.find('\0') != std::string::npos) {
    return Fail(Bad(text, "the path contains a NUL byte"));
  }
  if (endpoint.path.size() > kUnixPathBytesMax) {
    return Fail(InvalidArgumentError(
        fmt::format("address '{}': the socket's path has {} bytes, the kernel allows {}; choose a "
                    "shorter directory",
                    text, endpoint.path.size(), kUnixPathBytesMax)));
  }
  return endpoint;
}

bool IsHostName(std::string_view host) {
  if (host.empty() || host.size() > 253) return false;
  for (char c : host) {
    bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                c == '-' || c == '.' || c == '_';
    if (!good) return false;
  }
  return true;
}

bool IsIpv6(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}
}  // namespace

bool Endpoint::IsLocal() const {
  if (kind == Kind::kUnix || host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::string Endpoint::ToString() const {
  if (kind == Kind::kUnix) return "unix:" + path;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

Result<Endpoint> ParseEndpoint(std::string_view text) {
  if (text.substr(0, 5) == "unix:") return ParseUnix(text);
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Fail(Bad(text, "no port"));
  std::string_view host = text.substr(0, colon);
  std::string_view port = text.substr(colon + 1);
  Endpoint endpoint;
  auto parsed = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (port.empty() || parsed.ec != std::errc() || parsed.ptr != port.data() + port.size()) {
    return Fail(Bad(text, "the port must be a number from 0 to 65535"));
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    endpoint.host = host.substr(1, host.size() - 2);
    if (!IsIpv6(endpoint.host)) {
      return Fail(Bad(text, "the text in the brackets is not an IPv6 address"));
    }
    return endpoint;
  }
  if (host.find(':') != std::string_view::npos) {
    return Fail(Bad(text, "an IPv6 address needs brackets"));
  }
  if (!IsHostName(host)) return Fail(Bad(text, "not a valid host name or address"));
  endpoint.host = host;
  return endpoint;
}

Result<std::vector<Endpoint>> ParseEndpointList(std::string_view text) {
  std::vector<Endpoint> endpoints;
  for (;;) {
    const size_t comma = text.find(',');
    HOLDFAST_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(text.substr(0, comma)));
    if (endpoint.kind == Endpoint::Kind::kTcp && endpoint.port == 0) {
      return Fail(InvalidArgumentError(fmt::format("'{}' has no port", endpoint.ToString())));
    }
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) != endpoints.end()) {
      return Fail(InvalidArgumentError(fmt::format("'{}' is given twice", endpoint.ToString())));
    }
    endpoints.push_back(std::move(endpoint));
    if (comma == std::string_view::npos) return endpoints;
    text.remove_prefix(comma + 1);
  }
}

Result<std::vector<std::string>> NumericAddresses(const Endpoint& endpoint) {
  if (endpoint.kind == Endpoint::Kind::kUnix) return std::vector<std::string>();
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(endpoint.host.c_str(), nullptr, &hints, &found);
  if (failed != 0) {
    return Fail(UnavailableError(
        fmt::format("cannot resolve host '{}': {}", endpoint.host, ::gai_strerror(failed))));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::set<std::string> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    char text[INET6_ADDRSTRLEN] = {};
    const void* number = nullptr;
    if (one->ai_family == AF_INET) {
      number = &reinterpret_cast<const sockaddr_in*>(one->ai_addr)->sin_addr;
    } else if (one->ai_family == AF_INET6) {
      number = &reinterpret_cast<const sockaddr_in6*>(one->ai_addr)->sin6_addr;
    }
    if (number != nullptr && ::inet_ntop(one->ai_family, number, text, sizeof(text)) != nullptr) {
      addresses.insert(text);
    }
  }
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

}  // namespace holdfast
