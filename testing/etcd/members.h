#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "testing/cluster/process.h"

namespace holdfast::local {

/// Whether this machine has etcd's server.
bool HasEtcd();
/// Why a test that needs etcd is skipped.
inline constexpr const char* kNoEtcd =
    "etcd is not installed (deploy/install-deps.sh --ops, package etcd-server)";

struct EtcdTls {
  std::string ca, cert, key;  // PEM files; the members serve and demand certificates of this CA
  bool configured() const { return !ca.empty(); }
};

/// An etcd of three real members on loopback, with fsync as in production. The destructor ends the
/// members; the files stay. Thread-compatible.
class EtcdMembers {
 public:
  /// `dir` gets the members' data. `arguments` are passed to every member.
  EtcdMembers(std::string dir, std::vector<std::string> arguments = {}, EtcdTls tls = {});
  ~EtcdMembers();

  /// Starts all members and waits until a leader is elected.
  Status Start();
  Status StartMember(int member);
  Process& member(int index) { return processes_[static_cast<size_t>(index)]; }
  /// Sends a signal to all members: SIGSTOP and SIGCONT pause the whole store.
  void Signal(int signal);
  /// Returns "etcd://127.0.0.1:…,127.0.0.1:…,127.0.0.1:…".
  std::string url() const;
  std::vector<std::string> clients() const { return clients_; }
  std::string Log(int member) const;
  /// Whether a member answers reads, so that a leader is elected.
  bool Answers();

 private:
  std::string ClientScheme() const { return tls_.configured() ? "https://" : "http://"; }

  const std::string dir_;
  const std::vector<std::string> arguments_;
  const EtcdTls tls_;
  std::vector<std::string> clients_, peers_;
  std::vector<Process> processes_;
};

}  // namespace holdfast::local
