#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "agent/peers/sockets.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/random.h"

namespace holdfast::agent {

/// The faults of a network. Each one affects a piece of the data.
enum class NetworkFault : uint32_t {
  kLose = 0,
  kThin = 1,    // some bytes are lost
  kCutOff = 2,  // bytes are lost and the connection ends
  kDouble = 3,
  kFlip = 4,
  kHold = 5,  // for some milliseconds
  kBreak = 6,
  kReorder = 7,
};

/// A network between client and server. While faulty, it injects each `NetworkFault`, or only the
/// selected ones. While cut, it passes no data and reports no error. The faults follow from the
/// seed and from how the bytes arrive.
class FaultyProxy {
 public:
  FaultyProxy(const std::string& upstream, uint64_t seed);
  ~FaultyProxy();

  std::string address() const { return address_.ToString(); }
  /// Injects every fault, one in a hundred pieces; or none.
  void SetFaulty(bool faulty) {
    chunks_between_ = kChunksBetweenFaults;
    faults_on_ = faulty ? kEveryFault : 0;
  }
  /// Injects only these faults, one in about `chunks_between` pieces of up to 64 KiB.
  void SetFaults(const std::vector<NetworkFault>& faults, uint64_t chunks_between) {
    uint32_t on = 0;
    for (NetworkFault fault : faults) on |= 1U << static_cast<uint32_t>(fault);
    chunks_between_ = chunks_between;
    faults_on_ = on;
  }
  /// While cut, sent data waits, and new connections are accepted but pass no data.
  void SetCut(bool cut);
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

  static constexpr uint32_t kFaults = 8;
  static constexpr uint32_t kEveryFault = (1U << kFaults) - 1;
  static constexpr uint64_t kChunksBetweenFaults = 100;

  void Run();
  void Wake();
  void Accept();
  void Move(Link& link, Pipe& pipe);
  void Harm(Link& link, Pipe& pipe);

  Endpoint upstream_;
  Endpoint address_;
  UniqueFd listener_;
  UniqueFd wake_;
  Random random_;
  std::atomic<uint32_t> faults_on_{kEveryFault};
  std::atomic<uint64_t> chunks_between_{kChunksBetweenFaults};
  std::atomic<bool> cut_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> faults_{0};
  std::list<Link> links_;
  std::thread thread_;
};

}  // namespace holdfast::agent
