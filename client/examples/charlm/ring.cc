#include "charlm/ring.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

namespace charlm {
namespace {
using SteadyClock = std::chrono::steady_clock;
constexpr auto kPollInterval = std::chrono::milliseconds(20);
// A small send buffer and a large receive buffer: the duration of a send is then that of the
// network, and not of a neighbour that does not read yet.
constexpr int kSendBuffer = 16 << 10;
constexpr int kReceiveBuffer = 4 << 20;
// Two segments fit into the send buffer, so the receiver acknowledges at once. With the 64 KiB of
// the loopback it would delay the acknowledgement by 40 ms.
constexpr int kSegmentMax = 4 << 10;

/// The first message of a rank that connects.
struct Greeting {
  char magic[8] = {'c', 'h', 'a', 'r', 'l', 'm', '0', '1'};
  uint32_t rank = 0;
  uint32_t world = 0;
  char run_id[128] = {};
};

/// Returns false if `host` is not an IPv4 address.
bool MakeAddress(const std::string& host, int port, sockaddr_in* address) {
  *address = {};
  address->sin_family = AF_INET;
  address->sin_port = htons(static_cast<uint16_t>(port));
  return ::inet_pton(AF_INET, host.c_str(), &address->sin_addr) == 1;
}

std::string HostOf(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return text;
}

/// Finds the source address of packets from this machine to `other`, without sending any.
bool FindOwnAddress(const std::string& other, sockaddr_in* own) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* target = nullptr;
  if (::getaddrinfo(other.c_str(), "1", &hints, &target) != 0) return false;
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  socklen_t bytes = sizeof *own;
  bool found = ::connect(fd, target->ai_addr, target->ai_addrlen) == 0 &&
               ::getsockname(fd, reinterpret_cast<sockaddr*>(own), &bytes) == 0;
  ::close(fd);
  ::freeaddrinfo(target);
  return found;
}

void Close(int* fd) {
  if (*fd >= 0) ::close(*fd);
  *fd = -1;
}

void Prepare(int fd) {
  int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof kReceiveBuffer);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/// Repeats `attempt` until it returns true. Returns false after the deadline.
template <typename Attempt>
bool Until(SteadyClock::time_point deadline, Attempt attempt) {
  while (!attempt()) {
    if (SteadyClock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

std::string PortFile(const RingOptions& options, uint32_t rank) {
  std::string run = options.run_id;
  for (char& c : run) {
    if (c == '/') c = '_';
  }
  return options.rendezvous + "/" + (run.empty() ? "run" : run) + "-rank-" + std::to_string(rank);
}

Greeting GreetingOf(const RingOptions& options, uint32_t rank) {
  Greeting greeting;
  greeting.rank = rank;
  greeting.world = options.world;
  std::strncpy(greeting.run_id, options.run_id.c_str(), sizeof greeting.run_id - 1);
  return greeting;
}
}  // namespace

Ring::~Ring() {
  Close(&listener_);
  Close(&next_);
  Close(&previous_);
}

bool Ring::Fail(const std::string& what) {
  error_ = what;
  Close(&next_);
  Close(&previous_);
  return false;
}

bool Ring::Connect(const RingOptions& options) {
  options_ = options;
  if (options_.world == 1) return true;
  return Listen() && ConnectNext() && AcceptPrevious();
}

/// Listens for the previous rank, and publishes the address in the rendezvous folder.
bool Ring::Listen() {
  int port = options_.port_base == 0 ? 0 : options_.port_base + static_cast<int>(options_.rank);
  sockaddr_in address{};
  MakeAddress("127.0.0.1", 0, &address);
  if (!options_.rendezvous.empty() && !FindOwnAddress(options_.master_address, &address)) {
    return Fail("this machine has no route to " + options_.master_address +
                "; check --master-address");
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int on = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  socklen_t bytes = sizeof address;
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::listen(listener_, 8) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return Fail("cannot listen on " + HostOf(address) + ":" + std::to_string(port) + ": " +
                std::strerror(errno) + "; choose another --port-base");
  }
  if (options_.rendezvous.empty()) return true;
  // Written to a temporary file and renamed, so that a reader never sees half of it.
  std::string path = PortFile(options_, options_.rank);
  std::ofstream(path + ".new") << HostOf(address) << " " << ntohs(address.sin_port) << "\n";
  if (std::rename((path + ".new").c_str(), path.c_str()) == 0) return true;
  return Fail("cannot write " + path + ": " + std::strerror(errno));
}

bool Ring::FindNext(sockaddr_in* address) {
  uint32_t next = (options_.rank + 1) % options_.world;
  if (options_.rendezvous.empty()) {
    return MakeAddress("127.0.0.1", options_.port_base + static_cast<int>(next), address);
  }
  std::string host;
  int port = 0;
  std::ifstream file(PortFile(options_, next));
  return (file >> host >> port) && MakeAddress(host, port, address);
}

bool Ring::ConnectNext() {
  auto deadline = SteadyClock::now() + std::chrono::milliseconds(options_.timeout_ms);
  bool connected = Until(deadline, [&] {
    sockaddr_in address{};
    if (!FindNext(&address)) return false;
    next_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::setsockopt(next_, IPPROTO_TCP, TCP_MAXSEG, &kSegmentMax, sizeof kSegmentMax);
    if (::connect(next_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return true;
    Close(&next_);
    return false;
  });
  if (!connected)
    return Fail("the next rank did not accept a connection within " +
                std::to_string(options_.timeout_ms) + " ms");
  Greeting greeting = GreetingOf(options_, options_.rank);
  if (::send(next_, &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) {
    return Fail("lost the connection to the next rank");
  }
  Prepare(next_);
  return true;
}

bool Ring::AcceptPrevious() {
  auto deadline = SteadyClock::now() + std::chrono::milliseconds(options_.timeout_ms);
  Greeting expected = GreetingOf(options_, Back(1));
  bool accepted = Until(deadline, [&] {
    previous_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (previous_ < 0) return false;
    timeval limit{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(previous_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    Greeting greeting;
    if (::recv(previous_, &greeting, sizeof greeting, MSG_WAITALL) == sizeof greeting &&
        std::memcmp(&greeting, &expected, sizeof greeting) == 0) {
      return true;
    }
    Close(&previous_);  // a rank of another start, or another program
    return false;
  });
  if (!accepted)
    return Fail("the previous rank did not connect within " + std::to_string(options_.timeout_ms) +
                " ms");
  Prepare(previous_);
  Close(&listener_);
  return true;
}

void Ring::Begin(Half& half) {
  half.begun = SteadyClock::now();
  if (observer_.waits && half.bytes > 0) observer_.waits(half.peer, half.sends);
}

/// Records that some bytes were transferred, and `left` remain.
void Ring::Moved(Half& half, uint64_t left) {
  SteadyClock::time_point now = SteadyClock::now();
  if (half.moving == SteadyClock::time_point{}) half.moving = now;
  if (left > 0 || !observer_.exchanged) return;
  observer_.exchanged({.peer = half.peer,
                       .sent = half.sends,
                       .bytes = half.bytes,
                       .waited = half.moving - half.begun,
                       .moved = now - half.moving});
}

bool Ring::Swap(std::span<const std::byte> out, std::span<std::byte> in) {
  // One loop serves both directions: a rank that first sent everything could wait for a neighbour
  // that does the same.
  Half sending{.peer = (options_.rank + 1) % options_.world, .sends = true, .bytes = out.size()};
  Half receiving{.peer = Back(1), .sends = false, .bytes = in.size()};
  Begin(sending);
  Begin(receiving);
  while (!out.empty() || !in.empty()) {
    pollfd ends[2] = {{.fd = out.empty() ? -1 : next_, .events = POLLOUT, .revents = 0},
                      {.fd = in.empty() ? -1 : previous_, .events = POLLIN, .revents = 0}};
    int ready = ::poll(ends, 2, options_.timeout_ms);
    if (ready == 0)
      return Fail("no data from or to a neighbour for " + std::to_string(options_.timeout_ms) +
                  " ms");
    if (ready < 0) continue;
    if (ends[0].revents != 0) {
      ssize_t sent = ::send(next_, out.data(), out.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        out = out.subspan(static_cast<size_t>(sent));
        Moved(sending, out.size());
      }
      if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        return Fail("lost the connection to rank " + std::to_string(sending.peer));
      }
    }
    if (ends[1].revents != 0) {
      ssize_t received = ::recv(previous_, in.data(), in.size(), 0);
      if (received > 0) {
        in = in.subspan(static_cast<size_t>(received));
        Moved(receiving, in.size());
      }
      if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) {
        return Fail("lost the connection to rank " + std::to_string(receiving.peer));
      }
    }
  }
  return true;
}

bool Ring::ReduceScatter(std::span<float> values, std::span<const uint64_t> bounds) {
  auto block = [&](uint32_t rank) {
    return values.subspan(bounds[rank], bounds[rank + 1] - bounds[rank]);
  };
  // Block b starts at rank b + 1 and adds one rank's values per turn until it reaches rank b.
  for (uint32_t turn = 1; turn < options_.world; ++turn) {
    std::span<float> in = block(Back(turn + 1));
    incoming_.resize(in.size());
    if (!Swap(std::as_bytes(block(Back(turn))), std::as_writable_bytes(std::span(incoming_)))) {
      return false;
    }
    for (size_t i = 0; i < in.size(); ++i) in[i] += incoming_[i];
  }
  return true;
}

bool Ring::AllGather(std::span<float> values, std::span<const uint64_t> bounds) {
  auto block = [&](uint32_t rank) {
    return values.subspan(bounds[rank], bounds[rank + 1] - bounds[rank]);
  };
  for (uint32_t turn = 0; turn + 1 < options_.world; ++turn) {
    if (!Swap(std::as_bytes(block(Back(turn))), std::as_writable_bytes(block(Back(turn + 1))))) {
      return false;
    }
  }
  return true;
}

bool Ring::Exchange(uint64_t mine, std::vector<uint64_t>* all) {
  all->assign(options_.world, 0);
  (*all)[options_.rank] = mine;
  for (uint32_t turn = 0; turn + 1 < options_.world; ++turn) {
    if (!Swap(std::as_bytes(std::span(&(*all)[Back(turn)], 1)),
              std::as_writable_bytes(std::span(&(*all)[Back(turn + 1)], 1)))) {
      return false;
    }
  }
  return true;
}

}  // namespace charlm
