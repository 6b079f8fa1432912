// Tests which operations in flight of a rank a digest contains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/server/telemetry_sender.h"

namespace holdfast::agent {
namespace {
using ::testing::SizeIs;

InFlight FlightOf(CollectiveKind kind, uint64_t sequence, bool started, uint64_t age_ms,
                  uint64_t communicator = 1, uint32_t peer = kNoPeer) {
  InFlight flight;
  flight.record.kind = kind;
  flight.record.communicator = {communicator};
  flight.record.sequence = sequence;
  flight.record.peer = peer;
  flight.started = started;
  flight.age_ns = age_ms * 1'000'000;
  return flight;
}

coordinator::ObservedRank DigestOf(std::vector<InFlight> in_flight) {
  ObservedRank observed;
  observed.who = {"gpt", Rank{0}, 2, Incarnation{1}, {100, 7}};
  observed.alive = true;
  observed.telemetry.present = true;
  observed.telemetry.in_flight = std::move(in_flight);
  const auto digests = TelemetrySender::DigestsOf({observed}, 1'000'000'000, false);
  return digests.at(0).ranks(0);
}

TEST(TelemetryDigestTest, ContainsStartedOperationsAndTheNextOfEachCommunicator) {
  std::vector<InFlight> in_flight;
  for (uint64_t i = 0; i < 60; ++i) {
    in_flight.push_back(FlightOf(CollectiveKind::kAllReduce, 100 + i, false, 5'000 - i));
    in_flight.push_back(FlightOf(CollectiveKind::kAllGather, 200 + i, false, 4'000 - i, 2));
  }
  in_flight.push_back(FlightOf(CollectiveKind::kAllReduce, 99, true, 3'000));
  in_flight.push_back(FlightOf(CollectiveKind::kAllReduce, 98, true, 300));  // too young
  const auto rank = DigestOf(in_flight);
  ASSERT_THAT(rank.in_flight(), SizeIs(3));
  EXPECT_TRUE(rank.in_flight(0).started());
  EXPECT_EQ(rank.in_flight(0).record().sequence(), 99U);
  EXPECT_EQ(rank.in_flight(1).record().sequence(), 100U);
  EXPECT_EQ(rank.in_flight(2).record().sequence(), 200U);
}

TEST(TelemetryDigestTest, ContainsTheWaitForAProcessor) {
  ObservedRank observed;
  observed.who = {"gpt", Rank{0}, 2, Incarnation{1}, {100, 7}};
  observed.processor_wait_percent = 87;
  const auto digests = TelemetrySender::DigestsOf({observed}, 1'000'000'000, false);
  EXPECT_EQ(digests.at(0).ranks(0).processor_wait_percent(), 87U);
}

TEST(TelemetryDigestTest, ATransferHasItsOwnPeer) {
  const auto rank = DigestOf({FlightOf(CollectiveKind::kReceive, 5, true, 2'000, 1, 3),
                              FlightOf(CollectiveKind::kSend, 5, true, 2'000, 1, 0),
                              FlightOf(CollectiveKind::kBroadcast, 5, true, 2'000, 1, 0)});
  ASSERT_THAT(rank.in_flight(), SizeIs(3));
  EXPECT_TRUE(rank.in_flight(0).has_edge());
  EXPECT_EQ(rank.in_flight(0).peer(), 3U);
  EXPECT_EQ(rank.in_flight(0).direction(), 1U);
  EXPECT_TRUE(rank.in_flight(1).has_edge());
  EXPECT_EQ(rank.in_flight(1).peer(), 0U);
  EXPECT_EQ(rank.in_flight(1).direction(), 0U);
  EXPECT_FALSE(rank.in_flight(2).has_edge()) << "the peer of a broadcast is its root";
}

TEST(TelemetryDigestTest, TheConnectionOfAnotherTransferIsIgnored) {
  // The known connection is that of the communicator's oldest transfer.
  InFlight receive = FlightOf(CollectiveKind::kReceive, 5, true, 2'000, 1, 3);
  receive.edge = EdgeWait{1, Direction::kSend, EdgeState::kSendWait, 1};
  InFlight send = FlightOf(CollectiveKind::kSend, 5, true, 2'000, 1, 1);
  send.edge = receive.edge;
  const auto rank = DigestOf({receive, send});
  EXPECT_EQ(rank.in_flight(0).peer(), 3U);
  EXPECT_EQ(rank.in_flight(0).edge_state(), 0U);
  EXPECT_EQ(rank.in_flight(1).peer(), 1U);
  EXPECT_EQ(rank.in_flight(1).edge_state(), static_cast<uint32_t>(EdgeState::kSendWait));
}

}  // namespace
}  // namespace holdfast::agent
