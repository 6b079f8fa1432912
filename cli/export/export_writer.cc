#include "cli/export/export_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/mutex.h"
#include "cli/core/interrupt.h"
#include "cli/core/parallel.h"
#include "cli/shards/shard_reader.h"
#include "storage/format/checksum.h"

namespace holdfast::cli {

namespace {

/// Shards read concurrently.
constexpr size_t kConcurrentExports = 4;
constexpr uint64_t kExtraBytesMax = 1 << 30;

constexpr const char* kLayoutExtra = "torch.layout";
constexpr const char* kDcpExtra = "torch.dcp";
constexpr const char* kStateExtra = "torch.state";

/// Reads image bytes [begin, end) of a shard.
Result<std::vector<std::byte>> ReadBytes(ShardReader& reader, uint64_t image_bytes, uint64_t begin,
                                         uint64_t end) {
  const uint64_t first = begin / kChunkBytes * kChunkBytes;
  const uint64_t last = std::min(image_bytes, (end + kChunkBytes - 1) / kChunkBytes * kChunkBytes);
  std::vector<std::byte> bytes;
  HOLDFAST_RETURN_IF_ERROR(
      reader.Read(first, last, [&](uint64_t /*offset*/, std::span<const std::byte> chunk) {
        bytes.insert(bytes.end(), chunk.begin(), chunk.end());
        return Status::Ok();
      }));
  bytes.resize(end - first);
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(begin - first));
  return bytes;
}

Result<ParsedImage> ReadHeader(ShardReader& reader, const ExpectedShard& expected) {
  const uint64_t image_bytes = expected.image_bytes;
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<std::byte> head,
                            ReadBytes(reader, image_bytes, 0, std::min(image_bytes, kChunkBytes)));
  HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(head, image_bytes));
  if (header_bytes > head.size()) {
    HOLDFAST_ASSIGN_OR_RETURN(head, ReadBytes(reader, image_bytes, 0, header_bytes));
  }
  Result<ParsedImage> image = ParseImage(head, image_bytes);
  if (!image) return Fail(image.error().WithContext(ToString(expected.key)));
  if (image->identity.key() != expected.key)
    return Fail(DataLossError(ToString(expected.key) + " has the header of another shard"));
  return image;
}

/// Reads the header and the extras of one shard.
Status ReadOne(RestoreSource& source, ShardSource& shard, bool keep_extras, Progress& progress,
               ParsedImage* image, std::map<std::string, std::string>* extras) {
  const ExpectedShard expected = shard.expected;
  ShardReader reader(source, shard, progress);
  HOLDFAST_ASSIGN_OR_RETURN(*image, ReadHeader(reader, expected));
  for (const PlacedExtra& extra : image->extras) {
    bool notes = extra.name == kLayoutExtra || extra.name == kDcpExtra;
    if (!notes && !(keep_extras && extra.name == kStateExtra)) continue;
    if (extra.bytes() > kExtraBytesMax)
      return DataLossError(
          fmt::format("{}: '{}' has {} bytes", ToString(expected.key), extra.name, extra.bytes()));
    HOLDFAST_ASSIGN_OR_RETURN(
        auto bytes, ReadBytes(reader, expected.image_bytes, image->data_offset + extra.begin,
                              image->data_offset + extra.end));
    extras->emplace(extra.name,
                    std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  return Status::Ok();
}

/// Writes the bytes of one shard to their places.
class TensorWriter {
 public:
  TensorWriter(std::span<const ExportCopy> copies, std::span<const TargetFile> files)
      : copies_(copies), files_(files) {}

  Status Write(uint64_t offset, std::span<const std::byte> bytes) const {
    const uint64_t end = offset + bytes.size();
    // The pieces of an image do not overlap, so their ends ascend, too.
    auto copy = std::partition_point(copies_.begin(), copies_.end(),
                                     [&](const ExportCopy& c) { return c.image_end <= offset; });
    for (; copy != copies_.end() && copy->image_begin < end; ++copy)
      HOLDFAST_RETURN_IF_ERROR(WriteRuns(*copy, offset, bytes));
    return Status::Ok();
  }

 private:
  Status WriteRuns(const ExportCopy& copy, uint64_t offset,
                   std::span<const std::byte> bytes) const {
    const uint64_t end = offset + bytes.size();
    uint64_t at = offset > copy.image_begin ? offset - copy.image_begin : 0;
    while (const auto run = copy.copy.RunFrom(at)) {
      const uint64_t source = copy.image_begin + run->source;
      if (source >= end) break;
      const uint64_t count = std::min(run->bytes, end - source);
      HOLDFAST_RETURN_IF_ERROR(files_[copy.file].Write(copy.file_begin + run->target,
                                                       bytes.subspan(source - offset, count)));
      at = run->source + count;
    }
    return Status::Ok();
  }

  const std::span<const ExportCopy> copies_;
  const std::span<const TargetFile> files_;
};

Status WriteShard(RestoreSource& source, ShardSource& shard, std::span<const ExportCopy> copies,
                  std::span<const TargetFile> files, Progress& progress) {
  ShardReader reader(source, shard, progress);
  const TensorWriter writer(copies, files);
  for (auto [begin, end] : RangesOf(copies, shard.expected.image_bytes)) {
    HOLDFAST_RETURN_IF_ERROR(
        reader.Read(begin, end, [&](uint64_t offset, std::span<const std::byte> chunk) {
          progress.Add(chunk.size());
          return writer.Write(offset, chunk);
        }));
  }
  return Status::Ok();
}

/// Runs `work` for each shard, some concurrently. Returns the first error.
Status ForEachShard(size_t count, const std::function<Status(size_t)>& work) {
  Mutex mutex;
  Status first_error;
  ParallelFor(count, kConcurrentExports, [&](size_t i) {
    Status status = work(i);
    if (status.ok()) return true;
    MutexLock lock(mutex);
    if (first_error.ok()) first_error = status;
    return false;
  });
  HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
  return first_error;
}

}  // namespace

Result<ExportHeaders> ReadHeaders(RestoreSource& source, RestorePlan& plan, bool keep_extras,
                                  Progress& progress) {
  ExportHeaders headers;
  headers.shards.resize(plan.shards.size());
  headers.extras.resize(plan.shards.size());
  HOLDFAST_RETURN_IF_ERROR(ForEachShard(plan.shards.size(), [&](size_t i) {
    return ReadOne(source, plan.shards[i], keep_extras, progress, &headers.shards[i],
                   &headers.extras[i]);
  }));
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    for (const char* name : {kLayoutExtra, kDcpExtra}) {
      auto found = headers.extras[i].find(name);
      if (found == headers.extras[i].end()) continue;
      Status status = headers.notes.Add(found->second);
      if (!status.ok()) return Fail(status.WithContext(ToString(plan.shards[i].expected.key)));
    }
    if (!keep_extras) headers.extras[i].clear();
  }
  return headers;
}

uint64_t BytesToRead(const ExportLayout& layout, const RestorePlan& plan) {
  uint64_t total = 0;
  for (size_t i = 0; i < layout.copies.size(); ++i) {
    for (auto [begin, end] : RangesOf(layout.copies[i], plan.shards[i].expected.image_bytes))
      total += end - begin;
  }
  return total;
}

Result<std::vector<TargetFile>> WriteTensors(RestoreSource& source, RestorePlan& plan,
                                             const ExportLayout& layout, const TargetFolder& target,
                                             Progress& progress) {
  std::vector<TargetFile> files;
  files.reserve(layout.files.size());
  for (const ExportFile& file : layout.files) {
    HOLDFAST_ASSIGN_OR_RETURN(TargetFile made, TargetFile::Create(target, file.name));
    HOLDFAST_RETURN_IF_ERROR(made.Reserve(file.bytes));
    HOLDFAST_RETURN_IF_ERROR(made.Write(0, std::as_bytes(std::span(file.header))));
    files.push_back(std::move(made));
  }
  HOLDFAST_RETURN_IF_ERROR(ForEachShard(plan.shards.size(), [&](size_t i) {
    return WriteShard(source, plan.shards[i], layout.copies[i], files, progress);
  }));
  for (TargetFile& file : files) HOLDFAST_RETURN_IF_ERROR(file.Finish());
  return files;
}

Result<TargetFile> WriteSmallFile(const TargetFolder& target, const std::string& name,
                                  std::string_view bytes) {
  HOLDFAST_ASSIGN_OR_RETURN(TargetFile file, TargetFile::Create(target, name));
  HOLDFAST_RETURN_IF_ERROR(file.Write(0, std::as_bytes(std::span(bytes))));
  HOLDFAST_RETURN_IF_ERROR(file.Finish());
  return file;
}

}  // namespace holdfast::cli
