#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "client/core/device_copier.h"
#include "client/core/options.h"
#include "storage/format/image.h"

// Copies between tensors and slots. The calling thread copies host tensors. The device copier's own
// streams copy device tensors. The calling thread waits for their pieces in image order, so that
// the image still becomes final from front to back. Host tensors do not wait for a device.

namespace holdfast::client {

/// The device backend and a context in it. Loaded only when a tensor is on a device.
class DeviceCopier {
 public:
  /// Loads the device backend, libholdfast-`backend`.so in the directory of this library, and opens
  /// a context for the devices of `memory`. Returns Unsupported when the backend, its driver or a
  /// device is missing; the message names what to install.
  static Result<std::unique_ptr<DeviceCopier>> Load(std::span<const TensorMemory> memory,
                                                    const std::string& backend);
  /// For Load() only.
  DeviceCopier(const holdfast_device_copier* table, holdfast_device_context* context)
      : table_(table), context_(context) {}
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  const holdfast_device_copier& table() const { return *table_; }
  holdfast_device_context* context() const { return context_; }
  Status Pin(std::byte* memory, uint64_t bytes);
  void Unpin(std::byte* memory) { table_->unpin(context_, memory); }

 private:
  const holdfast_device_copier* table_;
  holdfast_device_context* context_;
};

/// A run of bytes that is contiguous in a tensor's memory and in the image; `offset` counts from
/// the start of the data region.
struct CopyPiece {
  std::byte* memory = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool device = false;
  int32_t device_index = 0;
};

/// The pieces of a state in image order, computed once. Tensors without bytes have none.
struct CopyPlan {
  std::vector<CopyPiece> pieces;
  uint64_t tensor_bytes = 0;
  bool has_device = false;
};
CopyPlan PlanSave(const ImageLayout& layout, std::span<const TensorMemory> memory);
/// Plans the restore of a parsed image whose tensors are those of `specs`, by name.
CopyPlan PlanRestore(const ParsedImage& image, std::span<const TensorSpec> specs,
                     std::span<const TensorMemory> memory);

/// An extra of one save, with its own copy of the bytes.
struct ExtraBytes {
  std::string name;
  std::string bytes;
};

/// One save's copy from tensors to a slot. holdfast_save makes it on the caller's thread, the
/// client's worker thread runs it, and any thread may guard it.
class SaveCopy {
 public:
  /// The slot, and the callbacks during the copy.
  struct Target {
    std::string_view header;
    std::span<const ExtraBytes> extras;
    std::span<std::byte> slot;
    /// Called at every MiB and at the end, with the number of image bytes that are final.
    std::function<void(uint64_t)> progress;
    /// Called at every MiB; returning false cancels the copy.
    std::function<bool()> alive;
    /// Called once, also when the copy fails: no host tensor is read any more, and the device
    /// copies are enqueued, so that GuardStream() orders later work after them. A small state's
    /// copies are enqueued at once, those of a large one while the first of them run.
    std::function<void()> released;
  };

  /// Marks `stream` when there are device tensors. `plan` and `device` (may be null) must outlive
  /// the result.
  static Result<std::unique_ptr<SaveCopy>> Make(const CopyPlan& plan, DeviceCopier* device,
                                                void* stream);
  /// For Make() only.
  SaveCopy(const CopyPlan& plan, DeviceCopier* device) : plan_(plan), device_(device) {}
  ~SaveCopy();
  SaveCopy(const SaveCopy&) = delete;
  SaveCopy& operator=(const SaveCopy&) = delete;

  /// Copies header, tensors and extras in image order. Returns Cancelled when `alive` returned
  /// false. All device copies have ended when it returns.
  Status Run(const Target& target);
  /// Makes `stream` wait for the device copies. Call it only after `released` was called.
  Status GuardStream(void* stream);

 private:
  class Writer;
  Status StartDevice(const Target& target);
  /// Copies the host's pieces from `first` on. Returns false when the copy was cancelled.
  bool PutHostAhead(const Target& target, size_t first, Writer& writer) const;
  Status RunPieces(const Target& target, Writer& writer);
  /// Calls `target.released` if all device copies are enqueued.
  void ReleaseQueued(const Target& target);

  const CopyPlan& plan_;
  DeviceCopier* device_;
  holdfast_device_mark* mark_ = nullptr;
  holdfast_device_copy* copy_ = nullptr;
  std::vector<holdfast_device_piece> device_pieces_;
};

/// Fills the tensors of `plan` from `data`, the data region of a verified image, with up to
/// `threads` threads, all of which call `alive`. Returns Cancelled when `alive` returned false; the
/// tensors then hold a mixture of old and new values.
Status CopyOut(const CopyPlan& plan, std::span<const std::byte> data, DeviceCopier* device,
               uint32_t threads, const std::function<bool()>& alive);

}  // namespace holdfast::client
