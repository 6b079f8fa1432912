#include "tests/simulation/sim_link.h"

#include <algorithm>
#include <utility>

#include "coordinator/api/convert.h"
#include "coordinator/server/answers.h"
#include "tests/simulation/world.h"

namespace holdfast::simulation {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr milliseconds kRetryMin(100);
constexpr milliseconds kRetryMax(1000);
constexpr seconds kCallTimeout(5);
constexpr int kHeartbeatMs = 500;

class StreamSink final : public coord::DirectiveSink {
 public:
  StreamSink(World& world, std::shared_ptr<Stream> stream, std::weak_ptr<CoordinatorLife> life)
      : world_(world), stream_(std::move(stream)), life_(std::move(life)) {}
  void Push(Epoch epoch, const coord::Directive& directive) override {
    Send([stream = stream_, epoch, directive] { stream->arrived.emplace_back(epoch, directive); });
  }
  void Close(const Status& /*why*/) override {
    Send([stream = stream_] { stream->ended = true; });
    stream_->closed = true;
  }

 private:
  void Send(std::function<void()> change) {
    const auto life = life_.lock();
    if (life == nullptr || life->dead || stream_->closed || *stream_->agent_dead) return;
    const auto due = std::max(stream_->last_arrival, world_.network.StreamArrival(stream_->node));
    stream_->last_arrival = due;
    stream_->agent->Post(due, [this_world = &world_, stream = stream_, change = std::move(change)] {
      change();
      this_world->scheduler.Wake(stream.get(), true);
    });
  }

  World& world_;
  const std::shared_ptr<Stream> stream_;
  const std::weak_ptr<CoordinatorLife> life_;
};
}  // namespace

SimLink::SimLink(World& world, Options options, Mailbox& mailbox, std::shared_ptr<bool> dead,
                 Volume& volume)
    : world_(world),
      options_(std::move(options)),
      mailbox_(mailbox),
      dead_(std::move(dead)),
      volume_(volume),
      seen_(options_.seen) {}

void SimLink::Start(agent::DirectiveHandler& handler) {
  handler_ = &handler;
  attach_thread_ = Thread([this] { AttachLoop(); });
  send_thread_ = Thread([this] { SendLoop(); });
}

void SimLink::Stop() {
  stopping_ = true;
  CloseStream();
  reports_.Wake();
  world_.scheduler.Wake(&changed_, true);
  while (!calls_.empty()) {
    Finish(calls_.begin()->first, nullptr, CancelledError("the agent is stopping"));
  }
  if (attach_thread_.joinable()) attach_thread_.join();
  if (send_thread_.joinable()) send_thread_.join();
}

void SimLink::Break() {
  if (stream_ == nullptr) return;
  world_.Trace(options_.node + ": the stream breaks");
  stream_->ended = true;
  world_.scheduler.Wake(stream_.get(), true);
}

bool SimLink::Pause(Clock::Duration time) {
  const auto deadline = world_.scheduler.Now() + time;
  while (!stopping_ && world_.scheduler.Now() < deadline) {
    world_.scheduler.Wait(&changed_, deadline);
  }
  return !stopping_;
}

void SimLink::Report(StoredReplica report) {
  if (!*dead_ && report.damage.empty()) {
    world_.checker.OnReplica(options_.node, report.identity.key(), report.tier);
  }
  reports_.Add(std::move(report));
}

void SimLink::Report(RemovedReplica removed) {
  if (!*dead_) world_.checker.OnReplicaRemoved(options_.node, removed);
  reports_.Add(std::move(removed));
}

// ---- calls ----

void SimLink::Call(Clock::Duration timeout,
                   std::function<void(CoordinatorLife&, coord::RequestId, Answer)> send,
                   std::function<void(const coord::Reply*, const Status&)> done) {
  if (stopping_ || *dead_) return done(nullptr, CancelledError("the agent is stopping"));
  const uint64_t call = next_call_++;
  calls_[call] = std::move(done);
  const auto finish = [this, call](const coord::Reply* reply, const Status& status) {
    Finish(call, reply, status);
  };
  const auto now = world_.scheduler.Now();
  mailbox_.Post(now + timeout,
                [finish] { finish(nullptr, DeadlineExceededError("no reply in time")); });
  const auto coordinator = world_.coordinator.life();
  if (coordinator == nullptr) {
    mailbox_.Post(now + world_.network.Delay(),
                  [finish] { finish(nullptr, UnavailableError("connection refused")); });
    return;
  }
  auto due = now + world_.network.Delay();
  if (world_.network.IsCutOff(options_.node) || world_.network.Lost()) {
    if (!world_.network.Late()) return;
    due = now + timeout + world_.network.Delay();
  }
  coordinator->mailbox->Post(due, [coordinator, send = std::move(send), finish, dead = dead_,
                                   node = options_.node, &mailbox = mailbox_, &world = world_] {
    send(*coordinator, coordinator->applier->NextId(),
         [coordinator, finish, dead, node, &mailbox, &world](const coord::Reply* reply) {
           if (coordinator->dead || *dead) return;
           if (world.network.IsCutOff(node) || world.network.Lost()) return;
           const auto at = world.scheduler.Now() + world.network.Delay();
           if (reply == nullptr) {
             mailbox.Post(at, [finish] {
               finish(nullptr, UnavailableError("the coordinator loads its store; try again"));
             });
           } else {
             mailbox.Post(at, [finish, copy = *reply] { finish(&copy, copy.outcome); });
           }
         });
  });
}

void SimLink::Finish(uint64_t call, const coord::Reply* reply, const Status& status) {
  auto found = calls_.extract(call);
  if (!found.empty()) found.mapped()(reply, status);
}

void SimLink::Join(const JoinRequest& request, std::function<void(Result<Incarnation>)> done) {
  if (!attached_) return done(Fail(UnavailableError("not attached yet; try again")));
  coord::RankJoined event{request};
  event.node = options_.node;
  event.agent_start = options_.agent_start;
  Call(
      kCallTimeout,
      [event](CoordinatorLife& life, coord::RequestId id, Answer answer) mutable {
        event.request = id;
        life.applier->Submit(event, id, std::move(answer));
      },
      [done = std::move(done)](const coord::Reply* reply, const Status& status) {
        if (status.ok()) return done(reply->incarnation);
        const bool late = status.code() == ErrorCode::kDeadlineExceeded;
        done(Fail(late ? UnavailableError(status.message()) : status));
      });
}

void SimLink::DecideRestore(const RestoreRequest& request,
                            std::function<void(Result<RestoreDecision>)> done) {
  coord::RestoreRequested event{request};
  event.node = options_.node;
  Call(
      milliseconds(request.timeout_ms),
      [&scheduler = world_.scheduler, event, timeout = milliseconds(request.timeout_ms)](
          CoordinatorLife& life, coord::RequestId id, Answer answer) mutable {
        event.request = id;
        life.applier->Submit(event, id, std::move(answer));
        const coord::RestoreAbandoned abandoned{id, event.job, event.rank};
        life.mailbox->Post(scheduler.Now() + timeout,
                           [&life, abandoned] { life.applier->Submit(coord::Event(abandoned)); });
      },
      [done = std::move(done)](const coord::Reply* reply, const Status& status) {
        if (!status.ok()) return done(Fail(status));
        done(RestoreDecision{reply->version, reply->tier, reply->world});
      });
}

void SimLink::FindPlaces(const std::string& job, VersionId version,
                         std::function<void(Result<VersionPlaces>)> done) {
  auto places = std::make_shared<Result<VersionPlaces>>(Fail(UnavailableError("no answer")));
  Call(
      seconds(10),
      [places, job, version](CoordinatorLife& life, coord::RequestId, Answer answer) {
        const bool accepted = life.applier->Query(
            [places, job, version, answer = std::move(answer)](const coord::State* state, Epoch) {
              if (state == nullptr) return answer(nullptr);
              coordinator::PlanRestoreRequest request;
              request.set_job(job);
              coord::ToProto(version, request.mutable_version());
              request.set_all_replicas(true);
              coordinator::PlanRestoreReply wire;
              coord::FillRestorePlan(*state, request, &wire);
              *places = coord::FromProto(wire);
              const coord::Reply reply;
              answer(&reply);
            });
        static_cast<void>(accepted);  // a refused query ends with the deadline of the call
      },
      [places, done = std::move(done)](const coord::Reply*, const Status& status) {
        if (status.ok()) return done(*places);
        done(Fail(UnavailableError(status.message())));
      });
}

// ---- attach ----

coord::NodeAttached SimLink::MakeAttach() {
  const agent::ReportBatch inventory = reports_.Inventory();
  coord::NodeAttached event;
  event.node = options_.node;
  event.agent_start = options_.agent_start;
  event.agent_id = options_.agent_id;
  event.data_address = options_.node + ":1";
  event.peer_address = options_.node + ":1";
  event.replicas = inventory.replicas;
  event.ranks = inventory.ranks;
  event.health = {inventory.warnings, 50, std::nullopt};
  event.epoch_seen = seen_.epoch;
  event.life_seen = seen_.life;
  for (StoredReplica& replica : event.replicas) {
    if (replica.life.value == 0) replica.life = seen_.unlabeled;
  }
  return event;
}

void SimLink::AttachLoop() {
  auto wait = kRetryMin;
  while (!stopping_) {
    AttachOnce();
    const bool was_attached = std::exchange(attached_, false);
    wait = was_attached ? kRetryMin : std::min(wait * 2, kRetryMax);
    if (!Pause(wait)) return;
  }
}

void SimLink::AttachOnce() {
  const auto coordinator = world_.coordinator.life();
  if (coordinator == nullptr || world_.network.IsCutOff(options_.node) || *dead_) return;
  auto stream = std::make_shared<Stream>();
  stream->node = options_.node;
  stream->agent = &mailbox_;
  stream->agent_dead = dead_;
  stream_ = stream;
  coord::NodeAttached event = MakeAttach();
  const auto due = world_.scheduler.Now() + world_.network.Delay();
  coordinator->mailbox->Post(due, [coordinator, stream, event = std::move(event), &world = world_,
                                   dead = dead_]() mutable {
    if (*dead) return;
    stream->attach = event.attach = coordinator->applier->NextId();
    coordinator->streams.push_back(stream);
    coordinator->applier->Attach(std::move(event),
                                 std::make_shared<StreamSink>(world, stream, coordinator));
  });
  while (!stream->ended && !stopping_) {
    if (stream->arrived.empty()) {
      // A stream that was never answered does not stay for ever: connections time out.
      const auto limit = attached_ ? Clock::TimePoint::max() : world_.scheduler.Now() + seconds(5);
      if (!world_.scheduler.Wait(stream.get(), limit)) break;
      continue;
    }
    const auto [epoch, directive] = std::move(stream->arrived.front());
    stream->arrived.pop_front();
    if (!Handle(epoch, directive)) break;
  }
  CloseStream();
}

/// Ends this side of the stream. The coordinator learns of it, unless the message is lost.
void SimLink::CloseStream() {
  const auto stream = std::exchange(stream_, nullptr);
  if (stream == nullptr) return;
  stream->ended = true;
  world_.scheduler.Wake(stream.get(), true);
  const auto coordinator = world_.coordinator.life();
  if (coordinator == nullptr || *dead_) return;
  const auto due = world_.network.StreamArrival(options_.node);
  coordinator->mailbox->Post(due, [coordinator, stream] {
    stream->closed = true;
    if (stream->attach == 0) return;
    coordinator->applier->Submit(coord::Event(coord::NodeDetached{stream->node, stream->attach}));
  });
}

/// As GrpcCoordinatorLink::AcceptEpoch.
bool SimLink::Accept(Epoch epoch, const coord::Directive& directive) {
  if (stopping_) return false;
  SeenLife now;
  const auto* welcome = std::get_if<coord::Welcome>(&directive);
  now.life = welcome != nullptr ? welcome->life : seen_.life;
  now.epoch = epoch;
  now.unlabeled = seen_.unlabeled.value != 0 ? seen_.unlabeled : now.life;
  if (now.life == seen_.life && now.epoch < seen_.epoch) return false;
  if (now != last_stored_) {
    std::ignore = volume_.WriteLife(now);
    last_stored_ = now;
  }
  if (now.life.value != 0 && now.life != reported_life_) {
    reported_life_ = now.life;
    if (!*dead_) world_.checker.OnLife(options_.node);
    handler_->OnLife(now);
  }
  seen_ = now;
  if (!attached_) reports_.Wake();
  attached_ = true;
  world_.scheduler.Wake(&changed_, true);
  return true;
}

bool SimLink::Handle(Epoch epoch, const coord::Directive& directive) {
  if (!Accept(epoch, directive)) return false;
  if (const auto* state = std::get_if<JobState>(&directive)) {
    if (!*dead_) world_.checker.OnJobState(options_.node, *state);
    handler_->OnJobState(*state);
  } else if (const auto* prepare = std::get_if<PrepareShard>(&directive)) {
    handler_->OnPrepareShard(*prepare);
  } else if (const auto* remove = std::get_if<RemoveVersion>(&directive)) {
    if (!*dead_) world_.checker.OnRemoval(options_.node, *remove);
    handler_->OnRemoveVersion(*remove);
  }
  return true;
}

// ---- reports ----

void SimLink::SendLoop() {
  for (;;) {
    reports_.AwaitPending(kHeartbeatMs);
    while (!attached_ && !stopping_) {
      world_.scheduler.Wait(&changed_, Clock::TimePoint::max());
    }
    if (stopping_) return;
    agent::ReportBatch batch = reports_.Take();
    const Status status = SendBatch(batch);
    if (status.ok()) continue;
    reports_.Return(std::move(batch));
    if (status.code() == ErrorCode::kFenced || status.code() == ErrorCode::kDeadlineExceeded) {
      attached_ = false;
      if (stream_ != nullptr) {
        stream_->ended = true;
        world_.scheduler.Wake(stream_.get(), true);
      }
    }
    if (!Pause(kRetryMin)) return;
  }
}

Status SimLink::SendBatch(const agent::ReportBatch& batch) {
  coord::NodeReported event;
  event.node = options_.node;
  event.agent_start = options_.agent_start;
  event.epoch = seen_.epoch;
  event.replicas = batch.replicas;
  event.failed = batch.failed;
  event.removed = batch.removed;
  event.prepared = batch.prepared;
  event.ranks = batch.ranks;
  event.wanted = batch.wanted;
  event.health = {batch.warnings, 50, std::nullopt};
  for (StoredReplica& replica : event.replicas) {
    if (replica.life.value == 0) replica.life = seen_.unlabeled;
  }
  struct Acknowledgement {
    bool known = false;
    Status status;
  };
  auto outcome = std::make_shared<Acknowledgement>();
  Call(
      kCallTimeout,
      [event](CoordinatorLife& life, coord::RequestId id, Answer answer) mutable {
        event.request = id;
        life.applier->Submit(coord::Event(event), id, std::move(answer));
      },
      [outcome, &scheduler = world_.scheduler](const coord::Reply*, const Status& status) {
        outcome->known = true;
        outcome->status = status;
        scheduler.Wake(outcome.get(), true);
      });
  while (!outcome->known) world_.scheduler.Wait(outcome.get(), Clock::TimePoint::max());
  return outcome->status;
}

}  // namespace holdfast::simulation
