#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/cli/interrupt.h"
#include "storage/base/fd.h"

namespace holdfast::cli {

/// The folder that a command writes files into. Nothing appears under a final name before it is
/// published: a command that fails or is interrupted leaves the folder as it was.
class TargetFolder {
 public:
  /// Checks that `dir` can take `bytes`: it does not exist or is empty, and its file system has
  /// room. Creates nothing.
  static Status Check(const std::string& dir, uint64_t bytes);
  /// Makes the folder, parents included, each synced.
  static Result<TargetFolder> Make(const std::string& dir);

  const std::string& dir() const { return dir_; }
  int fd() const { return fd_.get(); }
  /// Makes the names in it durable.
  Status Sync() const;

 private:
  TargetFolder(std::string dir, UniqueFd fd) : dir_(std::move(dir)), fd_(std::move(fd)) {}

  std::string dir_;
  UniqueFd fd_;
};

/// One file on its way into a folder, under a temporary name that goes when this object does.
/// Thread-compatible; its bytes may be written by several threads.
class TargetFile {
 public:
  /// `target` outlives it. The file is empty.
  static Result<TargetFile> Create(const TargetFolder& target, const std::string& name);

  int fd() const { return fd_.get(); }
  const std::string& path() const { return file_->path(); }
  const std::string& name() const { return name_; }

  /// Makes the file `bytes` long, all of them reserved: a full disk shows here, not in the middle.
  Status Reserve(uint64_t bytes) const;
  /// Threads: any.
  Status Write(uint64_t offset, std::span<const std::byte> bytes) const;
  /// Durable under the temporary name; nothing is written after it.
  Status Finish();
  /// Takes the final name, which must be free. Durable after the target's Sync(); until Keep() it
  /// is still removed with this object.
  Status Publish();
  void Keep() { file_->Keep(); }

 private:
  TargetFile(const TargetFolder& target, std::string name)
      : target_(&target), name_(std::move(name)) {}

  const TargetFolder* target_;
  std::string name_;
  std::string temporary_;
  std::unique_ptr<TemporaryFile> file_;
  UniqueFd fd_;
};

/// All names or none: what has its name already is taken back when a later one fails. Crash points:
/// cli.before_rename, cli.after_rename.
Status PublishAll(const TargetFolder& target, std::span<TargetFile* const> files);

}  // namespace holdfast::cli
