#include "agent/arena/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/api/messages.h"
#include "base/ids.h"

namespace holdfast::agent {
namespace {
constexpr int kSocketCheckMs = 2000;

Result<UniqueFd> TakeLock(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Fail(AlreadyExistsError(path + " is locked: another keeper serves this directory"));
    }
    return Fail(ErrnoStatus(errno, "flock " + path));
  }
  std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return Fail(ErrnoStatus(errno, "write " + path));
  }
  return fd;
}
}  // namespace

Result<std::unique_ptr<Keeper>> Keeper::Open(const std::string& run_dir, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd lock, TakeLock(run_dir + "/keeper.lock"));
  // Private constructor: make_unique cannot reach it.
  std::unique_ptr<Keeper> keeper(new Keeper(KeeperSocketPath(run_dir), std::move(lock), clock));
  HOLDFAST_RETURN_IF_ERROR(keeper->Listen());
  return keeper;
}

Keeper::~Keeper() {
  if (SocketIsOurs()) ::unlink(path_.c_str());
}

Status Keeper::Listen() {
  HOLDFAST_ASSIGN_OR_RETURN(listener_, ListenUnix(path_, 0600, clock_));
  struct stat info {};
  if (::lstat(path_.c_str(), &info) != 0) return ErrnoStatus(errno, "stat " + path_);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  return Status::Ok();
}

bool Keeper::SocketIsOurs() const {
  struct stat info {};
  return listener_.valid() && ::lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
         info.st_ino == inode_;
}

bool Keeper::StaysReachable() {
  if (SocketIsOurs()) return true;
  if (Listen().ok()) return true;
  return !clients_.empty();
}

Status Keeper::Run(int stop_fd) {
  std::vector<pollfd> waiting;
  while (!stopping_) {
    waiting.clear();
    waiting.push_back({.fd = stop_fd, .events = POLLIN, .revents = 0});
    waiting.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
    for (const UniqueFd& client : clients_) {
      waiting.push_back({.fd = client.get(), .events = POLLIN, .revents = 0});
    }
    int ready = ::poll(waiting.data(), waiting.size(), kSocketCheckMs);
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready < 0) continue;
    if (waiting[0].revents != 0) return Status::Ok();
    auto client = clients_.begin();
    for (size_t i = 2; i < waiting.size(); ++i) {
      bool stays = waiting[i].revents == 0 || ServeClient(client->get());
      client = stays ? std::next(client) : clients_.erase(client);
    }
    if (waiting[1].revents != 0) AcceptClients();
    if (ready == 0 && !StaysReachable()) return Status::Ok();
  }
  return Status::Ok();
}

void Keeper::AcceptClients() {
  for (;;) {
    auto accepted = AcceptUnix(listener_.get());
    if (!accepted || !accepted->has_value()) return;
    UniqueFd client = **std::move(accepted);
    auto peer = CredentialsOf(client.get());
    bool allowed = peer && (peer->uid == ::geteuid() || peer->uid == 0);
    if (allowed && clients_.size() < kKeeperClientsMax) {
      clients_.push_back(std::move(client));
      continue;
    }
    KeeperReply refusal;
    ErrorCode code = allowed ? ErrorCode::kResourceExhausted : ErrorCode::kPermissionDenied;
    refusal.code = static_cast<uint32_t>(code);
    PutText(refusal.text, allowed
                              ? fmt::format("{} clients are connected already", clients_.size())
                              : fmt::format("this keeper serves user {} and root", ::geteuid()));
    // An error means that the refused client has already disconnected.
    static_cast<void>(SendPacket(client.get(), std::as_bytes(std::span(&refusal, 1))));
  }
}

bool Keeper::ServeClient(int client) {
  auto packet = ReceivePacket(client, sizeof(KeeperRequest));
  if (!packet) return packet.error().code() == ErrorCode::kDeadlineExceeded;
  if (packet->bytes.size() != sizeof(KeeperRequest)) return false;
  KeeperRequest request;
  std::memcpy(&request, packet->bytes.data(), sizeof(request));
  std::vector<int> reply_fds;
  KeeperReply reply = Handle(request, std::move(packet->fds), reply_fds);
  reply.pid = static_cast<uint32_t>(::getpid());
  reply.entries = static_cast<uint32_t>(entries_.size());
  for (const auto& [name, entry] : entries_) reply.bytes += entry.bytes;
  return SendPacket(client, std::as_bytes(std::span(&reply, 1)), reply_fds).ok();
}

KeeperReply Keeper::Handle(const KeeperRequest& request, std::vector<UniqueFd> fds,
                           std::vector<int>& reply_fds) {
  KeeperReply reply;
  Status status;
  std::string name = GetText(request.name);
  if (request.magic != kKeeperMagic || request.protocol != kKeeperProtocol) {
    status = UnsupportedError(
        fmt::format("this keeper supports protocol {}; the request has protocol {}",
                    kKeeperProtocol, request.protocol));
  } else {
    switch (request.op) {
      case KeeperOp::kPut:
        status = Put(request, std::move(fds));
        break;
      case KeeperOp::kNext:
        FillNext(name, reply, reply_fds);
        return reply;
      case KeeperOp::kDrop:
        entries_.erase(name);
        break;
      case KeeperOp::kUsage:
        break;
      case KeeperOp::kShutdown:
        stopping_ = true;
        break;
      default:
        status = InvalidArgumentError(
            fmt::format("unknown request {}", static_cast<uint32_t>(request.op)));
    }
  }
  reply.code = static_cast<uint32_t>(status.code());
  PutText(reply.text, status.message());
  return reply;
}

Status Keeper::Put(const KeeperRequest& request, std::vector<UniqueFd> fds) {
  std::string name = GetText(request.name);
  HOLDFAST_RETURN_IF_ERROR(ValidateName("the entry's name", name));
  if (name.size() >= kKeptNameBytes || request.note_bytes > kKeptNoteBytes) {
    return InvalidArgumentError("the entry's name or note is too long");
  }
  if (fds.empty() || fds.size() > kKeptFdsMax) {
    return InvalidArgumentError(
        fmt::format("{} descriptors; an entry has 1 to {}", fds.size(), kKeptFdsMax));
  }
  if (entries_.size() >= kKeptEntriesMax && entries_.count(name) == 0) {
    return ResourceExhaustedError(fmt::format("{} entries are held already", entries_.size()));
  }
  Entry entry;
  for (const UniqueFd& fd : fds) {
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
      return InvalidArgumentError("an entry's descriptor is not a memory file");
    }
    entry.bytes += static_cast<uint64_t>(info.st_size);
  }
  entry.note.assign(request.note, request.note + request.note_bytes);
  entry.fds = std::move(fds);
  entries_.insert_or_assign(std::move(name), std::move(entry));
  return Status::Ok();
}

void Keeper::FillNext(const std::string& after, KeeperReply& reply,
                      std::vector<int>& reply_fds) const {
  auto next = entries_.upper_bound(after);
  if (next == entries_.end()) {
    reply.code = static_cast<uint32_t>(ErrorCode::kNotFound);
    PutText(reply.text, "no more entries");
    return;
  }
  PutText(reply.name, next->first);
  reply.note_bytes = static_cast<uint32_t>(next->second.note.size());
  std::copy(next->second.note.begin(), next->second.note.end(), reply.note);
  for (const UniqueFd& fd : next->second.fds) reply_fds.push_back(fd.get());
}

}  // namespace holdfast::agent
