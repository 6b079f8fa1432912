#pragma once

#include <cstdint>

namespace holdfast::nccl {

/// Translate NCCL's names to the numbers of holdfast.h. Null and unknown names have numbers too.
uint32_t KindOf(const char* function);
uint32_t AlgorithmOf(const char* algorithm);
uint32_t ProtocolOf(const char* protocol);

struct Datatype {
  uint32_t number;
  uint64_t bytes;  // of an element
};
Datatype DatatypeOf(const char* datatype);

}  // namespace holdfast::nccl
