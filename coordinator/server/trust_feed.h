#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <string>

#include "base/certificates/revoked_names.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/api/certificates.grpc.pb.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/issuer.h"

namespace holdfast::coord {

/// Sends all agents what they must know to check certificates: the accepted authorities and the
/// revoked names. Its thread reads both once a second, and sends them when they have changed. The
/// coordinator's own servers refuse the names of revoked(). Thread-safe.
class TrustFeed {
 public:
  /// All outlive the feed.
  TrustFeed(Applier& applier, Issuer& issuer, Clock& clock);
  ~TrustFeed();

  const certificates::RevokedNames& revoked() const { return revoked_; }
  /// Opens the stream of one agent, whose certificate has the name `uri` and begins at
  /// `not_before`.
  grpc::ServerWriteReactor<coordinator::Trust>* Watch(std::string uri, int64_t not_before);
  /// Reads a change now, instead of within a second.
  void ReadNow();
  /// Ends the thread and all streams.
  void Stop();

 private:
  class Stream;

  void Run();
  void Refresh();
  void Send();
  coordinator::Trust Current() HOLDFAST_REQUIRES(mutex_);

  Applier& applier_;
  Issuer& issuer_;
  Clock& clock_;
  certificates::RevokedNames revoked_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool due_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool loaded_ HOLDFAST_GUARDED_BY(mutex_) = false;  // the revoked names are known
  certificates::RevokedNames::Times times_ HOLDFAST_GUARDED_BY(mutex_);
  std::string sent_ HOLDFAST_GUARDED_BY(mutex_);  // the last message, serialized
  std::set<std::shared_ptr<Stream>> streams_ HOLDFAST_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace holdfast::coord
