#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace charlm {

/// What happens, for programs: one JSON object a line, each written in one piece.
class Events {
 public:
  ~Events();
  /// "" is off, "-" standard output, else a file to append to. False when it cannot be opened.
  bool Open(const std::string& path, uint32_t rank);
  void Emit(const char* event, nlohmann::json fields = nlohmann::json::object());

 private:
  int fd_ = -1;
  uint32_t rank_ = 0;
};

}  // namespace charlm
