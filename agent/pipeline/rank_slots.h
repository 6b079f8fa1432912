#pragma once

#include <cstdint>
#include <vector>

#include "agent/pipeline/disk_slots.h"
#include "agent/pipeline/fill_slots.h"
#include "agent/pipeline/peer_slots.h"
#include "agent/pipeline/save_slots.h"
#include "agent/pipeline/slot_pins.h"
#include "agent/pipeline/slot_table.h"

namespace holdfast::agent {

/// One rank's slots. Each part of the node uses the role that it needs; the roles share one
/// SlotTable. The functions of this class concern all roles. Thread-safe.
class RankSlots {
 public:
  /// Takes over the sealed slots of an adopted segment as unverified: they are not offered until
  /// Verified() is called for them. Raises `peer_versions` whenever PeerSlots::NextForPeers() has
  /// another shard. `segment` and `peer_versions` outlive the object.
  RankSlots(Segment& segment, uint64_t disk_every_steps, uint64_t peer_every_steps,
            ChangeSignal& peer_versions)
      : table_(segment, disk_every_steps, peer_every_steps, peer_versions) {}

  Segment& segment() { return table_.segment; }
  SaveSlots& saves() { return saves_; }
  SealSlots& sealing() { return sealing_; }
  DiskSlots& disk() { return disk_; }
  PeerSlots& peers() { return peers_; }
  FillSlots& fills() { return fills_; }
  SlotPins& pins() { return pins_; }
  SlotView& view() { return view_; }

  /// Sets the coordinator's latest job state. RankRegistry calls it.
  void SetJobState(const JobState& state);
  /// Drops the job state after a change of the coordinator store's life. No slot is freed until the
  /// next SetJobState().
  void ForgetJobState();
  /// Sets the life of new saves, and the life to which seals without one belong. Slots sealed in
  /// another life are written to disk and may then be freed for saves.
  void SetLife(LifeId life, LifeId unlabeled);
  LifeId life();
  /// Frees all slots and returns their versions, so that the memory can be reassigned. No slot may
  /// have users. The policy must allow each version to be freed. With `on_disk_too`, it is also
  /// enough that the version is not newer than the newest one committed at disk. FailedPrecondition
  /// names the version that must stay; then no slot is freed.
  Result<std::vector<VersionId>> Vacate(bool on_disk_too);
  /// Ends all waits.
  void Stop();

 private:
  SlotTable table_;
  SaveSlots saves_{table_};
  SealSlots sealing_{table_};
  DiskSlots disk_{table_};
  PeerSlots peers_{table_};
  FillSlots fills_{table_};
  SlotPins pins_{table_};
  SlotView view_{table_};
};

}  // namespace holdfast::agent
