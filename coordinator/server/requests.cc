#include "coordinator/server/requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/endpoint.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"
#include "coordinator/contract/limits.h"
#include "coordinator/contract/text.h"

namespace holdfast::coord {
namespace {
constexpr size_t kWarningsMax = 64;
constexpr size_t kWarningBytesMax = 1024;
constexpr size_t kAddressBytesMax = 256;
constexpr size_t kLocalRanksMax = 65'536;
constexpr size_t kTestedPartsMax = 64;

/// Reads what an Attach and a Report have in common.
template <typename Request>
NodeHealth HealthOf(const Request& request) {
  NodeHealth health;
  health.disk_free_percent = std::min(request.disk_free_percent(), 100U);
  if (request.has_arena()) health.arena = FromProto(request.arena());
  for (const std::string& warning : request.warnings()) {
    if (health.warnings.size() == kWarningsMax) break;
    health.warnings.push_back(CutText(warning, kWarningBytesMax));
  }
  return health;
}

/// Converts each element of `from`; fails at the first bad one.
template <typename Value, typename Field>
Status ReadAll(const Field& from, std::vector<Value>& to) {
  to.reserve(static_cast<size_t>(from.size()));
  for (const auto& proto : from) {
    HOLDFAST_ASSIGN_OR_RETURN(Value value, FromProto(proto));
    to.push_back(std::move(value));
  }
  return Status::Ok();
}

Status ReadWorkers(const google::protobuf::RepeatedPtrField<pb::WorkerState>& from,
                   std::vector<WorkerState>& to) {
  if (static_cast<uint32_t>(from.size()) > kWorkersMax) {
    return InvalidArgumentError(
        fmt::format("{} workers on one node; the limit is {}", from.size(), kWorkersMax));
  }
  return ReadAll(from, to);
}

Status ReadRanks(const google::protobuf::RepeatedPtrField<pb::LocalRank>& from,
                 std::vector<LocalRank>& to) {
  if (static_cast<size_t>(from.size()) > kLocalRanksMax) {
    return InvalidArgumentError(
        fmt::format("{} trainers on one node; the limit is {}", from.size(), kLocalRanksMax));
  }
  return ReadAll(from, to);
}
}  // namespace

Result<NodeAttached> ReadAttach(const pb::AttachRequest& request, const std::string& cluster) {
  if (request.cluster() != cluster) {
    return Fail(FailedPreconditionError(
        fmt::format("node {} belongs to cluster '{}', this coordinator serves '{}'", request.node(),
                    request.cluster(), cluster)));
  }
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", request.node()));
  // Addresses are only validated; other agents get the original text.
  auto address = ParseEndpoint(request.data_address());
  if (!address) return Fail(address.error().WithContext("data_address"));
  NodeAttached event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.agent_id = request.agent_id();
  event.data_address = request.data_address();
  event.epoch_seen = Epoch{request.epoch_seen()};
  event.health = HealthOf(request);
  if (!request.peer_address().empty()) {
    auto peer_address = ParseEndpoint(request.peer_address());
    if (!peer_address) return Fail(peer_address.error().WithContext("peer_address"));
  }
  event.peer_address = request.peer_address();
  event.no_parity = request.no_parity();
  HOLDFAST_ASSIGN_OR_RETURN(event.labels, FromProto(request.labels()));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.replicas(), event.replicas));
  if (request.worker_address().size() > kAddressBytesMax) {
    return Fail(
        InvalidArgumentError(fmt::format("worker_address has {} bytes; the limit is {}",
                                         request.worker_address().size(), kAddressBytesMax)));
  }
  event.worker_address = request.worker_address();
  event.worker_users = request.worker_users();
  HOLDFAST_RETURN_IF_ERROR(ReadWorkers(request.workers(), event.workers));
  HOLDFAST_RETURN_IF_ERROR(ReadRanks(request.ranks(), event.ranks));
  event.disk_every = request.disk_every();
  event.shared_tiers = request.shared_tiers() & kSharedTiers;
  event.life_seen = LifeId{request.life_seen()};
  for (const pb::VersionCommit& wire : request.commits()) {
    if (event.commits.size() == kCommitsListedMax) break;
    HOLDFAST_ASSIGN_OR_RETURN(VersionCommit commit, FromProto(wire));
    event.commits.push_back(std::move(commit));
  }
  return event;
}

Result<NodeReported> ReadReport(const pb::ReportRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", request.node()));
  NodeReported event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.epoch = Epoch{request.epoch()};
  event.health = HealthOf(request);
  event.health.departing = request.departing();
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.replicas(), event.replicas));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.failed(), event.failed));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.removed(), event.removed));
  for (const auto& prepared : request.prepared()) event.prepared.push_back(FromProto(prepared));
  HOLDFAST_RETURN_IF_ERROR(ReadWorkers(request.workers(), event.workers));
  HOLDFAST_RETURN_IF_ERROR(ReadRanks(request.ranks(), event.ranks));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(request.wanted(), event.wanted));
  return event;
}

std::optional<SelfTested> SelfTestedOf(const pb::ReportRequest& request, uint64_t number) {
  const bool ended = request.self_test().number() == number;
  if (request.self_tests() && !ended) return std::nullopt;
  SelfTested event;
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.number = number;
  if (!request.self_tests()) return event;
  for (const pb::TestedPart& part : request.self_test().parts()) {
    if (event.parts.size() == kTestedPartsMax) break;
    event.parts.push_back({CutText(part.part(), kWarningBytesMax), part.failed(),
                           CutText(part.what(), kWarningBytesMax)});
  }
  return event;
}

Result<RankJoined> ReadJoin(const pb::JoinRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", request.node()));
  HOLDFAST_ASSIGN_OR_RETURN(JoinRequest join, FromProto(request));
  RankJoined event{std::move(join)};
  event.node = request.node();
  event.agent_start = request.agent_start();
  event.may_have_joined = request.start() == 0;
  return event;
}

Result<RestoreRequested> ReadRestore(const pb::DecideRestoreRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", request.node()));
  HOLDFAST_ASSIGN_OR_RETURN(RestoreRequest restore, FromProto(request));
  RestoreRequested event{std::move(restore)};
  event.node = request.node();
  return event;
}

}  // namespace holdfast::coord
