#include "charlm/events.h"

#include <fcntl.h>
#include <unistd.h>

namespace charlm {

Events::~Events() {
  if (fd_ > STDERR_FILENO) ::close(fd_);
}

bool Events::Open(const std::string& path, uint32_t rank) {
  rank_ = rank;
  if (path.empty()) return true;
  fd_ = path == "-" ? STDOUT_FILENO
                    : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  return fd_ >= 0;
}

void Events::Emit(const char* event, nlohmann::json fields) {
  if (fd_ < 0) return;
  fields["event"] = event;
  fields["rank"] = rank_;
  std::string line = fields.dump() + "\n";
  static_cast<void>(!::write(fd_, line.data(), line.size()));
}

}  // namespace charlm
