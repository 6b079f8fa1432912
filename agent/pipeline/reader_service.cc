#include "agent/pipeline/reader_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "agent/api/version_listing.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
// Threads of version readers, which read from memory, disks and peers in parallel.
constexpr uint32_t kReaderThreads = 8;

/// Sends an index to a peer.
class IndexFileReader final : public PeerReader {
 public:
  explicit IndexFileReader(std::shared_ptr<const VersionReader::IndexFile> index)
      : index_(std::move(index)) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    const auto all = index_->file.bytes().first(index_->index_bytes);
    const auto rest = all.subspan(std::min<uint64_t>(offset, all.size()));
    return rest.first(std::min<uint64_t>(bytes, rest.size()));
  }

 private:
  const std::shared_ptr<const VersionReader::IndexFile> index_;
};
}  // namespace

Status OpenReader::Read(Rank rank, uint64_t offset, uint32_t place, uint64_t bytes) {
  const uint64_t begin = place * kReadPlaceBytes;
  if (bytes > allocated[place]) {
    const uint64_t needed = RoundUp(bytes, kChunkBytes);
    HOLDFAST_RETURN_IF_ERROR(memory.Allocate(begin, begin + needed));
    allocated[place] = needed;
  }
  const auto into = memory.memory().subspan(begin, bytes);
  return reader->Read(rank, offset, into, shared);
}

ReaderService::ReaderService(const RestoreTools& tools, LoopQueue& loop, SessionTable& sessions,
                             ShardPreparer& preparer)
    : tools_(tools),
      loop_(loop),
      sessions_(sessions),
      preparer_(preparer),
      threads_(kReaderThreads, tools.clock),
      shared_(tools, threads_) {}

void ReaderService::Open(Session& session, const WaitingReader& wanted) {
  session.readers.waiting = wanted;
  CheckOwnShard(session, wanted.decision);
  session.retry_due = true;
}

void ReaderService::CheckOwnShard(Session& session, const RestoreDecision& decision) {
  const ShardKey own{session.job, decision.version, session.rank};
  const bool done = session.restores.prepared == decision.version ||
                    session.world != decision.world || preparer_.IsPreparing(own, Tier::kMemory);
  if (done || !session.pipeline->slots.view().Has(decision.version)) return;
  PrepareShard prepare;
  prepare.identity = {own.job, own.version, own.rank, decision.world};
  prepare.source_node = tools_.node();
  preparer_.Start(std::move(prepare), session.pipeline);
}

void ReaderService::Retry(Session& session) {
  if (!session.readers.waiting) return;
  const WaitingReader waiting = *session.readers.waiting;
  const ShardKey own{session.job, waiting.decision.version, session.rank};
  const bool in_time = tools_.clock.Now() < waiting.deadline;
  if (in_time && preparer_.IsPreparing(own, Tier::kMemory)) return;
  session.readers.waiting.reset();
  StartOpen(session, waiting,
            session.restores.prepared == waiting.decision.version &&
                session.world == waiting.decision.world);
}

void ReaderService::StartOpen(Session& session, const WaitingReader& wanted, bool in_place) {
  if (session.readers.open.size() >= kReadersMax) {
    return session.Reply(
        wanted.ticket,
        ResourceExhaustedError(fmt::format(
            "{} version readers are open, which is the limit: close one", kReadersMax)));
  }
  const bool posted =
      threads_.Post([this, id = session.id(), wanted, in_place,
                     of = VersionOfSession{session.job, session.rank, *session.incarnation}] {
        auto made = Make(of, wanted, in_place);
        loop_.Post([this, id, wanted, in_place, made = std::move(made)] {
          OnMade(id, wanted, in_place, made);
        });
      });
  if (!posted) {
    session.Reply(wanted.ticket, UnavailableError("the agent is overloaded or stopping"));
  }
}

Result<ReaderService::Made> ReaderService::Make(const VersionOfSession& of,
                                                const WaitingReader& wanted, bool in_place) {
  const RestoreDecision& decision = wanted.decision;
  if (decision.world == 0) return Fail(InternalError("the decided version has no ranks"));
  auto open = std::make_shared<OpenReader>();
  open->reader = shared_.Open(of.job, decision.version, decision.world, of.incarnation);
  std::vector<ShardHeader> headers;
  uint32_t first = 0;
  if (wanted.all_shards) {
    HOLDFAST_ASSIGN_OR_RETURN(headers, open->reader->ReadAllHeaders());
  } else if (!in_place) {
    first = of.rank.value % decision.world;
    HOLDFAST_ASSIGN_OR_RETURN(ShardHeader own, open->reader->ReadOwnHeader(Rank{first}));
    headers.push_back(std::move(own));
  }
  std::vector<ListedShard> listing;
  for (const ShardHeader& shard : headers) {
    const uint32_t rank = first + static_cast<uint32_t>(listing.size());
    // `near` helps to choose between tensor replicas; the state at this moment is good enough.
    listing.push_back(
        {rank, open->reader->IsNear(Rank{rank}), shard.image_bytes, shard.header, shard.extras});
  }
  const uint64_t listing_bytes = ListingBytes(listing);
  const uint64_t bytes = kReadWindowBytes + RoundUp(listing_bytes, 4096);
  HOLDFAST_ASSIGN_OR_RETURN(open->memory,
                            MemoryFile::Create("holdfast-reader", bytes, kReadWindowBytes));
  WriteListing(listing, open->memory.memory().subspan(kReadWindowBytes, listing_bytes));
  return Made{std::move(open), listing_bytes};
}

void ReaderService::OnMade(uint64_t session_id, const WaitingReader& wanted, bool in_place,
                           const Result<Made>& made) {
  Session* session = sessions_.FindReady(session_id);
  if (session == nullptr) return;
  if (!made) return session->Reply(wanted.ticket, made.error());
  const RestoreDecision& decision = wanted.decision;
  std::optional<uint32_t> own_slot;
  if (in_place) {
    const auto pinned = session->pipeline->slots.pins().Pin(decision.version);
    if (pinned) own_slot = *pinned;
  }
  // The slot was freed meanwhile: the listing needs the shard's header.
  if (in_place && !own_slot && !wanted.all_shards) return StartOpen(*session, wanted, false);
  const uint32_t number = session->readers.next_number++;
  Session::Reader& opened = session->readers.open[number];
  opened.open = made->open;
  // Others open theirs at about the same time, some only after this one has begun to read.
  opened.open->shared = sessions_.CountOf(session->job) > 1;
  opened.own_slot = own_slot;
  ReplyMessage reply;
  reply.header.ticket = wanted.ticket;
  reply.slot = number;
  reply.incarnation = decision.version.incarnation.value;
  reply.step = decision.version.step.value;
  reply.image_bytes = made->listing_bytes;
  if (own_slot && !wanted.all_shards) {
    reply.image_bytes = session->pipeline->segment.record(*own_slot).image_bytes;
  }
  reply.tier = static_cast<uint32_t>(decision.tier);
  reply.world = decision.world;
  reply.own_slot = opened.own_slot.value_or(kNoSlot);
  const int fd = made->open->memory.fd();
  session->SendMessage(reply, std::span(&fd, 1));
}

Result<std::unique_ptr<PeerReader>> ReaderService::OpenIndexForPeer(const IndexedVersion& of) {
  HOLDFAST_ASSIGN_OR_RETURN(auto index, shared_.IndexForPeer(of));
  return std::make_unique<IndexFileReader>(std::move(index));
}

void ReaderService::ReadIndex(Session& session, const CloseReaderMessage& message) {
  const uint64_t ticket = message.header.ticket;
  const auto found = session.readers.open.find(message.reader);
  if (found == session.readers.open.end()) {
    return session.Reply(
        ticket, NotFoundError(fmt::format("version reader {} is not open", message.reader)));
  }
  const bool posted = threads_.Post([this, id = session.id(), ticket, open = found->second.open] {
    auto index = open->reader->Index();
    loop_.Post([this, id, ticket, index = std::move(index)] {
      Session* trainer = sessions_.FindReady(id);
      if (trainer == nullptr) return;
      if (!index) return trainer->Reply(ticket, index.error());
      ReplyMessage reply;
      reply.header.ticket = ticket;
      reply.image_bytes = (*index)->index_bytes;
      reply.world = (*index)->near;
      const int fd = (*index)->file.fd();
      trainer->SendMessage(reply, std::span(&fd, 1));
    });
  });
  if (!posted) session.Reply(ticket, UnavailableError("the agent is overloaded or stopping"));
}

void ReaderService::Close(Session& session, uint32_t number) {
  auto closed = session.readers.open.extract(number);
  if (closed.empty() || !closed.mapped().own_slot) return;
  session.pipeline->slots.pins().Unpin(*closed.mapped().own_slot);
  session.retry_due = true;
}

void ReaderService::CloseAll(Session& session) {
  for (const auto& [number, reader] : session.readers.open) {
    if (reader.own_slot) session.pipeline->slots.pins().Unpin(*reader.own_slot);
  }
  session.readers.open.clear();
}

void ReaderService::Read(Session& session, const ReadRangeMessage& message) {
  const uint64_t ticket = message.header.ticket;
  auto found = session.readers.open.find(message.reader);
  if (found == session.readers.open.end()) {
    return session.Reply(
        ticket, NotFoundError(fmt::format("version reader {} is not open", message.reader)));
  }
  Session::Reader& reader = found->second;
  // VersionReader::Read checks the rank and the offset.
  if (message.place >= kReadPlaces || reader.busy.test(message.place) || message.bytes == 0 ||
      message.bytes > kReadPlaceBytes) {
    return session.Reply(ticket,
                         InvalidArgumentError(fmt::format(
                             "cannot read {} bytes into place {} of a version reader: there are {} "
                             "places of {} bytes, and each takes one read at a time",
                             message.bytes, message.place, kReadPlaces, kReadPlaceBytes)));
  }
  const bool posted = threads_.Post([this, id = session.id(), message, open = reader.open] {
    const Status status =
        open->Read(Rank{message.rank}, message.offset, message.place, message.bytes);
    loop_.Post([this, id, message, status] {
      Session* trainer = sessions_.FindReady(id);
      if (trainer == nullptr) return;
      auto still = trainer->readers.open.find(message.reader);
      if (still != trainer->readers.open.end()) still->second.busy.reset(message.place);
      trainer->Reply(message.header.ticket, status);
    });
  });
  if (posted) {
    reader.busy.set(message.place);
  } else {
    session.Reply(ticket, UnavailableError("the agent is overloaded or stopping"));
  }
}

}  // namespace holdfast::agent
