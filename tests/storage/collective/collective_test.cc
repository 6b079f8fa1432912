#include "storage/collective/collective.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace holdfast {
namespace {

TEST(CollectiveTest, EachKindHasOneNameThatLeadsBackToIt) {
  std::set<std::string_view> names;
  for (uint32_t number = 0; number < kCollectiveKinds; ++number) {
    const CollectiveKind kind = KindOfNumber(number);
    EXPECT_EQ(static_cast<uint32_t>(kind), number);
    EXPECT_EQ(KindOfName(NameOf(kind)), kind);
    names.insert(NameOf(kind));
  }
  EXPECT_EQ(names.size(), kCollectiveKinds);
  EXPECT_EQ(NameOf(CollectiveKind::kReduceScatter), "ReduceScatter");
  EXPECT_EQ(NameOf(CollectiveKind::kBarrier), "Barrier");
}

TEST(CollectiveTest, UnknownNamesAndNumbersAreOther) {
  EXPECT_EQ(KindOfName("allreduce"), CollectiveKind::kOther);
  EXPECT_EQ(KindOfName(""), CollectiveKind::kOther);
  EXPECT_EQ(NameOf(static_cast<CollectiveKind>(200)), "Operation");
  EXPECT_EQ(KindOfNumber(kCollectiveKinds), CollectiveKind::kOther);
  EXPECT_EQ(KindOfNumber(256 + 1), CollectiveKind::kOther) << "no number is cut to 8 bits";
  EXPECT_EQ(AlgorithmOfNumber(kCollectiveAlgorithms), CollectiveAlgorithm::kOther);
  EXPECT_EQ(ProtocolOfNumber(kCollectiveProtocols), CollectiveProtocol::kUnknown);
  EXPECT_EQ(RoleOfNumber(kCommunicatorRoles), CommunicatorRole::kUnknown);
  EXPECT_EQ(SourceOfNumber(kCollectiveSources), CollectiveSource::kProgram);
  EXPECT_EQ(DirectionOfNumber(2), Direction::kSend);
  EXPECT_EQ(EdgeStateOfNumber(kEdgeStates), EdgeState::kIdle);
}

TEST(CollectiveTest, TheLastNumbersAreKnown) {
  EXPECT_EQ(AlgorithmOfNumber(6), CollectiveAlgorithm::kOther);
  EXPECT_EQ(AlgorithmOfNumber(5), CollectiveAlgorithm::kPat);
  EXPECT_EQ(ProtocolOfNumber(3), CollectiveProtocol::kLl128);
  EXPECT_EQ(RoleOfNumber(4), CommunicatorRole::kExpert);
  EXPECT_EQ(SourceOfNumber(1), CollectiveSource::kNccl);
  EXPECT_EQ(DirectionOfNumber(1), Direction::kReceive);
  EXPECT_EQ(EdgeStateOfNumber(6), EdgeState::kReceiveGpuWait);
}

TEST(CollectiveTest, OnlySendAndReceiveArePairwise) {
  for (uint32_t number = 0; number < kCollectiveKinds; ++number) {
    const CollectiveKind kind = KindOfNumber(number);
    const bool pair = kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
    EXPECT_EQ(IsPairwise(kind), pair) << NameOf(kind);
  }
}

}  // namespace
}  // namespace holdfast
