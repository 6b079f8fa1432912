#pragma once

#include <cstdio>
#include <cstdlib>

// Checks a property that must hold for every input; aborts the fuzzer if it does not.
#define FUZZ_REQUIRE(condition)                                                      \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)
