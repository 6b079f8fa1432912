#include "coordinator/api/socket_owner.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstring>

#include "base/fd.h"

namespace holdfast::coord {
namespace {
constexpr timeval kPatience{1, 0};

struct Address {
  uint8_t family = 0;
  std::array<uint32_t, 4> bytes{};
};

/// Parses an IP address; an empty family: no address.
Address ParseAddress(const std::string& text) {
  Address address;
  if (::inet_pton(AF_INET, text.c_str(), address.bytes.data()) == 1) {
    address.family = AF_INET;
  } else if (::inet_pton(AF_INET6, text.c_str(), address.bytes.data()) == 1) {
    address.family = AF_INET6;
  }
  return address;
}

/// Splits gRPC's form of a peer's address.
bool ParsePeer(const std::string& peer, Address* address, uint16_t* port) {
  const size_t scheme = peer.find(':');
  const size_t colon = peer.rfind(':');
  if (scheme == std::string::npos || colon <= scheme) return false;
  std::string host = peer.substr(scheme + 1, colon - scheme - 1);
  const auto strip = [&host](std::string_view open, std::string_view close) {
    if (!host.starts_with(open) || !host.ends_with(close)) return;
    host = host.substr(open.size(), host.size() - open.size() - close.size());
  };
  strip("%5B", "%5D");
  strip("[", "]");
  *address = ParseAddress(host);
  const char* end = peer.data() + peer.size();
  const auto parsed = std::from_chars(peer.data() + colon + 1, end, *port);
  return address->family != 0 && parsed.ec == std::errc() && parsed.ptr == end;
}

struct Request {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

Result<inet_diag_msg> Ask(const Request& request) {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "socket for sock_diag"));
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(fd.get(), &request, sizeof(request), 0, reinterpret_cast<sockaddr*>(&kernel),
               sizeof(kernel)) != static_cast<ssize_t>(sizeof(request))) {
    return Fail(ErrnoStatus(errno, "ask sock_diag"));
  }
  alignas(nlmsghdr) std::array<std::byte, 4096> buffer{};
  const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
  if (got < 0) return Fail(ErrnoStatus(errno, "answer of sock_diag"));
  nlmsghdr header{};
  if (static_cast<size_t>(got) < sizeof(header))
    return Fail(IoErrorError("short sock_diag answer"));
  std::memcpy(&header, buffer.data(), sizeof(header));
  const size_t body = static_cast<size_t>(got) - sizeof(header);
  if (header.nlmsg_type == NLMSG_ERROR && body >= sizeof(nlmsgerr)) {
    nlmsgerr error{};
    std::memcpy(&error, buffer.data() + sizeof(header), sizeof(error));
    return Fail(ErrnoStatus(-error.error, "sock_diag"));
  }
  inet_diag_msg answer{};
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || body < sizeof(answer)) {
    return Fail(IoErrorError("unexpected answer of sock_diag"));
  }
  std::memcpy(&answer, buffer.data() + sizeof(header), sizeof(answer));
  return answer;
}
}  // namespace

Result<uid_t> OwnerOfPeer(const std::string& peer, const std::string& host, uint16_t port) {
  Address from;
  uint16_t from_port = 0;
  if (!ParsePeer(peer, &from, &from_port)) {
    return Fail(InvalidArgumentError(fmt::format("peer '{}' is not an IP address", peer)));
  }
  Address to = ParseAddress(host);
  if (to.family != from.family) to = ParseAddress(from.family == AF_INET ? "127.0.0.1" : "::1");
  Request request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = from.family;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  request.body.id.idiag_sport = htons(from_port);  // the client's socket, not the server's
  request.body.id.idiag_dport = htons(port);
  std::memcpy(request.body.id.idiag_src, from.bytes.data(), sizeof(from.bytes));
  std::memcpy(request.body.id.idiag_dst, to.bytes.data(), sizeof(to.bytes));
  request.body.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  auto answer = Ask(request);
  if (!answer) {
    return Fail(PermissionDeniedError(
        fmt::format("the owner of {} is not known: {}", peer, answer.error().message())));
  }
  // A socket that its process has closed has no inode, and the kernel reports user 0 for it. The
  // kernel may also answer with a socket that listens at the peer's port.
  const bool open = answer->idiag_state == TCP_ESTABLISHED || answer->idiag_state == TCP_CLOSE_WAIT;
  if (!open || answer->idiag_inode == 0 || answer->id.idiag_sport != htons(from_port) ||
      answer->id.idiag_dport != htons(port)) {
    return Fail(PermissionDeniedError(
        fmt::format("the owner of {} is not known: the connection is closed", peer)));
  }
  return static_cast<uid_t>(answer->idiag_uid);
}

}  // namespace holdfast::coord
