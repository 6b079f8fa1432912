#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace charlm {

/// Writes events for other programs: one JSON object per line, each with a single write.
class Events {
 public:
  ~Events();
  /// "" disables events, "-" means standard output, else the file to append to. Returns false if
  /// the file cannot be opened.
  bool Open(const std::string& path, uint32_t rank);
  void Emit(const char* event, nlohmann::json fields = nlohmann::json::object());

 private:
  int fd_ = -1;
  uint32_t rank_ = 0;
};

}  // namespace charlm
