#pragma once

#include <cstdint>

namespace holdfast::nccl {

/// NCCL says in words what holdfast.h says in numbers. Null and unknown words have a number too.
uint32_t KindOf(const char* function);
uint32_t AlgorithmOf(const char* algorithm);
uint32_t ProtocolOf(const char* protocol);

struct Datatype {
  uint32_t number;
  uint64_t bytes;  // of an element
};
Datatype DatatypeOf(const char* datatype);

}  // namespace holdfast::nccl
