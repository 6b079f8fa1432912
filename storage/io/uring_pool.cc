#include "storage/io/uring_pool.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "storage/io/block_file.h"
#include "storage/io/queue_rules.h"

namespace holdfast {
namespace {
constexpr size_t kIdleRingsMax = 8;
// The kernel accepts at most 1 GiB per buffer and 16384 buffers per ring.
constexpr uint64_t kBufferBytesMax = 1ULL << 30;
constexpr size_t kBuffersMax = 16384;

// IORING_REGISTER_CLONE_BUFFERS of Linux 6.12, which liburing 2.3 does not define.
constexpr unsigned kRegisterCloneBuffers = 30;
struct CloneBuffers {
  uint32_t source_fd;
  uint32_t flags;
  uint32_t source_offset;
  uint32_t offset;
  uint32_t count;
  uint32_t pad[3];
};

const std::byte* Start(const iovec& buffer) { return static_cast<std::byte*>(buffer.iov_base); }
}  // namespace

Result<std::unique_ptr<UringRing>> UringRing::Create(uint32_t entries) {
  auto ring = std::make_unique<UringRing>();
  int error = io_uring_queue_init(entries, &ring->ring_, 0);
  if (error < 0) return Fail(ErrnoStatus(-error, "io_uring_setup"));
  ring->open_ = true;
  return ring;
}

UringRing::~UringRing() {
  if (open_) io_uring_queue_exit(&ring_);
}

std::optional<UringRing::Fixed> UringRing::Find(const std::byte* address) const {
  auto after = std::upper_bound(
      buffers_.begin(), buffers_.end(), address,
      [](const std::byte* wanted, const iovec& buffer) { return wanted < Start(buffer); });
  if (after == buffers_.begin()) return std::nullopt;
  const iovec& buffer = *(after - 1);
  auto inside = static_cast<uint64_t>(address - Start(buffer));
  if (inside >= buffer.iov_len) return std::nullopt;
  return Fixed{static_cast<uint16_t>(after - 1 - buffers_.begin()), buffer.iov_len - inside};
}

Status UringRing::Register(const std::vector<iovec>& buffers, uint64_t generation) {
  if (!buffers.empty()) {
    int error = io_uring_register_buffers(&ring_, buffers.data(), buffers.size());
    if (error < 0) return ErrnoStatus(-error, "register buffers");
  }
  buffers_ = buffers;
  generation_ = generation;
  return Status::Ok();
}

Status UringRing::CloneFrom(UringRing& source) {
  CloneBuffers clone = {};
  clone.source_fd = static_cast<uint32_t>(source.ring_.ring_fd);
  if (::syscall(SYS_io_uring_register, ring_.ring_fd, kRegisterCloneBuffers, &clone, 1) < 0) {
    return ErrnoStatus(errno, "clone registered buffers");
  }
  buffers_ = source.buffers_;
  generation_ = source.generation_;
  return Status::Ok();
}

void UringRing::Unregister() {
  // A failure is ignored: the pages then stay pinned until the ring is destroyed.
  if (!buffers_.empty()) static_cast<void>(io_uring_unregister_buffers(&ring_));
  buffers_.clear();
  generation_ = 0;
}

std::vector<iovec> UringPool::Buffers() const {
  std::vector<iovec> buffers;
  for (std::span<std::byte> region : regions_) {
    for (uint64_t at = 0; at < region.size(); at += kBufferBytesMax) {
      buffers.push_back({region.data() + at, std::min(kBufferBytesMax, region.size() - at)});
    }
  }
  std::sort(buffers.begin(), buffers.end(),
            [](const iovec& a, const iovec& b) { return Start(a) < Start(b); });
  return buffers;
}

void UringPool::Warn(const Status& why) const {
  bool limit = why.code() == ErrorCode::kResourceExhausted;
  Log(LogLevel::kWarn, "IoPlainBuffers",
      {Kv("path", name_), Kv("reason", why.ToString()),
       Kv("hint", limit ? "raise the locked-memory limit (RLIMIT_MEMLOCK) above the arena's size"
                        : "none")});
}

void UringPool::SetChanged() {
  generation_.fetch_add(1, std::memory_order_acq_rel);
  can_register_ = true;
  for (auto& ring : idle_) ring->Unregister();
  if (pinned_ != nullptr) pinned_->Unregister();
  if (regions_.empty()) {
    pinned_.reset();
    return;
  }
  std::vector<iovec> buffers = Buffers();
  Status status;
  if (buffers.size() > kBuffersMax) {
    status = ResourceExhaustedError(
        fmt::format("{} buffers, but the kernel accepts at most {}", buffers.size(), kBuffersMax));
  }
  if (status.ok() && pinned_ == nullptr) {
    auto ring = UringRing::Create(1);
    if (ring) {
      pinned_ = *std::move(ring);
    } else {
      status = ring.error();
    }
  }
  if (status.ok()) status = pinned_->Register(buffers, generation());
  if (!status.ok()) {
    can_register_ = false;
    Warn(status);
  }
}

void UringPool::Refresh(UringRing& ring) {
  if (ring.generation() == generation()) return;
  ring.Unregister();
  if (!can_register_ || regions_.empty()) return;
  if (can_clone_) {
    Status cloned = ring.CloneFrom(*pinned_);
    if (cloned.ok()) return;
    can_clone_ = false;
    Log(LogLevel::kInfo, "IoRegistersEachRing",
        {Kv("path", name_), Kv("reason", cloned.ToString())});
  }
  Status status = ring.Register(Buffers(), generation());
  if (!status.ok()) {
    can_register_ = false;
    Warn(status);
  }
}

Result<std::unique_ptr<UringRing>> UringPool::Borrow() {
  MutexLock lock(mutex_);
  std::unique_ptr<UringRing> ring;
  if (idle_.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(ring, UringRing::Create(entries_));
  } else {
    ring = std::move(idle_.back());
    idle_.pop_back();
  }
  Refresh(*ring);
  return ring;
}

void UringPool::Return(std::unique_ptr<UringRing> ring) {
  MutexLock lock(mutex_);
  if (idle_.size() >= kIdleRingsMax) return;
  if (ring->generation() != generation()) ring->Unregister();
  idle_.push_back(std::move(ring));
}

void UringPool::RegisterMemory(std::span<std::byte> memory) {
  auto start = reinterpret_cast<uintptr_t>(memory.data());
  uint64_t skip = RoundUp(start, kBlockBytes) - start;
  if (memory.size() < skip + kBlockBytes) return;
  memory = memory.subspan(skip, (memory.size() - skip) / kBlockBytes * kBlockBytes);
  MutexLock lock(mutex_);
  regions_.push_back(memory);
  SetChanged();
}

void UringPool::UnregisterMemory(std::span<std::byte> memory) {
  MutexLock lock(mutex_);
  auto overlaps = [&](std::span<std::byte> region) {
    return region.data() < memory.data() + memory.size() &&
           memory.data() < region.data() + region.size();
  };
  if (std::erase_if(regions_, overlaps) > 0) SetChanged();
}

}  // namespace holdfast
