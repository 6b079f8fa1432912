#include "storage/volume/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/crash_point.h"
#include "base/log.h"
#include "storage/format/checksum.h"
#include "storage/volume/async_task.h"
#include "storage/volume/layout.h"

namespace holdfast {
namespace {

/// The bytes that one part may queue before the next part's turn.
constexpr uint64_t kTurnBytes = 4ULL << 20;

}  // namespace

PartWriter::PartWriter(Directory& dir, std::string version_path, std::string final_name)
    : dir_(dir), version_path_(std::move(version_path)), final_name_(std::move(final_name)) {}

PartWriter::~PartWriter() {
  file_.reset();
  if (!exists_ || kept_) return;
  static_cast<void>(
      dir_.RemoveFile(version_path_ + "/" + (renamed_ ? final_name_ : temporary_name_)));
}

Status PartWriter::Create(PartPlan plan, std::span<const std::byte> image) {
  plan_ = std::move(plan);
  image_ = image;
  temporary_name_ = TemporaryName(final_name_);
  HOLDFAST_ASSIGN_OR_RETURN(file_, dir_.OpenFile(temporary_path(), OpenMode::kCreateExclusive));
  exists_ = true;
  HOLDFAST_CRASH_POINT("volume.after_create");
  uint64_t head_bytes = RoundUpTo(plan_.header.size(), kBlockBytes);
  next_image_ = std::min(plan_.image_end, plan_.image_begin + head_bytes - plan_.header.size());
  head_queued_ = plan_.header.empty();
  if (head_queued_) return Status::Ok();
  header_crc_ = Crc32c(std::as_bytes(std::span(plan_.header)));
  HOLDFAST_ASSIGN_OR_RETURN(head_, AlignedBuffer::Allocate(head_bytes));
  std::memcpy(head_.data(), plan_.header.data(), plan_.header.size());
  return Status::Ok();
}

Status PartWriter::Reserve() {
  const uint64_t file_bytes = FileOffset(plan_.image_end);
  HOLDFAST_RETURN_IF_ERROR(file_->Allocate(RoundUpTo(file_bytes, kBlockBytes)));
  HOLDFAST_CRASH_POINT("volume.after_allocate");
  return Status::Ok();
}

Status PartWriter::QueueHead(uint64_t ready_bytes) {
  if (head_queued_ || ready_bytes < next_image_) return Status::Ok();
  std::memcpy(head_.data() + plan_.header.size(), image_.data() + plan_.image_begin,
              next_image_ - plan_.image_begin);
  head_queued_ = true;
  return file_->QueueWrite(0, head_.span());
}

Result<bool> PartWriter::QueueReady(uint64_t ready_bytes, uint64_t unit_bytes, uint64_t bytes_max) {
  HOLDFAST_RETURN_IF_ERROR(QueueHead(ready_bytes));
  if (!head_queued_) return false;
  // Finish() writes an incomplete unit at the part's end.
  uint64_t end =
      RoundDownTo(std::min({ready_bytes, plan_.image_end, next_image_ + bytes_max}), unit_bytes);
  if (end <= next_image_) return false;
  HOLDFAST_RETURN_IF_ERROR(
      file_->QueueWrite(FileOffset(next_image_), image_.subspan(next_image_, end - next_image_)));
  next_image_ = end;
  HOLDFAST_CRASH_POINT("volume.mid_write");
  return true;
}

Result<std::pair<uint64_t, uint64_t>> PartWriter::Settle() {
  HOLDFAST_RETURN_IF_ERROR(file_->Drain());
  return std::pair(plan_.image_begin, head_queued_ ? next_image_ : plan_.image_begin);
}

Status PartWriter::Finish() {
  HOLDFAST_RETURN_IF_ERROR(QueueHead(image_.size()));
  if (next_image_ < plan_.image_end) {
    // Write complete blocks: the memory after the part's end is readable, and the file is truncated
    // below.
    uint64_t bytes = RoundUpTo(plan_.image_end, kBlockBytes) - next_image_;
    HOLDFAST_RETURN_IF_ERROR(
        file_->QueueWrite(FileOffset(next_image_), {image_.data() + next_image_, bytes}));
    next_image_ = plan_.image_end;
  }
  HOLDFAST_CRASH_POINT("volume.mid_write");
  HOLDFAST_RETURN_IF_ERROR(file_->Drain());
  HOLDFAST_CRASH_POINT("volume.after_drain");
  HOLDFAST_RETURN_IF_ERROR(file_->Truncate(FileOffset(plan_.image_end)));
  HOLDFAST_RETURN_IF_ERROR(file_->Sync());
  HOLDFAST_CRASH_POINT("volume.after_sync");
  file_.reset();
  return Status::Ok();
}

Status PartWriter::Rename() {
  HOLDFAST_RETURN_IF_ERROR(
      dir_.Rename(version_path_ + "/" + temporary_name_, version_path_ + "/" + final_name_));
  renamed_ = true;
  return Status::Ok();
}

SealPart PartWriter::seal_part() const {
  SealPart part;
  part.image_begin = plan_.image_begin;
  part.image_end = plan_.image_end;
  part.data_offset = plan_.header.size();
  part.file_bytes = FileOffset(plan_.image_end);
  part.header_crc = header_crc_;
  return part;
}

VolumeShardWriter::VolumeShardWriter(const WriterContext& context, ShardIdentity identity,
                                     std::span<const std::byte> image)
    : context_(context),
      identity_(std::move(identity)),
      access_(context.access.Of(identity_.job)),
      version_path_(VersionPath(identity_.job, identity_.version)),
      image_(image) {}

VolumeShardWriter::~VolumeShardWriter() {
  if (directories_synced_.valid()) directories_synced_.wait();
  if (!done_) Abandon();
  parts_.clear();
  context_.gate.Closed(identity_.key());
}

template <typename Work>
Status VolumeShardWriter::ForAll(size_t count, const Work& work) {
  Status first_error;
  auto keep = [&](Status status) {
    if (first_error.ok() && !status.ok()) first_error = std::move(status);
  };
  if (image_.size() < kMinBytesForThreads) {
    for (size_t i = 0; i < count && first_error.ok(); ++i) keep(work(i));
    return first_error;
  }
  std::vector<std::future<Status>> others;
  for (size_t i = 1; i < count; ++i) {
    others.push_back(RunAsync([&work, i] { return work(i); }));
  }
  keep(work(0));
  for (auto& other : others) keep(other.get());
  return first_error;
}

Status VolumeShardWriter::Start() {
  HOLDFAST_RETURN_IF_ERROR(context_.directories.Make(0, identity_.job, version_path_, access_));
  // Remove the seal of an earlier attempt that failed in its last step.
  std::string stale_seal = version_path_ + "/" + SealName(identity_.rank);
  Status removed = context_.dirs[0]->RemoveFile(stale_seal);
  if (removed.ok()) removed = context_.dirs[0]->SyncDirectory(version_path_);
  if (!removed.ok() && removed.code() != ErrorCode::kNotFound) return removed;
  if (context_.dirs.size() > 1) return Status::Ok();
  PartPlan whole;
  whole.image_end = image_.size();
  std::vector<PartPlan> plans;
  plans.push_back(std::move(whole));
  return CreateParts(std::move(plans));
}

Status VolumeShardWriter::CreateParts(std::vector<PartPlan> plans) {
  if (plans.empty() || plans.size() > context_.dirs.size()) {
    return InternalError(fmt::format("{}: {} parts planned for {} data directories",
                                     ToString(identity_.key()), plans.size(),
                                     context_.dirs.size()));
  }
  auto count = static_cast<uint32_t>(plans.size());
  for (uint32_t i = 0; i < count; ++i) {
    if (i > 0) {
      HOLDFAST_RETURN_IF_ERROR(context_.directories.Make(i, identity_.job, version_path_, access_));
    }
    parts_.push_back(std::make_unique<PartWriter>(*context_.dirs[i], version_path_,
                                                  PartName(identity_.rank, i, count)));
    PartWriter& part = *parts_.back();
    HOLDFAST_RETURN_IF_ERROR(part.Create(std::move(plans[i]), image_));
    // Before the space is reserved: the space counts in the quota of the file's owner.
    HOLDFAST_ASSIGN_OR_RETURN(
        const FileAccess given,
        context_.access.Give(*context_.dirs[i], part.temporary_path(), identity_.job, access_));
    if (i == 0) seal_access_ = given;
    HOLDFAST_RETURN_IF_ERROR(part.Reserve());
  }
  // Sync the directories while the data is written.
  if (image_.size() >= kMinBytesForThreads) {
    directories_synced_ = RunAsync([this, count] {
      Status synced;
      for (uint32_t i = 0; i < count && synced.ok(); ++i) {
        synced = context_.directories.Sync(i, identity_.job, version_path_);
      }
      return synced;
    });
  }
  return Status::Ok();
}

Result<bool> VolumeShardWriter::PlanFromHeader() {
  std::array<std::byte, 8> length{};
  const uint64_t length_bytes = std::min<uint64_t>(length.size(), image_.size());
  if (ready_bytes_ < length_bytes) return false;
  std::memcpy(length.data(), image_.data(), length_bytes);
  HOLDFAST_ASSIGN_OR_RETURN(
      uint64_t header_bytes,
      HeaderBytes(std::span<const std::byte>(length).first(length_bytes), image_.size()));
  const uint64_t chunks_bytes =
      std::min(ChunkCount(header_bytes) * kChunkBytes, uint64_t{image_.size()});
  if (header_bytes > image_.size() || ready_bytes_ < chunks_bytes) return false;
  // The image's owner may still change it. Parse and store a copy: Publish() fails unless the
  // copy's checksums match the seal.
  std::vector<std::byte> head(image_.begin(),
                              image_.begin() + static_cast<ptrdiff_t>(chunks_bytes));
  std::memcpy(head.data(), length.data(), length_bytes);
  HOLDFAST_ASSIGN_OR_RETURN(
      ParsedImage parsed,
      ParseImage(std::span<const std::byte>(head).first(header_bytes), image_.size()));
  HOLDFAST_ASSIGN_OR_RETURN(
      auto plans,
      PlanParts(parsed, static_cast<uint32_t>(std::min<size_t>(context_.dirs.size(), kPartsMax))));
  if (plans.size() > 1) {
    image_header_.assign(reinterpret_cast<const char*>(head.data()), plans[0].image_begin);
    header_crcs_ = ChunkCrcs(head);
  }
  HOLDFAST_RETURN_IF_ERROR(CreateParts(std::move(plans)));
  return true;
}

Status VolumeShardWriter::AdvanceParts() {
  if (parts_.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(bool planned, PlanFromHeader());
    if (!planned) return Status::Ok();
  }
  // Limit the size of turns, so that a device with a full queue does not leave the others idle.
  uint64_t turn = parts_.size() == 1 ? image_.size() : std::max(kTurnBytes, context_.unit_bytes);
  for (bool more = true; more;) {
    more = false;
    for (auto& part : parts_) {
      HOLDFAST_ASSIGN_OR_RETURN(bool queued,
                                part->QueueReady(ready_bytes_, context_.unit_bytes, turn));
      more = more || queued;
    }
  }
  return Status::Ok();
}

Status VolumeShardWriter::Advance(uint64_t ready_bytes) {
  if (!failure_.ok()) return failure_;
  if (done_ || ready_bytes < ready_bytes_ || ready_bytes > image_.size()) {
    return InvalidArgumentError(fmt::format(
        "{}: {} ready bytes are not between the previous {} and the image's {}, or the shard is "
        "already published",
        ToString(identity_.key()), ready_bytes, ready_bytes_, image_.size()));
  }
  ready_bytes_ = ready_bytes;
  failure_ = context_.gate.CheckNotRemoved(identity_.key());
  if (failure_.ok()) failure_ = AdvanceParts();
  return failure_;
}

Result<std::vector<std::pair<uint64_t, uint64_t>>> VolumeShardWriter::Settle() {
  if (!failure_.ok()) return Fail(failure_);
  std::vector<std::pair<uint64_t, uint64_t>> written;
  for (const auto& part : parts_) {
    auto run = part->Settle();
    if (!run) failure_ = run.error();
    if (!run) return Fail(failure_);
    written.push_back(*run);
  }
  return written;
}

Status VolumeShardWriter::CheckSeal(const ShardSeal& seal) const {
  if (seal.identity != identity_ || seal.image_bytes != image_.size() ||
      seal.chunk_crcs.size() != ChunkCount(image_.size())) {
    return InvalidArgumentError(fmt::format(
        "the seal of {} with {} bytes and {} chunks does not describe the shard {} of {} bytes",
        ToString(seal.identity.key()), seal.image_bytes, seal.chunk_crcs.size(),
        ToString(identity_.key()), image_.size()));
  }
  return Status::Ok();
}

/// Checks the stored copy of the header: one that differs from the sealed header would make the
/// shard unreadable.
Status VolumeShardWriter::CheckHeader(const ShardSeal& seal) const {
  if (header_crcs_.size() <= seal.chunk_crcs.size() &&
      std::equal(header_crcs_.begin(), header_crcs_.end(), seal.chunk_crcs.begin())) {
    return Status::Ok();
  }
  return DataLossError(fmt::format("{}: its header was changed while it was written to disk",
                                   ToString(identity_.key())));
}

Status VolumeShardWriter::Publish(ShardSeal seal) {
  if (!failure_.ok()) return failure_;
  if (done_) return FailedPreconditionError(ToString(identity_.key()) + " is already published");
  Clock::TimePoint start = context_.clock.Now();
  failure_ = CheckSeal(seal);
  if (failure_.ok()) failure_ = PublishChecked(seal);
  if (!failure_.ok()) {
    Abandon();
    // A concurrent removal deletes the writer's files. Report the removal instead of an I/O error.
    Status not_removed = context_.gate.CheckNotRemoved(identity_.key());
    if (!not_removed.ok()) failure_ = std::move(not_removed);
    return failure_;
  }
  done_ = true;
  for (auto& part : parts_) part->Keep();
  Log(LogLevel::kDebug, "ShardPublished",
      {Kv("shard", ToString(identity_.key())), Kv("bytes", image_.size()),
       Kv("parts", parts_.size()),
       Kv("finish_ms",
          std::chrono::duration_cast<std::chrono::milliseconds>(context_.clock.Now() - start)
              .count())});
  return Status::Ok();
}

Status VolumeShardWriter::PublishChecked(ShardSeal& seal) {
  ready_bytes_ = image_.size();
  if (parts_.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(bool planned, PlanFromHeader());
    if (!planned) return InternalError("the image is complete but its header is not");
  }
  HOLDFAST_RETURN_IF_ERROR(CheckHeader(seal));
  seal.parts.clear();
  for (const auto& part : parts_) seal.parts.push_back(part->seal_part());
  seal.image_header = image_header_;

  seal_temporary_path_ = version_path_ + "/" + TemporaryName(SealName(identity_.rank));
  HOLDFAST_RETURN_IF_ERROR(FinishPartsAndSeal(seal, seal_temporary_path_));
  HOLDFAST_RETURN_IF_ERROR(SyncDirectories());

  HOLDFAST_RETURN_IF_ERROR(context_.gate.Begin(identity_.key()));
  Status renamed = RenameAll(seal_temporary_path_);
  if (!renamed.ok()) {
    Abandon();
    context_.gate.End(identity_.key(), nullptr);
    return renamed;
  }
  StoredShard stored{identity_, image_.size(), seal.digest(), static_cast<uint32_t>(parts_.size()),
                     seal.life};
  context_.gate.End(identity_.key(), &stored);
  return Status::Ok();
}

Status VolumeShardWriter::FinishPartsAndSeal(const ShardSeal& seal,
                                             const std::string& seal_temporary) {
  // A seal under its temporary name has no effect, so it need not wait for the data.
  return ForAll(parts_.size() + 1, [&](size_t i) {
    if (i < parts_.size()) return parts_[i]->Finish();
    Status written =
        context_.dirs[0]->WriteSmallFile(seal_temporary, EncodeSeal(seal), seal_access_);
    HOLDFAST_CRASH_POINT("volume.after_seal_write");
    return written;
  });
}

Status VolumeShardWriter::SyncDirectories() {
  if (directories_synced_.valid()) return directories_synced_.get();
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    HOLDFAST_RETURN_IF_ERROR(context_.directories.Sync(i, identity_.job, version_path_));
  }
  return Status::Ok();
}

Status VolumeShardWriter::RenameAll(const std::string& seal_temporary) {
  for (auto& part : parts_) {
    HOLDFAST_RETURN_IF_ERROR(part->Rename());
    HOLDFAST_CRASH_POINT("volume.after_rename");
  }
  HOLDFAST_RETURN_IF_ERROR(ForAll(
      parts_.size(), [&](size_t i) { return context_.dirs[i]->SyncDirectory(version_path_); }));
  HOLDFAST_CRASH_POINT("volume.after_dir_sync");
  HOLDFAST_RETURN_IF_ERROR(
      context_.dirs[0]->Rename(seal_temporary, version_path_ + "/" + SealName(identity_.rank)));
  seal_renamed_ = true;
  HOLDFAST_CRASH_POINT("volume.after_seal_rename");
  HOLDFAST_RETURN_IF_ERROR(context_.dirs[0]->SyncDirectory(version_path_));
  HOLDFAST_CRASH_POINT("volume.after_publish");
  return Status::Ok();
}

void VolumeShardWriter::Abandon() {
  if (!seal_temporary_path_.empty()) {
    Directory& dir = *context_.dirs[0];
    static_cast<void>(dir.RemoveFile(seal_renamed_ ? version_path_ + "/" + SealName(identity_.rank)
                                                   : seal_temporary_path_));
    // Without this sync a power cut could keep the seal and lose the data.
    if (seal_renamed_) static_cast<void>(dir.SyncDirectory(version_path_));
    seal_temporary_path_.clear();
  }
  parts_.clear();
}

}  // namespace holdfast
