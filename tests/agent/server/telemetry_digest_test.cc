// What a digest tells of a rank's operations in flight.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/server/telemetry_sender.h"

namespace holdfast::agent {
namespace {
using ::testing::SizeIs;

InFlightView FlightOf(CollectiveKind kind, uint64_t sequence, bool started, uint64_t age_ms,
                      uint64_t communicator = 1, uint32_t peer = kNoPeer) {
  InFlightView flight;
  flight.values.kind = kind;
  flight.values.communicator = communicator;
  flight.values.sequence = sequence;
  flight.values.peer = peer;
  flight.started = started;
  flight.age_ns = age_ms * 1'000'000;
  return flight;
}

coordinator::ObservedRank Told(std::vector<InFlightView> in_flight) {
  RankSight sight;
  sight.who = {"gpt", Rank{0}, 2, Incarnation{1}, {100, 7}};
  sight.alive = true;
  sight.telemetry.present = true;
  sight.telemetry.in_flight = std::move(in_flight);
  const auto digests = TelemetrySender::DigestsOf({sight}, 1'000'000'000, false);
  return digests.at(0).ranks(0);
}

TEST(TelemetryDigestTest, TellsWhatRunsAndWhatComesNext) {
  std::vector<InFlightView> in_flight;
  for (uint64_t i = 0; i < 60; ++i) {
    in_flight.push_back(FlightOf(CollectiveKind::kAllReduce, 100 + i, false, 5'000 - i));
    in_flight.push_back(FlightOf(CollectiveKind::kAllGather, 200 + i, false, 4'000 - i, 2));
  }
  in_flight.push_back(FlightOf(CollectiveKind::kAllReduce, 99, true, 3'000));
  in_flight.push_back(FlightOf(CollectiveKind::kAllReduce, 98, true, 300));  // too young
  const auto rank = Told(in_flight);
  ASSERT_THAT(rank.in_flight(), SizeIs(3));
  EXPECT_TRUE(rank.in_flight(0).started());
  EXPECT_EQ(rank.in_flight(0).operation().sequence(), 99U);
  EXPECT_EQ(rank.in_flight(1).operation().sequence(), 100U);
  EXPECT_EQ(rank.in_flight(2).operation().sequence(), 200U);
}

TEST(TelemetryDigestTest, ATransferTellsItsOwnPeer) {
  const auto rank = Told({FlightOf(CollectiveKind::kReceive, 5, true, 2'000, 1, 3),
                          FlightOf(CollectiveKind::kSend, 5, true, 2'000, 1, 0),
                          FlightOf(CollectiveKind::kBroadcast, 5, true, 2'000, 1, 0)});
  ASSERT_THAT(rank.in_flight(), SizeIs(3));
  EXPECT_TRUE(rank.in_flight(0).has_edge());
  EXPECT_EQ(rank.in_flight(0).peer(), 3U);
  EXPECT_EQ(rank.in_flight(0).direction(), 1U);
  EXPECT_TRUE(rank.in_flight(1).has_edge());
  EXPECT_EQ(rank.in_flight(1).peer(), 0U);
  EXPECT_EQ(rank.in_flight(1).direction(), 0U);
  EXPECT_FALSE(rank.in_flight(2).has_edge()) << "that is its root";
}

TEST(TelemetryDigestTest, AnotherTransfersConnectionIsNotItsOwn) {
  // The connection that is known is the oldest of the whole communicator.
  InFlightView receive = FlightOf(CollectiveKind::kReceive, 5, true, 2'000, 1, 3);
  receive.edge = EdgeView{1, Direction::kSend, EdgeState::kSendWait, 1};
  InFlightView send = FlightOf(CollectiveKind::kSend, 5, true, 2'000, 1, 1);
  send.edge = receive.edge;
  const auto rank = Told({receive, send});
  EXPECT_EQ(rank.in_flight(0).peer(), 3U);
  EXPECT_EQ(rank.in_flight(0).edge_state(), 0U);
  EXPECT_EQ(rank.in_flight(1).peer(), 1U);
  EXPECT_EQ(rank.in_flight(1).edge_state(), static_cast<uint32_t>(EdgeState::kSendWait));
}

}  // namespace
}  // namespace holdfast::agent
