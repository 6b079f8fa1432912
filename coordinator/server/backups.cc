#include "coordinator/server/backups.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/crash_point.h"
#include "coordinator/api/convert.h"
#include "coordinator/store/backup.h"

namespace holdfast::coord {
namespace {
constexpr uint64_t kPartBytes = 1 << 20;  // of a part, unless one record is larger
}  // namespace

/// One call. The thread of Backups writes, and gRPC's threads report what became of a write. gRPC
/// owns the stream until the call ends, and Backups until it has sent everything.
class BackupStream : public Backups::Reactor {
 public:
  static std::shared_ptr<BackupStream> Make(grpc::CallbackServerContext& context, Clock& clock) {
    std::shared_ptr<BackupStream> stream(new BackupStream(context, clock));
    stream->self_ = stream;
    return stream;
  }

  /// Writes a part, and waits until gRPC has taken it. Cancels the call if that takes too long.
  Status Write(const coordinator::BackupPart& part) {
    {
      MutexLock lock(mutex_);
      if (!ended_.ok()) return ended_;
      writing_ = true;
    }
    StartWrite(&part);
    if (IsStuck()) context_.TryCancel();
    MutexLock lock(mutex_);
    while (writing_) changed_.Wait(mutex_);  // gRPC may use the part until then
    return ended_;
  }
  void End(const Status& outcome) { Finish(ToGrpc(outcome)); }
  /// Nothing more is written.
  void Abandon(Status why) {
    MutexLock lock(mutex_);
    if (ended_.ok()) ended_ = std::move(why);
    changed_.NotifyAll();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok && ended_.ok()) ended_ = CancelledError("the operator's command ended");
    changed_.NotifyAll();
  }
  void OnCancel() override { Abandon(CancelledError("the operator's command ended")); }
  void OnDone() override { std::shared_ptr<BackupStream> self = std::move(self_); }

 private:
  BackupStream(grpc::CallbackServerContext& context, Clock& clock)
      : context_(context), clock_(clock) {}
  /// Waits for the end of a write. Returns whether the write must be cancelled.
  bool IsStuck() {
    const auto until = clock_.Now() + Backups::kSilenceMax;
    MutexLock lock(mutex_);
    while (writing_ && ended_.ok()) {
      const auto left = until - clock_.Now();
      if (left.count() > 0) {
        changed_.WaitFor(mutex_, left);
      } else {
        ended_ = DeadlineExceededError(
            fmt::format("the operator took no data for {} seconds", Backups::kSilenceMax.count()));
      }
    }
    return writing_;
  }

  grpc::CallbackServerContext& context_;
  Clock& clock_;
  std::shared_ptr<BackupStream> self_;  // gRPC's reference
  Mutex mutex_;
  CondVar changed_;
  bool writing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Status ended_ HOLDFAST_GUARDED_BY(mutex_);  // not OK: nothing more is written
};

Backups::Backups(Reader reader, Clock& clock) : reader_(std::move(reader)), clock_(clock) {
  thread_ = Thread([this] { Run(); });
}

void Backups::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->Abandon(UnavailableError("the coordinator is stopping"));
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

Backups::Reactor* Backups::Send(grpc::CallbackServerContext& context, EndHandler ended) {
  std::shared_ptr<BackupStream> stream = BackupStream::Make(context, clock_);
  Status refused;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      refused = UnavailableError("the coordinator is stopping");
    } else if (stream_ != nullptr) {
      refused = ResourceExhaustedError("another backup is being sent: try again when it is done");
    } else {
      stream_ = stream;
      ended_ = std::move(ended);
      wake_.NotifyAll();
      return stream.get();
    }
  }
  ended(refused);
  stream->End(refused);
  return stream.get();
}

void Backups::Run() {
  for (;;) {
    std::shared_ptr<BackupStream> stream;
    {
      MutexLock lock(mutex_);
      while (stream_ == nullptr && !stopping_) wake_.Wait(mutex_);
      if (stream_ == nullptr) return;
      stream = stream_;
    }
    const Status outcome = SendAll(*stream);
    EndHandler ended;
    {
      MutexLock lock(mutex_);
      stream_ = nullptr;
      ended = std::exchange(ended_, nullptr);
    }
    ended(outcome);
    stream->End(outcome);
  }
}

Status Backups::SendAll(BackupStream& stream) {
  if (reader_ == nullptr) return UnsupportedError("this coordinator's store cannot be backed up");
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<KeyValue> records, reader_());
  const BackupCounts counts = CountOf(records);
  coordinator::BackupPart part;
  part.set_records(counts.records);
  part.set_bytes(counts.bytes);
  Status status = stream.Write(part);
  part.Clear();
  uint64_t bytes = 0;
  for (size_t i = 0; status.ok() && i < records.size(); ++i) {
    bytes += records[i].key.size() + records[i].value.size();
    coordinator::BackupRecord* record = part.add_entries();
    record->set_key(std::move(records[i].key));
    record->set_value(std::move(records[i].value));
    if (bytes < kPartBytes && i + 1 < records.size()) continue;
    HOLDFAST_CRASH_POINT("coordinator.mid_backup");
    status = stream.Write(part);
    part.Clear();
    bytes = 0;
  }
  return status;
}

}  // namespace holdfast::coord
