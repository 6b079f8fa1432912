#pragma once

#include <netinet/in.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Connects the ranks in a ring over TCP, on one or several machines. Each rank sends to the next
// and receives from the previous one. Sums have a fixed order, so a run can be repeated bit for
// bit.

namespace charlm {

struct RingOptions {
  uint32_t rank = 0;
  uint32_t world = 1;
  std::string run_id;      // rejects ranks of an earlier start
  std::string rendezvous;  // folder in which each rank writes its address and port, or
  int port_base = 0;       // on one machine: rank r listens at port_base + r
  /// With a rendezvous: an IPv4 address or the name of rank 0's machine. Each rank listens at the
  /// address from which its own machine reaches it.
  std::string master_address = "127.0.0.1";
  int timeout_ms = 60'000;
};

/// One block sent to the next rank, or received from the previous one.
struct Exchanged {
  uint32_t peer = 0;
  bool sent = false;  // otherwise received
  uint64_t bytes = 0;
  std::chrono::nanoseconds waited{0};  // until the peer had room, or sent its first byte
  std::chrono::nanoseconds moved{0};   // from then to the last byte
};

/// Callbacks for transfers. Called on the thread that calls the ring.
struct RingObserver {
  std::function<void(uint32_t peer, bool sends)> waits;
  std::function<void(const Exchanged&)> exchanged;
};

/// All functions return false on a lost neighbour or a timeout; error() has the reason. The ring is
/// then closed permanently, and the neighbours' rings fail shortly after.
class Ring {
 public:
  Ring() = default;
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool Connect(const RingOptions& options);
  void Observe(RingObserver observer) { observer_ = std::move(observer); }

  /// `bounds` (world + 1 numbers) divide `values` into one block per rank. Afterwards this rank's
  /// block has the sums over all ranks, and the other blocks have partial sums.
  bool ReduceScatter(std::span<float> values, std::span<const uint64_t> bounds);
  /// Afterwards every rank has the blocks of all ranks.
  bool AllGather(std::span<float> values, std::span<const uint64_t> bounds);
  /// Gathers one number from each rank, in rank order.
  bool Exchange(uint64_t mine, std::vector<uint64_t>* all);

  const std::string& error() const { return error_; }

 private:
  bool Fail(const std::string& what);
  bool Listen();
  bool FindNext(sockaddr_in* address);
  bool ConnectNext();
  bool AcceptPrevious();
  /// One direction of a swap, with the times of its begin and of its first byte.
  struct Half {
    uint32_t peer = 0;
    bool sends = false;
    uint64_t bytes = 0;
    std::chrono::steady_clock::time_point begun = {};
    std::chrono::steady_clock::time_point moving = {};
  };
  void Begin(Half& half);
  void Moved(Half& half, uint64_t left);
  /// Sends and receives at the same time, so that full buffers cannot deadlock the ring.
  bool Swap(std::span<const std::byte> out, std::span<std::byte> in);
  /// Returns the rank that is `by` places before this one.
  uint32_t Back(uint32_t by) const {
    return (options_.rank + 2 * options_.world - by) % options_.world;
  }

  RingOptions options_;
  RingObserver observer_;
  int listener_ = -1;
  int next_ = -1;
  int previous_ = -1;
  std::string error_;
  std::vector<float> incoming_;
};

}  // namespace charlm
