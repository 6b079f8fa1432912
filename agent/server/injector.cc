#include "agent/server/injector.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>

#include "agent/faults/network_cut.h"
#include "base/config.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "storage/volume/layout.h"

namespace holdfast::agent {
namespace {
using coord::FaultRequest;
using coord::InjectedFault;
constexpr int64_t kDurationMsMax = 3'600'000;
constexpr int64_t kStartInMsMax = 60'000;
constexpr uint32_t kSlowPercent = 50;

Status CheckRequest(const InjectFaultRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("drill", request.drill()));
  if (request.duration_ms() < 0 || request.duration_ms() > kDurationMsMax) {
    return InvalidArgumentError("the duration of a fault must be between 0 and 3600 s");
  }
  if (request.start_in_ms() < 0 || request.start_in_ms() > kStartInMsMax) {
    return InvalidArgumentError("the start of a fault must be between 0 and 60 s from now");
  }
  if (!request.job().empty()) HOLDFAST_RETURN_IF_ERROR(ValidateName("job", request.job()));
  return Status::Ok();
}

std::string Seconds(int64_t ms) { return fmt::format("{:.1f} s", static_cast<double>(ms) / 1000); }

Result<dev_t> DeviceOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Fail(ErrnoStatus(errno, "stat " + path));
  return info.st_dev;
}

/// Returns the paths of the files of a shard's parts.
std::vector<std::string> PartsOf(const std::vector<std::string>& data_dirs, const ShardKey& key,
                                 uint32_t parts) {
  std::vector<std::string> paths;
  for (uint32_t part = 0; part < parts; ++part) {
    for (const std::string& dir : data_dirs) {
      const std::string path =
          dir + "/" + VersionPath(key.job, key.version) + "/" + PartName(key.rank, part, parts);
      if (::access(path.c_str(), F_OK) == 0) paths.push_back(path);
    }
  }
  return paths;
}

Status FlipBit(const std::string& path, uint64_t offset, int bit) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return ErrnoStatus(errno, "open " + path);
  unsigned char byte = 0;
  const auto at = static_cast<off_t>(offset);
  if (::pread(file.get(), &byte, 1, at) != 1) return ErrnoStatus(errno, "read " + path);
  byte ^= static_cast<unsigned char>(1U << bit);
  if (::pwrite(file.get(), &byte, 1, at) != 1) return ErrnoStatus(errno, "write " + path);
  // Readers with O_DIRECT read what is on the device.
  return ::fsync(file.get()) == 0 ? Status::Ok() : ErrnoStatus(errno, "fsync " + path);
}

/// Returns the addresses of this machine, or of its network namespace.
Result<std::set<std::string>> OwnAddresses() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return Fail(ErrnoStatus(errno, "getifaddrs"));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, ::freeifaddrs);
  std::set<std::string> addresses;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    const void* number = nullptr;
    if (family == AF_INET) {
      number = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      number = &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    }
    char text[INET6_ADDRSTRLEN] = {};
    if (number != nullptr && ::inet_ntop(family, number, text, sizeof(text)) != nullptr) {
      addresses.insert(text);
    }
  }
  return addresses;
}

/// Adds the coordinator's addresses to those that `cut` blocks. Returns false, and adds none, when
/// the coordinator runs on this machine.
Result<bool> AddCoordinator(const std::string& coordinator, const std::set<std::string>& own,
                            CutRequest* cut) {
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(coordinator));
  if (endpoint.IsLocal()) return false;
  HOLDFAST_ASSIGN_OR_RETURN(const auto addresses, NumericAddresses(endpoint));
  for (const std::string& address : addresses) {
    if (own.count(address) != 0) return false;
  }
  cut->addresses.insert(cut->addresses.end(), addresses.begin(), addresses.end());
  return true;
}
}  // namespace

std::string Injector::RecordOf(const std::string& drill) const {
  return options_.run_dir + "/drills/" + drill;
}

Result<std::string> Injector::Inject(const InjectFaultRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(CheckRequest(request));
  if (!options_.enabled) {
    return Fail(FailedPreconditionError(
        "drills are not enabled on this node: set drills.enabled = true in its agent's "
        "configuration and restart it"));
  }
  FaultRequest fault;
  fault.record = RecordOf(request.drill());
  fault.start_in_ms = request.start_in_ms();
  fault.duration_ms = request.duration_ms();
  const std::string& kind = request.kind();
  Result<std::string> what =
      Fail(InvalidArgumentError("this agent does not support the drill '" + kind + "'"));
  if (kind == "kill-rank") {
    what = Kill(request);
  } else if (kind == "hang-rank" || kind == "slow-rank") {
    what = Stop(request, std::move(fault));
  } else if (kind == "kill-agent" || kind == "kill-node") {
    what = Restart(request, std::move(fault));
  } else if (kind == "fill-disk") {
    what = Fill(request, std::move(fault));
  } else if (kind == "partition" || kind == "slow-link") {
    what = Cut(request, std::move(fault));
  } else if (kind == "corrupt-shard") {
    what = Corrupt(request);
  }
  if (what && !request.dry_run()) {
    Log(LogLevel::kWarn, "FaultInjected", {Kv("drill", request.drill()), Kv("what", *what)});
  }
  return what;
}

Result<ProcessName> Injector::TrainerOf(const InjectFaultRequest& request) {
  const auto process = ranks_.ProcessOf(request.job(), Rank{request.rank()});
  if (process && IsAlive(*process)) return *process;
  return Fail(NotFoundError(
      fmt::format("no trainer of {} rank {} runs on this node", request.job(), request.rank())));
}

Result<std::string> Injector::Kill(const InjectFaultRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(const ProcessName trainer, TrainerOf(request));
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(SignalProcess(trainer, SIGKILL));
  return fmt::format("rank {} (process {}) is killed", request.rank(), trainer.pid);
}

Result<std::string> Injector::Stop(const InjectFaultRequest& request, FaultRequest fault) {
  HOLDFAST_ASSIGN_OR_RETURN(fault.process, TrainerOf(request));
  fault.action = InjectedFault::kStop;
  const bool hangs = request.kind() == "hang-rank";
  fault.stopped_percent = hangs ? 100 : kSlowPercent;
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(fault));
  return fmt::format("rank {} (process {}) {} for {}", request.rank(), fault.process.pid,
                     hangs ? "is stopped" : fmt::format("runs {} % of the time", kSlowPercent),
                     Seconds(request.duration_ms()));
}

Result<std::string> Injector::Restart(const InjectFaultRequest& request, FaultRequest fault) {
  fault.action = InjectedFault::kRestart;
  fault.process = NameProcess(::getpid());
  const bool node = request.kind() == "kill-node";
  if (node) fault.node_run_dir = options_.run_dir;
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(fault));
  const std::string away = Seconds(request.duration_ms());
  if (!node) return fmt::format("the agent is killed and restarts after {}", away);
  return fmt::format(
      "agent, keeper and workers are killed and the memory is lost; the agent restarts after {} "
      "with its disks unchanged",
      away);
}

Result<std::string> Injector::Fill(const InjectFaultRequest& request, FaultRequest fault) {
  fault.action = InjectedFault::kFill;
  HOLDFAST_ASSIGN_OR_RETURN(const dev_t run_dir, DeviceOf(options_.run_dir));
  HOLDFAST_ASSIGN_OR_RETURN(const dev_t root, DeviceOf("/"));
  for (const std::string& dir : options_.data_dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(const dev_t device, DeviceOf(dir));
    if (device == root || device == run_dir) {
      return Fail(FailedPreconditionError(
          fmt::format("{} is on the file system of {}: filling it would affect the whole machine; "
                      "put data_dirs on separate file systems",
                      dir, device == root ? "/" : options_.run_dir)));
    }
    // The volume removes files of such a name when it opens, even if the fault injector was killed.
    fault.files.push_back(dir + "/.probe-" + RandomHex(8));
  }
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(fault));
  return fmt::format("all free space in {} directories is taken for {}", fault.files.size(),
                     Seconds(request.duration_ms()));
}

Result<std::string> Injector::Cut(const InjectFaultRequest& request, FaultRequest fault) {
  fault.action = InjectedFault::kCut;
  const bool slow = request.kind() == "slow-link";
  if (slow != (request.bytes_per_s() != 0)) {
    return Fail(
        InvalidArgumentError("slow-link needs a rate (bytes_per_s) and partition takes none"));
  }
  fault.cut.drill = request.drill();
  fault.cut.bytes_per_s = request.bytes_per_s();
  fault.cut.addresses.assign(request.addresses().begin(), request.addresses().end());
  HOLDFAST_RETURN_IF_ERROR(CheckCut(fault.cut));
  const size_t others = fault.cut.addresses.size();
  HOLDFAST_ASSIGN_OR_RETURN(const std::set<std::string> own, OwnAddresses());
  for (const std::string& address : fault.cut.addresses) {
    if (own.count(address) == 0) continue;
    return Fail(FailedPreconditionError(
        fmt::format("{} is also an address of this machine: a drill of its links would affect the "
                    "whole machine; use nodes with separate addresses",
                    address)));
  }
  bool coordinator = false;
  const std::string& peer = request.peer();
  if (!peer.empty()) HOLDFAST_RETURN_IF_ERROR(ValidateName("peer", peer));
  if (!slow && peer.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(coordinator, AddCoordinator(options_.coordinator, own, &fault.cut));
  }
  // Also before a real cut: the caller then gets the kernel's refusal in the reply.
  HOLDFAST_RETURN_IF_ERROR(RehearseInjector(fault));
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(fault));
  const std::string time = Seconds(request.duration_ms());
  const std::string peers =
      fmt::format("{} {} of {}", others, others == 1 ? "address" : "addresses",
                  peer.empty() ? "the other nodes" : peer);
  if (slow) {
    return fmt::format("{} per second pass in each direction between this node and {} for {}",
                       FormatBytes(request.bytes_per_s()), peers, time);
  }
  if (!peer.empty())
    return fmt::format("nothing passes between this node and {} for {}", peers, time);
  return fmt::format(
      "nothing passes between this node and {} {} for {}", peers,
      coordinator ? "and the coordinator" : "(the coordinator, on this machine, stays reachable)",
      time);
}

Result<std::string> Injector::Corrupt(const InjectFaultRequest& request) {
  const ShardKey key{request.job(),
                     {Incarnation{request.incarnation()}, Step{request.step()}},
                     Rank{request.rank()}};
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, volume_.ReadSeal(key));
  const std::vector<std::string> parts = PartsOf(
      options_.data_dirs, key, static_cast<uint32_t>(std::max<size_t>(seal.parts.size(), 1)));
  if (parts.empty()) return Fail(NotFoundError(ToString(key) + " is not on this node's disks"));
  Random random(request.seed());
  const std::string& path = parts[random.Below(parts.size())];
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Fail(ErrnoStatus(errno, "stat " + path));
  if (info.st_size == 0) return Fail(FailedPreconditionError(path + " is empty"));
  // A file may be padded after the image's end, where no read would detect the damage.
  const uint64_t bytes = std::min(static_cast<uint64_t>(info.st_size), seal.image_bytes);
  const uint64_t offset = random.Below(parts.size() == 1 ? bytes : bytes / parts.size() + 1);
  const int bit = static_cast<int>(random.Below(8));
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(FlipBit(path, offset, bit));
  return fmt::format("bit {} of byte {} of {} is flipped", bit, offset, path);
}

Status Injector::Start(const FaultRequest& fault) {
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t injector, StartInjector(fault));
  MutexLock lock(mutex_);
  injectors_.insert(injector);
  return Status::Ok();
}

Status Injector::End(const std::string& drill) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("drill", drill));
  Status status = coord::StopInjector(RecordOf(drill));
  Reap();
  return status;
}

void Injector::Reap() {
  MutexLock lock(mutex_);
  std::erase_if(injectors_,
                [](pid_t injector) { return ::waitpid(injector, nullptr, WNOHANG) != 0; });
}

}  // namespace holdfast::agent
