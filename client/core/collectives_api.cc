// The part of the C interface that records collectives.

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "client/core/api.h"
#include "client/core/collectives.h"

namespace {
using holdfast::AlgorithmOfNumber;
using holdfast::CollectiveAlgorithm;
using holdfast::CollectiveKind;
using holdfast::CollectiveProtocol;
using holdfast::CollectiveRecord;
using holdfast::Communicator;
using holdfast::CommunicatorId;
using holdfast::CommunicatorRole;
using holdfast::Direction;
using holdfast::DirectionOfNumber;
using holdfast::EdgeState;
using holdfast::EdgeStateOfNumber;
using holdfast::kCollectiveAlgorithms;
using holdfast::kCollectiveKinds;
using holdfast::kCollectiveProtocols;
using holdfast::kCommunicatorRoles;
using holdfast::kEdgeStates;
using holdfast::kEndInferred;
using holdfast::KindOfNumber;
using holdfast::kNoDtype;
using holdfast::kNoPeer;
using holdfast::ProtocolOfNumber;
using holdfast::Rank;
using holdfast::SourceOfNumber;
using holdfast::Status;
using holdfast::client::BeginOptions;
using holdfast::client::CollectiveRecorder;

/// Whether each enumerator of holdfast.h has the number of its enumerator in collective.h.
template <typename Enum>
constexpr bool AreEqual(std::initializer_list<std::pair<uint32_t, Enum>> pairs) {
  for (const auto& [number, value] : pairs) {
    if (number != static_cast<uint32_t>(value)) return false;
  }
  return true;
}
static_assert(HOLDFAST_BARRIER + 1 == kCollectiveKinds);
static_assert(AreEqual<CollectiveKind>({
    {HOLDFAST_OTHER_COLLECTIVE, CollectiveKind::kOther},
    {HOLDFAST_ALL_REDUCE, CollectiveKind::kAllReduce},
    {HOLDFAST_ALL_GATHER, CollectiveKind::kAllGather},
    {HOLDFAST_REDUCE_SCATTER, CollectiveKind::kReduceScatter},
    {HOLDFAST_BROADCAST, CollectiveKind::kBroadcast},
    {HOLDFAST_REDUCE, CollectiveKind::kReduce},
    {HOLDFAST_ALL_TO_ALL, CollectiveKind::kAllToAll},
    {HOLDFAST_SEND, CollectiveKind::kSend},
    {HOLDFAST_RECEIVE, CollectiveKind::kReceive},
    {HOLDFAST_BARRIER, CollectiveKind::kBarrier},
}));
static_assert(HOLDFAST_ALGORITHM_OTHER + 1 == kCollectiveAlgorithms);
static_assert(AreEqual<CollectiveAlgorithm>({
    {HOLDFAST_ALGORITHM_UNKNOWN, CollectiveAlgorithm::kUnknown},
    {HOLDFAST_ALGORITHM_RING, CollectiveAlgorithm::kRing},
    {HOLDFAST_ALGORITHM_TREE, CollectiveAlgorithm::kTree},
    {HOLDFAST_ALGORITHM_COLLNET, CollectiveAlgorithm::kCollnet},
    {HOLDFAST_ALGORITHM_NVLS, CollectiveAlgorithm::kNvls},
    {HOLDFAST_ALGORITHM_PAT, CollectiveAlgorithm::kPat},
    {HOLDFAST_ALGORITHM_OTHER, CollectiveAlgorithm::kOther},
}));
static_assert(HOLDFAST_PROTOCOL_LL128 + 1 == kCollectiveProtocols);
static_assert(AreEqual<CollectiveProtocol>({
    {HOLDFAST_PROTOCOL_UNKNOWN, CollectiveProtocol::kUnknown},
    {HOLDFAST_PROTOCOL_SIMPLE, CollectiveProtocol::kSimple},
    {HOLDFAST_PROTOCOL_LL, CollectiveProtocol::kLl},
    {HOLDFAST_PROTOCOL_LL128, CollectiveProtocol::kLl128},
}));
static_assert(HOLDFAST_ROLE_EXPERT + 1 == kCommunicatorRoles);
static_assert(AreEqual<CommunicatorRole>({
    {HOLDFAST_ROLE_UNKNOWN, CommunicatorRole::kUnknown},
    {HOLDFAST_ROLE_DATA, CommunicatorRole::kData},
    {HOLDFAST_ROLE_TENSOR, CommunicatorRole::kTensor},
    {HOLDFAST_ROLE_PIPELINE, CommunicatorRole::kPipeline},
    {HOLDFAST_ROLE_EXPERT, CommunicatorRole::kExpert},
}));
static_assert(AreEqual<Direction>({
    {HOLDFAST_DIRECTION_SEND, Direction::kSend},
    {HOLDFAST_DIRECTION_RECEIVE, Direction::kReceive},
}));
static_assert(HOLDFAST_EDGE_RECEIVE_GPU_WAIT + 1 == kEdgeStates);
static_assert(AreEqual<EdgeState>({
    {HOLDFAST_EDGE_IDLE, EdgeState::kIdle},
    {HOLDFAST_EDGE_SEND_GPU_WAIT, EdgeState::kSendGpuWait},
    {HOLDFAST_EDGE_SEND_PEER_WAIT, EdgeState::kSendPeerWait},
    {HOLDFAST_EDGE_SEND_WAIT, EdgeState::kSendWait},
    {HOLDFAST_EDGE_RECEIVE_WAIT, EdgeState::kReceiveWait},
    {HOLDFAST_EDGE_RECEIVE_FLUSH_WAIT, EdgeState::kReceiveFlushWait},
    {HOLDFAST_EDGE_RECEIVE_GPU_WAIT, EdgeState::kReceiveGpuWait},
}));
static_assert(HOLDFAST_NO_PEER == kNoPeer && HOLDFAST_NO_DTYPE == kNoDtype);

CollectiveRecorder& RecorderOf(holdfast_client* client) {
  return client == nullptr ? CollectiveRecorder::OfProcess() : client->core->collectives();
}

/// Returns the caller's structure with this library's size. Copies a structure of another size to
/// `room`, where missing fields are zero.
template <typename Struct>
const Struct& Read(const Struct& given, Struct& room) {
  if (given.struct_size == sizeof given) return given;
  std::memcpy(&room, &given, std::min(given.struct_size, sizeof room));
  return room;
}

Communicator CommunicatorOf(const holdfast_communicator& given) {
  Communicator communicator{.id = {given.id},
                            .role = static_cast<CommunicatorRole>(given.role),
                            .size = given.size,
                            .index = given.index};
  if (given.members == nullptr) return communicator;
  communicator.members.reserve(given.size);
  for (uint32_t i = 0; i < given.size; ++i) communicator.members.push_back(Rank{given.members[i]});
  return communicator;
}
}  // namespace

extern "C" {

void holdfast_step(holdfast_client* client, uint64_t step) { RecorderOf(client).Step(step, false); }

holdfast_code holdfast_communicator_describe(holdfast_client* client,
                                             const holdfast_communicator* communicator,
                                             holdfast_error* error) {
  return holdfast::client::Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return holdfast::InvalidArgumentError("communicator is NULL");
    holdfast_communicator room{};
    const holdfast_communicator& given = Read(*communicator, room);
    return RecorderOf(client).Describe(CommunicatorOf(given));
  });
}

void holdfast_communicator_forget(holdfast_client* client, uint64_t id) {
  RecorderOf(client).Forget(CommunicatorId{id});
}

holdfast_operation holdfast_collective_begin(holdfast_client* client,
                                             const holdfast_collective* collective) {
  if (collective == nullptr) return 0;
  holdfast_collective room{};
  const holdfast_collective& given = Read(*collective, room);
  CollectiveRecord record;
  record.communicator = {given.communicator};
  record.sequence = given.sequence;
  record.bytes = given.bytes;
  record.kind = KindOfNumber(given.kind);
  record.dtype = static_cast<uint8_t>(std::min<uint32_t>(given.dtype, kNoDtype));
  record.algorithm = AlgorithmOfNumber(given.algorithm);
  record.protocol = ProtocolOfNumber(given.protocol);
  record.channels = static_cast<uint8_t>(std::min(given.channels, 255U));
  record.source = SourceOfNumber(given.source);
  record.peer = given.peer;
  return RecorderOf(client).Begin(
      record, BeginOptions{.deferred = given.deferred != 0, .numbered = given.numbered != 0});
}

void holdfast_collective_started(holdfast_client* client, holdfast_operation operation) {
  RecorderOf(client).Started(operation);
}

void holdfast_collective_device_time(holdfast_client* client, holdfast_operation operation,
                                     uint64_t ns) {
  RecorderOf(client).DeviceTime(operation, ns);
}

void holdfast_collective_end(holdfast_client* client, holdfast_operation operation) {
  RecorderOf(client).End(operation);
}

void holdfast_collective_abandon(holdfast_client* client, holdfast_operation operation) {
  RecorderOf(client).Flag(operation, kEndInferred);
  RecorderOf(client).End(operation);
}

void holdfast_peer_transfer(holdfast_client* client, const holdfast_transfer* transfer) {
  if (transfer == nullptr) return;
  holdfast_transfer room{};
  const holdfast_transfer& given = Read(*transfer, room);
  RecorderOf(client).Add({.communicator = {given.communicator},
                          .peer = given.peer,
                          .direction = DirectionOfNumber(given.direction),
                          .transfers = 1,
                          .bytes = given.bytes,
                          .gpu_wait_ns = given.gpu_wait_ns,
                          .peer_wait_ns = given.peer_wait_ns,
                          .transfer_ns = given.transfer_ns,
                          .flush_ns = given.flush_ns});
}

void holdfast_peer_state(holdfast_client* client, uint64_t communicator, uint32_t peer,
                         uint32_t direction, uint32_t state) {
  RecorderOf(client).Edge(CommunicatorId{communicator}, peer, DirectionOfNumber(direction),
                          EdgeStateOfNumber(state));
}

void holdfast_operation_edge(holdfast_client* client, holdfast_operation operation, uint32_t peer,
                             uint32_t direction, uint32_t state, uint64_t completed) {
  RecorderOf(client).Edge(operation, peer, DirectionOfNumber(direction), EdgeStateOfNumber(state),
                          completed);
}

uint32_t holdfast_sampling(holdfast_client* client) {
  return RecorderOf(client).Sampling() ? 1 : 0;
}

}  // extern "C"
