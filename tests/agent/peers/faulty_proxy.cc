#include "tests/agent/peers/faulty_proxy.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace holdfast::agent {
namespace {
constexpr size_t kChunkBytesMax = 64 << 10;
constexpr uint64_t kChunksBetweenFaults = 100;
constexpr int kTickMs = 2;
}  // namespace

FaultyProxy::FaultyProxy(const std::string& upstream, uint64_t seed)
    : upstream_(*ParsePeerAddress(upstream)),
      address_(*ParsePeerAddress("127.0.0.1:0")),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      random_(seed) {
  auto listener = ListenAt(address_);
  EXPECT_TRUE(listener) << listener.error().ToString();
  listener_ = *std::move(listener);
  thread_ = std::thread([this] { Run(); });
}

FaultyProxy::~FaultyProxy() {
  stopping_ = true;
  const uint64_t one = 1;
  EXPECT_EQ(::write(wake_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  thread_.join();
}

void FaultyProxy::Run() {
  while (!stopping_) {
    std::vector<pollfd> waiting = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    const Clock::TimePoint now = Clock::Real().Now();
    bool held = false;
    for (Link& link : links_) {
      if (link.held_until > now) {
        held = true;
        continue;
      }
      for (Pipe& pipe : link.pipes) {
        const bool sends = !pipe.pending.empty();
        waiting.push_back({.fd = sends ? pipe.to : pipe.from,
                           .events = static_cast<short>(sends ? POLLOUT : POLLIN),
                           .revents = 0});
      }
    }
    ::poll(waiting.data(), waiting.size(), held ? kTickMs : -1);
    if ((waiting[1].revents & POLLIN) != 0) Accept();
    for (Link& link : links_) {
      if (link.held_until > Clock::Real().Now()) continue;
      for (Pipe& pipe : link.pipes) Move(link, pipe);
    }
    links_.remove_if([](const Link& link) { return link.broken; });
  }
}

void FaultyProxy::Accept() {
  UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!client.valid()) return;
  auto server = ConnectTo(upstream_, Clock::Real().Now() + std::chrono::seconds(10));
  if (!server) return;
  DisableDelay(client.get());
  Link& link = links_.emplace_back();
  link.client = std::move(client);
  link.server = *std::move(server);
  link.pipes[0].from = link.pipes[1].to = link.client.get();
  link.pipes[0].to = link.pipes[1].from = link.server.get();
}

void FaultyProxy::Move(Link& link, Pipe& pipe) {
  if (link.broken) return;
  if (pipe.pending.empty() && !pipe.ends) {
    pipe.pending.resize(1 + random_.Below(kChunkBytesMax));
    const ssize_t got = ::recv(pipe.from, pipe.pending.data(), pipe.pending.size(), 0);
    const bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (got <= 0 && !later) link.broken = true;
    pipe.pending.resize(got > 0 ? static_cast<size_t>(got) : 0);
    if (got > 0 && faulty_ && random_.OneIn(kChunksBetweenFaults)) Harm(link, pipe);
  }
  if (!pipe.pending.empty()) {
    const ssize_t sent = ::send(pipe.to, pipe.pending.data(), pipe.pending.size(), MSG_NOSIGNAL);
    const bool later = sent < 0 && (errno == EAGAIN || errno == EINTR);
    if (sent < 0 && !later) link.broken = true;
    if (sent > 0) pipe.pending.erase(0, static_cast<size_t>(sent));
  }
  if (pipe.pending.empty() && pipe.ends) link.broken = true;
}

void FaultyProxy::Harm(Link& link, Pipe& pipe) {
  ++faults_;
  std::string& bytes = pipe.pending;
  switch (random_.Below(7)) {
    case 0:  // lost
      bytes.clear();
      break;
    case 1:  // some of them
      bytes.erase(random_.Below(bytes.size()), 1 + random_.Below(100));
      break;
    case 2:  // cut off
      bytes.resize(random_.Below(bytes.size()));
      pipe.ends = true;
      break;
    case 3:  // twice
      bytes += bytes;
      break;
    case 4:
      bytes[random_.Below(bytes.size())] ^= static_cast<char>(1 + random_.Below(255));
      break;
    case 5:
      link.held_until = Clock::Real().Now() + std::chrono::milliseconds(1 + random_.Below(30));
      break;
    default:
      link.broken = true;
  }
}

}  // namespace holdfast::agent
