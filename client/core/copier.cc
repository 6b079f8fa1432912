#include "client/core/copier.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/crash_point.h"
#include "client/core/stream_copy.h"
#include "client/core/threads.h"

namespace holdfast::client {
namespace {
// Progress is published at multiples of this many image bytes: the agent checksums in such chunks.
constexpr uint64_t kStepBytes = 1ULL << 20;
constexpr uint64_t kLargeStepBytes = 16ULL << 20;
constexpr uint64_t kDevicePieceBytesMax = 8ULL << 20;
// From about this many bytes on, a second thread saves more time than its start takes.
constexpr uint64_t kThreadBytesMin = 8ULL << 20;
}  // namespace

CopyPlan PlanSave(const ImageLayout& layout, std::span<const TensorMemory> memory) {
  CopyPlan plan;
  plan.tensor_bytes = layout.tensor_bytes();
  plan.pieces.reserve(layout.tensors().size());
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const PlacedTensor& placed = layout.tensors()[i];
    const TensorMemory& from = memory[layout.original_index()[i]];
    // Device tensors are split, so that progress is published during the copy of a large one.
    uint64_t piece_max = from.device ? kDevicePieceBytesMax : placed.bytes();
    for (uint64_t done = 0; done < placed.bytes(); done += piece_max) {
      plan.pieces.push_back({from.data + done, placed.begin + done,
                             std::min(piece_max, placed.bytes() - done), from.device,
                             from.device_index});
    }
    plan.has_device |= from.device;
  }
  return plan;
}

CopyPlan PlanRestore(const ParsedImage& image, std::span<const TensorSpec> specs,
                     std::span<const TensorMemory> memory) {
  std::unordered_map<std::string_view, size_t> index_of;
  for (size_t i = 0; i < specs.size(); ++i) index_of.emplace(specs[i].name, i);
  CopyPlan plan;
  for (const PlacedTensor& placed : image.tensors) {
    auto found = index_of.find(placed.spec.name);
    if (found == index_of.end() || placed.bytes() == 0) continue;
    const TensorMemory& to = memory[found->second];
    plan.pieces.push_back({to.data, placed.begin, placed.bytes(), to.device, to.device_index});
    plan.tensor_bytes += placed.bytes();
    plan.has_device |= to.device;
  }
  return plan;
}

// ---- save --------------------------------------------------------------------------------------

/// Appends to the slot and publishes the progress at every multiple of kStepBytes.
class SaveCopy::Writer {
 public:
  explicit Writer(const Target& target) : target_(target) {}

  uint64_t written() const { return written_; }
  bool cancelled() const { return cancelled_; }

  /// Returns false when the copy was cancelled.
  bool Append(const void* from, uint64_t bytes) {
    auto* source = static_cast<const std::byte*>(from);
    while (bytes > 0) {
      uint64_t run = std::min(bytes, kStepBytes - written_ % kStepBytes);
      StreamCopy(target_.slot.data() + written_, source, run);
      source += run;
      bytes -= run;
      if (!Advance(run)) return false;
    }
    return true;
  }

  /// Copies `bytes` to their offset before all bytes in front of them are final. Returns false when
  /// cancelled.
  bool PutAhead(const void* from, uint64_t offset, uint64_t bytes) {
    auto* source = static_cast<const std::byte*>(from);
    for (uint64_t done = 0; done < bytes; done += kStepBytes) {
      cancelled_ = !target_.alive();
      if (cancelled_) return false;
      StreamCopy(target_.slot.data() + offset + done, source + done,
                 std::min(kStepBytes, bytes - done));
    }
    return true;
  }

  /// Counts the next `bytes`, which PutAhead() or a device has written, as final. `more`:
  /// later bytes are final, too, so progress is published in larger steps. False when cancelled.
  bool Advance(uint64_t bytes, bool more = false) {
    written_ += bytes;
    if (written_ / kStepBytes == published_ / kStepBytes) return true;
    if (more && written_ - published_ < kLargeStepBytes) return true;
    published_ = written_;
    if (!target_.alive()) {
      cancelled_ = true;
      return false;
    }
    target_.progress(written_);
    return true;
  }

 private:
  const Target& target_;
  uint64_t written_ = 0;
  uint64_t published_ = 0;
  bool cancelled_ = false;
};

Result<std::unique_ptr<SaveCopy>> SaveCopy::Make(const CopyPlan& plan, DeviceCopier* device,
                                                 void* stream) {
  auto copy = std::make_unique<SaveCopy>(plan, device);
  if (plan.has_device) {
    char text[512] = {};
    int32_t code = device->table().mark(device->context(), stream, &copy->mark_, text, sizeof text);
    if (code != 0) return Fail(Status(ErrorFromNumber(static_cast<uint32_t>(code)), text));
  }
  return copy;
}

SaveCopy::~SaveCopy() {
  if (copy_ != nullptr) device_->table().finish(copy_);
  if (mark_ != nullptr) device_->table().drop_mark(device_->context(), mark_);
}

Status SaveCopy::StartDevice(const Target& target) {
  if (!plan_.has_device) return Status::Ok();
  for (const CopyPiece& piece : plan_.pieces) {
    if (!piece.device) continue;
    device_pieces_.push_back(
        {piece.memory, target.header.size() + piece.offset, piece.bytes, piece.device_index, 0});
  }
  char text[512] = {};
  int32_t code = device_->table().start(device_->context(), std::exchange(mark_, nullptr),
                                        device_pieces_.data(), device_pieces_.size(),
                                        target.slot.data(), &copy_, text, sizeof text);
  return code == 0 ? Status::Ok() : Status(ErrorFromNumber(static_cast<uint32_t>(code)), text);
}

Status SaveCopy::Run(const Target& target) {
  bool released = false;
  auto release = [&] {
    if (!std::exchange(released, true)) target.released();
  };
  uint64_t image_bytes = target.header.size() + plan_.tensor_bytes;
  for (const ExtraBytes& extra : target.extras) image_bytes += extra.bytes.size();
  Status status = image_bytes <= target.slot.size()
                      ? StartDevice(target)
                      : InternalError("an image of " + std::to_string(image_bytes) +
                                      " bytes for a slot of " + std::to_string(target.slot.size()));
  Writer writer(target);
  if (status.ok() && writer.Append(target.header.data(), target.header.size())) {
    Target with_release = target;
    with_release.released = release;
    status = RunPieces(with_release, writer);
  }
  // The device copies of a failed or cancelled save end before the tensors may change and before
  // the slot is used again.
  if (copy_ != nullptr && (!status.ok() || writer.cancelled())) {
    size_t done = 0;
    char text[512] = {};
    device_->table().wait_pieces(copy_, device_pieces_.size(), &done, text, sizeof text);
  }
  release();
  if (!status.ok()) return status;
  for (const ExtraBytes& extra : target.extras) {
    if (!writer.cancelled()) writer.Append(extra.bytes.data(), extra.bytes.size());
  }
  if (writer.cancelled() || !target.alive()) {
    return CancelledError("the copy was cancelled at byte " + std::to_string(writer.written()));
  }
  target.progress(image_bytes);
  return Status::Ok();
}

bool SaveCopy::PutHostAhead(const Target& target, size_t first, Writer& writer) const {
  for (size_t i = first; i < plan_.pieces.size(); ++i) {
    const CopyPiece& piece = plan_.pieces[i];
    const uint64_t offset = target.header.size() + piece.offset;
    if (!piece.device && !writer.PutAhead(piece.memory, offset, piece.bytes)) return false;
  }
  return true;
}

Status SaveCopy::RunPieces(const Target& target, Writer& writer) {
  size_t device_seen = 0;
  size_t device_done = 0;
  for (size_t i = 0; i < plan_.pieces.size(); ++i) {
    const CopyPiece& piece = plan_.pieces[i];
    if (!piece.device) {
      // PutHostAhead() has already copied the host pieces after the first device piece.
      const bool is_copied = device_seen > 0;
      if (!(is_copied ? writer.Advance(piece.bytes) : writer.Append(piece.memory, piece.bytes))) {
        return Status::Ok();
      }
      if (i == plan_.pieces.size() / 2) HOLDFAST_CRASH_POINT("client.mid_copy");
      continue;
    }
    if (device_seen == 0) {
      // The first device piece is copied only after the training work that was queued before the
      // save. A guard must not wait for that, so the host tensors are copied first.
      if (!PutHostAhead(target, i, writer)) return Status::Ok();
      ReleaseQueued(target);
    }
    ++device_seen;
    if (device_seen > device_done) {
      char text[512] = {};
      int32_t code =
          device_->table().wait_pieces(copy_, device_seen, &device_done, text, sizeof text);
      if (code != 0) return Status(ErrorFromNumber(static_cast<uint32_t>(code)), text);
      ReleaseQueued(target);
    }
    if (!writer.Advance(piece.bytes, device_seen < device_done)) return Status::Ok();
  }
  return Status::Ok();
}

void SaveCopy::ReleaseQueued(const Target& target) {
  if (device_->table().is_queued(copy_) != 0) target.released();
}

Status SaveCopy::GuardStream(void* stream) {
  if (copy_ == nullptr) return Status::Ok();
  char text[512] = {};
  int32_t code = device_->table().guard(copy_, stream, text, sizeof text);
  return code == 0 ? Status::Ok() : Status(ErrorFromNumber(static_cast<uint32_t>(code)), text);
}

// ---- restore -----------------------------------------------------------------------------------

namespace {
/// Copies the bytes [begin, end) of all host bytes of `plan`, counted in image order.
void CopyShare(const CopyPlan& plan, const std::byte* data, uint64_t begin, uint64_t end,
               const std::function<bool()>& alive, std::atomic<bool>* cancelled) {
  uint64_t position = 0;
  for (const CopyPiece& piece : plan.pieces) {
    if (piece.device) continue;
    if (position >= end) return;
    uint64_t first = std::max(position, begin);
    uint64_t last = std::min(position + piece.bytes, end);
    while (first < last) {
      uint64_t run = std::min(last - first, 4 * kStepBytes);
      uint64_t within = first - position;
      StreamCopy(piece.memory + within, data + piece.offset + within, run);
      first += run;
      if (run < 4 * kStepBytes) continue;
      if (!cancelled->load(std::memory_order_relaxed) && alive()) continue;
      cancelled->store(true, std::memory_order_relaxed);
      return;
    }
    position += piece.bytes;
  }
}

Status CopyOutDevice(const CopyPlan& plan, const std::byte* data, DeviceCopier& device) {
  std::vector<holdfast_device_piece> pieces;
  for (const CopyPiece& piece : plan.pieces) {
    if (!piece.device) continue;
    pieces.push_back({piece.memory, piece.offset, piece.bytes, piece.device_index, 0});
  }
  char text[512] = {};
  int32_t code = device.table().restore(device.context(), pieces.data(), pieces.size(), data, text,
                                        sizeof text);
  return code == 0 ? Status::Ok() : Status(ErrorFromNumber(static_cast<uint32_t>(code)), text);
}
}  // namespace

Status CopyOut(const CopyPlan& plan, std::span<const std::byte> data, DeviceCopier* device,
               uint32_t threads, const std::function<bool()>& alive) {
  uint64_t host_bytes = 0;
  for (const CopyPiece& piece : plan.pieces) {
    if (piece.offset > data.size() || piece.bytes > data.size() - piece.offset) {
      return InternalError("a tensor is outside its image");
    }
    if (!piece.device) host_bytes += piece.bytes;
  }
  std::atomic<bool> cancelled{false};
  uint64_t shares = std::clamp<uint64_t>(host_bytes / kThreadBytesMin, 1, std::max(threads, 1U));
  std::vector<std::thread> helpers;
  uint64_t mine = 1;  // shares of this thread: its own, and those for which no thread started
  for (uint64_t i = shares; i-- > 1;) {
    auto helper = StartThread("holdfast-copy", [&, i] {
      CopyShare(plan, data.data(), host_bytes * i / shares, host_bytes * (i + 1) / shares, alive,
                &cancelled);
    });
    if (!helper) {
      mine = i + 1;
      break;
    }
    helpers.push_back(*std::move(helper));
  }
  CopyShare(plan, data.data(), 0, host_bytes * mine / shares, alive, &cancelled);
  Status status = plan.has_device ? CopyOutDevice(plan, data.data(), *device) : Status::Ok();
  for (std::thread& helper : helpers) helper.join();
  if (!status.ok()) return status;
  if (cancelled.load() || !alive()) return CancelledError("the copy was cancelled");
  return Status::Ok();
}

}  // namespace holdfast::client
