#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "cli/core/options.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/leader_channel.h"

namespace holdfast::cli {

/// Calls to the coordinator that leads, of any gRPC service. Each call waits at most --timeout,
/// ends early when the command is interrupted, and searches for the leader if there are several
/// coordinators. Thread-safe.
class LeaderCalls {
 public:
  /// InvalidArgument: a malformed endpoint, or one on another machine without TLS files. `hint`:
  /// what the user should check when no coordinator can be reached. `clock` outlives this object.
  static Result<LeaderCalls> Open(const GlobalOptions& options, std::string hint,
                                  const Clock& clock);

  template <typename Stub, typename Request, typename Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  /// Returns the reply if its outcome is OK. Otherwise returns the outcome, or the error of the
  /// transport as a Status.
  template <typename Stub, typename Request, typename Reply>
  Result<Reply> Call(Method<Stub, Request, Reply> method, const Request& request) {
    Reply reply;
    HOLDFAST_RETURN_IF_ERROR(
        Repeat([&](const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* call) {
          Stub stub(channel);
          return (stub.*method)(call, request, &reply);
        }));
    HOLDFAST_RETURN_IF_ERROR(coord::FromProto(reply.outcome()));
    return reply;
  }

  /// The channel to the coordinator that led last, for calls that are not repeated.
  const std::shared_ptr<grpc::Channel>& channel() const;
  /// Turns how a call ended into a Status.
  Status StatusOf(const grpc::Status& finished) const;
  const std::string& peer() const { return peer_; }
  int64_t timeout_ms() const { return timeout_ms_; }
  const Clock& clock() const { return *clock_; }

 private:
  using Try = std::function<grpc::Status(const std::shared_ptr<grpc::Channel>& channel,
                                         grpc::ClientContext* call)>;
  /// The search for the coordinator that leads, during one call of the operator.
  struct Search {
    bool again = false;            // another try, perhaps with another coordinator, may succeed
    size_t unreached = 0;          // coordinators in a row that could not be reached
    std::optional<size_t> leader;  // the one that a coordinator that stands by named last
    std::optional<grpc::Status> answer;  // of that leader, if it cannot serve
  };

  LeaderCalls(std::unique_ptr<coord::LeaderChannel> coordinators, const GlobalOptions& options,
              std::string hint, const Clock& clock);
  Status Repeat(const Try& attempt);
  /// Calls once. Returns DEADLINE_EXCEEDED if the coordinator is silent.
  grpc::Status CallOnce(const Try& attempt, int64_t left_ms, Search* search);

  std::unique_ptr<coord::LeaderChannel> coordinators_;
  std::string peer_;
  std::string hint_;
  int64_t timeout_ms_;
  const Clock* clock_;
};

}  // namespace holdfast::cli
