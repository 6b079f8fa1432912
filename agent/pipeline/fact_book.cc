#include "agent/pipeline/fact_book.h"

#include <algorithm>

namespace holdfast::agent {
namespace {
// While the coordinator is away, older entries fall out: they only hurry up what it finds out from
// the holdings anyway.
constexpr size_t kPendingMax = 4096;

template <typename T>
void Bound(std::deque<T>& queue) {
  while (queue.size() > kPendingMax) queue.pop_front();
}
}  // namespace

void FactBook::ForgetPending(const Place& place) {
  std::erase(pending_holdings_, place);
  std::erase_if(gone_, [&](const Gone& gone) {
    return gone.key == place.first && gone.tier == place.second;
  });
}

void FactBook::AddPending(const Place& place) {
  ForgetPending(place);
  pending_holdings_.push_back(place);
}

void FactBook::Add(Holding holding) {
  MutexLock lock(mutex_);
  Place place{holding.identity.key(), holding.tier};
  AddPending(place);
  held_.insert_or_assign(std::move(place), std::move(holding));
  changed_.NotifyAll();
}

void FactBook::Add(Missing missing) {
  MutexLock lock(mutex_);
  missing_.push_back(std::move(missing));
  Bound(missing_);
  changed_.NotifyAll();
}

void FactBook::Add(Gone gone) {
  MutexLock lock(mutex_);
  Place place{gone.key, gone.tier};
  ForgetPending(place);
  held_.erase(place);
  gone_.push_back(std::move(gone));
  Bound(gone_);
  changed_.NotifyAll();
}

void FactBook::Add(Prepared prepared) {
  MutexLock lock(mutex_);
  prepared_.push_back(std::move(prepared));
  Bound(prepared_);
  changed_.NotifyAll();
}

void FactBook::SetWarnings(std::vector<std::string> warnings) {
  MutexLock lock(mutex_);
  if (warnings == warnings_) return;
  warnings_ = std::move(warnings);
  urgent_ = true;
  changed_.NotifyAll();
}

void FactBook::SetRanks(std::vector<LocalRank> ranks) {
  MutexLock lock(mutex_);
  if (ranks == ranks_) return;
  ranks_ = std::move(ranks);
  urgent_ = true;
  changed_.NotifyAll();
}

void FactBook::Add(TierWanted wanted) {
  MutexLock lock(mutex_);
  wanted_.push_back(std::move(wanted));
  Bound(wanted_);
  changed_.NotifyAll();
}

bool FactBook::HasPending() const {
  return urgent_ || !wanted_.empty() || !pending_holdings_.empty() || !missing_.empty() ||
         !gone_.empty() || !prepared_.empty();
}

bool FactBook::AwaitPending(int timeout_ms) {
  MutexLock lock(mutex_);
  if (!HasPending()) changed_.WaitFor(mutex_, std::chrono::milliseconds(timeout_ms));
  const bool pending = HasPending();
  urgent_ = false;
  return pending;
}

void FactBook::Wake() {
  MutexLock lock(mutex_);
  urgent_ = true;
  changed_.NotifyAll();
}

FactBatch FactBook::Take() {
  MutexLock lock(mutex_);
  FactBatch batch;
  for (const Place& place : pending_holdings_) batch.holdings.push_back(held_.at(place));
  batch.missing.assign(missing_.begin(), missing_.end());
  batch.gone.assign(gone_.begin(), gone_.end());
  batch.prepared.assign(prepared_.begin(), prepared_.end());
  batch.wanted.assign(wanted_.begin(), wanted_.end());
  batch.warnings = warnings_;
  batch.ranks = ranks_;
  wanted_.clear();
  pending_holdings_.clear();
  missing_.clear();
  gone_.clear();
  prepared_.clear();
  return batch;
}

void FactBook::Return(FactBatch batch) {
  MutexLock lock(mutex_);
  for (const Holding& holding : batch.holdings) {
    Place place{holding.identity.key(), holding.tier};
    const bool pending = std::find(pending_holdings_.begin(), pending_holdings_.end(), place) !=
                         pending_holdings_.end();
    if (held_.contains(place) && !pending) pending_holdings_.push_front(std::move(place));
  }
  for (Gone& gone : batch.gone) {
    if (!held_.contains({gone.key, gone.tier})) gone_.push_front(std::move(gone));
  }
  missing_.insert(missing_.begin(), std::make_move_iterator(batch.missing.begin()),
                  std::make_move_iterator(batch.missing.end()));
  prepared_.insert(prepared_.begin(), std::make_move_iterator(batch.prepared.begin()),
                   std::make_move_iterator(batch.prepared.end()));
  wanted_.insert(wanted_.begin(), batch.wanted.begin(), batch.wanted.end());
  Bound(missing_);
  Bound(gone_);
  Bound(prepared_);
  Bound(wanted_);
}

FactBatch FactBook::Inventory() {
  MutexLock lock(mutex_);
  FactBatch batch;
  batch.holdings.reserve(held_.size());
  for (const auto& [place, holding] : held_) batch.holdings.push_back(holding);
  batch.warnings = warnings_;
  batch.ranks = ranks_;
  pending_holdings_.clear();
  gone_.clear();
  return batch;
}

}  // namespace holdfast::agent
