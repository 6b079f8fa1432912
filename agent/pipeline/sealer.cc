#include "agent/pipeline/sealer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/crash_point.h"
#include "base/log.h"
#include "storage/format/checksum.h"
#include "storage/format/image.h"

namespace holdfast::agent {
namespace {
// Limits how late a stop or an abort is noticed while the trainer makes no progress.
constexpr int kProgressWaitMs = 20;
}  // namespace

namespace {
/// Returns a private copy of the header: the trainer may still change the bytes.
Result<std::vector<std::byte>> CopyHeader(std::span<const std::byte> image) {
  std::array<std::byte, 8> first8{};
  if (image.size() < first8.size()) {
    return Fail(DataLossError(fmt::format("an image of {} bytes has no header", image.size())));
  }
  std::memcpy(first8.data(), image.data(), first8.size());
  HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(first8, image.size()));
  std::vector<std::byte> head(image.begin(), image.begin() + static_cast<ptrdiff_t>(header_bytes));
  std::memcpy(head.data(), first8.data(), first8.size());
  return head;
}

Result<ParsedImage> ParseHeader(std::span<const std::byte> head, uint64_t image_bytes,
                                const ShardIdentity& expected) {
  HOLDFAST_ASSIGN_OR_RETURN(ParsedImage parsed, ParseImage(head, image_bytes));
  if (parsed.identity == expected) return parsed;
  return Fail(InvalidArgumentError(fmt::format(
      "the image header names {} of {} ranks, expected {} of {}", ToString(parsed.identity.key()),
      parsed.identity.world, ToString(expected.key()), expected.world)));
}

/// The header of an image that is still being copied. It is parsed as soon as its bytes are there,
/// because that takes milliseconds for thousands of tensors and would otherwise delay the seal.
class EarlyHeader {
 public:
  EarlyHeader(std::span<const std::byte> image, const ShardIdentity& expected)
      : image_(image), expected_(expected) {}

  /// The first `copied` bytes of the image are there. Parses the header if it is among them.
  void Advance(uint64_t copied) {
    if (copied < copied_min_) return;
    copied_min_ = kNever;
    Result<std::vector<std::byte>> head = CopyHeader(image_);
    if (!head) return;
    if (copied < head->size()) {
      copied_min_ = head->size();
      return;
    }
    Result<ParsedImage> parsed = ParseHeader(*head, image_.size(), expected_);
    if (!parsed) return;
    head_ = *std::move(head);
    parsed_ = *std::move(parsed);
  }

  /// All bytes are there. DataLoss: the header has changed since it was parsed.
  Result<ParsedImage> Finish() {
    if (!parsed_) {
      HOLDFAST_ASSIGN_OR_RETURN(head_, CopyHeader(image_));
      return ParseHeader(head_, image_.size(), expected_);
    }
    if (std::memcmp(head_.data(), image_.data(), head_.size()) == 0) return *std::move(parsed_);
    return Fail(DataLossError("the image header changed while the image was being copied"));
  }

 private:
  const std::span<const std::byte> image_;
  const ShardIdentity& expected_;
  std::vector<std::byte> head_;
  std::optional<ParsedImage> parsed_;
  static constexpr uint64_t kNever = ~uint64_t{0};
  uint64_t copied_min_ = 8;  // for the next try: bytes of the header, as far as they are known
};
}  // namespace

Status CheckImageIdentity(std::span<const std::byte> image, const ShardIdentity& expected) {
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<std::byte> head, CopyHeader(image));
  const Result<ParsedImage> parsed = ParseHeader(head, image.size(), expected);
  return parsed ? Status::Ok() : parsed.error();
}

Sealer::Sealer(SealSlots& slots, ChecksumPool& checksums, RankEvents& events, Clock& clock)
    : slots_(slots), checksums_(checksums), events_(events), clock_(clock), thread_([this] {
        Run();
      }) {}

Sealer::~Sealer() { thread_.join(); }

void Sealer::Run() {
  while (std::optional<SaveJob> job = slots_.TakeSave()) {
    Result<Complete> complete = Follow(*job);
    Status status = complete ? Status::Ok() : complete.error();
    if (status.ok()) {
      HOLDFAST_CRASH_POINT("agent.before_seal");
      status = slots_.SealSave(job->slot, complete->seal);
    }
    if (status.ok()) {
      HOLDFAST_CRASH_POINT("agent.after_seal");
      Log(LogLevel::kDebug, "SlotSealed",
          {Kv("shard", ToString(job->identity.key())), Kv("bytes", job->image_bytes)});
      events_.OnSealed(complete->seal, std::move(complete->samples));
    } else {
      slots_.DropSave(job->slot, status);
      events_.OnSaveFailed(job->identity.key(), status);
    }
    events_.OnSlotsChanged(job->identity.job, job->identity.rank);
  }
}

Result<Sealer::Complete> Sealer::Follow(const SaveJob& job) {
  Segment& segment = slots_.segment();
  SlotProgress& progress = segment.progress(job.slot);
  const std::span<const std::byte> image = segment.slot(job.slot).first(job.image_bytes);
  Complete complete;
  ShardSeal& seal = complete.seal;
  seal.identity = job.identity;
  seal.life = job.life;
  seal.image_bytes = job.image_bytes;
  Checksums checksums(checksums_, image);
  EarlyHeader header(image, job.identity);
  uint64_t done = 0;
  uint64_t seen = 0;
  bool has_work = false;
  while (done < job.image_bytes) {
    if (!has_work) AwaitProgress(progress, seen, kProgressWaitMs, clock_);
    const SealSlots::SaveSignal signal = slots_.Signal(job.slot);
    HOLDFAST_RETURN_IF_ERROR(signal.given_up);
    // The trainer sends EndSave after its last progress store: once `ended` is set, `copied` is
    // final.
    const uint64_t copied = progress.copied.load(std::memory_order_acquire);
    HOLDFAST_RETURN_IF_ERROR(CheckProgress(job, seen, copied, signal.ended));
    seen = copied;
    checksums.Offer(copied);
    header.Advance(copied);
    has_work = checksums.ComputeOne();
    if (!has_work && copied == job.image_bytes) checksums.AwaitOffered();
    if (const uint64_t now = checksums.done_bytes(); now > done) {
      done = now;
      if (slots_.PublishChecksummed(job.slot, done)) HOLDFAST_CRASH_POINT("agent.mid_copy");
    }
  }
  seal.chunk_crcs = checksums.Take();
  HOLDFAST_RETURN_IF_ERROR(slots_.AwaitEnd(job.slot));
  HOLDFAST_RETURN_IF_ERROR(
      CheckProgress(job, seen, progress.copied.load(std::memory_order_acquire), /*ended=*/true));
  HOLDFAST_ASSIGN_OR_RETURN(complete.header, header.Finish());
  complete.samples = TakeReplicaSamples(image, complete.header);
  seal.wall_nanos = clock_.WallNanos();
  return complete;
}

Status Sealer::CheckProgress(const SaveJob& job, uint64_t seen, uint64_t copied, bool ended) const {
  if (copied > job.image_bytes) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("the trainer reports {} bytes copied of an image of {}", copied,
                              job.image_bytes));
  }
  if (copied < seen) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("the trainer's progress went back from {} to {} bytes", seen, copied));
  }
  if (ended && copied != job.image_bytes) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("the save was ended with {} of {} bytes copied", copied, job.image_bytes));
  }
  return Status::Ok();
}

}  // namespace holdfast::agent
