#include "tests/agent/peers/faulty_proxy.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace holdfast::agent {
namespace {
constexpr size_t kChunkBytesMax = 64 << 10;
constexpr int kTickMs = 2;
}  // namespace

FaultyProxy::FaultyProxy(const std::string& upstream, uint64_t seed)
    : upstream_(*ParseEndpoint(upstream)),
      address_(*ParseEndpoint("127.0.0.1:0")),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      random_(seed) {
  auto listener = ListenAt(address_, Clock::Real());
  EXPECT_TRUE(listener) << listener.error().ToString();
  listener_ = *std::move(listener);
  thread_ = std::thread([this] { Run(); });
}

FaultyProxy::~FaultyProxy() {
  stopping_ = true;
  Wake();
  thread_.join();
}

void FaultyProxy::Wake() {
  const uint64_t one = 1;
  EXPECT_EQ(::write(wake_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

void FaultyProxy::SetCut(bool cut) {
  cut_ = cut;
  Wake();
}

void FaultyProxy::Run() {
  while (!stopping_) {
    std::vector<pollfd> waiting = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    const Clock::TimePoint now = Clock::Real().Now();
    bool held = false;
    for (Link& link : links_) {
      if (cut_) continue;
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
    if ((waiting[0].revents & POLLIN) != 0) {
      uint64_t woken = 0;
      EXPECT_EQ(::read(wake_.get(), &woken, sizeof(woken)), static_cast<ssize_t>(sizeof(woken)));
    }
    if ((waiting[1].revents & POLLIN) != 0) Accept();
    for (Link& link : links_) {
      if (cut_ || link.held_until > Clock::Real().Now()) continue;
      for (Pipe& pipe : link.pipes) Move(link, pipe);
    }
    links_.remove_if([](const Link& link) { return link.broken; });
  }
}

void FaultyProxy::Accept() {
  UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!client.valid()) return;
  auto server = ConnectTo(upstream_, Clock::Real().Now() + std::chrono::seconds(10), Clock::Real());
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
    if (got > 0 && random_.OneIn(chunks_between_)) Harm(link, pipe);
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
  const uint32_t on = faults_on_;
  if (on == 0) return;
  auto fault = static_cast<uint32_t>(random_.Below(kFaults));
  while ((on & (1U << fault)) == 0) fault = (fault + 1) % kFaults;
  ++faults_;
  std::string& bytes = pipe.pending;
  switch (static_cast<NetworkFault>(fault)) {
    case NetworkFault::kLose:
      bytes.clear();
      break;
    case NetworkFault::kThin:
      bytes.erase(random_.Below(bytes.size()), 1 + random_.Below(100));
      break;
    case NetworkFault::kCutOff:
      bytes.resize(random_.Below(bytes.size()));
      pipe.ends = true;
      break;
    case NetworkFault::kDouble:
      bytes += bytes;
      break;
    case NetworkFault::kFlip:
      bytes[random_.Below(bytes.size())] ^= static_cast<char>(1 + random_.Below(255));
      break;
    case NetworkFault::kHold:
      link.held_until = Clock::Real().Now() + std::chrono::milliseconds(1 + random_.Below(30));
      break;
    case NetworkFault::kReorder:
      std::rotate(bytes.begin(),
                  bytes.begin() + static_cast<ptrdiff_t>(random_.Below(bytes.size())), bytes.end());
      break;
    case NetworkFault::kBreak:
      link.broken = true;
  }
}

}  // namespace holdfast::agent
