#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/pipeline/executor.h"
#include "agent/pipeline/parity_keeper.h"
#include "agent/pipeline/peer_reach.h"

namespace holdfast::agent {

/// The parity keepers of this node's jobs. Only the node's loop thread uses it; Clear() may also be
/// called after that thread has ended.
class ParityService {
 public:
  /// `reach` probes the members of the jobs' groups. `background` joins the threads of keepers that
  /// have ended. The references outlive the object.
  ParityService(ParityTools tools, PeerReach& reach, Executor& background)
      : tools_(std::move(tools)), reach_(reach), background_(background) {}

  /// Passes the coordinator's latest job state to the job's keeper. Starts a keeper when the job
  /// has its first parity group.
  void SetJobState(const JobState& job);
  /// Ends the job's keeper, if it has one. Does not block.
  void Stop(const std::string& job);
  /// Runs the task on the thread of the job's keeper, between two versions. Returns false, and
  /// drops the task, when the job has no keeper.
  bool Post(const std::string& job, std::function<void()> task);
  /// Ends all keepers. Blocks.
  void Clear() { keepers_.clear(); }

 private:
  const ParityTools tools_;
  PeerReach& reach_;
  Executor& background_;
  std::map<std::string, std::unique_ptr<ParityKeeper>> keepers_;
};

}  // namespace holdfast::agent
