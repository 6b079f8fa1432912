#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/fd.h"
#include "cli/core/interrupt.h"

namespace holdfast::cli {

/// The folder that a command writes files into. No file has its final name before it is published,
/// so a command that fails or is interrupted leaves the folder unchanged.
class TargetFolder {
 public:
  /// Checks that `dir` does not exist or is empty, and that its file system has room for `bytes`.
  /// Creates nothing.
  static Status Check(const std::string& dir, uint64_t bytes);
  /// Creates the folder and its parents, each synced.
  static Result<TargetFolder> Make(const std::string& dir);

  const std::string& dir() const { return dir_; }
  int fd() const { return fd_.get(); }
  /// Makes the names in the folder durable.
  Status Sync() const;

 private:
  TargetFolder(std::string dir, UniqueFd fd) : dir_(std::move(dir)), fd_(std::move(fd)) {}

  std::string dir_;
  UniqueFd fd_;
};

/// A file that is written into a folder under a temporary name. The destructor removes it unless it
/// was kept. Thread-compatible; several threads may write its bytes.
class TargetFile {
 public:
  /// Creates an empty file. `target` must outlive it.
  static Result<TargetFile> Create(const TargetFolder& target, const std::string& name);

  int fd() const { return fd_.get(); }
  const std::string& path() const { return file_->path(); }
  const std::string& name() const { return name_; }

  /// Makes the file `bytes` long and reserves all of them, so that a full disk is detected before
  /// the first write.
  Status Reserve(uint64_t bytes) const;
  /// Any thread may call.
  Status Write(uint64_t offset, std::span<const std::byte> bytes) const;
  /// Makes the file durable under its temporary name. No write may follow.
  Status Finish();
  /// Renames the file to its final name, which must be free. Durable after the target's Sync(). The
  /// destructor still removes the file unless Keep() was called.
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

/// Publishes all files or none: when one fails, those already renamed are removed with their
/// objects. Crash points: cli.before_rename, cli.after_rename.
Status PublishAll(const TargetFolder& target, std::span<TargetFile* const> files);

}  // namespace holdfast::cli
