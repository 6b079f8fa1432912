#include "agent/workers/worker_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fd.h"

namespace holdfast::agent {
namespace {
using Json = nlohmann::json;

constexpr int64_t kFileBytesMax = 4 << 20;

Status WriteJsonFile(const std::string& path, const Json& body) {
  const std::string temporary = path + ".new";
  const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  ::unlink(temporary.c_str());
  // 0600: a spec contains the environment with keys and tokens.
  UniqueFd file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "create " + temporary);
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = ::write(file.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, "write " + temporary);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return Status::Ok();
  return ErrnoStatus(errno, "rename " + temporary);
}

/// Returns nothing when the file is absent, too long or not a JSON object.
std::optional<Json> ReadJsonFile(const std::string& path) {
  std::ifstream file(path, std::ios::ate);
  if (!file || file.tellg() > kFileBytesMax) return std::nullopt;
  file.seekg(0);
  Json body = Json::parse(file, nullptr, false);
  if (!body.is_object()) return std::nullopt;
  return body;
}

template <typename T>
bool Take(const Json& body, const char* key, T* into) {
  auto found = body.find(key);
  if (found == body.end()) return false;
  if constexpr (std::is_integral_v<T>) {
    if (!found->is_number_integer()) return false;
    *into = found->template get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
    *into = found->template get<std::string>();
  } else {
    if (!found->is_array()) return false;
    using Element = typename T::value_type;
    for (const Json& one : *found) {
      if (std::is_integral_v<Element> ? !one.is_number_unsigned() : !one.is_string()) return false;
      into->push_back(one.get<Element>());
    }
  }
  return true;
}

Json CoresJson(const WorkerSpec& spec) {
  if (!spec.cores) return Json();
  return {{"limit", spec.cores->limit}, {"filter", spec.cores->filter}};
}
}  // namespace

Status WriteSpec(const std::string& folder, const WorkerSpec& spec) {
  return WriteJsonFile(folder + "/spec", {{"job", spec.job},
                                          {"run_id", spec.run_id},
                                          {"rank", spec.rank.value},
                                          {"command", spec.command},
                                          {"environment", spec.environment},
                                          {"directory", spec.directory},
                                          {"log", spec.log},
                                          {"umask", spec.umask},
                                          {"uid", spec.uid ? Json(*spec.uid) : Json()},
                                          {"gid", spec.gid},
                                          {"groups", spec.groups},
                                          {"cores", CoresJson(spec)}});
}

Result<WorkerSpec> ReadSpec(const std::string& folder) {
  WorkerSpec spec;
  std::optional<Json> body = ReadJsonFile(folder + "/spec");
  const bool complete =
      body && Take(*body, "job", &spec.job) && Take(*body, "run_id", &spec.run_id) &&
      Take(*body, "rank", &spec.rank.value) && Take(*body, "command", &spec.command) &&
      Take(*body, "environment", &spec.environment) && Take(*body, "directory", &spec.directory) &&
      Take(*body, "log", &spec.log);
  if (!complete || spec.command.empty()) {
    return Fail(DataLossError(folder + "/spec is absent or not a complete worker specification"));
  }
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", spec.job));
  Take(*body, "umask", &spec.umask);  // optional: older agents do not write it
  spec.umask &= 0777U;
  const auto cores = body->find("cores");
  if (cores != body->end() && cores->is_object()) {
    spec.cores.emplace();
    Take(*cores, "limit", &spec.cores->limit);
    Take(*cores, "filter", &spec.cores->filter);
  }
  // Also optional; without a uid the worker has the agent's user.
  uint32_t uid = 0;
  if (Take(*body, "uid", &uid)) {
    spec.uid = uid;
    if (!Take(*body, "gid", &spec.gid) || !Take(*body, "groups", &spec.groups)) {
      return Fail(DataLossError(folder + "/spec names a user without groups"));
    }
  }
  return spec;
}

Status WritePids(const std::string& folder, const WorkerPids& pids) {
  return WriteJsonFile(folder + "/pid", {{"pid", pids.worker.pid},
                                         {"start_ticks", pids.worker.start_ticks},
                                         {"shim_pid", pids.shim.pid},
                                         {"shim_start_ticks", pids.shim.start_ticks}});
}

std::optional<WorkerPids> ReadPids(const std::string& folder) {
  WorkerPids pids;
  std::optional<Json> body = ReadJsonFile(folder + "/pid");
  const bool complete = body && Take(*body, "pid", &pids.worker.pid) &&
                        Take(*body, "start_ticks", &pids.worker.start_ticks) &&
                        Take(*body, "shim_pid", &pids.shim.pid) &&
                        Take(*body, "shim_start_ticks", &pids.shim.start_ticks);
  if (!complete || pids.worker.pid <= 1 || pids.shim.pid <= 1) return std::nullopt;
  return pids;
}

Status WriteExit(const std::string& folder, const WorkerExit& exit) {
  return WriteJsonFile(folder + "/exit", {{"exit_code", exit.exit_code},
                                          {"signal", exit.signal},
                                          {"boot_ns", exit.boot_ns},
                                          {"last_lines", exit.last_lines}});
}

std::optional<WorkerExit> ReadExit(const std::string& folder) {
  WorkerExit exit;
  std::optional<Json> body = ReadJsonFile(folder + "/exit");
  const bool complete =
      body && Take(*body, "exit_code", &exit.exit_code) && Take(*body, "signal", &exit.signal) &&
      Take(*body, "boot_ns", &exit.boot_ns) && Take(*body, "last_lines", &exit.last_lines);
  if (!complete) return std::nullopt;
  return exit;
}

Result<UniqueFd> OpenLog(const std::string& path, std::optional<uint32_t> uid) {
  // Without O_NONBLOCK a FIFO would block this process.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  UniqueFd log(::open(path.c_str(), flags, 0600));
  if (!log.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  struct stat info {};
  if (::fstat(log.get(), &info) != 0) return Fail(ErrnoStatus(errno, "stat " + path));
  const bool known = info.st_uid == ::geteuid() || (uid && info.st_uid == *uid);
  if (!S_ISREG(info.st_mode) || info.st_nlink != 1 || !known) {
    return Fail(PermissionDeniedError(path + " is no file of the worker's user alone"));
  }
  if (uid && info.st_uid != *uid && ::fchown(log.get(), *uid, static_cast<gid_t>(-1)) != 0) {
    return Fail(ErrnoStatus(errno, "chown " + path));
  }
  return log;
}

int64_t BootNanos() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace holdfast::agent
