#pragma once

#include <memory>
#include <span>
#include <string>

#include "coordinator/state/events.h"
#include "coordinator/state/records.h"
#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// The coordinator's records in a MetaStore. Every write compares the epoch that this leadership
/// took at its start, so that a successor shuts the door on us. Thread-compatible.
class Catalog {
 public:
  /// Takes the next epoch, durably, and gives a store that has none a life. FailedPrecondition when
  /// the store belongs to another cluster.
  static Result<std::unique_ptr<Catalog>> Open(std::unique_ptr<MetaStore> store,
                                               const std::string& cluster);

  Epoch epoch() const { return epoch_; }
  LifeId life() const { return life_; }
  Result<Records> Read();
  /// Stores the Put and Erase effects among `effects`, in order, in one synced write; nothing is
  /// written when there are none. On error the outcome is unknown. Fenced: another epoch began.
  Status Write(std::span<const Effect> effects);

 private:
  Catalog(std::unique_ptr<MetaStore> store, Epoch epoch, LifeId life)
      : store_(std::move(store)), epoch_(epoch), life_(life) {}

  std::unique_ptr<MetaStore> store_;
  Epoch epoch_;
  LifeId life_;
};

}  // namespace holdfast::coord
