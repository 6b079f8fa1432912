#include "client/nccl/names.h"

#include <holdfast/holdfast.h>

#include <string_view>

#include "storage/collective/collective.h"

namespace holdfast::nccl {
namespace {
template <typename Enum>
struct Named {
  std::string_view name;
  Enum value;
};

template <typename Enum, size_t kCount>
uint32_t Find(const Named<Enum> (&table)[kCount], const char* name, Enum null, Enum unknown) {
  Enum found = name == nullptr ? null : unknown;
  for (const Named<Enum>& entry : table) {
    if (name != nullptr && entry.name == name) found = entry.value;
  }
  return static_cast<uint32_t>(found);
}

struct NamedType {
  std::string_view name;
  Datatype type;
};
constexpr NamedType kTypes[] = {
    {"ncclInt8", {HOLDFAST_I8, 1}},
    {"ncclUint8", {HOLDFAST_U8, 1}},
    {"ncclInt32", {HOLDFAST_I32, 4}},
    {"ncclUint32", {HOLDFAST_U32, 4}},
    {"ncclInt64", {HOLDFAST_I64, 8}},
    {"ncclUint64", {HOLDFAST_U64, 8}},
    {"ncclFloat16", {HOLDFAST_F16, 2}},
    {"ncclFloat32", {HOLDFAST_F32, 4}},
    {"ncclFloat64", {HOLDFAST_F64, 8}},
    {"ncclBfloat16", {HOLDFAST_BF16, 2}},
    {"ncclFloat8e4m3", {HOLDFAST_F8_E4M3, 1}},
    {"ncclFloat8e5m2", {HOLDFAST_F8_E5M2, 1}},
};
}  // namespace

uint32_t KindOf(const char* function) {
  const std::string_view name = function == nullptr ? "" : function;
  // NCCL has other names for these two.
  const CollectiveKind kind = name == "AlltoAll" ? CollectiveKind::kAllToAll
                              : name == "Recv"   ? CollectiveKind::kReceive
                                                 : KindOfName(name);
  return static_cast<uint32_t>(kind);
}

uint32_t AlgorithmOf(const char* algorithm) {
  static constexpr Named<CollectiveAlgorithm> kAlgorithms[] = {
      {"RING", CollectiveAlgorithm::kRing},
      {"TREE", CollectiveAlgorithm::kTree},
      {"COLLNET_DIRECT", CollectiveAlgorithm::kCollnet},
      {"COLLNET_CHAIN", CollectiveAlgorithm::kCollnet},
      {"NVLS", CollectiveAlgorithm::kNvls},
      {"NVLS_TREE", CollectiveAlgorithm::kNvls},
      {"PAT", CollectiveAlgorithm::kPat},
  };
  return Find(kAlgorithms, algorithm, CollectiveAlgorithm::kUnknown, CollectiveAlgorithm::kOther);
}

uint32_t ProtocolOf(const char* protocol) {
  static constexpr Named<CollectiveProtocol> kProtocols[] = {
      {"SIMPLE", CollectiveProtocol::kSimple},
      {"LL", CollectiveProtocol::kLl},
      {"LL128", CollectiveProtocol::kLl128},
  };
  return Find(kProtocols, protocol, CollectiveProtocol::kUnknown, CollectiveProtocol::kUnknown);
}

Datatype DatatypeOf(const char* datatype) {
  if (datatype != nullptr) {
    for (const NamedType& entry : kTypes) {
      if (entry.name == datatype) return entry.type;
    }
  }
  return {HOLDFAST_NO_DTYPE, 1};
}

}  // namespace holdfast::nccl
