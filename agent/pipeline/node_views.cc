#include <fmt/format.h>

#include "agent/pipeline/node.h"
#include "storage/base/log.h"
#include "storage/format/checksum.h"

// Versions seen whole: opened and read by threads of their own, and shown to trainers through
// memory that is made for each view.

namespace holdfast::agent {
namespace {
constexpr std::chrono::milliseconds kPoll(100);
}  // namespace

Status OpenView::Read(Rank rank, uint64_t offset, uint32_t place, uint64_t bytes) {
  const uint64_t begin = place * kViewPlaceBytes;
  if (bytes > allocated[place]) {
    const uint64_t needed = RoundUp(bytes, kChunkBytes);
    HOLDFAST_RETURN_IF_ERROR(memory.Allocate(begin, begin + needed));
    allocated[place] = needed;
  }
  return view->Read(rank, offset, memory.memory().subspan(begin, bytes));
}

/// A shard that lies in this rank's memory is read there once it was checked; where the coordinator
/// asked for the check before the rank had joined, nobody else does it.
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

/// What is just being brought into this rank's memory need not be read by way of the window.
void Node::TryStartView(Session& session, Clock::TimePoint now) {
  const WaitingView& waiting = *session.waiting_view;
  const ShardKey own{session.job, waiting.decision.version, session.rank};
  if (preparing_.contains({own, Tier::kMemory}) && now < waiting.deadline) return;
  const WaitingView due = waiting;
  session.waiting_view.reset();
  StartView(session, due.ticket, due.decision);
}

void Node::StartView(Session& session, uint64_t ticket, const RestoreDecision& decision) {
  if (session.views.size() >= kViewsMax) {
    Reply(session, ticket,
          ResourceExhaustedError(fmt::format("{} views are open; close one", kViewsMax)));
    return;
  }
  const bool posted = view_readers_.Post([this, id = session.id(), ticket, decision,
                                          job = session.job, incarnation = session.incarnation] {
    uint64_t listing_bytes = 0;
    auto view = MakeView(job, decision.version, incarnation, &listing_bytes);
    Post([this, id, ticket, decision, view = std::move(view), listing_bytes] {
      OnViewMade(id, ticket, decision, view, listing_bytes);
    });
  });
  if (!posted) Reply(session, ticket, UnavailableError("the agent is overloaded or stopping"));
}

Result<std::shared_ptr<OpenView>> Node::MakeView(const std::string& job, VersionId version,
                                                 Incarnation incarnation, uint64_t* listing_bytes) {
  auto open = std::make_shared<OpenView>();
  HOLDFAST_ASSIGN_OR_RETURN(open->view, ShareView(job, version, incarnation));
  const std::vector<ListedShard> listing = open->view->Listing();
  *listing_bytes = ListingBytes(listing);
  const uint64_t bytes = kViewWindowBytes + RoundUp(*listing_bytes, 4096);
  HOLDFAST_ASSIGN_OR_RETURN(open->memory,
                            MemoryFile::Create("holdfast-view", bytes, kViewWindowBytes));
  WriteListing(listing, open->memory.memory().subspan(kViewWindowBytes, *listing_bytes));
  return open;
}

/// The ranks of a node that look at the same version share what is kept of it.
Result<std::shared_ptr<VersionView>> Node::ShareView(const std::string& job, VersionId version,
                                                     Incarnation incarnation) {
  std::shared_ptr<SharedView> shared;
  {
    MutexLock lock(views_mutex_);
    std::erase_if(views_, [](const auto& entry) {
      return entry.second.use_count() == 1 && entry.second->view.expired();
    });
    auto& place = views_[{job, version, incarnation}];
    if (place == nullptr) place = std::make_shared<SharedView>();
    shared = place;
  }
  MutexLock lock(shared->mutex);
  if (std::shared_ptr<VersionView> view = shared->view.lock()) return view;
  const ViewTools tools{
      restore_tools_,
      [this](const std::string& of, VersionId wanted) { return FindPlaces(of, wanted); },
      [this] { return view_readers_.stopping(); }};
  HOLDFAST_ASSIGN_OR_RETURN(auto view, VersionView::Open(tools, job, version, incarnation));
  shared->view = view;
  Log(LogLevel::kInfo, "ViewOpened", {Kv("job", job), Kv("version", ToString(version))});
  return view;
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
    if (view_readers_.stopping()) return Fail(CancelledError("the agent is stopping"));
    answer->given.WaitFor(answer->mutex, kPoll);
  }
  return *std::move(answer->places);
}

void Node::OnViewMade(uint64_t session_id, uint64_t ticket, const RestoreDecision& decision,
                      const Result<std::shared_ptr<OpenView>>& view, uint64_t listing_bytes) {
  Session* session = FindSession(session_id);
  if (session == nullptr || session->state != Session::State::kReady) return;
  if (!view) {
    Reply(*session, ticket, view.error());
    return;
  }
  const uint32_t number = session->next_view++;
  Session::View& shown = session->views[number];
  shown.open = *view;
  if (session->prepared == decision.version && session->world == decision.world) {
    const auto slot = session->pipeline->slots.Pin(decision.version);
    if (slot) shown.own_slot = *slot;
  }
  ReplyMessage reply;
  reply.header.ticket = ticket;
  reply.slot = number;
  reply.incarnation = decision.version.incarnation.value;
  reply.step = decision.version.step.value;
  reply.image_bytes = listing_bytes;
  reply.tier = static_cast<uint32_t>(decision.tier);
  reply.world = decision.world;
  reply.own_slot = shown.own_slot.value_or(kNoSlot);
  const int fd = (*view)->memory.fd();
  if (!session->SendMessage(reply, std::span(&fd, 1))) {
    EndSession(*session, "it does not take packets");
  }
}

void Node::CloseView(Session& session, uint32_t number) {
  auto closed = session.views.extract(number);
  if (closed.empty() || !closed.mapped().own_slot) return;
  session.pipeline->slots.Unpin(*closed.mapped().own_slot);
  RetryWaiting(session);
}

void Node::HandleReadView(Session& session, const ReadViewMessage& message) {
  const uint64_t ticket = message.header.ticket;
  auto found = session.views.find(message.view);
  if (found == session.views.end()) {
    Reply(session, ticket, NotFoundError(fmt::format("view {} is not open", message.view)));
    return;
  }
  Session::View& view = found->second;
  if (message.place >= kViewPlaces || view.busy.test(message.place) || message.bytes == 0 ||
      message.bytes > kViewPlaceBytes) {
    Reply(session, ticket,
          InvalidArgumentError(fmt::format("{} bytes cannot be read into place {} of a view, or "
                                           "something is being read into it",
                                           message.bytes, message.place)));
    return;
  }
  const bool posted = view_readers_.Post([this, id = session.id(), message, open = view.open] {
    const Status status =
        open->Read(Rank{message.rank}, message.offset, message.place, message.bytes);
    Post([this, id, message, status] {
      Session* reader = FindSession(id);
      if (reader == nullptr || reader->state != Session::State::kReady) return;
      auto still = reader->views.find(message.view);
      if (still != reader->views.end()) still->second.busy.reset(message.place);
      Reply(*reader, message.header.ticket, status);
    });
  });
  if (posted) {
    view.busy.set(message.place);
  } else {
    Reply(session, ticket, UnavailableError("the agent is overloaded or stopping"));
  }
}

}  // namespace holdfast::agent
