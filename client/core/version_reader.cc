#include "client/core/version_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/tiers.h"
#include "storage/format/checksum.h"
#include "storage/format/version_index_builder.h"

namespace holdfast::client {
WindowMapping::~WindowMapping() {
  if (!memory_.empty()) ::munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
}

Result<WindowMapping> WindowMapping::Map(int fd, uint64_t bytes, int seals) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Fail(ErrnoStatus(errno, "fstat of a reader's memory"));
  const int found = ::fcntl(fd, F_GET_SEALS);
  if (static_cast<uint64_t>(info.st_size) < bytes || found < 0 || (found & seals) != seals) {
    return Fail(
        InternalError("the agent offers memory for a reader that is too short, or that "
                      "could change while it is mapped"));
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
  // An agent of an older release lists all shards.
  const bool all_shards = !use.opens_versions();
  agent::FindRestoreMessage open;
  open.header.type =
      all_shards ? agent::MessageType::kOpenReader : agent::MessageType::kOpenVersion;
  if (wanted) {
    open.wanted_incarnation = wanted->incarnation.value;
    open.wanted_step = wanted->step.value;
  }
  open.timeout_ms = std::max<uint64_t>(MillisecondsUntil(deadline), 1);
  UniqueFd memory;
  HOLDFAST_ASSIGN_OR_RETURN(const agent::ReplyMessage reply,
                            link_.Call(use, open, deadline + kAnswerSlack, &memory));
  if (reply.code != 0) return StatusOf(reply);
  // With the own shard in a slot there is no listing, and `image_bytes` is the image's length.
  const bool in_place = !all_shards && reply.own_slot != agent::kNoSlot;
  const uint64_t listing_bytes = in_place ? 0 : reply.image_bytes;
  if (!memory.valid() || listing_bytes > agent::kListingBytesMax || !IsTierNumber(reply.tier) ||
      reply.world == 0 || reply.world > kWorldMax) {
    return InternalError("the agent's answer to OpenReader is invalid");
  }
  HOLDFAST_ASSIGN_OR_RETURN(
      mapping_,
      WindowMapping::Map(memory.get(), agent::kReadWindowBytes + listing_bytes, F_SEAL_SHRINK));
  number_ = reply.slot;
  epoch_ = use.epoch();
  own_slot_.reset();
  // A reader that is opened again has the same version, and so the same shards.
  Status status = own_info_.world != 0 ? Status::Ok() : TakeShards(use, reply, all_shards);
  if (status.ok() && reply.own_slot != agent::kNoSlot) {
    status = CheckOwnSlot(use, reply, own_->image.image_bytes);
    if (status.ok()) own_slot_ = reply.own_slot;
  }
  if (!status.ok()) CloseAtAgent(use);
  return status;
}

Status VersionReader::OpenAgain(const AgentLink::Use& use, MonotonicTime deadline) {
  return epoch_ == use.epoch() ? Status::Ok() : OpenAtAgent(use, version(), deadline);
}

/// Checks that this rank's shard is in a slot of the segment that this process has mapped.
Status VersionReader::CheckOwnSlot(const AgentLink::Use& use, const agent::ReplyMessage& reply,
                                   uint64_t bytes) {
  const SegmentMapping& segment = use.segment();
  const bool sound = reply.own_slot < segment.slots() && reply.world == options_.world &&
                     bytes >= sizeof(uint64_t) && bytes <= segment.slot(0).size();
  if (sound) return Status::Ok();
  return InternalError("the agent offers slot " + std::to_string(reply.own_slot) +
                       " for a reader, which is invalid");
}

Status VersionReader::TakeShards(const AgentLink::Use& use, const agent::ReplyMessage& reply,
                                 bool all_shards) {
  const VersionId version{Incarnation{reply.incarnation}, Step{reply.step}};
  const uint32_t own = options_.rank % reply.world;
  own_info_.version = {reply.incarnation, reply.step};
  own_info_.tier = reply.tier;
  Status taken;
  if (!all_shards && reply.own_slot != agent::kNoSlot) {
    HOLDFAST_RETURN_IF_ERROR(CheckOwnSlot(use, reply, reply.image_bytes));
    const auto image = use.segment().slot(reply.own_slot).first(reply.image_bytes);
    HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header, HeaderBytes(image.first(8), image.size()));
    taken = TakeOwn({own, true, image.size(), image.first(header), image.subspan(header)}, version);
  } else {
    HOLDFAST_ASSIGN_OR_RETURN(
        const std::vector<agent::ListedShard> listing,
        agent::ParseListing(mapping_.memory().subspan(agent::kReadWindowBytes, reply.image_bytes)));
    const uint32_t expected = all_shards ? reply.world : 1;
    if (listing.size() != expected) {
      return InternalError("the agent lists " + std::to_string(listing.size()) + " shards of " +
                           std::to_string(expected));
    }
    taken = TakeOwn(listing[all_shards ? own : 0], version);
    if (taken.ok() && all_shards) taken = BuildIndex(listing, version);
  }
  // Nothing counts before all of it is checked.
  if (!taken.ok()) {
    own_.reset();
    index_.reset();
    return taken;
  }
  own_info_.world = reply.world;
  own_tables_.Show(&own_info_);
  info_ = own_info_;
  info_.piece_count = info_.extra_count = 0;
  return Status::Ok();
}

Status VersionReader::TakeOwn(const agent::ListedShard& listed, VersionId version) {
  HOLDFAST_ASSIGN_OR_RETURN(ParsedImage image, ParseImage(listed.header, listed.image_bytes));
  const ShardKey key{options_.job, version, Rank{listed.rank}};
  if (image.identity.key() != key) {
    return InternalError("the agent lists " + ToString(image.identity.key()) + " as " +
                         ToString(key));
  }
  std::vector<std::string> extras;
  for (const PlacedExtra& extra : image.extras) {
    // `listed.extras` are the last bytes of the image.
    const uint64_t from_end = image.image_bytes - image.data_offset - extra.begin;
    if (from_end > listed.extras.size()) {
      return InternalError("the agent lists too little extra state of " + ToString(key));
    }
    const auto bytes = listed.extras.last(from_end).first(extra.bytes());
    extras.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  for (const PlacedTensor& tensor : image.tensors) {
    const TensorSpec& spec = tensor.spec;
    own_tables_.AddPiece(listed.rank, BaseTensorName(spec.name), spec.dtype, spec.shape,
                         spec.global_shape, spec.offset);
  }
  for (size_t i = 0; i < extras.size(); ++i) {
    own_tables_.AddExtra(listed.rank, image.extras[i].name, std::move(extras[i]));
  }
  own_.emplace(listed.rank, std::move(image));
  return Status::Ok();
}

/// Makes the index from the listing of an agent of an older release.
Status VersionReader::BuildIndex(std::span<const agent::ListedShard> listing, VersionId version) {
  VersionIndexBuilder builder(options_.job, version, static_cast<uint32_t>(listing.size()));
  for (const agent::ListedShard& listed : listing) {
    HOLDFAST_ASSIGN_OR_RETURN(const ParsedImage image,
                              ParseImage(listed.header, listed.image_bytes));
    if (image.identity.rank.value != listed.rank) {
      return InternalError("the agent lists " + ToString(image.identity.key()) + " as rank " +
                           std::to_string(listed.rank));
    }
    HOLDFAST_RETURN_IF_ERROR(builder.Add(image, listed.extras));
    if (listed.near) near_.push_back(listed.rank);
  }
  HOLDFAST_ASSIGN_OR_RETURN(const std::string bytes, builder.Finish());
  index_bytes_.resize(bytes.size() / sizeof(uint64_t));
  std::memcpy(index_bytes_.data(), bytes.data(), bytes.size());
  HOLDFAST_ASSIGN_OR_RETURN(index_, VersionIndex::Open(std::as_bytes(std::span(index_bytes_))));
  return Status::Ok();
}

/// Maps the index that the agent shares with all trainers of its node.
Status VersionReader::ReadIndex(const AgentLink::Use& use, MonotonicTime deadline) {
  if (index_) return Status::Ok();
  agent::CloseReaderMessage read;
  read.header.type = agent::MessageType::kReadIndex;
  read.reader = number_;
  UniqueFd memory;
  HOLDFAST_ASSIGN_OR_RETURN(const agent::ReplyMessage reply,
                            link_.Call(use, read, deadline, &memory));
  if (reply.code != 0) return StatusOf(reply);
  const uint64_t near_bytes = uint64_t{reply.world} * sizeof(uint32_t);
  if (!memory.valid() || reply.image_bytes > kIndexBytesMax || reply.world > own_info_.world) {
    return InternalError("the agent's answer to ReadIndex is invalid");
  }
  HOLDFAST_ASSIGN_OR_RETURN(WindowMapping mapping,
                            WindowMapping::Map(memory.get(), reply.image_bytes + near_bytes,
                                               F_SEAL_WRITE | F_SEAL_SHRINK));
  HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex index,
                            VersionIndex::Open(mapping.memory().first(reply.image_bytes)));
  if (index.job() != options_.job || index.version() != version() ||
      index.world() != own_info_.world || index.shards() != own_info_.world) {
    return InternalError("the agent offers the index of another version");
  }
  near_.resize(reply.world);
  if (near_bytes > 0) {
    std::memcpy(near_.data(), mapping.memory().data() + reply.image_bytes, near_bytes);
  }
  index_memory_ = std::move(mapping);
  index_ = index;
  return Status::Ok();
}

Result<AgentLink::Use> VersionReader::EnterWithIndex(MonotonicTime deadline) {
  HOLDFAST_RETURN_IF_ERROR(link_.AwaitConnected(deadline));
  HOLDFAST_ASSIGN_OR_RETURN(AgentLink::Use use, link_.Enter());
  HOLDFAST_RETURN_IF_ERROR(OpenAgain(use, deadline));
  HOLDFAST_RETURN_IF_ERROR(ReadIndex(use, deadline));
  return use;
}

Status VersionReader::List(MonotonicTime deadline) {
  MutexLock lock(mutex_);
  if (tables_ != nullptr) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(const AgentLink::Use use, EnterWithIndex(deadline));
  tables_ = std::make_unique<ContentTables>();
  const Status filled = FillTables(use, deadline);
  if (filled.ok()) {
    tables_->Show(&info_);
    return filled;
  }
  tables_.reset();
  // A late answer may still be written into the window.
  CloseAtAgent(use);
  return filled;
}

const holdfast_reader_info& VersionReader::all() {
  MutexLock lock(mutex_);
  return info_;
}

Result<const holdfast_reader_info*> VersionReader::Tensors(MonotonicTime deadline) {
  MutexLock lock(mutex_);
  if (tensor_tables_ != nullptr) return &tensors_;
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] const AgentLink::Use use, EnterWithIndex(deadline));
  auto tables = std::make_unique<ContentTables>();
  HOLDFAST_RETURN_IF_ERROR(ListTensors(*index_, *tables));
  tensor_tables_ = std::move(tables);
  tensors_ = own_info_;
  tensor_tables_->Show(&tensors_);
  return &tensors_;
}

Result<holdfast_extra> VersionReader::Extra(Rank rank, const std::string& name,
                                            MonotonicTime deadline) {
  for (size_t i = 0; i < own_info_.extra_count; ++i) {
    const holdfast_rank_extra& own = own_info_.extras[i];
    if (own.rank == rank.value && own.extra.name == name) return own.extra;
  }
  MutexLock lock(mutex_);
  auto known = extras_.find({rank, name});
  if (known == extras_.end()) {
    HOLDFAST_ASSIGN_OR_RETURN(const AgentLink::Use use, EnterWithIndex(deadline));
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Shard shard, index_->ShardOf(rank));
    HOLDFAST_ASSIGN_OR_RETURN(const auto extras, index_->ExtrasOf(shard));
    const auto found = std::ranges::find(extras, name, &VersionIndex::Extra::name);
    if (found == extras.end()) {
      return Fail(NotFoundError("the shard of rank " + std::to_string(rank.value) + " in version " +
                                ToString(version()) + " has no extra '" + name + "'"));
    }
    auto content = ContentOf(use, shard, *found, deadline);
    if (!content) {
      CloseAtAgent(use);  // a late answer may still be written into the window
      return Fail(content.error());
    }
    const std::string& kept = *contents_.insert(*std::move(content)).first;
    known = extras_.emplace(std::pair(rank, name), kept).first;
  }
  const auto& [key, content] = *known;
  return holdfast_extra{key.second.c_str(), content.data(), content.size()};
}

Status VersionReader::FillTables(const AgentLink::Use& use, MonotonicTime deadline) {
  for (uint64_t i = 0; i < index_->shards(); ++i) {
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Shard shard, index_->ShardAt(i));
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Class of, index_->ClassAt(shard.shard_class));
    for (uint64_t t = 0; t < of.tensors; ++t) {
      HOLDFAST_RETURN_IF_ERROR(AddTensor(*index_, of, t, shard.position, *tables_));
    }
    HOLDFAST_RETURN_IF_ERROR(AddExtras(use, shard, deadline));
  }
  return Status::Ok();
}

Status VersionReader::AddExtras(const AgentLink::Use& use, const VersionIndex::Shard& shard,
                                MonotonicTime deadline) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto extras, index_->ExtrasOf(shard));
  for (const VersionIndex::Extra& extra : extras) {
    HOLDFAST_ASSIGN_OR_RETURN(std::string content, ContentOf(use, shard, extra, deadline));
    tables_->AddExtra(shard.rank.value, extra.name, std::move(content));
  }
  return Status::Ok();
}

Result<std::string> VersionReader::ContentOf(const AgentLink::Use& use,
                                             const VersionIndex::Shard& shard,
                                             const VersionIndex::Extra& extra,
                                             MonotonicTime deadline) {
  if (extra.content) return std::string(*extra.content);
  return ReadBytes(use, shard, extra.begin, extra.begin + extra.bytes, deadline);
}

Result<std::string> VersionReader::ReadBytes(const AgentLink::Use& use,
                                             const VersionIndex::Shard& shard, uint64_t begin,
                                             uint64_t end, MonotonicTime deadline) {
  std::string bytes;
  for (uint64_t at = begin; at < end;) {
    agent::ReadRangeMessage read;
    read.reader = number_;
    read.rank = shard.rank.value;
    read.offset = at / kChunkBytes * kChunkBytes;
    const uint64_t last = (end + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
    read.bytes =
        std::min({agent::kReadPlaceBytes, last - read.offset, shard.image_bytes - read.offset});
    HOLDFAST_ASSIGN_OR_RETURN(const agent::ReplyMessage reply, link_.Call(use, read, deadline));
    if (reply.code != 0) return Fail(StatusOf(reply));
    const uint64_t until = std::min(end, read.offset + read.bytes);
    bytes.append(reinterpret_cast<const char*>(mapping_.memory().data()) + (at - read.offset),
                 until - at);
    at = until;
  }
  return bytes;
}

/// Plans with the own shard alone, and with the index when that does not suffice. The trainers of a
/// node begin at the same shard, so that they read the same chunks of a tensor replica at the same
/// time, and those of different nodes at different ones.
Result<LoadPlan> VersionReader::Plan(const AgentLink::Use& use, const StateDescription& wanted,
                                     MonotonicTime deadline,
                                     std::vector<std::string>* differences) {
  for (;;) {
    HOLDFAST_ASSIGN_OR_RETURN(std::optional<LoadPlan> plan,
                              PlanLoad(known(), wanted, use.node_turn() % own_info_.world,
                                       agent::kReadPlaceBytes, differences));
    if (plan) return *std::move(plan);
    HOLDFAST_RETURN_IF_ERROR(ReadIndex(use, deadline));
  }
}

Status VersionReader::Load(const StateDescription& wanted, MonotonicTime deadline,
                           std::vector<std::string>* differences) {
  for (size_t i = 0; i < wanted.specs.size(); ++i) {
    if (!wanted.memory[i].device) continue;
    return UnsupportedError("tensor '" + wanted.specs[i].name.substr(0, 200) +
                            "' is on a device: load it into host memory, and copy it from there");
  }
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(link_.AwaitConnected(deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const AgentLink::Use use, link_.Enter());
  HOLDFAST_RETURN_IF_ERROR(OpenAgain(use, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const LoadPlan plan, Plan(use, wanted, deadline, differences));
  if (!differences->empty()) {
    return FailedPreconditionError("version " + ToString(version()) +
                                   " does not contain the requested tensors, nothing was loaded; " +
                                   std::to_string(differences->size()) +
                                   " differences: " + JoinDefects(*differences));
  }
  if (plan.units.empty()) return Status::Ok();
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
    if (reading.own != nullptr && unit.rank == options_.rank) {
      if (!reading.use.alive()) {
        return UnavailableError("the connection to the agent was lost during the load");
      }
      data = reading.own + unit.offset;
    } else {
      agent::ReadRangeMessage read;
      read.reader = reading.reader;
      read.rank = unit.rank;
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
