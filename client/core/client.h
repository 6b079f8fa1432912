#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "client/core/agent_link.h"
#include "client/core/collectives.h"
#include "client/core/copier.h"
#include "client/core/options.h"
#include "client/core/phase_hints.h"
#include "client/core/version_reader.h"
#include "storage/format/image.h"

namespace holdfast::client {

/// The result of a call. With `asynchronous`, the call itself did its work, and `status` is the
/// failure of the earlier save of `step`.
struct Outcome {
  Status status;
  bool asynchronous = false;
  uint64_t step = 0;
};

struct RestoredState {
  VersionId version;
  Tier tier = Tier::kMemory;
  uint64_t bytes = 0;
  std::vector<ExtraBytes> extras;
};

/// One rank's client, which implements the contracts of holdfast.h. A worker thread requests slots
/// from the agent and copies. The link's thread keeps the connection and records the outcome of
/// each save. Thread-safe except for Close().
class Client : private LinkObserver {
 public:
  static Result<std::unique_ptr<Client>> Open(const ClientOptions& options, StateDescription state);
  /// For Open() only.
  Client(const ClientOptions& options, StateDescription state, ImageLayout layout);
  ~Client() override;

  /// `wait_ms` 0: the time of the options.
  Outcome Save(uint64_t step, std::vector<ExtraBytes> extras, void* stream, uint32_t wait_ms);
  Outcome Guard(void* stream);
  /// `tier` is a Tier's number, or HOLDFAST_SEALED.
  Status Wait(uint64_t step, uint32_t tier, uint64_t timeout_ms);
  Result<VersionId> Latest(Tier tier);
  Result<RestoredState> Restore(std::optional<VersionId> wanted, uint64_t timeout_ms);
  /// The reader must be destroyed before the client.
  Result<std::unique_ptr<VersionReader>> OpenReader(std::optional<VersionId> wanted,
                                                    uint64_t timeout_ms);
  Status ListVersion(VersionReader& reader, uint64_t timeout_ms);
  Result<const holdfast_reader_info*> ListTensors(VersionReader& reader, uint64_t timeout_ms);
  Result<holdfast_extra> ReadExtra(VersionReader& reader, Rank rank, const char* name,
                                   uint64_t timeout_ms);
  Status LoadTensors(VersionReader& reader, const StateDescription& wanted, uint64_t timeout_ms);
  /// Returns a difference that the latest Restore() or LoadTensors() found; nullptr beyond the
  /// last.
  const char* Difference(size_t index);
  size_t DifferenceCount();
  Status Connection();
  holdfast_stats Stats();
  /// May be used in a forked child and from any thread; never blocks.
  PhaseHints& phases() { return phases_; }
  /// Returns the process's recorder for its first client, a separate one for any other client.
  CollectiveRecorder& collectives() { return *collectives_; }
  /// Waits up to `timeout_ms` until the saves are sealed, and stops all threads. Afterwards only
  /// the destructor may be called, or, when abandoned(), nothing.
  Status Close(uint64_t timeout_ms);
  /// True when a device has not finished a copy, as when it hangs. The client must then stay until
  /// the process ends, since it owns the memory that the copy writes, and the connection through
  /// which the agent keeps that memory leased. Of the caller's memory, the client then
  /// accesses only the tensors.
  bool abandoned() const { return abandoned_; }

  /// Returns FailedPrecondition in a process that was forked from the one that opened the client.
  Status CheckProcess() const;

 private:
  void RequestTier(uint64_t step, uint32_t tier);
  enum class SaveState { kQueued, kRequesting, kCopying, kCopied, kSealed, kSkipped, kFailed };
  /// The state of one step's save.
  struct SaveRecord {
    SaveState state = SaveState::kQueued;
    Status status;  // why it was skipped or failed
    std::map<uint32_t, Status> tier_failures;
  };
  struct SaveTask {
    uint64_t step = 0;
    std::vector<ExtraBytes> extras;
    std::unique_ptr<SaveCopy> copy;
    uint32_t wait_ms = 0;    // for a slot
    bool granted = false;    // a slot is leased: the copy will run or is running
    bool released = false;   // host tensors are read, device copies are enqueued
    bool cancelled = false;  // Guard() gave up waiting for a slot
  };

  // client.cc
  Status Start();
  void StartRecords();
  Outcome SaveLocked(uint64_t step, std::vector<ExtraBytes> extras, void* stream, uint32_t wait_ms)
      HOLDFAST_REQUIRES(mutex_);
  Status AdmitLocked(uint64_t step, std::span<const ExtraBytes> extras) HOLDFAST_REQUIRES(mutex_);
  Outcome TakeAsyncError() HOLDFAST_REQUIRES(mutex_);
  void RaiseAsyncError(uint64_t step, const Status& status) HOLDFAST_REQUIRES(mutex_);
  /// Returns whether the tensors may change. Sets `ungranted_wait_ms` to how long Guard() may wait
  /// for saves that have no slot yet; to nothing when there are none.
  bool AllReleasedLocked(std::optional<uint64_t>* ungranted_wait_ms) HOLDFAST_REQUIRES(mutex_);
  Status RecordStatusLocked(uint64_t step, const SaveRecord& record, uint32_t tier, bool* known)
      HOLDFAST_REQUIRES(mutex_);
  std::string UnsealedStepsLocked() HOLDFAST_REQUIRES(mutex_);
  /// Returns false when a device still blocks the worker after the grace period.
  bool AwaitWorkerEnd();
  void Log(int level, const std::string& text);

  // client_save.cc: the worker
  void RunWorker();
  /// Populates a part of the mapping's pages, from offset `from` on, so that the first saves have
  /// fewer page faults. Runs while the worker is idle.
  void Populate(uint64_t from);
  void RunTask(SaveTask& task);
  Result<uint32_t> LeaseSlot(SaveTask& task, const AgentLink::Use& use, uint64_t image_bytes);
  Status CopyInto(SaveTask& task, const AgentLink::Use& use, uint32_t slot,
                  const std::string& header);
  void Finish(const SaveTask& task, SaveState state, const Status& status, bool raise);
  void SetState(SaveRecord& record, SaveState state) HOLDFAST_REQUIRES(mutex_);

  // client_restore.cc
  class LoadInProgress;
  Result<RestoredState> RestoreOnce(std::optional<VersionId> wanted, MonotonicTime deadline,
                                    bool* again);
  Result<RestoredState> RestoreSlot(const AgentLink::Use& use, const agent::ReplyMessage& reply,
                                    bool* again);
  Status CheckImage(const ParsedImage& image, const agent::ReplyMessage& reply);

  // LinkObserver
  void OnConnected(uint64_t incarnation, bool first) override;
  void OnDisconnected(const Status& reason) override;
  void OnNotice(const agent::NoticeMessage& notice) override;
  void OnMapped(std::byte* base, uint64_t bytes) override;
  void OnUnmapping(std::byte* base) override;
  void OnLog(int level, const std::string& text) override;

  const ClientOptions options_;
  const pid_t pid_;
  const StateDescription state_;
  const ImageLayout layout_;
  const CopyPlan plan_;
  std::unique_ptr<DeviceCopier> device_;  // only with device tensors
  std::byte* pinned_ = nullptr;           // the link's thread
  bool mapping_is_new_ = false;           // its pages are not populated; the link's thread
  PhaseHints phases_;                     // before the link, whose thread attaches it
  std::unique_ptr<CollectiveRecorder> own_collectives_;  // before the link, too
  CollectiveRecorder* collectives_ = nullptr;
  std::unique_ptr<AgentLink> link_;
  std::thread worker_;
  bool abandoned_ = false;
  Mutex logging_;  // one call of the caller's log at a time, and none after Close()
  bool silent_ HOLDFAST_GUARDED_BY(logging_) = false;
  Mutex restoring_;  // one Restore() at a time

  Mutex mutex_;
  CondVar changed_;
  std::list<SaveTask> tasks_ HOLDFAST_GUARDED_BY(mutex_);  // the worker's, in order
  std::map<uint64_t, SaveRecord> records_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<uint32_t, VersionId> latest_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> differences_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<Outcome> async_error_ HOLDFAST_GUARDED_BY(mutex_);
  uint32_t async_more_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  Status first_error_ HOLDFAST_GUARDED_BY(mutex_);
  Status fenced_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<uint64_t> last_step_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool worker_ended_ HOLDFAST_GUARDED_BY(mutex_) = false;
  /// The mapping's pages are not populated from this offset on.
  std::optional<uint64_t> unpopulated_ HOLDFAST_GUARDED_BY(mutex_);
  /// Populating waits until this time, because a restore usually follows a connect, and a load
  /// follows the restore.
  MonotonicTime populate_at_ HOLDFAST_GUARDED_BY(mutex_);
  static constexpr std::chrono::milliseconds kPopulatePause{500};
  uint32_t loads_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // running; they need all processors
  holdfast_stats stats_ HOLDFAST_GUARDED_BY(mutex_) = {};
};

}  // namespace holdfast::client
