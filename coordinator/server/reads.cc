#include "coordinator/server/reads.h"

#include <utility>

namespace holdfast::coord {

Reads::Reads(Clock& clock, std::function<void()> ask) : clock_(clock), ask_(std::move(ask)) {
  thread_ = Thread([this] { Run(); });
}

bool Reads::Submit(StateQuery query) {
  Query added;
  added.state = std::move(query);
  return Submit(std::move(added));
}

bool Reads::Submit(SupervisorQuery query) {
  Query added;
  added.supervisor = std::move(query);
  return Submit(std::move(added));
}

bool Reads::Submit(Query query) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      if (waiting_.size() >= kWaitingMax) return false;
      query.number = ++asked_;
      query.patience_ends = clock_.Now() + kPatience;
      waiting_.push_back(std::move(query));
      changed_.NotifyAll();
    }
  }
  if (query.number == 0) {
    Answer(query, nullptr);  // stopped: nothing was moved from it
  } else {
    ask_();
  }
  return true;
}

uint64_t Reads::asked() {
  MutexLock lock(mutex_);
  return asked_;
}

void Reads::Publish(std::shared_ptr<const Snapshot> snapshot, uint64_t covers) {
  {
    MutexLock lock(mutex_);
    std::swap(snapshot_, snapshot);  // the earlier one ends without the lock
    covers_ = covers;
    changed_.NotifyAll();
  }
}

void Reads::Withdraw() { Publish(nullptr, 0); }

void Reads::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool Reads::IsDue() {
  if (stopping_) return true;
  if (waiting_.empty()) return false;
  const Query& first = waiting_.front();
  return snapshot_ == nullptr || covers_ >= first.number || clock_.Now() >= first.patience_ends;
}

void Reads::Run() {
  for (;;) {
    std::deque<Query> due;
    std::shared_ptr<const Snapshot> snapshot;
    bool stopping = false;
    {
      MutexLock lock(mutex_);
      while (!IsDue()) {
        if (waiting_.empty()) {
          changed_.Wait(mutex_);
        } else {
          changed_.WaitFor(mutex_, waiting_.front().patience_ends - clock_.Now());
        }
      }
      stopping = stopping_;
      if (stopping) {
        due.swap(waiting_);
      } else {
        snapshot = snapshot_;
        due.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
      }
    }
    // The lease may have ended while the applier waits for a write.
    const bool held = snapshot != nullptr && snapshot->held();
    for (const Query& query : due) Answer(query, held ? snapshot.get() : nullptr);
    if (stopping) return;
  }
}

void Reads::Answer(const Query& query, const Snapshot* snapshot) {
  if (query.state) {
    query.state(snapshot != nullptr ? &snapshot->state : nullptr,
                snapshot != nullptr ? snapshot->epoch : Epoch{});
  }
  if (query.supervisor) query.supervisor(snapshot != nullptr ? &snapshot->supervisor : nullptr);
}

}  // namespace holdfast::coord
