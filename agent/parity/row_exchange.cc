#include "agent/parity/row_exchange.h"

#include <fmt/format.h>

#include <utility>

namespace holdfast::agent {
namespace {

constexpr size_t kUnitsMax = 4;
// The rows of a version that is never built stay until Drop(). More rows than this mean that a peer
// requests rows that do not exist.
constexpr size_t kRowsMax = 1024;

class RowReader final : public PeerReader {
 public:
  RowReader(std::shared_ptr<RowQueue> row, uint64_t offset) : row_(std::move(row)), at_(offset) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    if (offset != at_) {
      return Fail(InvalidArgumentError("a row can only be read from front to back"));
    }
    HOLDFAST_ASSIGN_OR_RETURN(unit_, row_->Pop(deadline));
    if (unit_.size() > bytes) {
      return Fail(InvalidArgumentError("a row can only be read in full units"));
    }
    at_ += unit_.size();
    return std::span<const std::byte>(unit_);
  }
  // Units taken from the queue are lost, so no other reader can continue the row.
  void Cancel() override { row_->Close(CancelledError("the row's reader was cancelled")); }

 private:
  std::shared_ptr<RowQueue> row_;
  uint64_t at_;
  std::vector<std::byte> unit_;
};

Status RowTimeout() { return DeadlineExceededError("timeout: a row of parity made no progress"); }

}  // namespace

Status RowQueue::Push(std::span<const std::byte> unit, Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!closed_ && units_.size() >= kUnitsMax) {
    if (!changed_.WaitUntil(mutex_, deadline)) return RowTimeout();
  }
  if (closed_) return why_.ok() ? InternalError("a unit was added to a complete row") : why_;
  units_.emplace_back(unit.begin(), unit.end());
  changed_.NotifyAll();
  return Status::Ok();
}

void RowQueue::Close(Status why) {
  MutexLock lock(mutex_);
  if (closed_) return;
  closed_ = true;
  why_ = std::move(why);
  changed_.NotifyAll();
}

Result<std::vector<std::byte>> RowQueue::Pop(Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!closed_ && units_.empty()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return Fail(RowTimeout());
  }
  if (closed_ && !why_.ok()) return Fail(why_);
  if (units_.empty()) return std::vector<std::byte>();
  std::vector<std::byte> unit = std::move(units_.front());
  units_.pop_front();
  changed_.NotifyAll();
  return unit;
}

std::shared_ptr<RowQueue> RowExchange::Find(const PeerRequest& request) {
  MutexLock lock(mutex_);
  const Key key{request.job, request.version, request.stripe, request.index};
  auto found = rows_.find(key);
  if (found != rows_.end()) return found->second;
  if (rows_.size() >= kRowsMax) return nullptr;
  return rows_.emplace(key, std::make_shared<RowQueue>()).first->second;
}

void RowExchange::Drop(const std::string& job, VersionId version, const Status& why) {
  MutexLock lock(mutex_);
  for (auto it = rows_.lower_bound({job, version, 0, 0}); it != rows_.end();) {
    if (std::get<0>(it->first) != job || std::get<1>(it->first) != version) break;
    it->second->Close(why);
    it = rows_.erase(it);
  }
}

Result<std::unique_ptr<PeerReader>> RowExchange::Open(const PeerRequest& request) {
  std::shared_ptr<RowQueue> row = Find(request);
  if (row == nullptr) return Fail(ResourceExhaustedError("too many rows of parity are pending"));
  return std::make_unique<RowReader>(std::move(row), request.offset);
}

}  // namespace holdfast::agent
