#include "coordinator/api/telemetry_convert.h"

#include <gtest/gtest.h>

namespace holdfast::coord {
namespace {

template <typename Proto, typename Value>
Value SendAndReceive(const Value& value) {
  Proto sent;
  ToProto(value, &sent);
  Proto received;
  EXPECT_TRUE(received.ParseFromString(sent.SerializeAsString()));
  return FromProto(received);
}

/// A record with a different value in each field that the message has.
CollectiveRecord Ended() {
  return {.communicator = {0xFFFF'0000'1234'5678},
          .sequence = 12,
          .bytes = 1ULL << 40,
          .enqueued_ns = 5'000'000'000'000,
          .started_ns = 5'000'000'000'300,
          .ended_ns = 5'000'000'400'000,
          .blocked_ns = 77,
          .moved_bytes = 88,
          .kind = CollectiveKind::kReduceScatter,
          .dtype = 7,
          .algorithm = CollectiveAlgorithm::kNvls,
          .protocol = CollectiveProtocol::kLl128};
}

TEST(TelemetryConvertTest, ARecordArrivesAsItWasSent) {
  EXPECT_EQ(SendAndReceive<pb::CollectiveRecord>(Ended()), Ended());
}

TEST(TelemetryConvertTest, WhatTheMessageLacksIsDropped) {
  CollectiveRecord record = Ended();
  record.step = 3;
  record.device_ns = 4;
  record.channels = 5;
  record.source = CollectiveSource::kNccl;
  record.flags = kSampled;
  record.peer = 6;
  EXPECT_EQ(SendAndReceive<pb::CollectiveRecord>(record), Ended());
}

TEST(TelemetryConvertTest, TimesThatAreNotKnownStayUnknown) {
  CollectiveRecord running = Ended();
  running.ended_ns = 0;
  EXPECT_EQ(SendAndReceive<pb::CollectiveRecord>(running), running);
  CollectiveRecord unknown = Ended();
  unknown.enqueued_ns = 0;
  EXPECT_EQ(SendAndReceive<pb::CollectiveRecord>(unknown), unknown);
  CollectiveRecord enqueued = running;
  enqueued.started_ns = 0;
  EXPECT_EQ(SendAndReceive<pb::CollectiveRecord>(enqueued).started_ns, 0U);
  EXPECT_EQ(SendAndReceive<pb::CollectiveRecord>(enqueued).ended_ns, 0U);
}

TEST(TelemetryConvertTest, UnknownNumbersAreOther) {
  pb::CollectiveRecord record;
  record.set_kind(256 + 1);
  record.set_algorithm(99);
  record.set_protocol(99);
  const CollectiveRecord read = FromProto(record);
  EXPECT_EQ(read.kind, CollectiveKind::kOther);
  EXPECT_EQ(read.algorithm, CollectiveAlgorithm::kOther);
  EXPECT_EQ(read.protocol, CollectiveProtocol::kUnknown);
  pb::Communicator communicator;
  communicator.set_role(99);
  EXPECT_EQ(FromProto(communicator).role, CommunicatorRole::kUnknown);
}

TEST(TelemetryConvertTest, AnOperationInFlightKeepsItsEdge) {
  InFlight flight{.record = Ended(), .started = true, .age_ns = 9};
  flight.record.ended_ns = 0;
  InFlight read = SendAndReceive<pb::InFlight>(flight);
  EXPECT_EQ(read.record, flight.record);
  EXPECT_TRUE(read.started);
  EXPECT_EQ(read.age_ns, 9U);
  EXPECT_FALSE(read.edge);
  // The first index, direction and state are zeros.
  for (const EdgeState state : {EdgeState::kIdle, EdgeState::kReceiveFlushWait}) {
    for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
      flight.edge = EdgeWait{.peer = 0, .direction = direction, .state = state};
      read = SendAndReceive<pb::InFlight>(flight);
      ASSERT_TRUE(read.edge);
      EXPECT_EQ(read.edge->peer, 0U);
      EXPECT_EQ(read.edge->direction, direction);
      EXPECT_EQ(read.edge->state, state);
      EXPECT_EQ(read.edge->completed, std::nullopt);
    }
  }
}

TEST(TelemetryConvertTest, AnUnknownCountOfTransfersStaysUnknown) {
  InFlight flight{.record = Ended(), .started = true, .edge = EdgeWait{}};
  for (const std::optional<uint64_t> completed : {std::optional<uint64_t>(0), {7}, {}}) {
    flight.edge->completed = completed;
    EXPECT_EQ(SendAndReceive<pb::InFlight>(flight).edge->completed, completed);
  }
}

TEST(TelemetryConvertTest, ACommunicatorArrivesAsItWasSent) {
  Communicator communicator{
      .id = {7}, .role = CommunicatorRole::kExpert, .size = 3, .index = 2, .members = {}};
  EXPECT_EQ(SendAndReceive<pb::Communicator>(communicator), communicator);
  communicator.members = {Rank{9}, Rank{0}, Rank{4}};
  EXPECT_EQ(SendAndReceive<pb::Communicator>(communicator), communicator);
}

TEST(TelemetryConvertTest, OfTransfersTheTimeOfTheirDirectionIsSent) {
  PeerTransfers transfers{.communicator = {7},
                          .peer = 3,
                          .direction = Direction::kSend,
                          .transfers = 20,
                          .bytes = 4096,
                          .gpu_wait_ns = 1,
                          .peer_wait_ns = 2,
                          .transfer_ns = 3,
                          .flush_ns = 4};
  PeerTransfers read = SendAndReceive<pb::PeerTransfers>(transfers);
  EXPECT_EQ(read.communicator, CommunicatorId{7});
  EXPECT_EQ(read.peer, 3U);
  EXPECT_EQ(read.transfers, 20U);
  EXPECT_EQ(read.bytes, 4096U);
  EXPECT_EQ(read.transfer_ns, 3U);
  EXPECT_EQ(read.peer_wait_ns, 0U);
  transfers.direction = Direction::kReceive;
  read = SendAndReceive<pb::PeerTransfers>(transfers);
  EXPECT_EQ(read.direction, Direction::kReceive);
  EXPECT_EQ(read.transfer_ns, 0U);
  EXPECT_EQ(read.peer_wait_ns, 2U);
}

TEST(TelemetryConvertTest, CountsAndStepsArriveAsTheyWereSent) {
  const auto count = SendAndReceive<pb::CompletedCount>(
      CompletedCount{.communicator = {8}, .kind = CollectiveKind::kBarrier, .count = 5});
  EXPECT_EQ(count.communicator, CommunicatorId{8});
  EXPECT_EQ(count.kind, CollectiveKind::kBarrier);
  EXPECT_EQ(count.count, 5U);
  const auto step = SendAndReceive<pb::StepTime>(StepTime{.step = 6, .duration_ns = 7});
  EXPECT_EQ(step.step, 6U);
  EXPECT_EQ(step.duration_ns, 7U);
}

}  // namespace
}  // namespace holdfast::coord
