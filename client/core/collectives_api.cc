// The part of the C interface that records collectives.

#include <algorithm>
#include <cstring>

#include "client/core/api.h"
#include "client/core/collectives.h"

namespace {
using holdfast::Status;
using holdfast::client::BeginOptions;
using holdfast::client::CollectiveRecorder;
namespace agent = holdfast::agent;

static_assert(HOLDFAST_BARRIER + 1 == agent::kCollectiveKinds);
static_assert(HOLDFAST_BARRIER == static_cast<int>(agent::CollectiveKind::kBarrier));
static_assert(HOLDFAST_ROLE_EXPERT + 1 == agent::kCommunicatorRoles);
static_assert(HOLDFAST_EDGE_RECEIVE_GPU_WAIT + 1 == agent::kEdgeStates);
static_assert(HOLDFAST_ALGORITHM_OTHER == static_cast<int>(agent::CollectiveAlgorithm::kOther));
static_assert(HOLDFAST_PROTOCOL_LL128 == static_cast<int>(agent::CollectiveProtocol::kLl128));
static_assert(HOLDFAST_NO_PEER == agent::kNoPeer);

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

agent::Direction DirectionOf(uint32_t direction) {
  return direction == HOLDFAST_DIRECTION_RECEIVE ? agent::Direction::kReceive
                                                 : agent::Direction::kSend;
}

/// Converts `number`; unknown numbers become `unknown`.
template <typename Enum>
Enum Known(uint32_t number, Enum last, Enum unknown) {
  return number <= static_cast<uint32_t>(last) ? static_cast<Enum>(number) : unknown;
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
    return RecorderOf(client).Describe(
        {.id = given.id,
         .size = given.size,
         .index = given.index,
         .role = static_cast<agent::CommunicatorRole>(given.role),
         .members = {given.members, given.members == nullptr ? 0 : given.size}});
  });
}

void holdfast_communicator_forget(holdfast_client* client, uint64_t id) {
  RecorderOf(client).Forget(id);
}

holdfast_operation holdfast_collective_begin(holdfast_client* client,
                                             const holdfast_collective* collective) {
  if (collective == nullptr) return 0;
  holdfast_collective room{};
  const holdfast_collective& given = Read(*collective, room);
  agent::CollectiveValues values;
  values.communicator = given.communicator;
  values.sequence = given.sequence;
  values.bytes = given.bytes;
  values.kind = Known(given.kind, agent::CollectiveKind::kBarrier, agent::CollectiveKind::kOther);
  values.dtype = static_cast<uint8_t>(std::min(given.dtype, HOLDFAST_NO_DTYPE));
  values.algorithm = Known(given.algorithm, agent::CollectiveAlgorithm::kOther,
                           agent::CollectiveAlgorithm::kOther);
  values.protocol =
      Known(given.protocol, agent::CollectiveProtocol::kLl128, agent::CollectiveProtocol::kUnknown);
  values.channels = static_cast<uint8_t>(std::min(given.channels, 255U));
  values.source =
      given.source == 1 ? agent::CollectiveSource::kNccl : agent::CollectiveSource::kProgram;
  values.peer = given.peer;
  return RecorderOf(client).Begin(
      values, BeginOptions{.deferred = given.deferred != 0, .numbered = given.numbered != 0});
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
  RecorderOf(client).Flag(operation, agent::kEndInferred);
  RecorderOf(client).End(operation);
}

void holdfast_peer_transfer(holdfast_client* client, const holdfast_transfer* transfer) {
  if (transfer == nullptr) return;
  holdfast_transfer room{};
  const holdfast_transfer& given = Read(*transfer, room);
  RecorderOf(client).Add({.communicator = given.communicator,
                          .peer = given.peer,
                          .direction = DirectionOf(given.direction),
                          .bytes = given.bytes,
                          .gpu_wait_ns = given.gpu_wait_ns,
                          .peer_wait_ns = given.peer_wait_ns,
                          .transfer_ns = given.transfer_ns,
                          .flush_ns = given.flush_ns});
}

void holdfast_peer_state(holdfast_client* client, uint64_t communicator, uint32_t peer,
                         uint32_t direction, uint32_t state) {
  RecorderOf(client).Edge(communicator, peer, DirectionOf(direction),
                          Known(state, agent::EdgeState::kRecvGpuWait, agent::EdgeState::kIdle));
}

uint32_t holdfast_sampling(holdfast_client* client) {
  return RecorderOf(client).Sampling() ? 1 : 0;
}

}  // extern "C"
