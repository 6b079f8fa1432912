#pragma once

#include <string>
#include <vector>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/loop_queue.h"
#include "agent/pipeline/rank_events.h"
#include "agent/pipeline/session_table.h"
#include "agent/pipeline/warnings.h"

namespace holdfast::agent {

/// The saves of this node's trainers: leases slots for them, lets saves wait for a slot, and
/// reports their progress to the coordinator and to the trainers.
///
/// The loop thread calls the functions that take a session; the events of the ranks' threads may
/// come from any thread. Has no mutex.
class SaveService final : public RankEvents {
 public:
  /// The arguments outlive the object.
  SaveService(CoordinatorLink& link, Warnings& warnings, LoopQueue& loop, SessionTable& sessions,
              Clock& clock)
      : link_(link), warnings_(warnings), loop_(loop), sessions_(sessions), clock_(clock) {}

  /// Handles a BeginSave. Replies now, or once a slot is free or the trainer's wait is over.
  void Begin(Session& session, const BeginSaveMessage& message);
  /// Handles an EndSave or an AbandonSave.
  void End(Session& session, const EndSaveMessage& message);
  /// Retries the session's waiting saves, and notifies its trainer of a free slot.
  void Retry(Session& session);
  /// Gives up the saves that the trainer of an ended session did not complete.
  void GiveUpUnended(Session& session, const std::string& why);
  /// Reports that a save will be neither in memory nor on disk. Threads: any.
  void ReportNotSaved(const ShardKey& key, const std::string& why);

  // RankEvents. Threads: any.
  void OnSealed(const ShardSeal& seal, std::vector<ReplicaSample> samples) override;
  void OnSaveFailed(const ShardKey& key, const Status& why) override;
  void OnStored(const ShardSeal& seal) override;
  void OnNotStored(const ShardKey& key, const Status& why) override;
  void OnSlotsChanged(const std::string& job, Rank rank) override;

 private:
  /// Returns false when the save has to wait for a slot.
  bool TryBegin(Session& session, const WaitingSave& save, bool last_chance);
  Result<uint32_t> Lease(Session& session, VersionId version, uint64_t image_bytes);
  /// Posts a notice to the rank's trainer; the loop thread sends it if the trainer is connected.
  void PostNotice(NoticeKind kind, const ShardKey& key, Tier tier, const Status& why);

  CoordinatorLink& link_;
  Warnings& warnings_;
  LoopQueue& loop_;
  SessionTable& sessions_;
  Clock& clock_;
};

}  // namespace holdfast::agent
