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
#include "storage/base/fd.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// Holds descriptors for an agent that may die: the whole of the holdfast-keeper process. One
/// thread, one poll loop, no state but the descriptors. One keeper a run directory: keeper.lock is
/// held for life and carries the pid.
class Keeper {
 public:
  /// Takes the lock and listens. AlreadyExists: another keeper serves this directory.
  static Result<std::unique_ptr<Keeper>> Open(const std::string& run_dir);
  ~Keeper();

  /// Serves until a client asks for shutdown, `stop_fd` becomes readable, or nobody can reach this
  /// keeper any more: its socket file is gone, cannot be made again, and no client is connected.
  Status Run(int stop_fd);

 private:
  struct Entry {
    std::vector<std::byte> note;
    std::vector<UniqueFd> fds;
    uint64_t bytes = 0;
  };

  Keeper(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  Status Listen();
  bool SocketIsOurs() const;
  /// False when the keeper should end.
  bool StaysReachable();
  void AcceptClients();
  /// False: the client is to be closed.
  bool ServeClient(int client);
  KeeperReply Handle(const KeeperRequest& request, std::vector<UniqueFd> fds,
                     std::vector<int>& reply_fds);
  Status Put(const KeeperRequest& request, std::vector<UniqueFd> fds);
  void FillNext(const std::string& after, KeeperReply& reply, std::vector<int>& reply_fds) const;

  std::string path_;
  UniqueFd lock_;
  UniqueFd listener_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool stopping_ = false;
  std::list<UniqueFd> clients_;
  std::map<std::string, Entry> entries_;
};

}  // namespace holdfast::agent
