#include "faults/injector/node_faults.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <span>

#include "agent/pipeline/trainer_record.h"
#include "base/config.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "faults/injector/network_cut.h"
#include "faults/injector/servers.h"
#include "storage/format/seal.h"
#include "storage/volume/layout.h"

namespace holdfast::faults {
namespace {
constexpr int64_t kDurationMsMax = 3'600'000;
constexpr int64_t kStartInMsMax = 60'000;
constexpr uint32_t kSlowPercent = 50;

Status CheckRequest(const InjectRequest& request) {
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

/// Returns whether an address is of this machine.
Result<bool> IsHere(const Endpoint& endpoint, const std::set<std::string>& own) {
  if (endpoint.IsLocal()) return true;
  HOLDFAST_ASSIGN_OR_RETURN(const auto addresses, NumericAddresses(endpoint));
  return std::any_of(addresses.begin(), addresses.end(),
                     [&](const std::string& address) { return own.count(address) != 0; });
}

/// Adds the coordinators' addresses to those that `cut` blocks, except those of this machine.
/// Returns whether it added any.
Result<bool> AddCoordinator(const std::string& coordinators, const std::set<std::string>& own,
                            CutOrder* cut) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto endpoints, ParseEndpointList(coordinators));
  bool added = false;
  for (const Endpoint& endpoint : endpoints) {
    HOLDFAST_ASSIGN_OR_RETURN(const bool here, IsHere(endpoint, own));
    if (here) continue;
    HOLDFAST_ASSIGN_OR_RETURN(const auto addresses, NumericAddresses(endpoint));
    cut->addresses.insert(cut->addresses.end(), addresses.begin(), addresses.end());
    added = true;
  }
  return added;
}

/// Reads a shard's seal. NotFound: the disks do not have the shard.
Result<ShardSeal> SealOf(const std::vector<std::string>& data_dirs, const ShardKey& key) {
  for (const std::string& dir : data_dirs) {
    const std::string path =
        dir + "/" + VersionPath(key.job, key.version) + "/" + SealName(key.rank);
    std::ifstream file(path, std::ios::binary);
    if (!file) continue;
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    auto seal = DecodeSeal(std::as_bytes(std::span(bytes)));
    if (!seal) return Fail(seal.error().WithContext(path));
    return seal;
  }
  return Fail(NotFoundError(ToString(key) + " is not on this node's disks"));
}
}  // namespace

Result<std::string> NodeFaults::Inject(const InjectRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(CheckRequest(request));
  HOLDFAST_RETURN_IF_ERROR(book_.CheckFree(request.drill()));
  Order order;
  order.start_in_ms = request.start_in_ms();
  order.duration_ms = request.duration_ms();
  const std::string& kind = request.kind();
  Result<std::string> what = Fail(InvalidArgumentError(
      "this fault injector does not support the drill '" + kind + "': install the same release"));
  if (kind == "kill-rank") {
    what = Kill(request);
  } else if (kind == "hang-rank" || kind == "slow-rank") {
    what = Stop(request, std::move(order));
  } else if (kind == "kill-agent" || kind == "kill-node") {
    what = RestartAgent(request, std::move(order));
  } else if (kind == "kill-coordinator" || kind == "lose-store") {
    what = RestartCoordinator(request, std::move(order));
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

Status NodeFaults::Begin(const InjectRequest& request, const Order& order) {
  return request.dry_run() ? Status::Ok() : book_.Begin(request.drill(), order);
}

std::string NodeFaults::Sentence(const std::string& what, const InjectRequest& request) const {
  if (!options_.restart_servers) return what + "; its service manager starts it again";
  return fmt::format("{} and restarts after {}", what, Seconds(request.duration_ms()));
}

/// The agent records which process has which rank's memory mapped.
Result<ProcessName> NodeFaults::TrainerOf(const InjectRequest& request) {
  for (const auto& record : agent::ReadTrainers(options_.agent_run_dir + "/trainers")) {
    const ProcessName process{record.pid, record.start_ticks};
    const bool meant = record.job == request.job() && record.rank.value == request.rank();
    if (!meant || !IsAlive(process)) continue;
    HOLDFAST_RETURN_IF_ERROR(CheckMaySignal(process));
    return process;
  }
  return Fail(
      NotFoundError(fmt::format("no trainer of {} rank {} runs on this node (according to "
                                "{}/trainers)",
                                request.job(), request.rank(), options_.agent_run_dir)));
}

Result<std::string> NodeFaults::Kill(const InjectRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(const ProcessName trainer, TrainerOf(request));
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(SignalProcess(trainer, SIGKILL));
  return fmt::format("rank {} (process {}) is killed", request.rank(), trainer.pid);
}

Result<std::string> NodeFaults::Stop(const InjectRequest& request, Order order) {
  HOLDFAST_ASSIGN_OR_RETURN(order.process, TrainerOf(request));
  order.action = Action::kStop;
  const bool hangs = request.kind() == "hang-rank";
  order.stopped_percent = hangs ? 100 : kSlowPercent;
  HOLDFAST_RETURN_IF_ERROR(Begin(request, order));
  return fmt::format("rank {} (process {}) {} for {}", request.rank(), order.process.pid,
                     hangs ? "is stopped" : fmt::format("runs {} % of the time", kSlowPercent),
                     Seconds(request.duration_ms()));
}

Status NodeFaults::ChooseServer(const std::string& program, Order* order) const {
  HOLDFAST_ASSIGN_OR_RETURN(order->process, ServerAt(order->endpoint, program));
  HOLDFAST_RETURN_IF_ERROR(CheckMaySignal(order->process));
  HOLDFAST_ASSIGN_OR_RETURN(order->launch, LaunchOf(order->process));
  order->launch.umask = options_.umask;
  order->starts_again = options_.restart_servers;
  return Status::Ok();
}

Result<std::string> NodeFaults::RestartAgent(const InjectRequest& request, Order order) {
  order.action = Action::kRestart;
  order.endpoint = "unix:" + options_.agent_run_dir + "/agent.sock";
  HOLDFAST_RETURN_IF_ERROR(ChooseServer("holdfast-agent", &order));
  const bool node = request.kind() == "kill-node";
  if (node) order.node_run_dir = options_.agent_run_dir;
  HOLDFAST_RETURN_IF_ERROR(Begin(request, order));
  if (!node) return Sentence("the agent is killed", request);
  return Sentence(
      "agent, keeper and workers are killed and the memory is lost; the agent keeps its disks",
      request);
}

Result<std::string> NodeFaults::RestartCoordinator(const InjectRequest& request, Order order) {
  order.action = Action::kRestart;
  HOLDFAST_ASSIGN_OR_RETURN(const auto endpoints, ParseEndpointList(options_.coordinator));
  HOLDFAST_ASSIGN_OR_RETURN(const std::set<std::string> own, OwnAddresses());
  for (const Endpoint& endpoint : endpoints) {
    HOLDFAST_ASSIGN_OR_RETURN(const bool here, IsHere(endpoint, own));
    if (here && order.endpoint.empty()) order.endpoint = endpoint.ToString();
  }
  if (order.endpoint.empty()) {
    return Fail(FailedPreconditionError(
        options_.coordinator +
        " is not an address of this machine: run holdfast-fault on the coordinator's machine, with "
        "`coordinator` as the address of that machine"));
  }
  HOLDFAST_RETURN_IF_ERROR(ChooseServer("holdfast-coordinator", &order));
  std::string what = "the coordinator is killed";
  if (request.kind() == "lose-store") {
    if (!order.starts_again) {
      return Fail(FailedPreconditionError(
          "a service manager starts the coordinator (drills.restart_servers = false), and could do "
          "so before its store is removed: lose-store is not possible here"));
    }
    HOLDFAST_ASSIGN_OR_RETURN(order.lost_folder, EmbeddedStoreOf(order.process));
    order.lost_as = order.lost_folder + ".lost-" + request.drill();
    what += fmt::format(", its store is renamed to {}", order.lost_as);
  }
  HOLDFAST_RETURN_IF_ERROR(Begin(request, order));
  return Sentence(what, request);
}

Result<std::string> NodeFaults::Fill(const InjectRequest& request, Order order) {
  order.action = Action::kFill;
  HOLDFAST_ASSIGN_OR_RETURN(const dev_t run_dir, DeviceOf(options_.agent_run_dir));
  HOLDFAST_ASSIGN_OR_RETURN(const dev_t root, DeviceOf("/"));
  for (const std::string& dir : options_.data_dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(const dev_t device, DeviceOf(dir));
    if (device == root || device == run_dir) {
      return Fail(FailedPreconditionError(
          fmt::format("{} is on the file system of {}: filling it would affect the whole machine; "
                      "put data_dirs on separate file systems",
                      dir, device == root ? "/" : options_.agent_run_dir)));
    }
    // The volume removes files of such a name when it opens, even if holdfast-fault was killed.
    order.files.push_back(dir + "/.probe-" + RandomHex(8));
  }
  HOLDFAST_RETURN_IF_ERROR(Begin(request, order));
  return fmt::format("all free space in {} directories is taken for {}", order.files.size(),
                     Seconds(request.duration_ms()));
}

Result<std::string> NodeFaults::Cut(const InjectRequest& request, Order order) {
  order.action = Action::kCut;
  const bool slow = request.kind() == "slow-link";
  if (slow != (request.bytes_per_s() != 0)) {
    return Fail(
        InvalidArgumentError("slow-link needs a rate (bytes_per_s) and partition takes none"));
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
        fmt::format("{} is also an address of this machine: a drill of its links would affect the "
                    "whole machine; use nodes with separate addresses",
                    address)));
  }
  bool coordinator = false;
  const std::string& peer = request.peer();
  if (!peer.empty()) HOLDFAST_RETURN_IF_ERROR(ValidateName("peer", peer));
  if (!slow && peer.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(coordinator, AddCoordinator(options_.coordinator, own, &order.cut));
  }
  // Also before a real cut: the caller then gets the kernel's refusal in the reply.
  HOLDFAST_RETURN_IF_ERROR(NetworkCut::Rehearse(order.cut));
  HOLDFAST_RETURN_IF_ERROR(Begin(request, order));
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

Result<std::string> NodeFaults::Corrupt(const InjectRequest& request) {
  const ShardKey key{request.job(),
                     {Incarnation{request.incarnation()}, Step{request.step()}},
                     Rank{request.rank()}};
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, SealOf(options_.data_dirs, key));
  const std::vector<std::string> parts = PartsOf(
      options_.data_dirs, key, static_cast<uint32_t>(std::max<size_t>(seal.parts.size(), 1)));
  if (parts.empty()) return Fail(NotFoundError(ToString(key) + " is not on this node's disks"));
  Random random(request.seed());
  const std::string& path = parts[random.Below(parts.size())];
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Fail(ErrnoStatus(errno, "stat " + path));
  if (info.st_size == 0 || seal.image_bytes == 0)
    return Fail(FailedPreconditionError(path + " is empty"));
  // A file may be padded after the image's end, where no read would detect the damage.
  const uint64_t bytes = std::min(static_cast<uint64_t>(info.st_size), seal.image_bytes);
  const uint64_t offset = random.Below(parts.size() == 1 ? bytes : bytes / parts.size() + 1);
  const int bit = static_cast<int>(random.Below(8));
  if (!request.dry_run()) HOLDFAST_RETURN_IF_ERROR(FlipBit(path, offset, bit));
  return fmt::format("bit {} of byte {} of {} is flipped", bit, offset, path);
}

}  // namespace holdfast::faults
