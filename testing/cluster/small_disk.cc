#include "testing/cluster/small_disk.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

namespace holdfast::local {
namespace {
Status Shell(const std::string& command) {
  int status = std::system((command + " >/dev/null 2>&1").c_str());
  return status == 0 ? Status::Ok() : FailedPreconditionError("command failed: " + command);
}
}  // namespace

Result<SmallDisk> SmallDisk::Make(const std::string& dir, uint64_t bytes) {
  std::string image = dir + "/small-disk.img";
  std::string mount_point = dir + "/small-disk";
  std::filesystem::create_directories(mount_point);
  HOLDFAST_RETURN_IF_ERROR(Shell(fmt::format("truncate -s {} {}", bytes, image)));
  HOLDFAST_RETURN_IF_ERROR(Shell("mkfs.ext4 -q -m 0 " + image));
  HOLDFAST_RETURN_IF_ERROR(Shell("mount -o loop " + image + " " + mount_point));
  // With lost+found the directory would not count as empty.
  std::filesystem::remove_all(mount_point + "/lost+found");
  return SmallDisk(mount_point);
}

SmallDisk::SmallDisk(SmallDisk&& other) noexcept
    : mount_point_(std::exchange(other.mount_point_, "")) {}

SmallDisk::~SmallDisk() {
  // A process that was just killed may keep the mount busy for a moment.
  if (!mount_point_.empty())
    std::ignore = Shell("umount " + mount_point_ + " || (sleep 1; umount -l " + mount_point_ + ")");
}

}  // namespace holdfast::local
