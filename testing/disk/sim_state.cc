#include "testing/disk/sim_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include "storage/io/path.h"
#include "storage/io/queue_rules.h"

namespace holdfast {
namespace {
constexpr uint64_t kRootInode = 1;
constexpr uint64_t kSectorBytes = 512;

void ApplyWrite(SimBytes& to, uint64_t offset, std::span<const std::byte> bytes) {
  if (offset >= to.size() || bytes.empty()) return;
  uint64_t length = std::min<uint64_t>(bytes.size(), to.size() - offset);
  std::memcpy(to.data() + offset, bytes.data(), length);
}

uint64_t ReservedFor(const SimInode& inode) {
  return std::max(RoundUp(inode.data.size(), kBlockBytes), inode.reserved_bytes);
}
}  // namespace

SimDisk::State::State(const SimDiskOptions& disk_options)
    : options(disk_options), random(disk_options.seed) {
  options.operation_bytes =
      std::max(kBlockBytes, options.operation_bytes / kBlockBytes * kBlockBytes);
  options.queue_depth = std::max(1U, options.queue_depth);
  inodes[kRootInode].is_directory = true;
}

Status SimDisk::State::CheckAlive(uint64_t opened_in) const {
  if (down) return IoErrorError("simulated disk: the power is off");
  if (opened_in != generation) {
    return IoErrorError("simulated disk: the handle is older than a crash; open it again");
  }
  return Status::Ok();
}

Result<SimFaultEffects> SimDisk::State::Begin(uint64_t opened_in, SimOp op,
                                              const std::string& path) {
  HOLDFAST_RETURN_IF_ERROR(CheckAlive(opened_in));
  if (operations_left == 0) {
    down = true;
    return Fail(CheckAlive(opened_in));
  }
  if (operations_left != UINT64_MAX) --operations_left;
  ++counts[static_cast<size_t>(op)];
  SimFaultEffects effects;
  uint64_t delay_ms = 0;
  Status failure;
  for (SimFault& fault : faults) {
    if (fault.op != op || fault.times == 0 || (fault.path && !fault.path(path))) continue;
    if (fault.skip > 0) {
      --fault.skip;
      continue;
    }
    if (fault.times != UINT64_MAX) --fault.times;
    switch (fault.effect) {
      case SimEffect::kIoError:
        failure = IoErrorError(fmt::format("{}: simulated input/output error", path));
        break;
      case SimEffect::kOutOfSpace:
        failure = OutOfSpaceError(fmt::format("{}: simulated full disk", path));
        break;
      case SimEffect::kShort:
        effects.shorten = true;
        break;
      case SimEffect::kBitFlip:
        effects.flip = true;
        break;
      case SimEffect::kDelay:
        delay_ms += fault.delay_ms;
        break;
    }
  }
  if (delay_ms > 0) {
    mutex.Unlock();
    options.clock->SleepFor(std::chrono::milliseconds(delay_ms));
    mutex.Lock();
    HOLDFAST_RETURN_IF_ERROR(CheckAlive(opened_in));
  }
  HOLDFAST_RETURN_IF_ERROR(failure);
  return effects;
}

Status SimDisk::State::Count(uint64_t opened_in, SimOp op, const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] SimFaultEffects effects, Begin(opened_in, op, path));
  return Status::Ok();
}

Result<uint64_t> SimDisk::State::Find(const std::string& path) const {
  uint64_t at = kRootInode;
  if (path == ".") return at;
  size_t start = 0;
  while (start <= path.size()) {
    size_t end = std::min(path.find('/', start), path.size());
    const SimInode& directory = inodes.at(at);
    auto entry = directory.entries.find(path.substr(start, end - start));
    if (!directory.is_directory || entry == directory.entries.end()) {
      return Fail(NotFoundError(fmt::format("{}: no such file or directory", path)));
    }
    at = entry->second;
    start = end + 1;
  }
  return at;
}

Result<std::pair<uint64_t, std::string>> SimDisk::State::FindParent(const std::string& path) const {
  auto [parent, name] = SplitPath(path);
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, Find(parent));
  if (!inodes.at(inode).is_directory) {
    return Fail(NotFoundError(fmt::format("{}: {} is not a directory", path, parent)));
  }
  return std::pair(inode, name);
}

void SimDisk::State::Change(SimNamespaceChange change) {
  for (const SimEntryChange& entry : change) {
    auto& entries = inodes.at(entry.directory).entries;
    if (entry.inode == 0) {
      entries.erase(entry.name);
    } else {
      entries[entry.name] = entry.inode;
    }
  }
  unsynced_changes.push_back(std::move(change));
}

void SimDisk::State::MakeDurable(const SimNamespaceChange& change) {
  for (const SimEntryChange& entry : change) {
    auto& entries = inodes.at(entry.directory).durable_entries;
    if (entry.inode == 0) {
      entries.erase(entry.name);
    } else {
      entries[entry.name] = entry.inode;
    }
  }
}

Result<uint64_t> SimDisk::State::Create(const std::string& path, bool is_directory) {
  HOLDFAST_ASSIGN_OR_RETURN(auto parent, FindParent(path));
  if (inodes.at(parent.first).entries.contains(parent.second)) {
    return Fail(AlreadyExistsError(fmt::format("{}: exists", path)));
  }
  uint64_t inode = next_inode++;
  inodes[inode].is_directory = is_directory;
  Change({{parent.first, parent.second, inode}});
  return inode;
}

Status SimDisk::State::Rename(const std::string& from, const std::string& to) {
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t moved, Find(from));
  HOLDFAST_ASSIGN_OR_RETURN(auto source, FindParent(from));
  HOLDFAST_ASSIGN_OR_RETURN(auto target, FindParent(to));
  if (from == to) return Status::Ok();
  bool is_directory = inodes.at(moved).is_directory;
  if (is_directory && to.starts_with(from + "/")) {
    return InvalidArgumentError(fmt::format("{}: cannot be moved into itself, {}", from, to));
  }
  const auto& entries = inodes.at(target.first).entries;
  if (auto existing = entries.find(target.second); existing != entries.end()) {
    const SimInode& replaced = inodes.at(existing->second);
    if (replaced.is_directory && !is_directory) {
      return IoErrorError(fmt::format("{}: is a directory", to));
    }
    if (!replaced.is_directory && is_directory) {
      return NotFoundError(fmt::format("{}: is not a directory", to));
    }
    if (!replaced.entries.empty()) {
      return AlreadyExistsError(fmt::format("{}: directory not empty", to));
    }
  }
  Change({{source.first, source.second, 0}, {target.first, target.second, moved}});
  return Status::Ok();
}

Status SimDisk::State::Remove(const std::string& path, bool is_directory) {
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, Find(path));
  HOLDFAST_ASSIGN_OR_RETURN(auto parent, FindParent(path));
  const SimInode& found = inodes.at(inode);
  if (found.is_directory && !is_directory)
    return IoErrorError(fmt::format("{}: is a directory", path));
  if (!found.is_directory && is_directory) {
    return NotFoundError(fmt::format("{}: not a directory", path));
  }
  if (!found.entries.empty()) {
    return AlreadyExistsError(fmt::format("{}: directory not empty", path));
  }
  Change({{parent.first, parent.second, 0}});
  return Status::Ok();
}

Status SimDisk::State::SyncDirectory(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, Find(path));
  if (!inodes.at(inode).is_directory) {
    return NotFoundError(fmt::format("{}: not a directory", path));
  }
  // A change of two directories requires all earlier changes of the other one, too.
  std::set<uint64_t> directories = {inode};
  std::vector<bool> take(unsynced_changes.size());
  for (size_t i = unsynced_changes.size(); i-- > 0;) {
    const SimNamespaceChange& change = unsynced_changes[i];
    take[i] = std::any_of(change.begin(), change.end(),
                          [&](const auto& entry) { return directories.contains(entry.directory); });
    if (!take[i]) continue;
    for (const SimEntryChange& entry : change) directories.insert(entry.directory);
  }
  std::vector<SimNamespaceChange> left;
  for (size_t i = 0; i < take.size(); ++i) {
    if (take[i]) {
      MakeDurable(unsynced_changes[i]);
    } else {
      left.push_back(std::move(unsynced_changes[i]));
    }
  }
  unsynced_changes = std::move(left);
  return Status::Ok();
}

Status SimDisk::State::MakeDurableDirectories(const std::string& path) {
  if (path == ".") return Status::Ok();
  auto parent = SplitPath(path).first;
  HOLDFAST_RETURN_IF_ERROR(MakeDurableDirectories(parent));
  if (!Find(path)) {
    HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] uint64_t inode, Create(path, true));
  }
  return SyncDirectory(parent);
}

Status SimDisk::State::CheckRoom(const SimInode& inode, uint64_t bytes) const {
  uint64_t has = ReservedFor(inode);
  uint64_t needed = RoundUp(bytes, kBlockBytes);
  uint64_t used = UsedBytes();
  if (needed > has &&
      (used >= options.capacity_bytes || needed - has > options.capacity_bytes - used)) {
    return OutOfSpaceError(fmt::format("simulated disk: {} more bytes needed, {} of {} used",
                                       needed - has, used, options.capacity_bytes));
  }
  return Status::Ok();
}

Status SimDisk::State::Write(uint64_t inode, uint64_t offset, std::span<const std::byte> bytes) {
  SimInode& file = inodes.at(inode);
  if (offset + bytes.size() > file.data.size()) {
    HOLDFAST_RETURN_IF_ERROR(CheckRoom(file, offset + bytes.size()));
    file.data.resize(offset + bytes.size());
    file.dirty.push_back({true, file.data.size(), {}});
  }
  ApplyWrite(file.data, offset, bytes);
  file.dirty.push_back({false, offset, SimBytes(bytes.begin(), bytes.end())});
  return Status::Ok();
}

Status SimDisk::State::Resize(uint64_t inode, uint64_t bytes) {
  SimInode& file = inodes.at(inode);
  HOLDFAST_RETURN_IF_ERROR(CheckRoom(file, bytes));
  file.data.resize(bytes);
  file.reserved_bytes = 0;
  file.dirty.push_back({true, bytes, {}});
  return Status::Ok();
}

Status SimDisk::State::Reserve(uint64_t inode, uint64_t bytes) {
  SimInode& file = inodes.at(inode);
  HOLDFAST_RETURN_IF_ERROR(CheckRoom(file, bytes));
  file.reserved_bytes = std::max(file.reserved_bytes, RoundUp(bytes, kBlockBytes));
  if (bytes > file.data.size()) {
    file.data.resize(bytes);
    file.dirty.push_back({true, bytes, {}});
  }
  return Status::Ok();
}

void SimDisk::State::Sync(uint64_t inode) {
  SimInode& file = inodes.at(inode);
  for (const SimDirty& dirty : file.dirty) {
    if (dirty.resize) {
      file.durable.resize(dirty.offset);
    } else {
      ApplyWrite(file.durable, dirty.offset, dirty.bytes);
    }
  }
  file.dirty.clear();
}

void SimDisk::State::CrashNames(SimSurvival survival) {
  std::set<uint64_t> stopped;  // directories whose later changes are lost
  for (const SimNamespaceChange& change : unsynced_changes) {
    bool survives = survival != SimSurvival::kNothing &&
                    (survival == SimSurvival::kEverything || !random.OneIn(3));
    for (const SimEntryChange& entry : change) survives &= !stopped.contains(entry.directory);
    if (survives) {
      MakeDurable(change);
    } else {
      for (const SimEntryChange& entry : change) stopped.insert(entry.directory);
    }
  }
  unsynced_changes.clear();
}

void SimDisk::State::CrashData(SimInode& inode, SimSurvival survival) {
  bool sizes_survive = survival != SimSurvival::kNothing;
  for (const SimDirty& dirty : inode.dirty) {
    if (dirty.resize) {
      if (survival == SimSurvival::kRandom) sizes_survive &= !random.OneIn(3);
      if (sizes_survive) inode.durable.resize(dirty.offset);
      continue;
    }
    if (survival == SimSurvival::kNothing) continue;
    uint64_t fate = survival == SimSurvival::kEverything ? 1 : random.Below(3);
    if (fate == 1) ApplyWrite(inode.durable, dirty.offset, dirty.bytes);
    if (fate != 2) continue;
    std::span<const std::byte> bytes = dirty.bytes;
    for (uint64_t at = 0; at < bytes.size(); at += kSectorBytes) {
      if (random.OneIn(2)) continue;
      uint64_t length = std::min(kSectorBytes, bytes.size() - at);
      ApplyWrite(inode.durable, dirty.offset + at, bytes.subspan(at, length));
    }
  }
  inode.dirty.clear();
  inode.data = inode.durable;
  inode.reserved_bytes = 0;
  inode.opens = 0;
}

void SimDisk::State::DropUnreachable() {
  std::set<uint64_t> reached = {kRootInode};
  std::vector<uint64_t> todo = {kRootInode};
  while (!todo.empty()) {
    uint64_t at = todo.back();
    todo.pop_back();
    for (const auto& [name, inode] : inodes.at(at).entries) {
      if (reached.insert(inode).second) todo.push_back(inode);
    }
  }
  std::erase_if(inodes, [&](const auto& item) { return !reached.contains(item.first); });
}

void SimDisk::State::Crash(SimSurvival survival) {
  CrashNames(survival);
  for (auto& [id, inode] : inodes) {
    CrashData(inode, survival);
    inode.entries = inode.durable_entries;
  }
  DropUnreachable();
  ++generation;
  down = false;
  operations_left = UINT64_MAX;
}

uint64_t SimDisk::State::UsedBytes() const {
  std::set<uint64_t> linked;
  for (const auto& [id, inode] : inodes) {
    for (const auto& [name, child] : inode.entries) linked.insert(child);
  }
  uint64_t bytes = 0;
  for (const auto& [id, inode] : inodes) {
    if (linked.contains(id) || inode.opens > 0) bytes += ReservedFor(inode);
  }
  return bytes;
}

void SimDisk::State::ListFiles(uint64_t directory, const std::string& prefix,
                               std::vector<std::string>& out) const {
  for (const auto& [name, inode] : inodes.at(directory).entries) {
    if (inodes.at(inode).is_directory) {
      ListFiles(inode, prefix + name + "/", out);
    } else {
      out.push_back(prefix + name);
    }
  }
}

}  // namespace holdfast
