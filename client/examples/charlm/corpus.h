#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "charlm/model.h"
#include "charlm/random.h"

namespace charlm {

/// The text to learn from, as ASCII.
class Corpus {
 public:
  /// False, with a reason, when the file cannot be read or is too short.
  bool Load(const std::string& path, std::string* error);
  /// `count` examples at random places.
  std::vector<Example> Sample(uint64_t count, Random& random) const;
  uint64_t size() const { return text_.size(); }

 private:
  std::vector<uint8_t> text_;
};

}  // namespace charlm
