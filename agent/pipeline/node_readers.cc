#include <fmt/format.h>

#include "agent/pipeline/node.h"
#include "storage/base/log.h"
#include "storage/format/checksum.h"

// Version readers: separate threads open and read them. The trainer gets the data through shared
// memory; each reader has its own.

namespace holdfast::agent {
namespace {
constexpr std::chrono::milliseconds kStopPollInterval(100);
}  // namespace

Status OpenReader::Read(Rank rank, uint64_t offset, uint32_t place, uint64_t bytes) {
  const uint64_t begin = place * kReadPlaceBytes;
  if (bytes > allocated[place]) {
    const uint64_t needed = RoundUp(bytes, kChunkBytes);
    HOLDFAST_RETURN_IF_ERROR(memory.Allocate(begin, begin + needed));
    allocated[place] = needed;
  }
  return reader->Read(rank, offset, memory.memory().subspan(begin, bytes));
}

/// Verifies a shard that is in this rank's memory, so that the trainer can read it in place. The
/// coordinator may have directed the check before the rank joined, or not at all.
void Node::CheckOwnShard(Session& session, const RestoreDecision& decision) {
  const ShardKey own{session.job, decision.version, session.rank};
  const bool done = session.prepared == decision.version || session.world != decision.world ||
                    preparing_.contains({own, Tier::kMemory});
  if (done || !session.pipeline->slots.Has(decision.version)) return;
  PrepareShard prepare;
  prepare.identity = {own.job, own.version, own.rank, decision.world};
  prepare.source_node = options_.node;
  StartPrepare(std::move(prepare), session.pipeline);
}

/// Waits for a shard that is being brought into this rank's memory: the trainer then reads it in
/// place and not through the window.
void Node::TryStartReader(Session& session, Clock::TimePoint now) {
  const WaitingReader& waiting = *session.waiting_reader;
  const ShardKey own{session.job, waiting.decision.version, session.rank};
  if (preparing_.contains({own, Tier::kMemory}) && now < waiting.deadline) return;
  const WaitingReader due = waiting;
  session.waiting_reader.reset();
  StartReader(session, due.ticket, due.decision);
}

void Node::StartReader(Session& session, uint64_t ticket, const RestoreDecision& decision) {
  if (session.readers.size() >= kReadersMax) {
    Reply(session, ticket,
          ResourceExhaustedError(fmt::format(
              "{} version readers are open, which is the limit: close one", kReadersMax)));
    return;
  }
  const bool posted = reader_threads_.Post([this, id = session.id(), ticket, decision,
                                            job = session.job, incarnation = session.incarnation] {
    uint64_t listing_bytes = 0;
    auto reader = MakeReader(job, decision.version, incarnation, &listing_bytes);
    Post([this, id, ticket, decision, reader = std::move(reader), listing_bytes] {
      OnReaderMade(id, ticket, decision, reader, listing_bytes);
    });
  });
  if (!posted) Reply(session, ticket, UnavailableError("the agent is overloaded or stopping"));
}

Result<std::shared_ptr<OpenReader>> Node::MakeReader(const std::string& job, VersionId version,
                                                     Incarnation incarnation,
                                                     uint64_t* listing_bytes) {
  auto open = std::make_shared<OpenReader>();
  HOLDFAST_ASSIGN_OR_RETURN(open->reader, ShareReader(job, version, incarnation));
  const std::vector<ListedShard> listing = open->reader->Listing();
  *listing_bytes = ListingBytes(listing);
  const uint64_t bytes = kReadWindowBytes + RoundUp(*listing_bytes, 4096);
  HOLDFAST_ASSIGN_OR_RETURN(open->memory,
                            MemoryFile::Create("holdfast-reader", bytes, kReadWindowBytes));
  WriteListing(listing, open->memory.memory().subspan(kReadWindowBytes, *listing_bytes));
  return open;
}

/// Opens a version once for all ranks of the node that read it in the same incarnation.
Result<std::shared_ptr<VersionReader>> Node::ShareReader(const std::string& job, VersionId version,
                                                         Incarnation incarnation) {
  std::shared_ptr<SharedReader> shared;
  {
    MutexLock lock(readers_mutex_);
    std::erase_if(readers_, [](const auto& entry) {
      return entry.second.use_count() == 1 && entry.second->reader.expired();
    });
    auto& place = readers_[{job, version, incarnation}];
    if (place == nullptr) place = std::make_shared<SharedReader>();
    shared = place;
  }
  MutexLock lock(shared->mutex);
  if (std::shared_ptr<VersionReader> reader = shared->reader.lock()) return reader;
  const ReaderTools tools{
      restore_tools_,
      [this](const std::string& of, VersionId wanted) { return FindPlaces(of, wanted); },
      [this] { return reader_threads_.stopping(); }};
  HOLDFAST_ASSIGN_OR_RETURN(auto reader, VersionReader::Open(tools, job, version, incarnation));
  shared->reader = reader;
  Log(LogLevel::kInfo, "ReaderOpened", {Kv("job", job), Kv("version", ToString(version))});
  return reader;
}

Result<VersionPlaces> Node::FindPlaces(const std::string& job, VersionId version) {
  struct Answer {
    Mutex mutex;
    CondVar given;
    std::optional<Result<VersionPlaces>> places HOLDFAST_GUARDED_BY(mutex);
  };
  auto answer = std::make_shared<Answer>();
  link_.FindPlaces(job, version, [answer](Result<VersionPlaces> places) {
    MutexLock lock(answer->mutex);
    answer->places = std::move(places);
    answer->given.NotifyAll();
  });
  MutexLock lock(answer->mutex);
  while (!answer->places) {
    if (reader_threads_.stopping()) return Fail(CancelledError("the agent is stopping"));
    answer->given.WaitFor(answer->mutex, kStopPollInterval);
  }
  return *std::move(answer->places);
}

void Node::OnReaderMade(uint64_t session_id, uint64_t ticket, const RestoreDecision& decision,
                        const Result<std::shared_ptr<OpenReader>>& reader, uint64_t listing_bytes) {
  Session* session = FindSession(session_id);
  if (session == nullptr || session->state != Session::State::kReady) return;
  if (!reader) {
    Reply(*session, ticket, reader.error());
    return;
  }
  const uint32_t number = session->next_reader++;
  Session::Reader& opened = session->readers[number];
  opened.open = *reader;
  if (session->prepared == decision.version && session->world == decision.world) {
    const auto slot = session->pipeline->slots.Pin(decision.version);
    if (slot) opened.own_slot = *slot;
  }
  ReplyMessage reply;
  reply.header.ticket = ticket;
  reply.slot = number;
  reply.incarnation = decision.version.incarnation.value;
  reply.step = decision.version.step.value;
  reply.image_bytes = listing_bytes;
  reply.tier = static_cast<uint32_t>(decision.tier);
  reply.world = decision.world;
  reply.own_slot = opened.own_slot.value_or(kNoSlot);
  const int fd = (*reader)->memory.fd();
  if (!session->SendMessage(reply, std::span(&fd, 1))) {
    EndSession(*session, "the trainer does not read its packets");
  }
}

void Node::CloseReader(Session& session, uint32_t number) {
  auto closed = session.readers.extract(number);
  if (closed.empty() || !closed.mapped().own_slot) return;
  session.pipeline->slots.Unpin(*closed.mapped().own_slot);
  RetryWaitingRequests(session);
}

void Node::HandleReadRange(Session& session, const ReadRangeMessage& message) {
  const uint64_t ticket = message.header.ticket;
  auto found = session.readers.find(message.reader);
  if (found == session.readers.end()) {
    Reply(session, ticket,
          NotFoundError(fmt::format("version reader {} is not open", message.reader)));
    return;
  }
  Session::Reader& reader = found->second;
  // VersionReader::Read checks the rank and the offset.
  if (message.place >= kReadPlaces || reader.busy.test(message.place) || message.bytes == 0 ||
      message.bytes > kReadPlaceBytes) {
    Reply(session, ticket,
          InvalidArgumentError(
              fmt::format("cannot read {} bytes into place {} of a version reader: there are {} "
                          "places of {} bytes, and each takes one read at a time",
                          message.bytes, message.place, kReadPlaces, kReadPlaceBytes)));
    return;
  }
  const bool posted = reader_threads_.Post([this, id = session.id(), message, open = reader.open] {
    const Status status =
        open->Read(Rank{message.rank}, message.offset, message.place, message.bytes);
    Post([this, id, message, status] {
      Session* trainer = FindSession(id);
      if (trainer == nullptr || trainer->state != Session::State::kReady) return;
      auto still = trainer->readers.find(message.reader);
      if (still != trainer->readers.end()) still->second.busy.reset(message.place);
      Reply(*trainer, message.header.ticket, status);
    });
  });
  if (posted) {
    reader.busy.set(message.place);
  } else {
    Reply(session, ticket, UnavailableError("the agent is overloaded or stopping"));
  }
}

}  // namespace holdfast::agent
