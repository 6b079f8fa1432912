#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "charlm/model.h"
#include "charlm/random.h"

namespace charlm {

/// The text to train on, as ASCII.
class Corpus {
 public:
  /// Returns false and sets `error` if the file cannot be read or is too short.
  bool Load(const std::string& path, std::string* error);
  /// Returns `count` examples from random places.
  std::vector<Example> Sample(uint64_t count, Random& random) const;
  uint64_t size() const { return text_.size(); }

 private:
  std::vector<uint8_t> text_;
};

}  // namespace charlm
