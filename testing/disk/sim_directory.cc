#include "testing/disk/sim_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "storage/io/path.h"
#include "storage/io/queue_rules.h"
#include "testing/disk/sim_state.h"

namespace holdfast {

class SimBlockFile final : public BlockFile {
 public:
  /// The caller has incremented the inode's open count for this file.
  SimBlockFile(SimDisk::State& disk, uint64_t generation, uint64_t inode, std::string path,
               bool writable)
      : disk_(disk),
        generation_(generation),
        inode_(inode),
        path_(std::move(path)),
        writable_(writable) {}
  SimBlockFile(const SimBlockFile&) = delete;
  SimBlockFile& operator=(const SimBlockFile&) = delete;
  ~SimBlockFile() override;

  Status QueueWrite(uint64_t offset, std::span<const std::byte> bytes) override;
  Status QueueRead(uint64_t offset, std::span<std::byte> into) override;
  uint64_t CompletedPrefix() const override;
  Status WaitPrefix(uint64_t bytes) override;
  Status Drain() override;
  Status Allocate(uint64_t bytes) override;
  Status Truncate(uint64_t bytes) override;
  Result<uint64_t> Size() const override;
  Status Sync() override;

 private:
  struct Piece {
    bool write = false;
    uint64_t offset = 0;
    const std::byte* from = nullptr;
    std::byte* into = nullptr;
    uint64_t bytes = 0;
  };

  Status CheckWritable() const;
  Status Enqueue(Piece whole) HOLDFAST_REQUIRES(disk_.mutex);
  void CompleteOne() const HOLDFAST_REQUIRES(disk_.mutex);
  Status Run(Piece piece) const HOLDFAST_REQUIRES(disk_.mutex);
  Status Move(const Piece& piece, bool flip) const HOLDFAST_REQUIRES(disk_.mutex);

  SimDisk::State& disk_;
  const uint64_t generation_;
  const uint64_t inode_;
  const std::string path_;
  const bool writable_;
  // Mutable because CompletedPrefix() completes operations, as a real disk does over time.
  mutable std::vector<Piece> queued_;
  mutable PrefixTracker done_;
  mutable Status error_;
};

SimBlockFile::~SimBlockFile() {
  MutexLock lock(disk_.mutex);
  while (!queued_.empty()) CompleteOne();
  if (disk_.CheckAlive(generation_).ok()) --disk_.inodes.at(inode_).opens;
}

Status SimBlockFile::CheckWritable() const {
  if (writable_) return Status::Ok();
  return FailedPreconditionError(fmt::format("{} is open only for reading", path_));
}

Status SimBlockFile::Enqueue(Piece whole) {
  uint64_t piece_bytes = disk_.options.operation_bytes;
  for (uint64_t at = 0; at < whole.bytes && error_.ok(); at += piece_bytes) {
    while (queued_.size() >= disk_.options.queue_depth) CompleteOne();
    Piece piece = whole;
    piece.offset += at;
    piece.bytes = std::min(piece_bytes, whole.bytes - at);
    if (piece.write) {
      piece.from += at;
    } else {
      piece.into += at;
    }
    queued_.push_back(piece);
  }
  return error_;
}

Status SimBlockFile::QueueWrite(uint64_t offset, std::span<const std::byte> bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_RETURN_IF_ERROR(CheckOperation(path_, offset, bytes));
  MutexLock lock(disk_.mutex);
  return Enqueue({true, offset, bytes.data(), nullptr, bytes.size()});
}

Status SimBlockFile::QueueRead(uint64_t offset, std::span<std::byte> into) {
  HOLDFAST_RETURN_IF_ERROR(CheckOperation(path_, offset, into));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(error_);
  return Enqueue({false, offset, nullptr, into.data(), into.size()});
}

Status SimBlockFile::Move(const Piece& piece, bool flip) const {
  if (piece.write) {
    SimBytes bytes(piece.from, piece.from + piece.bytes);
    if (flip && !bytes.empty()) {
      bytes[disk_.random.Below(bytes.size())] ^= std::byte{1} << disk_.random.Below(8);
    }
    return disk_.Write(inode_, piece.offset, bytes).WithContext(path_);
  }
  const SimBytes& data = disk_.inodes.at(inode_).data;
  uint64_t have = piece.offset < data.size() ? data.size() - piece.offset : 0;
  uint64_t take = std::min(piece.bytes, have);
  if (take > 0) std::memcpy(piece.into, data.data() + piece.offset, take);
  if (RoundUp(have, kBlockBytes) < piece.bytes) {
    return PastEndError(path_, piece.offset, piece.bytes, data.size());
  }
  if (flip && take > 0) {
    piece.into[disk_.random.Below(take)] ^= std::byte{1} << disk_.random.Below(8);
  }
  return Status::Ok();
}

Status SimBlockFile::Run(Piece piece) const {
  while (true) {
    HOLDFAST_ASSIGN_OR_RETURN(
        SimFaultEffects effects,
        disk_.Begin(generation_, piece.write ? SimOp::kWrite : SimOp::kRead, path_));
    Piece half = piece;
    half.bytes = piece.bytes / 2 / 512 * 512;
    // A read that gets all bytes up to the end of the file is complete.
    const bool to_end =
        !piece.write && piece.offset + half.bytes >= disk_.inodes.at(inode_).data.size();
    if (!effects.shorten || to_end) return Move(piece, effects.flip);
    HOLDFAST_RETURN_IF_ERROR(Move(half, effects.flip));
    piece.offset += half.bytes;
    piece.bytes -= half.bytes;
    if (piece.write) {
      piece.from += half.bytes;
    } else {
      piece.into += half.bytes;
    }
  }
}

void SimBlockFile::CompleteOne() const {
  size_t index = disk_.random.Below(queued_.size());
  Piece piece = queued_[index];
  queued_.erase(queued_.begin() + static_cast<std::ptrdiff_t>(index));
  Status status = Run(piece);
  if (status.ok()) {
    done_.Add(piece.offset, piece.bytes);
  } else if (error_.ok()) {
    error_ = status;
  }
}

uint64_t SimBlockFile::CompletedPrefix() const {
  MutexLock lock(disk_.mutex);
  if (!queued_.empty()) CompleteOne();
  return done_.prefix();
}

Status SimBlockFile::WaitPrefix(uint64_t bytes) {
  MutexLock lock(disk_.mutex);
  while (done_.prefix() < bytes && error_.ok() && !queued_.empty()) CompleteOne();
  HOLDFAST_RETURN_IF_ERROR(error_);
  if (done_.prefix() >= bytes) return Status::Ok();
  return NeverQueuedError(path_, bytes, done_.prefix());
}

Status SimBlockFile::Drain() {
  MutexLock lock(disk_.mutex);
  while (!queued_.empty()) CompleteOne();
  return error_;
}

Status SimBlockFile::Allocate(uint64_t bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(error_);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kAllocate, path_));
  return disk_.Reserve(inode_, bytes).WithContext(path_);
}

Status SimBlockFile::Truncate(uint64_t bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_RETURN_IF_ERROR(Drain());
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kTruncate, path_));
  return disk_.Resize(inode_, bytes).WithContext(path_);
}

Result<uint64_t> SimBlockFile::Size() const {
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.CheckAlive(generation_));
  return disk_.inodes.at(inode_).data.size();
}

Status SimBlockFile::Sync() {
  HOLDFAST_RETURN_IF_ERROR(Drain());
  MutexLock lock(disk_.mutex);
  Result<SimFaultEffects> effects = disk_.Begin(generation_, SimOp::kSync, path_);
  if (!effects) {
    error_ = effects.error();
    if (disk_.CheckAlive(generation_).ok()) disk_.inodes.at(inode_).dirty.clear();
    return error_;
  }
  disk_.Sync(inode_);
  return Status::Ok();
}

/// A subtree of a SimDisk, valid for one generation between crashes.
class SimDirectory final : public Directory {
 public:
  SimDirectory(SimDisk::State& disk, uint64_t generation, std::string base)
      : disk_(disk),
        generation_(generation),
        base_(std::move(base)),
        path_(base_ == "." ? "/sim" : "/sim/" + base_) {}

  Result<std::unique_ptr<BlockFile>> OpenFile(const std::string& path, OpenMode mode) override;
  Status WriteSmallFile(const std::string& path, std::string_view bytes,
                        const FileAccess& access) override;
  Status SetAccess(const std::string& path, const FileAccess& access) override;
  Result<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max) override;
  Status Overwrite(const std::string& path, uint64_t offset,
                   std::span<const std::byte> bytes) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status RemoveFile(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  Status MakeDirectory(const std::string& path) override;
  Result<std::vector<DirectoryEntry>> List(const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Result<uint64_t> FreeBytes() override;
  void RegisterMemory(std::span<std::byte> /*memory*/) override {}
  void UnregisterMemory(std::span<std::byte> /*memory*/) override {}
  std::string Describe() const override { return "simulated"; }
  const std::string& path() const override { return path_; }

 private:
  Result<std::string> FromRoot(const std::string& path, bool directory) const;
  /// Finds a regular file after counting `op`.
  Result<uint64_t> FindFile(SimOp op, const std::string& path) HOLDFAST_REQUIRES(disk_.mutex);

  SimDisk::State& disk_;
  const uint64_t generation_;
  const std::string base_;
  const std::string path_;
};

Result<std::string> SimDirectory::FromRoot(const std::string& path, bool directory) const {
  HOLDFAST_RETURN_IF_ERROR(ValidatePath(path, directory));
  if (path == ".") return base_;
  return base_ == "." ? path : base_ + "/" + path;
}

Result<uint64_t> SimDirectory::FindFile(SimOp op, const std::string& path) {
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, op, path));
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, disk_.Find(path));
  if (disk_.inodes.at(inode).is_directory) {
    return Fail(InvalidArgumentError(fmt::format("{} is not a regular file", path)));
  }
  return inode;
}

Result<std::unique_ptr<BlockFile>> SimDirectory::OpenFile(const std::string& path, OpenMode mode) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  uint64_t inode = 0;
  if (mode == OpenMode::kCreateExclusive) {
    HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kCreate, full));
    HOLDFAST_ASSIGN_OR_RETURN(inode, disk_.Create(full, false));
  } else {
    HOLDFAST_ASSIGN_OR_RETURN(inode, FindFile(SimOp::kOpen, full));
  }
  ++disk_.inodes.at(inode).opens;
  return std::make_unique<SimBlockFile>(disk_, generation_, inode, full,
                                        mode == OpenMode::kCreateExclusive);
}

/// The simulated disk has one user.
Status SimDirectory::SetAccess(const std::string& path, const FileAccess& /*access*/) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.CheckAlive(generation_));
  auto inode = disk_.Find(full);
  return inode ? Status::Ok() : inode.error();
}

Status SimDirectory::WriteSmallFile(const std::string& path, std::string_view bytes,
                                    const FileAccess& /*access*/) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kCreate, full));
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, disk_.Create(full, false));
  auto write_and_sync = [&]() HOLDFAST_REQUIRES(disk_.mutex) -> Status {
    HOLDFAST_ASSIGN_OR_RETURN(SimFaultEffects effects,
                              disk_.Begin(generation_, SimOp::kWrite, full));
    SimBytes content(bytes.size());
    if (!bytes.empty()) std::memcpy(content.data(), bytes.data(), bytes.size());
    if (effects.flip && !content.empty())
      content[disk_.random.Below(content.size())] ^= std::byte{1};
    HOLDFAST_RETURN_IF_ERROR(disk_.Write(inode, 0, content).WithContext(full));
    Result<SimFaultEffects> sync = disk_.Begin(generation_, SimOp::kSync, full);
    if (sync) {
      disk_.Sync(inode);
      return Status::Ok();
    }
    if (disk_.CheckAlive(generation_).ok()) disk_.inodes.at(inode).dirty.clear();
    return sync.error();
  };
  Status status = write_and_sync();
  if (!status.ok() && disk_.CheckAlive(generation_).ok()) {
    // Remove the file, so that the caller can retry under the same name. Report the first error.
    Status removed = disk_.Remove(full, false);
    if (!removed.ok()) return status.WithContext(removed.message());
  }
  return status;
}

Result<std::string> SimDirectory::ReadSmallFile(const std::string& path, uint64_t bytes_max) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, FindFile(SimOp::kOpen, full));
  HOLDFAST_ASSIGN_OR_RETURN(SimFaultEffects effects, disk_.Begin(generation_, SimOp::kRead, full));
  const SimBytes& data = disk_.inodes.at(inode).data;
  if (data.size() > bytes_max) {
    return Fail(DataLossError(
        fmt::format("{} has {} bytes; such a file has at most {}", full, data.size(), bytes_max)));
  }
  std::string text(data.size(), '\0');
  if (!data.empty()) std::memcpy(text.data(), data.data(), data.size());
  if (effects.flip && !text.empty()) text[disk_.random.Below(text.size())] ^= 1;
  return text;
}

Status SimDirectory::Overwrite(const std::string& path, uint64_t offset,
                               std::span<const std::byte> bytes) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, FindFile(SimOp::kOpen, full));
  const uint64_t size = disk_.inodes.at(inode).data.size();
  if (offset > size || bytes.size() > size - offset) {
    return InvalidArgumentError(fmt::format("{} is not a regular file with {} bytes at offset {}",
                                            full, bytes.size(), offset));
  }
  HOLDFAST_ASSIGN_OR_RETURN(SimFaultEffects effects, disk_.Begin(generation_, SimOp::kWrite, full));
  SimBytes content(bytes.begin(), bytes.end());
  if (effects.flip && !content.empty()) content[disk_.random.Below(content.size())] ^= std::byte{1};
  HOLDFAST_RETURN_IF_ERROR(disk_.Write(inode, offset, content).WithContext(full));
  Result<SimFaultEffects> sync = disk_.Begin(generation_, SimOp::kSync, full);
  if (!sync) {
    if (disk_.CheckAlive(generation_).ok()) disk_.inodes.at(inode).dirty.clear();
    return sync.error();
  }
  disk_.Sync(inode);
  return Status::Ok();
}

Status SimDirectory::Rename(const std::string& from, const std::string& to) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full_from, FromRoot(from, false));
  HOLDFAST_ASSIGN_OR_RETURN(std::string full_to, FromRoot(to, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kRename, full_from));
  return disk_.Rename(full_from, full_to);
}

Status SimDirectory::RemoveFile(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kRemoveFile, full));
  return disk_.Remove(full, false);
}

Status SimDirectory::RemoveDirectory(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kRemoveDirectory, full));
  return disk_.Remove(full, true);
}

Status SimDirectory::MakeDirectory(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, false));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kMakeDirectory, full));
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] uint64_t inode, disk_.Create(full, true));
  return Status::Ok();
}

Result<std::vector<DirectoryEntry>> SimDirectory::List(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, true));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kList, full));
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, disk_.Find(full));
  const SimInode& directory = disk_.inodes.at(inode);
  if (!directory.is_directory) {
    return Fail(NotFoundError(fmt::format("{}: not a directory", full)));
  }
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, child] : directory.entries) {
    const SimInode& found = disk_.inodes.at(child);
    entries.push_back({name, found.is_directory, found.data.size()});
  }
  return entries;
}

Status SimDirectory::SyncDirectory(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string full, FromRoot(path, true));
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.Count(generation_, SimOp::kSyncDirectory, full));
  return disk_.SyncDirectory(full);
}

Result<uint64_t> SimDirectory::FreeBytes() {
  MutexLock lock(disk_.mutex);
  HOLDFAST_RETURN_IF_ERROR(disk_.CheckAlive(generation_));
  uint64_t used = disk_.UsedBytes();
  return disk_.options.capacity_bytes - std::min(used, disk_.options.capacity_bytes);
}

SimDisk::SimDisk(const SimDiskOptions& options) : state_(std::make_unique<State>(options)) {}
SimDisk::~SimDisk() = default;

std::unique_ptr<Directory> SimDisk::Open(const std::string& path) {
  MutexLock lock(state_->mutex);
  // With a bad path, every call on the returned directory fails.
  if (ValidatePath(path, true).ok() && !state_->MakeDurableDirectories(path).ok()) {
    return std::make_unique<SimDirectory>(*state_, UINT64_MAX, path);
  }
  return std::make_unique<SimDirectory>(*state_, state_->generation, path);
}

void SimDisk::Crash(SimSurvival survival) {
  MutexLock lock(state_->mutex);
  state_->Crash(survival);
}

void SimDisk::CrashAfterOperations(uint64_t count) {
  MutexLock lock(state_->mutex);
  state_->operations_left = count;
}

bool SimDisk::crashed() const {
  MutexLock lock(state_->mutex);
  return state_->down;
}

void SimDisk::Inject(SimFault fault) {
  MutexLock lock(state_->mutex);
  state_->faults.push_back(std::move(fault));
}

void SimDisk::ClearFaults() {
  MutexLock lock(state_->mutex);
  state_->faults.clear();
}

uint64_t SimDisk::operations() const {
  MutexLock lock(state_->mutex);
  return std::accumulate(state_->counts.begin(), state_->counts.end(), uint64_t{0});
}

uint64_t SimDisk::count(SimOp op) const {
  MutexLock lock(state_->mutex);
  return state_->counts[static_cast<size_t>(op)];
}

uint64_t SimDisk::used_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->UsedBytes();
}

void SimDisk::SetCapacity(uint64_t bytes) {
  MutexLock lock(state_->mutex);
  state_->options.capacity_bytes = bytes;
}

Status SimDisk::Damage(const std::string& path,
                       const std::function<void(std::vector<std::byte>& bytes)>& change) {
  MutexLock lock(state_->mutex);
  HOLDFAST_RETURN_IF_ERROR(ValidatePath(path, false));
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t inode, state_->Find(path));
  SimInode& file = state_->inodes.at(inode);
  if (file.is_directory) return InvalidArgumentError(fmt::format("{}: is a directory", path));
  bool synced = file.dirty.empty() && file.durable == file.data;
  change(file.data);
  if (synced) file.durable = file.data;
  return Status::Ok();
}

std::vector<std::string> SimDisk::Files() const {
  MutexLock lock(state_->mutex);
  std::vector<std::string> files;
  state_->ListFiles(1, "", files);
  return files;
}

}  // namespace holdfast
