#include "client/nccl/names.h"

#include <holdfast/holdfast.h>

#include <string_view>

namespace holdfast::nccl {
namespace {
struct Named {
  std::string_view name;
  uint32_t number;
};

template <size_t kCount>
uint32_t Find(const Named (&table)[kCount], const char* name, uint32_t null, uint32_t unknown) {
  if (name == nullptr) return null;
  for (const Named& entry : table) {
    if (entry.name == name) return entry.number;
  }
  return unknown;
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
  static constexpr Named kKinds[] = {
      {"AllReduce", HOLDFAST_ALL_REDUCE},
      {"AllGather", HOLDFAST_ALL_GATHER},
      {"ReduceScatter", HOLDFAST_REDUCE_SCATTER},
      {"Broadcast", HOLDFAST_BROADCAST},
      {"Reduce", HOLDFAST_REDUCE},
      {"AlltoAll", HOLDFAST_ALL_TO_ALL},
      {"Send", HOLDFAST_SEND},
      {"Recv", HOLDFAST_RECEIVE},
  };
  return Find(kKinds, function, HOLDFAST_OTHER_COLLECTIVE, HOLDFAST_OTHER_COLLECTIVE);
}

uint32_t AlgorithmOf(const char* algorithm) {
  static constexpr Named kAlgorithms[] = {
      {"RING", HOLDFAST_ALGORITHM_RING},
      {"TREE", HOLDFAST_ALGORITHM_TREE},
      {"COLLNET_DIRECT", HOLDFAST_ALGORITHM_COLLNET},
      {"COLLNET_CHAIN", HOLDFAST_ALGORITHM_COLLNET},
      {"NVLS", HOLDFAST_ALGORITHM_NVLS},
      {"NVLS_TREE", HOLDFAST_ALGORITHM_NVLS},
      {"PAT", HOLDFAST_ALGORITHM_PAT},
  };
  return Find(kAlgorithms, algorithm, HOLDFAST_ALGORITHM_UNKNOWN, HOLDFAST_ALGORITHM_OTHER);
}

uint32_t ProtocolOf(const char* protocol) {
  static constexpr Named kProtocols[] = {
      {"SIMPLE", HOLDFAST_PROTOCOL_SIMPLE},
      {"LL", HOLDFAST_PROTOCOL_LL},
      {"LL128", HOLDFAST_PROTOCOL_LL128},
  };
  return Find(kProtocols, protocol, HOLDFAST_PROTOCOL_UNKNOWN, HOLDFAST_PROTOCOL_UNKNOWN);
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
