#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "agent/peers/address.h"
#include "storage/base/clock.h"
#include "storage/base/fd.h"
#include "storage/base/random.h"

namespace holdfast::agent {

/// A network between client and server that, while it is faulty, now and then loses, doubles,
/// changes, cuts off and holds back bytes, and breaks connections. Which it does when follows from
/// the seed and from how the bytes come in.
class FaultyProxy {
 public:
  FaultyProxy(const std::string& upstream, uint64_t seed);
  ~FaultyProxy();

  std::string address() const { return address_.ToString(); }
  void SetFaulty(bool faulty) { faulty_ = faulty; }
  uint64_t faults() const { return faults_; }

 private:
  /// One direction of a connection.
  struct Pipe {
    int from = -1;
    int to = -1;
    std::string pending;
    bool ends = false;  // once pending is sent
  };
  struct Link {
    UniqueFd client;
    UniqueFd server;
    Pipe pipes[2];
    Clock::TimePoint held_until;
    bool broken = false;
  };

  void Run();
  void Accept();
  void Move(Link& link, Pipe& pipe);
  void Harm(Link& link, Pipe& pipe);

  PeerAddress upstream_;
  PeerAddress address_;
  UniqueFd listener_;
  UniqueFd wake_;
  Random random_;
  std::atomic<bool> faulty_{true};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> faults_{0};
  std::list<Link> links_;
  std::thread thread_;
};

}  // namespace holdfast::agent
