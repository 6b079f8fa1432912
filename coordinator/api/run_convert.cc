#include "coordinator/api/run_convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "base/job_name.h"
#include "coordinator/api/convert.h"
#include "coordinator/contract/limits.h"
#include "coordinator/contract/text.h"

namespace holdfast::coord {
namespace {
constexpr uint32_t kNodesMax = 1U << 16;
constexpr uint32_t kRestartsMax = 1'000'000;
constexpr int64_t kGraceMsMax = 3'600'000;
constexpr int64_t kHangMsMax = 7LL * 24 * 3600 * 1000;
constexpr uint32_t kRefillMax = 1'000'000;
constexpr int64_t kEndedAgoMsMax = 86'400'000;  // a day; larger values are clamped
constexpr int32_t kSignalMax = 64;
constexpr size_t kAddressBytesMax = 255;

using Strings = google::protobuf::RepeatedPtrField<std::string>;

/// Accepts what execve(2) accepts: strings without NUL, within bounds.
Status CheckCommand(const Strings& command, const Strings& environment,
                    const std::string& directory) {
  if (command.empty() || command[0].empty()) {
    return InvalidArgumentError("there is no command to run: put it after --");
  }
  size_t bytes = 0;
  for (const Strings* strings : {&command, &environment}) {
    if (static_cast<size_t>(strings->size()) > kCommandArgumentsMax) {
      return InvalidArgumentError(fmt::format(
          "a command and its environment have at most {} strings each", kCommandArgumentsMax));
    }
    for (const std::string& text : *strings) {
      bytes += text.size() + 1;
      if (text.find('\0') != std::string::npos) {
        return InvalidArgumentError("an argument or a variable of the command contains a NUL byte");
      }
    }
  }
  if (bytes > kCommandBytesMax) {
    return InvalidArgumentError(fmt::format(
        "command and environment have {} bytes; the limit is {}", bytes, kCommandBytesMax));
  }
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return InvalidArgumentError(fmt::format("environment '{}' is not NAME=value", variable));
    }
  }
  if (directory.empty() || directory.front() != '/' || directory.size() >= 4096 ||
      directory.find('\0') != std::string::npos) {
    return InvalidArgumentError(fmt::format("directory '{}' is not an absolute path", directory));
  }
  return Status::Ok();
}

Status CheckRunId(const std::string& run_id) {
  if (!run_id.empty() && run_id.size() <= kRunIdBytesMax) return Status::Ok();
  return InvalidArgumentError(
      fmt::format("a run ID of {} bytes; it has 1 to {}", run_id.size(), kRunIdBytesMax));
}
}  // namespace

Result<WorkerState> FromProto(const pb::WorkerState& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_RETURN_IF_ERROR(CheckRunId(proto.run_id()));
  if (proto.rank() >= kWorldMax || proto.phase() < 1 || proto.phase() > 3) {
    return Fail(
        InvalidArgumentError(fmt::format("worker {} in phase {}", proto.rank(), proto.phase())));
  }
  if (proto.pid() > INT_MAX || proto.signal() < 0 || proto.signal() > kSignalMax) {
    return Fail(InvalidArgumentError(fmt::format("worker {} with pid {} and signal {}",
                                                 proto.rank(), proto.pid(), proto.signal())));
  }
  WorkerState state;
  state.job = proto.job();
  state.run_id = proto.run_id();
  state.rank = Rank{proto.rank()};
  state.phase = static_cast<WorkerPhase>(proto.phase());
  state.pid = proto.pid();
  state.exit_code = proto.exit_code();
  state.signal = proto.signal();
  state.ended_ago_ms = std::clamp<int64_t>(proto.ended_ago_ms(), 0, kEndedAgoMsMax);
  state.last_lines = CutText(proto.last_lines(), kLastLinesBytesMax);
  return state;
}

void ToProto(const WorkerState& state, pb::WorkerState* out) {
  out->set_job(state.job);
  out->set_run_id(state.run_id);
  out->set_rank(state.rank.value);
  out->set_phase(static_cast<uint32_t>(state.phase));
  out->set_pid(state.pid);
  out->set_exit_code(state.exit_code);
  out->set_signal(state.signal);
  out->set_ended_ago_ms(state.ended_ago_ms);
  out->set_last_lines(state.last_lines);
}

Result<SetWorkers> FromProto(const pb::SetWorkers& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  SetWorkers directive;
  directive.job = proto.job();
  directive.grace_ms = std::clamp<int64_t>(proto.grace_ms(), 0, kGraceMsMax);
  if (proto.ranks() == 0) return directive;
  HOLDFAST_RETURN_IF_ERROR(CheckRunId(proto.run_id()));
  HOLDFAST_RETURN_IF_ERROR(CheckCommand(proto.command(), proto.environment(), proto.directory()));
  if (proto.ranks() > kWorkersMax || proto.world() > kWorldMax ||
      proto.first_rank() >= proto.world() || proto.ranks() > proto.world() - proto.first_rank() ||
      proto.nodes() > kNodesMax || proto.node_rank() >= proto.nodes() ||
      proto.master_port() > 65535 || proto.master_address().size() > kAddressBytesMax ||
      proto.restarts() > kRestartsMax || proto.restarts_max() > kRestartsMax) {
    return Fail(InvalidArgumentError(fmt::format("workers {}+{} in a world of {} on node {} of {}",
                                                 proto.first_rank(), proto.ranks(), proto.world(),
                                                 proto.node_rank(), proto.nodes())));
  }
  directive.run_id = proto.run_id();
  directive.first_rank = Rank{proto.first_rank()};
  directive.ranks = proto.ranks();
  directive.world = proto.world();
  directive.node_rank = proto.node_rank();
  directive.nodes = proto.nodes();
  directive.master_address = proto.master_address();
  directive.master_port = proto.master_port();
  directive.restarts = proto.restarts();
  directive.restarts_max = proto.restarts_max();
  directive.command.assign(proto.command().begin(), proto.command().end());
  directive.environment.assign(proto.environment().begin(), proto.environment().end());
  directive.directory = proto.directory();
  if (proto.has_uid()) directive.uid = proto.uid();
  return directive;
}

void ToProto(const SetWorkers& directive, pb::SetWorkers* out) {
  out->set_job(directive.job);
  out->set_run_id(directive.run_id);
  out->set_first_rank(directive.first_rank.value);
  out->set_ranks(directive.ranks);
  out->set_world(directive.world);
  out->set_node_rank(directive.node_rank);
  out->set_nodes(directive.nodes);
  out->set_master_address(directive.master_address);
  out->set_master_port(directive.master_port);
  out->set_restarts(directive.restarts);
  out->set_restarts_max(directive.restarts_max);
  out->mutable_command()->Assign(directive.command.begin(), directive.command.end());
  out->mutable_environment()->Assign(directive.environment.begin(), directive.environment.end());
  out->set_directory(directive.directory);
  out->set_grace_ms(directive.grace_ms);
  if (directive.uid) out->set_uid(*directive.uid);
}

Result<RunSpec> FromProto(const pb::RunSpec& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(proto.job()));
  HOLDFAST_RETURN_IF_ERROR(CheckCommand(proto.command(), proto.environment(), proto.directory()));
  const auto bounded = [](std::string_view what, uint64_t value, uint64_t least, uint64_t most) {
    if (value >= least && value <= most) return Status::Ok();
    return InvalidArgumentError(fmt::format("{} is {}; use {} to {}", what, value, least, most));
  };
  HOLDFAST_RETURN_IF_ERROR(bounded("nnodes", proto.nodes(), 1, kNodesMax));
  HOLDFAST_RETURN_IF_ERROR(bounded("nproc-per-node", proto.ranks_per_node(), 1, kWorkersMax));
  HOLDFAST_RETURN_IF_ERROR(
      bounded("the world", uint64_t{proto.nodes()} * proto.ranks_per_node(), 1, kWorldMax));
  HOLDFAST_RETURN_IF_ERROR(bounded("spares", proto.spares(), 0, kNodesMax));
  HOLDFAST_RETURN_IF_ERROR(bounded("max-restarts", proto.restarts_max(), 0, kRestartsMax));
  if (proto.grace_ms() < 0 || proto.grace_ms() > kGraceMsMax) {
    return Fail(InvalidArgumentError("the grace period must be from 0 to one hour"));
  }
  HOLDFAST_RETURN_IF_ERROR(bounded("restarts-refill", proto.refill_versions(), 0, kRefillMax));
  HOLDFAST_RETURN_IF_ERROR(bounded("detect-action", proto.detect_action(), 0, 3));
  if (proto.hang_after_ms() < 0 || proto.hang_after_ms() > kHangMsMax) {
    return Fail(InvalidArgumentError("hang-after must be from 0 to seven days"));
  }
  RunSpec spec;
  spec.job = proto.job();
  spec.command.assign(proto.command().begin(), proto.command().end());
  spec.environment.assign(proto.environment().begin(), proto.environment().end());
  spec.directory = proto.directory();
  spec.nodes = proto.nodes();
  spec.ranks_per_node = proto.ranks_per_node();
  spec.spares = proto.spares();
  spec.restarts_max = proto.restarts_max();
  spec.grace_ms = proto.grace_ms();
  if (proto.has_refill_versions()) spec.refill_versions = proto.refill_versions();
  spec.detect_action = static_cast<DetectAction>(proto.detect_action());
  spec.hang_after_ms = proto.hang_after_ms();
  return spec;
}

void ToProto(const RunSpec& spec, pb::RunSpec* out) {
  out->set_job(spec.job);
  out->mutable_command()->Assign(spec.command.begin(), spec.command.end());
  out->mutable_environment()->Assign(spec.environment.begin(), spec.environment.end());
  out->set_directory(spec.directory);
  out->set_nodes(spec.nodes);
  out->set_ranks_per_node(spec.ranks_per_node);
  out->set_spares(spec.spares);
  out->set_restarts_max(spec.restarts_max);
  out->set_grace_ms(spec.grace_ms);
  out->set_refill_versions(spec.refill_versions);
  out->set_detect_action(static_cast<uint32_t>(spec.detect_action));
  out->set_hang_after_ms(spec.hang_after_ms);
  if (spec.uid) out->set_uid(*spec.uid);
}

}  // namespace holdfast::coord
