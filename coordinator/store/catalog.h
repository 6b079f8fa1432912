#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/invariant.h"
#include "coordinator/state/events.h"
#include "coordinator/state/records.h"
#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// The coordinator's records in a MetaStore. Every write compares the epoch that this coordinator
/// took at its start, so that a successor fences it. Before a write, the batch is checked: a wrong
/// decision must never become durable. Thread-compatible.
class Catalog {
 public:
  /// Takes the next epoch durably, and a new life if the store has none. FailedPrecondition if the
  /// store belongs to another cluster. Fenced if another coordinator took the store meanwhile.
  /// `invariants` outlives the catalog.
  static Result<std::unique_ptr<Catalog>> Open(
      std::unique_ptr<MetaStore> store, const std::string& cluster,
      InvariantMonitor& invariants = InvariantMonitor::Process());

  Epoch epoch() const { return epoch_; }
  LifeId life() const { return life_; }
  /// Whether this coordinator still has the store; see MetaStore::Held().
  bool Held() const { return store_->Held(); }
  std::function<bool()> HeldCheck() const { return store_->HeldCheck(); }
  /// Reads all records. DataLoss for a damaged record, Unsupported for a newer format.
  Result<Records> Read();
  /// Stores the Put and Erase effects among `effects`, in order, in one synced write; writes
  /// nothing if there are none. Fenced: another epoch began, and nothing was written. Internal: an
  /// invariant is violated, and nothing was written. After any other error the outcome is unknown.
  Status Write(std::span<const Effect> effects);

 private:
  Catalog(std::unique_ptr<MetaStore> store, Epoch epoch, LifeId life, InvariantMonitor& invariants)
      : store_(std::move(store)), epoch_(epoch), life_(life), invariants_(invariants) {}
  void CheckBatch(std::span<const Effect> effects) const;
  void CheckCommitRecord(const PutVersion& put) const;

  std::unique_ptr<MetaStore> store_;
  Epoch epoch_;
  LifeId life_;
  InvariantMonitor& invariants_;
};

}  // namespace holdfast::coord
