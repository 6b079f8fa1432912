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
#include "coordinator/api/endpoint.h"
#include "storage/base/config.h"
#include "storage/base/fd.h"
#include "storage/base/log.h"
#include "storage/base/random.h"
#include "storage/volume/layout.h"

namespace holdfast::agent {
namespace {
using coord::HandAction;
using coord::HandOrder;
constexpr int64_t kDurationMsMax = 3'600'000;
constexpr int64_t kStartInMsMax = 60'000;
constexpr uint32_t kSlowPercent = 50;

Status CheckRequest(const InjectFaultRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("drill", request.drill()));
  if (request.duration_ms() < 0 || request.duration_ms() > kDurationMsMax) {
    return InvalidArgumentError("a fault lasts from 0 to an hour");
  }
  if (request.start_in_ms() < 0 || request.start_in_ms() > kStartInMsMax) {
    return InvalidArgumentError("a fault starts within a minute");
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

/// Where the parts of a shard lie.
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
  // Readers with O_DIRECT see what the device has.
  return ::fsync(file.get()) == 0 ? Status::Ok() : ErrnoStatus(errno, "fsync " + path);
}

/// The addresses of this machine, or of the network namespace it is.
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

/// Adds the coordinator to whom a node is cut off from; false if it is on this machine.
Result<bool> AddCoordinator(const std::string& coordinator, const std::set<std::string>& own,
                            CutOrder* cut) {
  HOLDFAST_ASSIGN_OR_RETURN(const coord::Endpoint endpoint, coord::ParseEndpoint(coordinator));
  if (endpoint.IsLocal()) return false;
  HOLDFAST_ASSIGN_OR_RETURN(const auto addresses, coord::NumericAddresses(endpoint));
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
        "configuration and start it again"));
  }
  HandOrder order;
  order.record = RecordOf(request.drill());
  order.start_in_ms = request.start_in_ms();
  order.duration_ms = request.duration_ms();
  const std::string& kind = request.kind();
  Result<std::string> what = Fail(InvalidArgumentError("this agent knows no drill '" + kind + "'"));
  if (kind == "kill-rank") {
    what = Kill(request);
  } else if (kind == "hang-rank" || kind == "slow-rank") {
    what = Stop(request, std::move(order));
  } else if (kind == "kill-agent" || kind == "kill-node") {
    what = Restart(request, std::move(order));
  } else if (kind == "fill-disk") {
    what = Fill(request, std::move(order));
  } else if (kind == "partition" || kind == "slow-link") {
    what = Cut(request, std::move(order));
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

Result<std::string> Injector::Stop(const InjectFaultRequest& request, HandOrder order) {
  HOLDFAST_ASSIGN_OR_RETURN(order.process, TrainerOf(request));
  order.action = HandAction::kStop;
  const bool hangs = request.kind() == "hang-rank";
  order.stopped_percent = hangs ? 100 : kSlowPercent;
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(order));
  return fmt::format("rank {} (process {}) {} for {}", request.rank(), order.process.pid,
                     hangs ? "is stopped" : fmt::format("runs {} % of the time", kSlowPercent),
                     Seconds(request.duration_ms()));
}

Result<std::string> Injector::Restart(const InjectFaultRequest& request, HandOrder order) {
  order.action = HandAction::kRestart;
  order.process = NameProcess(::getpid());
  const bool node = request.kind() == "kill-node";
  if (node) order.node_run_dir = options_.run_dir;
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(order));
  const std::string away = Seconds(request.duration_ms());
  if (!node) return fmt::format("the agent is killed and starts again after {}", away);
  return fmt::format(
      "agent, keeper and workers are killed, the memory is gone; the agent starts again after {}, "
      "with its disks as they are",
      away);
}

Result<std::string> Injector::Fill(const InjectFaultRequest& request, HandOrder order) {
  order.action = HandAction::kFill;
  HOLDFAST_ASSIGN_OR_RETURN(const dev_t run_dir, DeviceOf(options_.run_dir));
  HOLDFAST_ASSIGN_OR_RETURN(const dev_t root, DeviceOf("/"));
  for (const std::string& dir : options_.data_dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(const dev_t device, DeviceOf(dir));
    if (device == root || device == run_dir) {
      return Fail(FailedPreconditionError(
          fmt::format("{} is on the file system of {}: filling it would strike the whole machine; "
                      "give data_dirs file systems of their own",
                      dir, device == root ? "/" : options_.run_dir)));
    }
    // A name that the volume drops when it opens: it is gone even if the hand was killed.
    order.files.push_back(dir + "/.probe-" + RandomHex(8));
  }
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(order));
  return fmt::format("all room in {} directories is taken for {}", order.files.size(),
                     Seconds(request.duration_ms()));
}

Result<std::string> Injector::Cut(const InjectFaultRequest& request, HandOrder order) {
  order.action = HandAction::kCut;
  const bool slow = request.kind() == "slow-link";
  if (slow != (request.bytes_per_s() != 0)) {
    return Fail(InvalidArgumentError("a slow link has a rate, a partition has none"));
  }
  order.cut.drill = request.drill();
  order.cut.bytes_per_s = request.bytes_per_s();
  order.cut.addresses.assign(request.addresses().begin(), request.addresses().end());
  HOLDFAST_RETURN_IF_ERROR(CheckCut(order.cut));
  const size_t others = order.cut.addresses.size();
  HOLDFAST_ASSIGN_OR_RETURN(const std::set<std::string> own, OwnAddresses());
  for (const std::string& address : order.cut.addresses) {
    if (own.count(address) == 0) continue;
    return Fail(FailedPreconditionError(
        fmt::format("{} is an address of this machine, too: a drill of its links would strike the "
                    "whole machine; it takes nodes with addresses of their own",
                    address)));
  }
  bool coordinator = false;
  const std::string& peer = request.peer();
  if (!peer.empty()) HOLDFAST_RETURN_IF_ERROR(ValidateName("peer", peer));
  if (!slow && peer.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(coordinator, AddCoordinator(options_.coordinator, own, &order.cut));
  }
  HOLDFAST_RETURN_IF_ERROR(RehearseHand(order));
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(Start(order));
  const std::string time = Seconds(request.duration_ms());
  const std::string whom = fmt::format("{} {} of {}", others, others == 1 ? "address" : "addresses",
                                       peer.empty() ? "the others" : peer);
  if (slow) {
    return fmt::format("{} a second pass in each direction between this node and {} for {}",
                       FormatBytes(request.bytes_per_s()), whom, time);
  }
  if (!peer.empty())
    return fmt::format("nothing passes between this node and {} for {}", whom, time);
  return fmt::format(
      "nothing passes between this node and {} {} for {}", whom,
      coordinator ? "and the coordinator" : "(the coordinator, on this machine, stays in reach)",
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
  // Behind the image's end a file may be padded: nobody reads there.
  const uint64_t bytes = std::min(static_cast<uint64_t>(info.st_size), seal.image_bytes);
  const uint64_t offset = random.Below(parts.size() == 1 ? bytes : bytes / parts.size() + 1);
  const int bit = static_cast<int>(random.Below(8));
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(FlipBit(path, offset, bit));
  return fmt::format("bit {} of byte {} of {} is flipped", bit, offset, path);
}

Status Injector::Start(const HandOrder& order) {
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t hand, StartHand(order));
  MutexLock lock(mutex_);
  hands_.insert(hand);
  return Status::Ok();
}

Status Injector::End(const std::string& drill) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("drill", drill));
  Status status = coord::EndHand(RecordOf(drill));
  Reap();
  return status;
}

void Injector::Reap() {
  MutexLock lock(mutex_);
  std::erase_if(hands_, [](pid_t hand) { return ::waitpid(hand, nullptr, WNOHANG) != 0; });
}

}  // namespace holdfast::agent
