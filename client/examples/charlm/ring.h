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

// The ranks in a ring over TCP, on one machine or on several: each sends to the next and receives
// from the one before. Sums are always taken in the same order, so a run can be repeated bit for
// bit.

namespace charlm {

struct RingOptions {
  uint32_t rank = 0;
  uint32_t world = 1;
  std::string run_id;      // keeps a rank of an earlier start out
  std::string rendezvous;  // folder where each rank leaves its address and port, or
  int port_base = 0;       // on one machine: rank r listens at port_base + r
  /// With a rendezvous: an IPv4 address or the name of the machine of rank 0. Each rank listens
  /// where its own machine reaches it from.
  std::string master_address = "127.0.0.1";
  int timeout_ms = 60'000;
};

/// One block sent to the next rank, or received from the one before.
struct Exchanged {
  uint32_t peer = 0;
  bool sent = false;  // otherwise received
  uint64_t bytes = 0;
  std::chrono::nanoseconds waited{0};  // for the peer: for room, or for its first byte
  std::chrono::nanoseconds moved{0};   // from then on
};

/// Who wants to know what the ring does. Called on the thread that calls the ring.
struct RingObserver {
  std::function<void(uint32_t peer, bool sends)> waits;
  std::function<void(const Exchanged&)> exchanged;
};

/// All functions return false when a neighbour is gone or the time is over; error() says which.
/// Then the ring is closed for good, and so are the neighbours' rings a moment later.
class Ring {
 public:
  Ring() = default;
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool Connect(const RingOptions& options);
  void Observe(RingObserver observer) { observer_ = std::move(observer); }

  /// `bounds` cut `values` into one block a rank (world + 1 numbers). Afterwards this rank's block
  /// holds the sum over all ranks; the others hold partial sums.
  bool ReduceScatter(std::span<float> values, std::span<const uint64_t> bounds);
  /// Afterwards every rank has every rank's block.
  bool AllGather(std::span<float> values, std::span<const uint64_t> bounds);
  /// One number of each rank, in rank order.
  bool Exchange(uint64_t mine, std::vector<uint64_t>* all);

  const std::string& error() const { return error_; }

 private:
  bool Fail(const std::string& what);
  bool Listen();
  bool FindNext(sockaddr_in* address);
  bool ConnectNext();
  bool AcceptPrevious();
  /// One direction of a swap: what is left of it, and since when its peer lets it move.
  struct Half {
    uint32_t peer = 0;
    bool sends = false;
    uint64_t bytes = 0;
    std::chrono::steady_clock::time_point begun = {};
    std::chrono::steady_clock::time_point moving = {};
  };
  void Begin(Half& half);
  void Moved(Half& half, uint64_t left);
  /// Sends and receives at the same time, so that no ring of full buffers can stand still.
  bool Swap(std::span<const std::byte> out, std::span<std::byte> in);
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
