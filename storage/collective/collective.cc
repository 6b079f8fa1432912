#include "storage/collective/collective.h"

#include <iterator>

namespace holdfast {
namespace {

// By number.
constexpr std::string_view kNames[] = {"Operation", "AllReduce", "AllGather", "ReduceScatter",
                                       "Broadcast", "Reduce",    "AllToAll",  "Send",
                                       "Receive",   "Barrier"};
static_assert(std::size(kNames) == kCollectiveKinds);

template <typename Enum>
Enum Known(uint32_t number, uint32_t count, Enum unknown) {
  return number < count ? static_cast<Enum>(number) : unknown;
}

}  // namespace

std::string_view NameOf(CollectiveKind kind) {
  const auto number = static_cast<uint8_t>(kind);
  return kNames[number < kCollectiveKinds ? number : 0];
}

CollectiveKind KindOfName(std::string_view name) {
  for (uint8_t number = 0; number < kCollectiveKinds; ++number) {
    if (kNames[number] == name) return static_cast<CollectiveKind>(number);
  }
  return CollectiveKind::kOther;
}

CollectiveKind KindOfNumber(uint32_t number) {
  return Known(number, kCollectiveKinds, CollectiveKind::kOther);
}

CollectiveAlgorithm AlgorithmOfNumber(uint32_t number) {
  return Known(number, kCollectiveAlgorithms, CollectiveAlgorithm::kOther);
}

CollectiveProtocol ProtocolOfNumber(uint32_t number) {
  return Known(number, kCollectiveProtocols, CollectiveProtocol::kUnknown);
}

CommunicatorRole RoleOfNumber(uint32_t number) {
  return Known(number, kCommunicatorRoles, CommunicatorRole::kUnknown);
}

CollectiveSource SourceOfNumber(uint32_t number) {
  return Known(number, kCollectiveSources, CollectiveSource::kProgram);
}

Direction DirectionOfNumber(uint32_t number) {
  return number == 1 ? Direction::kReceive : Direction::kSend;
}

EdgeState EdgeStateOfNumber(uint32_t number) {
  return Known(number, kEdgeStates, EdgeState::kIdle);
}

}  // namespace holdfast
