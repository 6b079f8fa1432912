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

#include "client/core/device_copier.h"
#include "client/core/options.h"
#include "storage/base/status.h"
#include "storage/format/image.h"

// Between tensors and slots. Host tensors are copied by the calling thread; device tensors by the
// device copier's own streams, which the calling thread follows, so that the image still becomes
// final from front to back. Where there are both, host tensors are not kept waiting for a device.

namespace holdfast::client {

/// The device plugin and a context in it; loaded only when a tensor is on a device.
class DeviceCopier {
 public:
  /// Loads libholdfast-cuda.so from the directory this library lies in (`plugin_path` replaces
  /// that) and opens a context for the devices of `memory`. Unsupported says what is missing.
  static Result<std::unique_ptr<DeviceCopier>> Load(std::span<const TensorMemory> memory,
                                                    const std::string& plugin_path = {});
  /// For Load().
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

/// The pieces of a state in image order, made once. Tensors without bytes have none.
struct CopyPlan {
  std::vector<CopyPiece> pieces;
  uint64_t tensor_bytes = 0;
  bool has_device = false;
};
CopyPlan PlanSave(const ImageLayout& layout, std::span<const TensorMemory> memory);
/// Pieces for a parsed image whose tensors are those of `specs`, by name.
CopyPlan PlanRestore(const ParsedImage& image, std::span<const TensorSpec> specs,
                     std::span<const TensorMemory> memory);

/// An extra of one save, owned.
struct ExtraBytes {
  std::string name;
  std::string bytes;
};

/// One save's copy from tensors to a slot. Made on the caller's thread by holdfast_save, run on the
/// worker, guarded from any thread.
class SaveCopy {
 public:
  /// Where it writes and whom it tells.
  struct Target {
    std::string_view header;
    std::span<const ExtraBytes> extras;
    std::span<std::byte> slot;
    /// With the number of image bytes that are final, at every MiB and at the end.
    std::function<void(uint64_t)> progress;
    /// Asked at every MiB; false cancels the copy.
    std::function<bool()> alive;
    /// Once: no host tensor is read any more and the device copies are enqueued, so GuardStream()
    /// says the rest. Waits for no device. Also when the copy fails.
    std::function<void()> released;
  };

  /// Marks `stream` when there are device tensors. `plan` and `device` (may be null) outlive it.
  static Result<std::unique_ptr<SaveCopy>> Make(const CopyPlan& plan, DeviceCopier* device,
                                                void* stream);
  /// For Make().
  SaveCopy(const CopyPlan& plan, DeviceCopier* device) : plan_(plan), device_(device) {}
  ~SaveCopy();
  SaveCopy(const SaveCopy&) = delete;
  SaveCopy& operator=(const SaveCopy&) = delete;

  /// Copies header, tensors and extras in image order. Cancelled when `alive` says so. Returns with
  /// all device copies ended.
  Status Run(const Target& target);
  /// Makes `stream` wait for the device copies. Only after `released`, before the destructor.
  Status GuardStream(void* stream);

 private:
  class Writer;
  Status StartDevice(const Target& target);
  /// The host's pieces from `first` on.
  bool PutHostAhead(const Target& target, size_t first, Writer& writer) const;
  Status RunPieces(const Target& target, Writer& writer);

  const CopyPlan& plan_;
  DeviceCopier* device_;
  holdfast_device_mark* mark_ = nullptr;
  holdfast_device_copy* copy_ = nullptr;
  std::vector<holdfast_device_piece> device_pieces_;
};

/// Fills the tensors of `plan` from `data`, the data region of a verified image, with up to
/// `threads` threads. Cancelled when `alive` (asked from several threads) says so: then the tensors
/// hold a mixture.
Status CopyOut(const CopyPlan& plan, std::span<const std::byte> data, DeviceCopier* device,
               uint32_t threads, const std::function<bool()>& alive);

}  // namespace holdfast::client
