#include "client/core/version_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "agent/api/version_listing.h"
#include "base/tiers.h"

namespace holdfast::client {
namespace {
constexpr auto kRetryPause = std::chrono::milliseconds(200);
// The agent observes the time-out. Its answer may take this much longer.
constexpr auto kAnswerSlack = std::chrono::milliseconds(1000);
// The shape of a scalar.
constexpr uint64_t kNoDimensions[1] = {0};

uint64_t MillisecondsUntil(MonotonicTime deadline) {
  auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - MonotonicNow()).count();
  return left > 0 ? static_cast<uint64_t>(left) : 0;
}

Status StatusOf(const agent::ReplyMessage& reply) {
  return {ErrorFromNumber(reply.code), agent::GetText(reply.text)};
}
}  // namespace

WindowMapping::~WindowMapping() {
  if (!memory_.empty()) ::munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
}

Result<WindowMapping> WindowMapping::Map(int fd, uint64_t bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Fail(ErrnoStatus(errno, "fstat of a reader's memory"));
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (static_cast<uint64_t>(info.st_size) < bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Fail(
        InternalError("the agent offers memory for a reader that is too short, or that "
                      "could shrink while it is mapped"));
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return Fail(ErrnoStatus(errno, "map the " + std::to_string(bytes) + " bytes of a reader"));
  }
  WindowMapping mapping;
  mapping.memory_ = {static_cast<const std::byte*>(base), bytes};
  if (::madvise(base, bytes, MADV_DONTFORK) != 0) {
    return Fail(ErrnoStatus(errno, "madvise(MADV_DONTFORK)"));
  }
  return mapping;
}

Result<std::unique_ptr<VersionReader>> VersionReader::Open(AgentLink& link,
                                                           const ClientOptions& options,
                                                           std::optional<VersionId> wanted,
                                                           MonotonicTime deadline) {
  auto reader = std::make_unique<VersionReader>(link, options);
  for (;;) {
    HOLDFAST_RETURN_IF_ERROR(link.AwaitConnected(deadline));
    Status status;
    if (auto use = link.Enter()) {
      MutexLock lock(reader->mutex_);
      status = reader->OpenAtAgent(*use, wanted, deadline);
    } else {
      status = use.error();
    }
    if (status.ok()) return reader;
    const bool again = status.code() == ErrorCode::kUnavailable;
    if (!again || MonotonicNow() + kRetryPause >= deadline) return Fail(status);
    std::this_thread::sleep_for(kRetryPause);
  }
}

VersionReader::~VersionReader() {
  MutexLock lock(mutex_);
  if (auto use = link_.Enter()) CloseAtAgent(*use);
}

void VersionReader::CloseAtAgent(const AgentLink::Use& use) {
  if (epoch_ != 0 && epoch_ == use.epoch()) {
    agent::CloseReaderMessage close;
    close.reader = number_;
    static_cast<void>(link_.Send(use, close));
  }
  epoch_ = 0;
}

Status VersionReader::OpenAtAgent(const AgentLink::Use& use, std::optional<VersionId> wanted,
                                  MonotonicTime deadline) {
  agent::FindRestoreMessage open;
  open.header.type = agent::MessageType::kOpenReader;
  if (wanted) {
    open.wanted_incarnation = wanted->incarnation.value;
    open.wanted_step = wanted->step.value;
  }
  open.timeout_ms = std::max<uint64_t>(MillisecondsUntil(deadline), 1);
  UniqueFd memory;
  HOLDFAST_ASSIGN_OR_RETURN(const agent::ReplyMessage reply,
                            link_.Call(use, open, deadline + kAnswerSlack, &memory));
  if (reply.code != 0) return StatusOf(reply);
  if (!memory.valid() || reply.image_bytes > agent::kListingBytesMax || !IsTierNumber(reply.tier)) {
    return InternalError("the agent's answer to OpenReader is invalid");
  }
  HOLDFAST_ASSIGN_OR_RETURN(
      mapping_, WindowMapping::Map(memory.get(), agent::kReadWindowBytes + reply.image_bytes));
  number_ = reply.slot;
  epoch_ = use.epoch();
  // A reader that is opened again has the same version, and so the same listing.
  Status status = info_.world != 0 ? Status::Ok() : TakeListing(reply);
  if (status.ok()) status = TakeOwnSlot(use, reply);
  if (!status.ok()) CloseAtAgent(use);
  return status;
}

/// Uses this rank's shard in place, when it is in a slot of the segment that this process has
/// mapped.
Status VersionReader::TakeOwnSlot(const AgentLink::Use& use, const agent::ReplyMessage& reply) {
  own_slot_.reset();
  if (reply.own_slot == agent::kNoSlot) return Status::Ok();
  const SegmentMapping& segment = use.segment();
  const bool sound = reply.own_slot < segment.slots() && options_.rank < shards_.size() &&
                     shards_[options_.rank].image.image_bytes <= segment.slot(0).size();
  if (!sound) {
    return InternalError("the agent offers slot " + std::to_string(reply.own_slot) +
                         " for a reader, which is invalid");
  }
  own_slot_ = reply.own_slot;
  return Status::Ok();
}

Status VersionReader::TakeListing(const agent::ReplyMessage& reply) {
  const VersionId version{Incarnation{reply.incarnation}, Step{reply.step}};
  HOLDFAST_ASSIGN_OR_RETURN(
      const std::vector<agent::ListedShard> listing,
      agent::ParseListing(mapping_.memory().subspan(agent::kReadWindowBytes, reply.image_bytes)));
  if (listing.empty() || listing.size() != reply.world) {
    return InternalError("the agent lists " + std::to_string(listing.size()) + " shards of " +
                         std::to_string(reply.world));
  }
  std::vector<PlannedShard> shards;
  std::vector<std::string> extras;
  for (const agent::ListedShard& listed : listing) {
    HOLDFAST_ASSIGN_OR_RETURN(ParsedImage image, ParseImage(listed.header, listed.image_bytes));
    const ShardKey key{options_.job, version, Rank{static_cast<uint32_t>(shards.size())}};
    if (image.identity.key() != key || listed.rank != key.rank.value) {
      return InternalError("the agent lists " + ToString(image.identity.key()) + " as " +
                           ToString(key));
    }
    for (const PlacedExtra& extra : image.extras) {
      const uint64_t at = extra.begin - image.extras.front().begin;
      if (at > listed.extras.size() || extra.bytes() > listed.extras.size() - at) {
        return InternalError("the agent lists too little extra state of " + ToString(key));
      }
      extras.emplace_back(reinterpret_cast<const char*>(listed.extras.data() + at), extra.bytes());
    }
    shards.push_back({listed.rank, listed.near, std::move(image)});
  }
  // Nothing is stored before the complete listing is checked.
  shards_ = std::move(shards);
  extra_bytes_ = std::move(extras);
  pieces_ = IndexPieces(shards_);
  FillInfo(reply);
  return Status::Ok();
}

void VersionReader::FillInfo(const agent::ReplyMessage& reply) {
  const auto numbers = [](const std::vector<uint64_t>& of) {
    return of.empty() ? kNoDimensions : of.data();
  };
  size_t extra_index = 0;
  for (const PlannedShard& shard : shards_) {
    for (const PlacedTensor& tensor : shard.image.tensors) {
      const TensorSpec& spec = tensor.spec;
      // Points to the index's key, which has the same text and stays valid.
      const std::string& name = pieces_.find(BaseTensorName(spec.name))->first;
      piece_table_.push_back({name.c_str(), shard.rank, static_cast<uint32_t>(spec.dtype),
                              static_cast<uint32_t>(spec.shape.size()), 0, numbers(spec.shape),
                              numbers(spec.global_shape), numbers(spec.offset)});
    }
    for (const PlacedExtra& extra : shard.image.extras) {
      const std::string& bytes = extra_bytes_[extra_index++];
      extra_table_.push_back({shard.rank, 0, {extra.name.c_str(), bytes.c_str(), bytes.size()}});
    }
  }
  info_.version = {reply.incarnation, reply.step};
  info_.tier = reply.tier;
  info_.world = reply.world;
  info_.pieces = piece_table_.data();
  info_.piece_count = piece_table_.size();
  info_.extras = extra_table_.data();
  info_.extra_count = extra_table_.size();
}

Status VersionReader::Load(const StateDescription& wanted, MonotonicTime deadline,
                           std::vector<std::string>* differences) {
  for (size_t i = 0; i < wanted.specs.size(); ++i) {
    if (!wanted.memory[i].device) continue;
    return UnsupportedError("tensor '" + wanted.specs[i].name.substr(0, 200) +
                            "' is on a device: load it into host memory, and copy it from there");
  }
  const LoadPlan plan =
      PlanLoad(shards_, pieces_, wanted, options_.rank, agent::kReadPlaceBytes, differences);
  if (!differences->empty()) {
    const VersionId version{Incarnation{info_.version.incarnation}, Step{info_.version.step}};
    return FailedPreconditionError("version " + ToString(version) +
                                   " does not contain the requested tensors, nothing was loaded; " +
                                   std::to_string(differences->size()) +
                                   " differences: " + JoinDefects(*differences));
  }
  if (plan.units.empty()) return Status::Ok();
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(link_.AwaitConnected(deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const AgentLink::Use use, link_.Enter());
  if (epoch_ != use.epoch()) {
    const VersionId version{Incarnation{info_.version.incarnation}, Step{info_.version.step}};
    HOLDFAST_RETURN_IF_ERROR(OpenAtAgent(use, version, deadline));
  }
  Status status = Run(use, plan, deadline);
  // The agent may still write a late answer into the window, so the window is not used again.
  const bool gave_up =
      status.code() == ErrorCode::kDeadlineExceeded || status.code() == ErrorCode::kCancelled;
  if (gave_up) CloseAtAgent(use);
  return status;
}

struct VersionReader::Reading {
  const AgentLink::Use& use;
  const LoadPlan& plan;
  uint32_t reader;          // its number at the agent
  const std::byte* window;  // of places
  const std::byte* own;     // this rank's own image; may be null
  MonotonicTime deadline;
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};

  /// The stop check of helpers: when one thread fails, all threads end, including those that wait.
  static int Failed(void* reading) { return static_cast<Reading*>(reading)->failed ? 1 : 0; }
};

Status VersionReader::Run(const AgentLink::Use& use, const LoadPlan& plan, MonotonicTime deadline) {
  const auto count = static_cast<uint32_t>(std::min<size_t>(agent::kReadPlaces, plan.units.size()));
  std::vector<Status> outcomes(count);
  Reading reading{use, plan, number_, mapping_.memory().data(), nullptr, deadline};
  if (own_slot_) reading.own = use.segment().slot(*own_slot_).data();
  const auto work = [&](uint32_t place) {
    outcomes[place] = ReadUnits(reading, place);
    if (outcomes[place].ok()) return;
    reading.next = plan.units.size();
    reading.failed = true;
  };
  std::vector<std::thread> helpers;
  for (uint32_t place = 1; place < count; ++place) {
    auto helper = StartThread("holdfast-reader", [&work, &reading, place] {
      SetStopCheck(&Reading::Failed, &reading);
      work(place);
    });
    if (!helper) break;  // the others do its work
    helpers.push_back(*std::move(helper));
  }
  work(0);
  for (std::thread& helper : helpers) helper.join();
  // A helper that is Cancelled may only have stopped because another thread failed.
  const auto worst = std::find_if(outcomes.begin(), outcomes.end(), [](const Status& outcome) {
    return !outcome.ok() && outcome.code() != ErrorCode::kCancelled;
  });
  if (worst != outcomes.end()) return std::move(*worst);
  for (Status& outcome : outcomes) {
    if (!outcome.ok()) return std::move(outcome);
  }
  return Status::Ok();
}

Status VersionReader::ReadUnits(Reading& reading, uint32_t place) {
  const std::vector<ReadUnit>& units = reading.plan.units;
  for (size_t i = reading.next++; i < units.size(); i = reading.next++) {
    if (StopRequested())
      return CancelledError("the load was cancelled; the tensors hold a mixture");
    const ReadUnit& unit = units[i];
    const std::byte* data = reading.window + place * agent::kReadPlaceBytes;
    const uint32_t rank = shards_[unit.shard].rank;
    if (reading.own != nullptr && rank == options_.rank) {
      if (!reading.use.alive()) {
        return UnavailableError("the connection to the agent was lost during the load");
      }
      data = reading.own + unit.offset;
    } else {
      agent::ReadRangeMessage read;
      read.reader = reading.reader;
      read.rank = rank;
      read.offset = unit.offset;
      read.bytes = unit.bytes;
      read.place = place;
      HOLDFAST_ASSIGN_OR_RETURN(const agent::ReplyMessage reply,
                                link_.Call(reading.use, read, reading.deadline));
      if (reply.code != 0) return StatusOf(reply);
    }
    for (uint32_t copy : unit.copies) reading.plan.copies[copy].Run(unit, data);
  }
  return Status::Ok();
}

}  // namespace holdfast::client
