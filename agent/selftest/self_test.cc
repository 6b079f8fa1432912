#include "agent/selftest/self_test.h"

#include <sys/stat.h>

#include <memory>
#include <utility>

namespace holdfast::selftest {
namespace {

CheckResult CheckDirectory(const std::string& path, const DiskCheckOptions& options) {
  CheckResult result{.part = "disk " + path};
  struct stat found {};
  // OpenDirectory() would create the folder.
  if (::stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    result.what = "there is no such directory: name a data directory of this node";
    return result;
  }
  auto directory = OpenDirectory(path, IoOptions());
  if (!directory) {
    result.what = directory.error().message();
    return result;
  }
  return CheckDisk(**directory, options);
}

}  // namespace

std::vector<CheckResult> RunSelfTest(const SelfTestOptions& options) {
  std::vector<CheckResult> results;
  const auto add = [&](CheckResult result) {
    results.push_back(std::move(result));
    if (options.progress) options.progress(results.back());
  };
  const auto go_on = [&] { return !options.cancelled || !options.cancelled(); };
  if (go_on()) add(CheckCpu(options.cpu));
  if (go_on()) add(CheckMemory(options.memory));
  for (const std::string& path : options.data_dirs) {
    if (go_on()) add(CheckDirectory(path, options.disk));
  }
  return results;
}

}  // namespace holdfast::selftest
