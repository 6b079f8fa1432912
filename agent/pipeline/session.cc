#include "agent/pipeline/session.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>

namespace holdfast::agent {
namespace {
// Packets kept for a trainer that does not read. A trainer that is stopped for a while needs far
// fewer.
constexpr size_t kBacklogMax = 512;

// A hang-up does not end the session here: the trainer's last packets, possibly a Goodbye, may
// still be unread. The read path ends it.
bool IsHangUp(const Status& status) { return status.code() == ErrorCode::kUnavailable; }
}  // namespace

bool Session::Send(std::span<const std::byte> packet, std::span<const int> fds) {
  if (backlog_.empty()) {
    Status status = SendPacket(socket_.get(), packet, fds);
    if (status.ok() || IsHangUp(status)) return true;
    if (status.code() != ErrorCode::kResourceExhausted || !fds.empty()) return false;
  }
  if (backlog_.size() >= kBacklogMax || !fds.empty()) return false;
  backlog_.emplace_back(packet.begin(), packet.end());
  return true;
}

bool Session::FlushBacklog() {
  while (!backlog_.empty()) {
    Status status = SendPacket(socket_.get(), backlog_.front());
    if (status.code() == ErrorCode::kResourceExhausted) return true;
    if (!status.ok() && !IsHangUp(status)) return false;
    backlog_.pop_front();
  }
  return true;
}

Result<UniqueFd> Session::DuplicatePidFd() const {
  UniqueFd copy(::fcntl(pid_fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return Fail(ErrnoStatus(errno, "duplicate the trainer's pidfd"));
  return copy;
}

bool ProcessGone(int pid_fd) {
  pollfd entry{pid_fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0;
}

}  // namespace holdfast::agent
