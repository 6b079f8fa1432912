#include "agent/pipeline/session.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>

namespace holdfast::agent {
namespace {
// Packets kept for a trainer that does not read. A trainer that is stopped for a while needs far
// fewer.
constexpr size_t kBacklogMax = 512;
constexpr std::string_view kDoesNotRead = "the trainer does not read its packets";

// A hang-up does not end the session here: the trainer's last packets, possibly a Goodbye, may
// still be unread. Reading them ends the session.
bool IsHangUp(const Status& status) { return status.code() == ErrorCode::kUnavailable; }
}  // namespace

void Session::Send(std::span<const std::byte> packet, std::span<const int> fds) {
  if (!TrySend(packet, fds)) Close(kDoesNotRead);
}

bool Session::TrySend(std::span<const std::byte> packet, std::span<const int> fds) {
  if (backlog_.empty()) {
    Status status = SendPacket(socket_.get(), packet, fds);
    if (status.ok() || IsHangUp(status)) return true;
    if (status.code() != ErrorCode::kResourceExhausted || !fds.empty()) return false;
  }
  if (backlog_.size() >= kBacklogMax || !fds.empty()) return false;
  backlog_.emplace_back(packet.begin(), packet.end());
  return true;
}

void Session::FlushBacklog() {
  while (!backlog_.empty()) {
    Status status = SendPacket(socket_.get(), backlog_.front());
    if (status.code() == ErrorCode::kResourceExhausted) return;
    if (!status.ok() && !IsHangUp(status)) return Close(kDoesNotRead);
    backlog_.pop_front();
  }
}

void Session::Reply(uint64_t ticket, const Status& status) {
  ReplyMessage reply;
  reply.header.ticket = ticket;
  reply.code = static_cast<uint32_t>(status.code());
  reply.incarnation = incarnation.value_or(Incarnation{}).value;
  PutText(reply.text, status.message());
  SendMessage(reply);
}

void Session::Notify(NoticeKind kind, VersionId version, Tier tier, const Status& status) {
  NoticeMessage notice;
  notice.kind = kind;
  notice.tier = static_cast<uint32_t>(tier);
  notice.incarnation = version.incarnation.value;
  notice.step = version.step.value;
  notice.code = static_cast<uint32_t>(status.code());
  PutText(notice.text, status.message());
  SendMessage(notice);
}

void Session::Close(std::string_view why) {
  if (state == State::kClosing) return;
  state = State::kClosing;
  closed_because_ = why;
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
