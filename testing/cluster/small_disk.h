#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace holdfast::local {

/// A small ext4 on a loop device; the destructor unmounts it.
class SmallDisk {
 public:
  /// FailedPrecondition when the machine has no loop devices or this user may not mount.
  static Result<SmallDisk> Make(const std::string& dir, uint64_t bytes);
  SmallDisk(SmallDisk&& other) noexcept;
  SmallDisk& operator=(SmallDisk&&) = delete;
  ~SmallDisk();
  const std::string& path() const { return mount_point_; }

 private:
  explicit SmallDisk(std::string mount_point) : mount_point_(std::move(mount_point)) {}
  std::string mount_point_;
};

}  // namespace holdfast::local
