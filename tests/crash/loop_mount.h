#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace holdfast {

/// Runs a program to its end. Returns its output in the status when it fails, and in `output` if
/// given.
inline Status RunProgram(const std::vector<std::string>& words, std::string* output = nullptr) {
  std::array<int, 2> pipe_ends{};
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = ::fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    ::dup2(write_end.get(), 1);
    ::dup2(write_end.get(), 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  write_end.Reset();
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    ssize_t got = ::read(read_end.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (output != nullptr) *output = text;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Status::Ok();
  std::string command;
  for (const std::string& word : words) command += word + " ";
  return InternalError(command + "failed: " + text);
}

/// A file system in a file, with a simulated power cut. The destructor unmounts and detaches it in
/// any state.
class LoopMount {
 public:
  /// Makes `folder`/disk of `bytes`, formats it as ext4 and mounts it at `folder`/mnt.
  Status Create(const std::string& folder, uint64_t bytes) {
    image_ = folder + "/disk";
    mount_point_ = folder + "/mnt";
    std::filesystem::create_directory(mount_point_);
    UniqueFd fd(::open(image_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
      return ErrnoStatus(errno, image_);
    }
    HOLDFAST_RETURN_IF_ERROR(RunProgram({"mkfs.ext4", "-q", "-F", image_}));
    // Retry: another process may have taken the device that --find found.
    Status attached;
    for (int attempt = 0; attempt < 10; ++attempt) {
      std::string device;
      attached = RunProgram({"losetup", "--find", "--show", image_}, &device);
      if (attached.ok()) {
        device_ = device.substr(0, device.find('\n'));
        return Mount();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return attached;
  }
  ~LoopMount() {
    if (mounted_ && !Unmount().ok()) {
      static_cast<void>(RunProgram({"umount", "--lazy", mount_point_}));
    }
    if (!device_.empty()) static_cast<void>(RunProgram({"losetup", "-d", device_}));
  }

  Status Mount() {
    HOLDFAST_RETURN_IF_ERROR(RunProgram({"mount", "-t", "ext4", device_, mount_point_}));
    mounted_ = true;
    return Status::Ok();
  }
  Status Unmount() {
    Status unmounted;
    for (int attempt = 0; attempt < 20; ++attempt) {
      unmounted = RunProgram({"umount", mount_point_});
      if (unmounted.ok()) {
        mounted_ = false;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return unmounted;
  }
  /// Simulates a power cut: no further bytes reach the device, and the journal is not flushed.
  Status CutPower() {
    constexpr unsigned long kExt4IocShutdown = 0x8004587d;
    uint32_t no_log_flush = 2;
    UniqueFd fd(::open(mount_point_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, mount_point_);
    if (::ioctl(fd.get(), kExt4IocShutdown, &no_log_flush) != 0) {
      return ErrnoStatus(errno, "EXT4_IOC_SHUTDOWN");
    }
    return Status::Ok();
  }
  Status PowerOn() {
    HOLDFAST_RETURN_IF_ERROR(Unmount());
    return Mount();
  }

  const std::string& mount_point() const { return mount_point_; }

 private:
  std::string image_;
  std::string mount_point_;
  std::string device_;
  bool mounted_ = false;
};

}  // namespace holdfast
