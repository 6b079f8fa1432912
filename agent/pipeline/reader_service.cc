#include "agent/pipeline/reader_service.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
// Threads of version readers, which read from memory, disks and peers in parallel.
constexpr uint32_t kReaderThreads = 8;
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

ReaderService::ReaderService(const RestoreTools& tools, LoopQueue& loop, SessionTable& sessions,
                             ShardPreparer& preparer)
    : tools_(tools),
      loop_(loop),
      sessions_(sessions),
      preparer_(preparer),
      threads_(kReaderThreads, tools.clock),
      shared_(tools, threads_) {}

void ReaderService::Open(Session& session, uint64_t ticket, const RestoreDecision& decision,
                         Clock::TimePoint deadline) {
  session.readers.waiting = WaitingReader{ticket, decision, deadline};
  CheckOwnShard(session, decision);
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
  StartOpen(session, waiting.ticket, waiting.decision);
}

void ReaderService::StartOpen(Session& session, uint64_t ticket, const RestoreDecision& decision) {
  if (session.readers.open.size() >= kReadersMax) {
    return session.Reply(
        ticket, ResourceExhaustedError(fmt::format(
                    "{} version readers are open, which is the limit: close one", kReadersMax)));
  }
  const bool posted = threads_.Post([this, id = session.id(), ticket, decision, job = session.job,
                                     incarnation = session.incarnation] {
    auto made = Make(job, decision.version, incarnation);
    loop_.Post([this, id, ticket, decision, made = std::move(made)] {
      OnMade(id, ticket, decision, made);
    });
  });
  if (!posted) session.Reply(ticket, UnavailableError("the agent is overloaded or stopping"));
}

Result<ReaderService::Made> ReaderService::Make(const std::string& job, VersionId version,
                                                Incarnation incarnation) {
  auto open = std::make_shared<OpenReader>();
  HOLDFAST_ASSIGN_OR_RETURN(open->reader, shared_.Open(job, version, incarnation));
  const std::vector<ListedShard> listing = open->reader->Listing();
  const uint64_t listing_bytes = ListingBytes(listing);
  const uint64_t bytes = kReadWindowBytes + RoundUp(listing_bytes, 4096);
  HOLDFAST_ASSIGN_OR_RETURN(open->memory,
                            MemoryFile::Create("holdfast-reader", bytes, kReadWindowBytes));
  WriteListing(listing, open->memory.memory().subspan(kReadWindowBytes, listing_bytes));
  return Made{std::move(open), listing_bytes};
}

void ReaderService::OnMade(uint64_t session_id, uint64_t ticket, const RestoreDecision& decision,
                           const Result<Made>& made) {
  Session* session = sessions_.FindReady(session_id);
  if (session == nullptr) return;
  if (!made) return session->Reply(ticket, made.error());
  const uint32_t number = session->readers.next_number++;
  Session::Reader& opened = session->readers.open[number];
  opened.open = made->open;
  if (session->restores.prepared == decision.version && session->world == decision.world) {
    const auto slot = session->pipeline->slots.pins().Pin(decision.version);
    if (slot) opened.own_slot = *slot;
  }
  ReplyMessage reply;
  reply.header.ticket = ticket;
  reply.slot = number;
  reply.incarnation = decision.version.incarnation.value;
  reply.step = decision.version.step.value;
  reply.image_bytes = made->listing_bytes;
  reply.tier = static_cast<uint32_t>(decision.tier);
  reply.world = decision.world;
  reply.own_slot = opened.own_slot.value_or(kNoSlot);
  const int fd = made->open->memory.fd();
  session->SendMessage(reply, std::span(&fd, 1));
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
