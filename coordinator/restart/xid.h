#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::coord {

/// What an Xid says of its GPU.
enum class XidClass : uint8_t {
  kBroken,       // it needs a reset or a repair before it is of use again
  kContained,    // it failed the program that ran, and can go on with another
  kApplication,  // most often the program asked for what cannot be
  kOther,        // a person should look it up
};

struct XidMeaning {
  XidClass kind = XidClass::kOther;
  std::string_view text;
};

/// Of the errors that tell of a training's GPUs; others are kOther.
XidMeaning MeaningOf(uint32_t xid);

}  // namespace holdfast::coord
