#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "storage/io/block_file.h"
#include "storage/io/queue_rules.h"
#include "storage/io/uring_pool.h"

namespace holdfast {

/// A file on io_uring, opened for direct I/O. Large operations are split into pieces of
/// `operation_bytes`, and up to `queue_depth` pieces are in flight. The file borrows a ring from
/// the first queued operation until all operations are done. Thread-compatible.
class UringBlockFile final : public BlockFile {
 public:
  /// `pool` outlives the file.
  UringBlockFile(UniqueFd fd, std::string path, bool writable, UringPool& pool,
                 const IoOptions& options);
  ~UringBlockFile() override;
  UringBlockFile(const UringBlockFile&) = delete;
  UringBlockFile& operator=(const UringBlockFile&) = delete;

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
  /// One piece of a queued operation.
  struct Piece {
    bool write = false;
    bool fixed = false;
    uint16_t buffer_index = 0;
    uint32_t stalls = 0;  // consecutive completions that transferred nothing
    uint64_t offset = 0;
    std::byte* memory = nullptr;  // a write only reads it
    uint64_t bytes = 0;
    uint64_t done = 0;
    uint64_t end_of_file = 0;  // of a read: the file's size when the read was queued
  };

  Status CheckWritable() const;
  Status Queue(Piece whole);
  Status EnsureRing();
  // These methods are const and their state is mutable, because CompletedPrefix() handles
  // completions.
  void Prepare(size_t slot) const;
  void Submit() const;
  void WaitOne() const;
  void TakeCompletions() const;
  void Complete(size_t slot, int result) const;
  void Finish(size_t slot, Status status) const;
  void ReturnRing() const;
  void AbandonRing(Status status) const;

  UniqueFd fd_;
  const std::string path_;
  const bool writable_;
  UringPool& pool_;
  const uint64_t piece_bytes_;
  mutable std::unique_ptr<UringRing> ring_;
  mutable std::vector<Piece> slots_;
  mutable std::vector<size_t> free_;  // slots without a piece in flight
  mutable PrefixTracker done_;
  mutable Status error_;  // the first error; once set, the file is unusable
};

}  // namespace holdfast
