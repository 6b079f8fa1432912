#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

class BackupStream;

/// Sends the records of the store to operators, one call at a time, on a separate thread. The
/// thread reads the store itself, so that no backup delays a commit or a query. Threads: any.
class Backups {
 public:
  /// Reads all records as of one moment.
  using Reader = std::function<Result<std::vector<KeyValue>>()>;
  /// Receives the outcome of a backup, before its call ends.
  using EndHandler = std::function<void(const Status&)>;
  using Reactor = grpc::ServerWriteReactor<coordinator::BackupPart>;

  /// A call ends when its receiver reads nothing for this time, since other calls wait.
  static constexpr std::chrono::seconds kSilenceMax{30};

  /// Without a reader all backups are refused. `clock` outlives the object.
  Backups(Reader reader, Clock& clock);
  ~Backups() { Stop(); }

  /// Sends a backup. ResourceExhausted if another one is being sent.
  Reactor* Send(grpc::CallbackServerContext& context, EndHandler ended);
  /// Ends the backup in progress and refuses all further ones.
  void Stop();

 private:
  void Run();
  Status SendAll(BackupStream& stream);

  const Reader reader_;
  Clock& clock_;
  Mutex mutex_;
  CondVar wake_;
  std::shared_ptr<BackupStream> stream_ HOLDFAST_GUARDED_BY(mutex_);  // that is being sent
  EndHandler ended_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::coord
