#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>
#include <thread>

#include "base/certificates/revoked_names.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/api/certificates.grpc.pb.h"
#include "coordinator/api/leader_channel.h"

namespace holdfast::coord {

/// Keeps the revoked names as the coordinator has them: one thread follows the coordinator's stream
/// of changes. Without a coordinator, the last list stays. Thread-safe.
class TrustFollower {
 public:
  /// Called with each message of the stream, on the follower's thread.
  using OnTrust = std::function<void(const coordinator::Trust&)>;

  /// `coordinators`, `revoked` and `clock` outlive the follower.
  TrustFollower(LeaderChannel& coordinators, certificates::RevokedNames& revoked, OnTrust on_trust,
                Clock& clock);
  ~TrustFollower();

  void Start();
  void Stop();
  /// Returns why the coordinator refuses this process's certificate; empty when it does not, or
  /// has not been reached yet.
  std::string refusal() const;

 private:
  void Loop();
  grpc::Status FollowOnce(size_t coordinator);
  void Accept(const coordinator::Trust& trust);
  /// Returns false when stopping.
  bool Pause(Clock::Duration time);

  LeaderChannel& coordinators_;
  certificates::RevokedNames& revoked_;
  const OnTrust on_trust_;
  Clock& clock_;
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
  std::string refusal_ HOLDFAST_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace holdfast::coord
