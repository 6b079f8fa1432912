#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/endpoint.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/coordinator.grpc.pb.h"

namespace holdfast::coord {

/// Trailing metadata of a coordinator that stands by: the address of the leader, or kNoLeader.
inline constexpr const char* kLeaderMetadata = "holdfast-leader";
inline constexpr const char* kNoLeader = "-";

/// Whether the call ended with the answer of a coordinator that stands by.
bool StandsBy(const grpc::ClientContext& failed);

/// The connections to a cluster's coordinators, of which one leads. Calls go to the one that led
/// last. Connects at the first call. Threads: any.
class LeaderChannel {
 public:
  using Stub = coordinator::Coordinator::Stub;

  /// `text`: addresses, separated by commas. InvalidArgument: a bad address, or one on another
  /// machine without TLS files. `server`: what the names in the servers' certificates must be.
  static Result<std::unique_ptr<LeaderChannel>> Make(std::string_view text, const TlsFiles& tls,
                                                     ServerRole server = ServerRole::kCoordinator);

  size_t size() const { return members_.size(); }
  size_t current() const { return current_.load(); }
  Stub& stub() { return stub(current()); }
  Stub& stub(size_t member) { return *members_[member].stub; }
  /// Returns the connection to a member, for stubs of other services. gRPC shares channels.
  const std::shared_ptr<grpc::Channel>& channel(size_t member) const {
    return members_[member].channel;
  }
  const std::string& address(size_t member) const { return members_[member].address; }
  /// Later calls go to this member.
  void Choose(size_t member) { current_.store(member); }
  /// After a call to `member` failed as Unavailable: goes on to the leader that the answer names,
  /// if it is in the list, and to the next member otherwise. Does nothing if another one was chosen
  /// meanwhile.
  void Follow(size_t member, const grpc::ClientContext& failed);

 private:
  struct Member {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<Stub> stub;
  };

  std::vector<Member> members_;
  std::atomic<size_t> current_{0};
};

}  // namespace holdfast::coord
