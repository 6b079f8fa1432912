#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/api/socket.h"
#include "agent/arena/keeper_protocol.h"
#include "base/fd.h"
#include "base/status.h"

namespace holdfast::agent {

/// Holds descriptors for an agent that may die. The holdfast-keeper process does nothing else. It
/// has one thread, one poll loop, and no state but the descriptors. One keeper per run directory:
/// the process holds the lock on keeper.lock, which contains its PID, until it exits.
class Keeper {
 public:
  /// Takes the lock and starts to listen. AlreadyExists: another keeper serves this directory.
  static Result<std::unique_ptr<Keeper>> Open(const std::string& run_dir, Clock& clock);
  ~Keeper();

  /// Serves until a client requests a shutdown, `stop_fd` becomes readable, or this keeper is
  /// unreachable for good: its socket file was removed, cannot be created again, and no client is
  /// connected.
  Status Run(int stop_fd);

 private:
  struct Entry {
    std::vector<std::byte> note;
    std::vector<UniqueFd> fds;
    uint64_t bytes = 0;
  };

  Keeper(std::string path, UniqueFd lock, Clock& clock)
      : path_(std::move(path)), lock_(std::move(lock)), clock_(clock) {}
  Status Listen();
  bool SocketIsOurs() const;
  /// Creates a removed socket again. Returns false when the keeper is unreachable and should end.
  bool StaysReachable();
  void AcceptClients();
  /// Returns false when the caller must close the client's connection.
  bool ServeClient(int client);
  KeeperReply Handle(const KeeperRequest& request, std::vector<UniqueFd> fds,
                     std::vector<int>& reply_fds);
  Status Put(const KeeperRequest& request, std::vector<UniqueFd> fds);
  void FillNext(const std::string& after, KeeperReply& reply, std::vector<int>& reply_fds) const;

  std::string path_;
  UniqueFd lock_;
  Clock& clock_;
  UniqueFd listener_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool stopping_ = false;
  std::list<UniqueFd> clients_;
  std::map<std::string, Entry> entries_;
};

}  // namespace holdfast::agent
