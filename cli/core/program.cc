#include "cli/core/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <sstream>

namespace holdfast::cli {
namespace {
bool IsProgram(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}
}  // namespace

std::string FindProgram(const std::string& program, const std::string& path,
                        const std::string& directory) {
  if (program.empty() || program.find('/') != std::string::npos) return program;
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder.empty() || folder.front() != '/') {
      folder = directory + (folder.empty() ? "" : "/" + folder);
    }
    std::string candidate = folder + "/" + program;
    if (IsProgram(candidate)) return candidate;
  }
  return program;
}

}  // namespace holdfast::cli
