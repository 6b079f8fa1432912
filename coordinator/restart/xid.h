#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::coord {

/// What an Xid means for its GPU.
enum class XidClass : uint8_t {
  kBroken,       // the GPU needs a reset or a repair
  kContained,    // the running program failed; the GPU can run another
  kApplication,  // usually an error of the program
  kOther,        // not classified; see NVIDIA's catalogue
};

struct XidMeaning {
  XidClass kind = XidClass::kOther;
  std::string_view text;
};

/// Returns the meaning of the Xids that occur in training; all others are kOther.
XidMeaning MeaningOf(uint32_t xid);

}  // namespace holdfast::coord
