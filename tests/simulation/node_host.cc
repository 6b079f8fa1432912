#include "tests/simulation/node_host.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tests/simulation/trainer.h"
#include "tests/simulation/world.h"

namespace holdfast::simulation {
namespace {
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr uint64_t kArenaBytes = 1ULL << 30;

/// Addresses are "<node>:1".
std::string NodeAt(const std::string& address) { return address.substr(0, address.find(':')); }

/// A thread of one node while it is in another one.
class Visit {
 public:
  explicit Visit(std::shared_ptr<AgentLife> host) : host_(std::move(host)) { ++host_->serving; }
  Visit(Visit&& other) noexcept = default;
  ~Visit() {
    if (host_ != nullptr) --host_->serving;
  }
  AgentLife& host() const { return *host_; }

 private:
  std::shared_ptr<AgentLife> host_;
};

/// The way from one agent to another.
class Route {
 public:
  Route(World& world, std::string self, std::shared_ptr<bool> dead)
      : world_(world), self_(std::move(self)), dead_(std::move(dead)) {}

  Result<Visit> To(const std::string& address, Clock::TimePoint deadline) const {
    HOLDFAST_RETURN_IF_ERROR(Travel(address, nullptr, deadline));
    const NodeHost* host = world_.Find(NodeAt(address));
    if (host == nullptr || !host->up()) return Fail(UnavailableError(address + " does not answer"));
    return Visit(host->life());
  }
  /// A message there and back takes time. Fails if one side is dead, cut off or paused too long.
  Status Travel(const std::string& address, const AgentLife* host,
                Clock::TimePoint deadline) const {
    world_.clock.SleepFor(world_.network.Delay());
    while (!*dead_ && (host == nullptr || !*host->dead)) {
      const bool cut = world_.network.IsCutOff(self_) || world_.network.IsCutOff(NodeAt(address));
      const bool paused = host != nullptr && host->process.paused_until > world_.scheduler.Now();
      if (!cut && !paused) {
        return world_.network.Lost() ? UnavailableError("the connection broke") : Status::Ok();
      }
      if (world_.scheduler.Now() >= deadline) {
        return DeadlineExceededError(address + " does not answer in time");
      }
      world_.clock.SleepFor(std::min<Clock::Duration>(
          milliseconds(100),
          std::max<Clock::Duration>(deadline - world_.scheduler.Now(), microseconds(1))));
    }
    return UnavailableError(address + " cannot be reached");
  }

 private:
  World& world_;
  const std::string self_;
  const std::shared_ptr<bool> dead_;
};

class SimPeerStream final : public agent::PeerStream {
 public:
  SimPeerStream(Route route, std::string address, Visit visit, const agent::PeerRequest& request,
                std::unique_ptr<agent::PeerReader> reader)
      : route_(std::move(route)),
        address_(std::move(address)),
        visit_(std::move(visit)),
        reader_(std::move(reader)),
        at_(request.offset),
        left_(request.bytes) {
    visit_.host().readers.insert(reader_);
  }
  ~SimPeerStream() override { visit_.host().readers.erase(reader_); }

  Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint deadline) override {
    HOLDFAST_RETURN_IF_ERROR(route_.Travel(address_, &visit_.host(), deadline));
    if (cancelled_) return holdfast::Fail(CancelledError("cancelled"));
    const uint64_t want = std::min<uint64_t>({into.size(), left_, agent::kPeerUnitBytes});
    if (want == 0) return size_t{0};
    auto bytes = reader_->Read(at_, want, deadline);
    if (*visit_.host().dead) return holdfast::Fail(UnavailableError("the connection broke"));
    if (cancelled_) return holdfast::Fail(CancelledError("cancelled"));
    if (!bytes) return holdfast::Fail(bytes.error());
    std::copy(bytes->begin(), bytes->end(), into.begin());
    at_ += bytes->size();
    left_ -= bytes->size();
    if (bytes->empty()) left_ = 0;
    return bytes->size();
  }
  void Cancel() override {
    cancelled_ = true;
    reader_->Cancel();
  }

 private:
  const Route route_;
  const std::string address_;
  Visit visit_;
  std::shared_ptr<agent::PeerReader> reader_;
  uint64_t at_;
  uint64_t left_;
  bool cancelled_ = false;
};

class SimTransport final : public agent::PeerTransport {
 public:
  explicit SimTransport(Route route) : route_(std::move(route)) {}
  Result<std::unique_ptr<agent::PeerStream>> Open(const std::string& address,
                                                  const agent::PeerRequest& request,
                                                  Clock::TimePoint deadline) override {
    HOLDFAST_ASSIGN_OR_RETURN(Visit visit, route_.To(address, deadline));
    auto reader = visit.host().node->peer_source().Open(request);
    if (*visit.host().dead) return Fail(UnavailableError("the connection broke"));
    if (!reader) return Fail(reader.error());
    return std::make_unique<SimPeerStream>(route_, address, std::move(visit), request,
                                           *std::move(reader));
  }

 private:
  const Route route_;
};

/// A reader may end while another one is cancelled.
void CancelReaders(const AgentLife& life) {
  const std::vector<std::shared_ptr<agent::PeerReader>> all(life.readers.begin(),
                                                            life.readers.end());
  for (const auto& reader : all) reader->Cancel();
}
}  // namespace

NodeHost::NodeHost(World& world, std::string name, const SimDiskOptions& disk)
    : world_(world),
      name_(std::move(name)),
      disk_options_(disk),
      disk_(std::make_unique<SimDisk>(disk)) {}

NodeHost::~NodeHost() = default;

void NodeHost::Start() {
  for (;;) {
    auto life = std::make_shared<AgentLife>();
    life->process.name = name_;
    life->clock = std::make_unique<SimClock>(world_.scheduler);
    life->mailbox = std::make_unique<Mailbox>(world_.scheduler, life->process);
    life_ = life;
    bool opened = false;
    Status status;
    world_.scheduler.Spawn(life->process, [&] {
      status = Open(life);
      opened = true;
      world_.scheduler.Wake(&opened, true);
    });
    while (!opened) world_.scheduler.Wait(&opened, Clock::TimePoint::max());
    if (life_ != life) return;  // it was ended during its start
    if (status.ok()) {
      life->serves = true;
      world_.Trace(name_ + ": the agent serves");
      return;
    }
    world_.Trace(name_ + ": the agent does not start: " + status.ToString());
    End(/*silent=*/false);
    // The marker of the volume has a flipped bit, and the error asks an operator to act.
    if (status.code() == ErrorCode::kDataLoss && world_.checker.IsDiskTainted(name_)) ReplaceDisk();
    world_.clock.SleepFor(seconds(1));
    if (life_ != nullptr) return;  // it was started elsewhere
  }
}

Status NodeHost::Open(const std::shared_ptr<AgentLife>& life) {
  std::vector<std::unique_ptr<Directory>> dirs;
  dirs.push_back(disk_->Open("data"));
  HOLDFAST_ASSIGN_OR_RETURN(life->volume,
                            Volume::Open(std::move(dirs), {"sim", name_, {}}, *life->clock));
  life->arena = std::make_unique<agent::SimArena>(kept_, kArenaBytes);
  if (agent_id_ == 0) agent_id_ = 1 + world_.random.Below(1ULL << 60);
  SimLink::Options link{name_, ++starts_, agent_id_, {}};
  auto seen = life->volume->ReadLife();
  if (seen) link.seen = *seen;
  const Route route(world_, name_, life->dead);
  life->peers = std::make_unique<SimTransport>(route);
  life->link = std::make_unique<SimLink>(world_, link, *life->mailbox, life->dead, *life->volume);
  agent::NodeOptions options{.node = name_,
                             .trainers_file = world_.dir + "/" + name_ + ".trainers",
                             .scrub = {.bytes_per_s = 64 << 20, .pause_ms = 20'000},
                             .seen_life = link.seen,
                             .processes = world_.processes};
  life->node = std::make_unique<agent::Node>(options, *life->arena, *life->volume, *life->link,
                                             *life->peers, *life->clock);
  life->node->Adopt();
  life->socket = world_.dir + "/" + name_ + "." + std::to_string(starts_);
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd listener, agent::ListenUnix(life->socket, 0600, *life->clock));
  HOLDFAST_RETURN_IF_ERROR(life->node->Serve(std::move(listener)));
  life->node->AwaitAdopted(20'000);
  if (*life->dead) return CancelledError("the agent has ended");
  life->link->Start(*life->node);
  return Status::Ok();
}

/// Ends the agent's process at this instant: what its threads do from now on has no effect.
void NodeHost::End(bool silent) {
  const auto life = std::exchange(life_, nullptr);
  if (life == nullptr) return;
  *life->dead = true;
  if (life->arena != nullptr) life->arena->Detach();
  for (Trainer* trainer : trainers_) trainer->Disconnect();
  const auto coordinator = world_.coordinator.life();
  if (!silent && coordinator != nullptr) {
    // The kernel closes the connections of a process that ended.
    for (const auto& stream : coordinator->streams) {
      if (stream->agent_dead != life->dead || stream->closed) continue;
      coordinator->mailbox->Post(world_.network.StreamArrival(name_), [coordinator, stream] {
        stream->closed = true;
        coordinator->applier->Submit(
            coord::Event(coord::NodeDetached{stream->node, stream->attach}));
      });
    }
  }
  Bury(life);
}

void NodeHost::Bury(const std::shared_ptr<AgentLife>& life) {
  life->process.paused_until = {};
  ++world_.burials;
  world_.scheduler.Spawn(world_.burial, [this, life] {
    CancelReaders(*life);
    if (life->link != nullptr) life->link->Stop();
    if (life->node != nullptr) life->node->Stop();
    while (life->serving != 0) {
      CancelReaders(*life);
      world_.clock.SleepFor(milliseconds(10));
    }
    life->mailbox->Close();
    life->node.reset();
    life->link.reset();
    life->arena.reset();
    life->volume.reset();
    if (!life->socket.empty()) ::unlink(life->socket.c_str());
    --world_.burials;
  });
}

void NodeHost::CrashAgent() {
  if (life_ == nullptr) return;
  world_.Trace(name_ + ": the agent ends");
  disk_->Crash(SimSurvival::kEverything);
  End(/*silent=*/false);
}

void NodeHost::LosePower() {
  world_.Trace(name_ + ": power loss");
  disk_->Crash(world_.random.OneIn(3) ? SimSurvival::kNothing : SimSurvival::kRandom);
  kept_.clear();
  world_.checker.OnMemoryLost(name_);
  End(/*silent=*/world_.random.OneIn(2));
  ::unlink((world_.dir + "/" + name_ + ".trainers").c_str());
  const std::set<Trainer*> trainers = trainers_;
  for (Trainer* trainer : trainers) trainer->Kill();
}

void NodeHost::LoseDisk() {
  LosePower();
  ReplaceDisk();
}

void NodeHost::ReplaceDisk() {
  world_.Trace(name_ + ": the disk is replaced");
  old_disks_.push_back(std::move(disk_));
  disk_options_.seed += 1'000'003;
  disk_ = std::make_unique<SimDisk>(disk_options_);
  agent_id_ = 0;
  world_.checker.OnDiskLost(name_);
}

void NodeHost::StopAgent() {
  if (life_ == nullptr) return;
  world_.Trace(name_ + ": the agent stops");
  const auto life = life_;
  if (life->node != nullptr) life->node->Flush(2'000);
  if (life_ == life) CrashAgent();
}

}  // namespace holdfast::simulation
