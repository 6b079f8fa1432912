// Feeds messages of agents, operators and the detector, in any order and with any numbers, to the
// real State, Supervisor, store and Watcher. Every input is a program: opcodes with their operands;
// missing bytes are zeros. Nothing may crash, every call gets at most one reply, and the stored
// records can be loaded at any time.

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"
#include "coordinator/restart/supervisor.h"
#include "coordinator/server/requests.h"
#include "coordinator/server/watcher.h"
#include "coordinator/state/state.h"
#include "coordinator/store/catalog.h"
#include "coordinator/store/memory_store.h"
#include "tests/fuzz/require.h"

namespace holdfast::coord {
namespace {
constexpr size_t kStepsMax = 400;
constexpr const char* kCluster = "fuzz";

/// A clock that the watcher's thread may read concurrently.
class FuzzClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(nanos_.load())); }
  int64_t WallNanos() const override { return nanos_.load(); }
  void SleepFor(Duration duration) override { nanos_ += duration.count(); }

 private:
  std::atomic<int64_t> nanos_{std::chrono::nanoseconds(std::chrono::hours(100)).count()};
};

class Coordinator {
 public:
  Coordinator(const uint8_t* data, size_t size) : data_(data), left_(size) {
    Load();
    if (size % 8 == 0) {
      watcher_ = std::make_unique<Watcher>([](const FaultDetected&) {}, attendance_,
                                           detect::DetectorOptions{}, clock_);
    }
  }

  void Run() {
    for (size_t step = 0; step < kStepsMax && left_ > 0; ++step) Step();
    QueryAll();
    Load();
    QueryAll();
  }

 private:
  // ---- values of the input ----
  uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  uint32_t Below(uint32_t bound) { return Byte() % bound; }
  uint64_t Number() {
    static constexpr uint64_t kNumbers[] = {0,
                                            1,
                                            2,
                                            3,
                                            4,
                                            5,
                                            6,
                                            7,
                                            8,
                                            100,
                                            4096,
                                            65'535,
                                            900'000,
                                            kWorldMax - 1,
                                            kWorldMax,
                                            uint64_t{1} << 31,
                                            (uint64_t{1} << 31) + 1,
                                            ~uint32_t{0},
                                            kSlotBytesMax,
                                            (uint64_t{1} << 62),
                                            (uint64_t{1} << 63) - 2,
                                            uint64_t{1} << 63,
                                            ~uint64_t{0}};
    return kNumbers[Below(std::size(kNumbers))];
  }
  uint32_t Number32() { return static_cast<uint32_t>(Number()); }
  /// Returns mostly plausible numbers.
  uint64_t Small() { return Byte() % 8 == 0 ? Number() : Byte() % 4; }
  std::string Node() { return std::string(1, static_cast<char>('a' + Below(5))); }
  std::string Job() { return Below(8) == 7 ? "" : Below(2) == 0 ? "gpt" : "lm"; }
  std::string RunId() {
    static constexpr const char* kRuns[] = {"run-1.1", "run-1.2", "run-1.3",
                                            "run-2.1", "other",   ""};
    return kRuns[Below(std::size(kRuns))];
  }
  template <typename Proto>
  void FillVersion(Proto* version) {
    version->set_incarnation(1 + Small());
    version->set_step(Small());
  }
  uint32_t RankNumber() {
    const auto rank = static_cast<uint32_t>(Small());
    return Below(4) == 0 ? ParityRank(rank % 8).value : rank;
  }
  void FillReplicas(google::protobuf::RepeatedPtrField<pb::StoredReplica>* replicas) {
    for (uint32_t count = Below(4); count > 0; --count) {
      pb::StoredReplica* report = replicas->Add();
      report->set_job(Job());
      FillVersion(report->mutable_version());
      report->set_rank(RankNumber());
      report->set_world(Below(8) == 0 ? Number32() : 2);
      report->set_tier(1 + Below(4));
      report->set_digest(Below(4) == 0 ? 2 : 1);
      report->set_image_bytes(Number());
      if (Below(6) == 0) report->set_damage("chunk 0");
    }
  }
  void FillWorkers(google::protobuf::RepeatedPtrField<pb::WorkerState>* workers) {
    for (uint32_t count = Below(4); count > 0; --count) {
      pb::WorkerState* worker = workers->Add();
      worker->set_job(Job());
      worker->set_run_id(RunId());
      worker->set_rank(static_cast<uint32_t>(Small()));
      worker->set_phase(1 + Below(3));
      worker->set_pid(static_cast<uint32_t>(Small()));
      worker->set_exit_code(static_cast<int32_t>(Below(3)));
      worker->set_signal(Below(4) == 0 ? 9 : 0);
      worker->set_ended_ago_ms(static_cast<int64_t>(Number()));
    }
  }

  // ---- events ----
  void Step() {
    switch (Below(16)) {
      case 0:
      case 1:
        return Attach();
      case 2:
      case 3:
      case 4:
        return Report();
      case 5:
      case 6:
        return Join();
      case 7:
        return RequestRestore();
      case 8:
        return Pass();
      case 9:
        return StartRun();
      case 10:
        return Operate();
      case 11:
        return FindFault();
      case 12:
        return Observe();
      case 13:
        return Direct();
      case 14:
        return QueryAll();
      default:
        return Below(4) == 0 ? Load() : Leave();
    }
  }

  void Attach() {
    pb::AttachRequest request;
    request.set_cluster(kCluster);
    request.set_node(Node());
    request.set_agent_start(Small());
    request.set_agent_id(Below(3));
    request.set_data_address("unix:/" + request.node());
    if (Below(2) == 0) request.set_peer_address("unix:/" + request.node() + ".peer");
    if (Below(3) != 0) request.set_worker_address("10.0.0.1");
    FillReplicas(request.mutable_replicas());
    FillWorkers(request.mutable_workers());
    auto event = ReadAttach(request, kCluster);
    if (!event) return;
    event->attach = ++next_;
    attaches_[event->node] = event->attach;
    Apply(*std::move(event));
  }

  void Report() {
    pb::ReportRequest request;
    request.set_node(Node());
    const auto start = starts_.find(request.node());
    request.set_agent_start(start == starts_.end() || Below(8) == 0 ? Small() : start->second);
    request.set_epoch(Below(16) == 0 ? Number() : catalog_->epoch().value);
    FillReplicas(request.mutable_replicas());
    for (uint32_t count = Below(2); count > 0; --count) {
      pb::FailedReplica* failed = request.add_failed();
      failed->set_job(Job());
      FillVersion(failed->mutable_version());
      failed->set_rank(RankNumber());
      failed->set_tier(1 + Below(4));
    }
    for (uint32_t count = Below(2); count > 0; --count) {
      pb::RemovedReplica* removed = request.add_removed();
      removed->set_job(Job());
      FillVersion(removed->mutable_version());
      removed->set_rank(RankNumber());
      removed->set_tier(1 + Below(4));
      if (Below(2) == 0) removed->set_damage("chunk 1");
    }
    for (uint32_t count = Below(2); count > 0; --count) {
      pb::Prepared* prepared = request.add_prepared();
      prepared->set_request(
          prepare_requests_.empty() || Below(4) == 0
              ? Number()
              : prepare_requests_[Below(static_cast<uint32_t>(prepare_requests_.size() % 255 + 1)) %
                                  prepare_requests_.size()]);
      prepared->mutable_outcome()->set_code(Below(2) == 0 ? 0 : Below(20));
    }
    FillWorkers(request.mutable_workers());
    auto event = ReadReport(request);
    if (!event) return;
    event->request = NewRequest();
    Apply(*std::move(event));
  }

  void Join() {
    pb::JoinRequest request;
    request.set_node(Node());
    const auto start = starts_.find(request.node());
    request.set_agent_start(start == starts_.end() ? Small() : start->second);
    request.set_job(Job());
    request.set_run_id(RunId());
    request.set_rank(static_cast<uint32_t>(Small()));
    // A world of a million ranks is valid, but needs much memory each time.
    request.set_world(Below(8) == 0 ? std::min(Number32(), 4096U) : 2);
    request.set_slot_bytes(Below(8) == 0 ? Number() : 4096);
    auto event = ReadJoin(request);
    if (!event) return;
    event->request = NewRequest();
    Apply(*std::move(event));
  }

  void RequestRestore() {
    RestoreRequested event;
    event.request = NewRequest();
    event.node = Node();
    event.job = Job();
    event.incarnation = Incarnation{1 + Small()};
    event.rank = Rank{static_cast<uint32_t>(Small())};
    if (Below(3) == 0) event.wanted = VersionId{Incarnation{Small()}, holdfast::Step{Small()}};
    event.reshard = Below(2) == 0;
    const RestoreAbandoned abandoned{event.request, event.job, event.rank};
    Apply(std::move(event));
    if (Below(4) == 0) Apply(abandoned);
    if (Below(4) == 0) {
      PinSet pin{NewRequest(), Job(), std::nullopt, Below(2) == 0};
      if (Below(4) != 0) pin.version = VersionId{Incarnation{Small()}, holdfast::Step{Small()}};
      Apply(std::move(pin));
    }
  }

  void Pass() {
    static constexpr int64_t kMs[] = {0, 1, 100, 200, 500, 1000, 3000, 4000, 10'000, 60'000};
    at_.now += std::chrono::milliseconds(kMs[Below(std::size(kMs))]);
    // A wall clock may jump in both directions.
    at_.wall_nanos = static_cast<int64_t>(Number() / 4);
    Apply(Tick{.resumed = Below(8) == 0});
  }

  void StartRun() {
    pb::RunSpec proto;
    proto.set_job(Job());
    proto.add_command("train");
    proto.set_directory("/");
    proto.set_nodes(static_cast<uint32_t>(Small()));
    proto.set_ranks_per_node(static_cast<uint32_t>(Small()));
    proto.set_spares(static_cast<uint32_t>(Small()));
    proto.set_restarts_max(Number32());
    proto.set_grace_ms(static_cast<int64_t>(Number()));
    auto spec = FromProto(proto);
    if (!spec) return;
    Apply(RunEvent(RunRequested{NewRequest(), *std::move(spec)}));
  }

  void Operate() {
    if (Below(2) == 0) {
      return Apply(
          RunEvent(StopRequested{NewRequest(), Job(), static_cast<int64_t>(Below(4)) * 1000}));
    }
    Apply(RunEvent(QuarantineRequested{NewRequest(), Node(), Below(2) == 0, "fuzz"}));
  }

  void FindFault() {
    if (Below(2) == 0) {
      GpuFailed event;
      event.node = Node();
      const auto start = starts_.find(event.node);
      event.agent_start = start == starts_.end() ? 0 : start->second;
      event.number = Number();
      event.xid = 1 + Below(120);
      event.ago_ms = static_cast<int64_t>(Number());
      event.jobs = {Job()};
      return Apply(RunEvent(std::move(event)));
    }
    FaultDetected event;
    event.job = Job();
    event.incarnation = Incarnation{1 + Small()};
    event.kind = "hang";
    event.what = "rank";
    event.ranks = {Rank{static_cast<uint32_t>(Number())}};
    event.nodes = {Node()};
    event.action = static_cast<FaultAction>(Below(3));
    event.dead = Below(2) == 0;
    event.since_ms = static_cast<int64_t>(Below(255)) * 1000;
    Apply(RunEvent(std::move(event)));
  }

  void Observe() {
    pb::Digest digest;
    digest.set_job(Job());
    digest.set_incarnation(1 + Small());
    digest.set_world(Below(8) == 0 ? Number32() : 2);
    digest.set_number(Number());
    digest.set_taken_ns(Number());
    for (uint32_t count = Below(3); count > 0; --count) {
      pb::ObservedRank* rank = digest.add_ranks();
      rank->set_rank(static_cast<uint32_t>(Small()));
      rank->set_alive(Below(2) == 0);
      rank->set_process_state(Number32());
      rank->set_phases(Number32());
      rank->set_step(Number());
      rank->set_silent_ns(Number());
      rank->set_since_step_ns(Number());
      pb::Communicator* communicator = rank->add_communicators();
      communicator->set_id(Small());
      communicator->set_size(static_cast<uint32_t>(Small()));
      communicator->set_index(static_cast<uint32_t>(Small()));
      if (Below(2) == 0) communicator->add_members(Number32());
      pb::InFlight* flight = rank->add_in_flight();
      flight->mutable_record()->set_communicator(Small());
      flight->mutable_record()->set_kind(Number32());
      flight->mutable_record()->set_sequence(Number());
      flight->mutable_record()->set_started_ns(Number());
      flight->mutable_record()->set_duration_ns(Number());
      flight->set_age_ns(Number());
      flight->set_has_edge(Below(2) == 0);
      flight->set_peer(Number32());
      flight->set_edge_state(Number32());
    }
    const std::string node = Node();
    const auto start = starts_.find(node);
    if (watcher_ == nullptr || start == starts_.end()) return;
    (void)watcher_->Observe(node, start->second, digest);
    (void)watcher_->SamplesFor(node, digest.job());
  }

  /// Parses directives as an agent does, from a coordinator that may be faulty.
  void Direct() {
    std::string bytes;
    for (uint32_t count = Byte(); count > 0; --count) bytes += static_cast<char>(Byte());
    pb::Directive directive;
    if (!directive.ParseFromString(bytes)) return;
    (void)FromProto(directive.job());
    (void)FromProto(directive.prepare());
    (void)FromProto(directive.remove());
    (void)FromProto(directive.workers());
  }

  void Leave() {
    const std::string node = Node();
    if (Below(3) == 0) return Apply(NodeLost{node});
    Apply(NodeDetached{node, attaches_[node]});
  }

  // ---- the coordinator ----
  RequestId NewRequest() {
    waiting_.insert(++next_);
    return next_;
  }

  void Load() {
    auto catalog = Catalog::Open(std::make_unique<MemoryStore>(stored_), kCluster);
    FUZZ_REQUIRE(catalog.has_value());
    catalog_ = *std::move(catalog);
    auto records = catalog_->Read();
    FUZZ_REQUIRE(records.has_value());
    StateOptions options;
    options.epoch = catalog_->epoch();
    auto state = State::Load(options, *records, at_);
    FUZZ_REQUIRE(state.has_value());
    state_.emplace(*std::move(state));
    supervisor_.emplace(SupervisorOptions{}, *records, at_);
    attendance_.Reset(*records);
    waiting_.clear();
    starts_.clear();
    prepare_requests_.clear();
  }

  void Apply(const Event& event) {
    std::vector<Effect> effects = state_->Apply(event, at_);
    for (Effect& effect : state_->FinishBatch()) effects.push_back(std::move(effect));
    attendance_.Update(event, effects);
    const std::vector<Effect> followed = supervisor_->Observe(event, effects, at_);
    effects.insert(effects.end(), followed.begin(), followed.end());
    if (const auto* attached = std::get_if<NodeAttached>(&event)) {
      if (attendance_.IsAttached(attached->node, attached->agent_start)) {
        starts_[attached->node] = attached->agent_start;
      }
    }
    if (const auto* abandoned = std::get_if<RestoreAbandoned>(&event)) {
      waiting_.erase(abandoned->request);
    }
    Take(effects);
  }
  void Apply(const RunEvent& event) { Take(supervisor_->Apply(event, at_)); }

  void Take(const std::vector<Effect>& effects) {
    FUZZ_REQUIRE(catalog_->Write(effects).ok());
    for (const Effect& effect : effects) {
      if (const auto* reply = std::get_if<Reply>(&effect)) {
        FUZZ_REQUIRE(waiting_.erase(reply->request) == 1);
      } else if (const auto* send = std::get_if<Send>(&effect)) {
        const auto* prepare = std::get_if<PrepareShard>(&send->directive);
        if (prepare != nullptr && prepare->request) prepare_requests_.push_back(*prepare->request);
      }
    }
  }

  /// Calls everything that operators can query.
  void QueryAll() {
    (void)state_->Nodes();
    auto jobs = state_->Jobs("");
    FUZZ_REQUIRE(jobs.has_value());
    for (const JobStatus& job : *jobs) {
      FUZZ_REQUIRE(state_->Versions(job.name).has_value());
      (void)state_->PlanRestore(job.name, {}, std::nullopt);
      (void)state_->PlanAllReplicas(job.name, job.restorable);
      (void)state_->ImpactOfLosing(job.name, {});
    }
    for (const RunStatus& run : supervisor_->Runs("")) {
      FUZZ_REQUIRE(run.workers.size() <= run.record.spec.world());
    }
    (void)supervisor_->Incidents("", 0);
    (void)supervisor_->Suspects();
  }

  const uint8_t* data_;
  size_t left_;
  FuzzClock clock_;
  Instant at_{Clock::TimePoint(std::chrono::hours(100)), 1'000'000'000'000'000};
  MemoryStoreData stored_;
  std::unique_ptr<Catalog> catalog_;
  std::optional<State> state_;
  std::optional<Supervisor> supervisor_;
  Attendance attendance_;
  std::unique_ptr<Watcher> watcher_;
  uint64_t next_ = 0;
  std::set<RequestId> waiting_;
  std::map<std::string, AttachId> attaches_;
  std::map<std::string, uint64_t> starts_;  // of attached agents
  std::vector<uint64_t> prepare_requests_;
};

}  // namespace
}  // namespace holdfast::coord

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::coord::Coordinator(data, size).Run();
  return 0;
}
