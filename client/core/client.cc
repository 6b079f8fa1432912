#include "client/core/client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/tiers.h"
#include "client/core/image_order.h"

namespace holdfast::client {
namespace {
// The outcomes of this many saves are kept for Wait().
constexpr size_t kRecordsMax = 1024;
constexpr uint64_t kDeviceGraceMs = 2000;

agent::HelloMessage HelloOf(const ClientOptions& options, const ImageLayout& layout) {
  agent::HelloMessage hello;
  hello.rank = options.rank;
  hello.world = options.world;
  hello.slots = options.slots;
  hello.slot_bytes = layout.ImageBytesMax(options.extra_bytes_max, options.extra_count_max);
  agent::PutText(hello.job, options.job);
  agent::PutText(hello.run_id, options.run_id);
  return hello;
}

std::string StepText(uint64_t step) { return "step " + std::to_string(step); }
}  // namespace

Client::Client(const ClientOptions& options, StateDescription state, ImageLayout layout)
    : options_(options),
      pid_(::getpid()),
      state_(std::move(state)),
      layout_(std::move(layout)),
      plan_(PlanSave(layout_, state_.memory)) {
  agent::HelloMessage hello = HelloOf(options_, layout_);
  stats_.image_bytes_max = hello.slot_bytes;
  LinkObserver& observer = *this;
  link_ = std::make_unique<AgentLink>(options_.socket_path, hello, observer);
}

Result<std::unique_ptr<Client>> Client::Open(const ClientOptions& options, StateDescription state) {
  HOLDFAST_ASSIGN_OR_RETURN(
      ImageLayout layout,
      ImageLayout::Plan(state.specs, PlacesOf(state.specs, state.memory), options.image_format));
  auto client = std::make_unique<Client>(options, std::move(state), std::move(layout));
  HOLDFAST_RETURN_IF_ERROR(client->Start());
  Status connected = client->link_->AwaitConnected(After(options.connect_timeout_ms));
  if (connected.ok()) return client;
  if (options.start_offline && connected.code() == ErrorCode::kUnavailable) return client;
  return Fail(connected);
}

Status Client::Start() {
  if (plan_.has_device) {
    HOLDFAST_ASSIGN_OR_RETURN(device_, DeviceCopier::Load(state_.memory, options_.device_backend));
  }
  StartRecords();
  HOLDFAST_RETURN_IF_ERROR(link_->Start());
  HOLDFAST_ASSIGN_OR_RETURN(worker_, StartThread("holdfast-save", [this] { RunWorker(); }));
  return Status::Ok();
}

/// Describes communicator 0: all ranks of the job, in order.
void Client::StartRecords() {
  CollectiveRecorder& of_process = CollectiveRecorder::OfProcess();
  if (of_process.Claim()) {
    collectives_ = &of_process;
  } else {
    own_collectives_ = std::make_unique<CollectiveRecorder>();
    collectives_ = own_collectives_.get();
  }
  Communicator all{.size = options_.world, .index = options_.rank};
  for (uint32_t rank = 0; options_.world <= agent::kMembersMax && rank < options_.world; ++rank) {
    all.members.push_back(Rank{rank});
  }
  Status status = collectives_->Describe(all);
  if (!status.ok()) Log(HOLDFAST_LOG_WARN, "no records of collectives: " + status.message());
}

Client::~Client() {
  static_cast<void>(Close(0));
  if (collectives_ != nullptr && own_collectives_ == nullptr) collectives_->Release();
}

Status Client::CheckProcess() const {
  if (::getpid() == pid_) return Status::Ok();
  return FailedPreconditionError("this client belongs to process " + std::to_string(pid_) +
                                 ", from which this one was forked: open another client here");
}

void Client::Log(int level, const std::string& text) {
  if (options_.log == nullptr) return;
  MutexLock lock(logging_);
  if (!silent_) options_.log(options_.log_context, level, text.c_str());
}

// ---- saving, the caller's side -----------------------------------------------------------------

Status Client::AdmitLocked(uint64_t step, std::span<const ExtraBytes> extras) {
  uint64_t extra_bytes = 0;
  for (const ExtraBytes& extra : extras) extra_bytes += extra.bytes.size();
  if (extras.size() > options_.extra_count_max || extra_bytes > options_.extra_bytes_max) {
    return ResourceExhaustedError(
        std::to_string(extras.size()) + " extras of " + std::to_string(extra_bytes) +
        " bytes in total; room was reserved for " + std::to_string(options_.extra_count_max) +
        " of " + std::to_string(options_.extra_bytes_max) +
        " bytes: raise extra_count_max or extra_bytes_max when opening the client");
  }
  if (last_step_ && step <= *last_step_) {
    return AlreadyExistsError(StepText(step) + " is not greater than step " +
                              std::to_string(*last_step_) + ", which was saved before");
  }
  return Status::Ok();
}

Outcome Client::Save(uint64_t step, std::vector<ExtraBytes> extras, void* stream,
                     uint32_t wait_ms) {
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    outcome = SaveLocked(step, std::move(extras), stream, wait_ms);
  }
  // After the lock is released, so that the worker does not wake only to wait for the lock.
  changed_.NotifyAll();
  return outcome;
}

Outcome Client::SaveLocked(uint64_t step, std::vector<ExtraBytes> extras, void* stream,
                           uint32_t wait_ms) {
  if (Status status = AdmitLocked(step, extras); !status.ok()) return {status};
  collectives_->Step(step, /*forward_only=*/true);
  last_step_ = step;
  ++stats_.saves;
  SaveRecord& record = records_[step];
  auto refuse = [&](SaveState state, Status status) HOLDFAST_REQUIRES(mutex_) {
    SetState(record, state);
    record.status = status;
    return Outcome{std::move(status)};
  };
  if (!fenced_.ok()) return refuse(SaveState::kFailed, fenced_);
  if (Status status = link_->status(); !status.ok()) {
    bool fenced = status.code() == ErrorCode::kFenced;
    return refuse(
        SaveState::kFailed,
        Status(fenced ? ErrorCode::kFenced : ErrorCode::kUnavailable,
               StepText(step) + " is not saved, no connection to the agent: " + status.message()));
  }
  if (uint64_t silent_ms = link_->silent_ms(); silent_ms > 0) {
    return refuse(
        SaveState::kSkipped,
        UnavailableError(StepText(step) + " is not saved: the agent's answer is overdue by " +
                         std::to_string(silent_ms) + " ms"));
  }
  if (tasks_.size() >= options_.slots) {
    return refuse(SaveState::kSkipped, ResourceExhaustedError(StepText(step) + " is not saved: " +
                                                              std::to_string(tasks_.size()) +
                                                              " earlier saves are not copied yet"));
  }
  auto copy = SaveCopy::Make(plan_, device_.get(), stream);
  if (!copy) return refuse(SaveState::kFailed, copy.error());
  if (wait_ms == 0 && options_.wait_for_slot) wait_ms = options_.wait_ms;
  tasks_.push_back(
      {.step = step, .extras = std::move(extras), .copy = *std::move(copy), .wait_ms = wait_ms});
  ++stats_.pending;
  while (records_.size() > kRecordsMax && records_.begin()->second.state >= SaveState::kCopied) {
    records_.erase(records_.begin());
  }
  return TakeAsyncError();
}

bool Client::AllReleasedLocked(std::optional<uint64_t>* ungranted_wait_ms) {
  bool all = true;
  ungranted_wait_ms->reset();
  for (const SaveTask& task : tasks_) {
    if (task.released || task.cancelled) continue;
    all = false;
    if (task.granted) continue;
    *ungranted_wait_ms = std::max<uint64_t>(ungranted_wait_ms->value_or(0),
                                            uint64_t{options_.agent_timeout_ms} + task.wait_ms);
  }
  return all;
}

Outcome Client::Guard(void* stream) {
  MonotonicTime start = MonotonicNow();
  Status status;
  MutexLock lock(mutex_);
  // The wait for a running copy has no limit. The wait for a slot has one: the save is then
  // cancelled, so that a stuck agent cannot stop the training.
  std::optional<uint64_t> ungranted_wait_ms;
  while (!AllReleasedLocked(&ungranted_wait_ms)) {
    if (!ungranted_wait_ms) {
      changed_.Wait(mutex_);
      continue;
    }
    auto left = start + std::chrono::milliseconds(*ungranted_wait_ms) - MonotonicNow();
    if (left > left.zero()) {
      changed_.WaitFor(mutex_, left);
    } else {
      for (SaveTask& task : tasks_) task.cancelled |= !task.granted;
    }
  }
  for (SaveTask& task : tasks_) {
    if (!task.released || !plan_.has_device) continue;
    Status ordered = task.copy->GuardStream(stream);
    if (status.ok()) status = std::move(ordered);
  }
  stats_.guard_ns += static_cast<uint64_t>((MonotonicNow() - start).count());
  if (!status.ok()) return {status};
  return TakeAsyncError();
}

// ---- outcomes of saves -------------------------------------------------------------------------

void Client::SetState(SaveRecord& record, SaveState state) {
  auto count = [this](SaveState of) HOLDFAST_REQUIRES(mutex_) -> uint64_t* {
    if (of == SaveState::kSealed) return &stats_.sealed;
    if (of == SaveState::kSkipped) return &stats_.skipped;
    if (of == SaveState::kFailed) return &stats_.failed;
    return nullptr;
  };
  if (uint64_t* before = count(record.state)) --*before;
  if (uint64_t* now = count(state)) ++*now;
  record.state = state;
  changed_.NotifyAll();
}

void Client::RaiseAsyncError(uint64_t step, const Status& status) {
  stats_.last_error = static_cast<holdfast_code>(status.code());
  if (first_error_.ok()) first_error_ = status.WithContext(StepText(step));
  if (async_error_) {
    ++async_more_;
    return;
  }
  async_error_ = Outcome{status.WithContext(StepText(step)), true, step};
}

Outcome Client::TakeAsyncError() {
  if (!async_error_) return {};
  Outcome outcome = *std::exchange(async_error_, std::nullopt);
  if (uint32_t more = std::exchange(async_more_, 0); more > 0) {
    outcome.status = Status(outcome.status.code(), outcome.status.message() + " (and " +
                                                       std::to_string(more) + " more since)");
  }
  return outcome;
}

Status Client::RecordStatusLocked(uint64_t step, const SaveRecord& record, uint32_t tier,
                                  bool* known) {
  *known = true;
  if (tier == HOLDFAST_SEALED) {
    if (record.state == SaveState::kSealed) return Status::Ok();
  } else if (auto latest = latest_.find(tier);
             latest != latest_.end() && latest->second.step.value >= step &&
             latest->second.incarnation.value == stats_.incarnation) {
    // The agent reports only the newest commit, which implies that this step or a later one is
    // safe.
    return Status::Ok();
  }
  if (record.state == SaveState::kSkipped || record.state == SaveState::kFailed) {
    return record.status;
  }
  auto failure = record.tier_failures.find(tier);
  *known = failure != record.tier_failures.end() && failure->second.code() != ErrorCode::kAborted;
  return failure != record.tier_failures.end() ? failure->second : Status::Ok();
}

/// Requests that the agent take this version to the tier. Without the request, a version that is
/// superseded, or that no version follows, may never get there.
void Client::RequestTier(uint64_t step, uint32_t tier) {
  auto use = link_->Enter();
  if (!use) return;
  agent::EndSaveMessage message;
  message.header.type = agent::MessageType::kWantTier;
  message.slot = tier;
  message.step = step;
  static_cast<void>(link_->Send(*use, message));
}

Status Client::Wait(uint64_t step, uint32_t tier, uint64_t timeout_ms) {
  if (tier >= kTierNumbers) {
    return InvalidArgumentError("tier " + std::to_string(tier) + " does not exist");
  }
  MonotonicTime deadline = After(timeout_ms);
  bool requested = tier <= static_cast<uint32_t>(Tier::kMemory);  // every version gets there
  MutexLock lock(mutex_);
  for (;;) {
    auto found = records_.find(step);
    if (found == records_.end()) {
      return NotFoundError(StepText(step) + " was not saved by this client, or too long ago");
    }
    bool known = false;
    Status status = RecordStatusLocked(step, found->second, tier, &known);
    if (known) {
      // This call reports the failure, so the next save need not report it again.
      if (!status.ok() && async_error_ && async_error_->step == step) TakeAsyncError();
      return status;
    }
    if (!std::exchange(requested, true)) {
      mutex_.Unlock();
      RequestTier(step, tier);
      mutex_.Lock();
      continue;
    }
    auto left = deadline - MonotonicNow();
    if (left <= left.zero()) {
      if (!status.ok()) return status;  // superseded
      static constexpr const char* kStates[] = {"waits to be copied",
                                                "waits for a slot",
                                                "is being copied",
                                                "is copied",
                                                "is sealed",
                                                "",
                                                ""};
      if (found->second.state == SaveState::kSealed) {
        return DeadlineExceededError(
            StepText(step) + " did not reach tier " + std::string(ToString(Tier(tier))) + " in " +
            std::to_string(timeout_ms) + " ms: this rank's shard is sealed; `holdfast versions " +
            options_.job + "` shows what is missing");
      }
      return DeadlineExceededError(
          StepText(step) + " did not reach " +
          (tier == HOLDFAST_SEALED ? "its seal" : "tier " + std::string(ToString(Tier(tier)))) +
          " in " + std::to_string(timeout_ms) + " ms: it " +
          kStates[static_cast<size_t>(found->second.state)]);
    }
    changed_.WaitUntil(mutex_, std::min(deadline, NextStopCheck()));
    mutex_.Unlock();
    const bool stop = StopRequested();
    mutex_.Lock();
    if (stop) return CancelledError("the caller cancelled the wait");
  }
}

Result<VersionId> Client::Latest(Tier tier) {
  MutexLock lock(mutex_);
  auto found = latest_.find(static_cast<uint32_t>(tier));
  if (found == latest_.end()) {
    return Fail(NotFoundError("no commit at tier " + std::string(ToString(tier)) +
                              " is known to this client"));
  }
  return found->second;
}

const char* Client::Difference(size_t index) {
  if (!CheckProcess().ok()) return nullptr;
  MutexLock lock(mutex_);
  return index < differences_.size() ? differences_[index].c_str() : nullptr;
}

size_t Client::DifferenceCount() {
  if (!CheckProcess().ok()) return 0;
  MutexLock lock(mutex_);
  return differences_.size();
}

Status Client::Connection() {
  {
    MutexLock lock(mutex_);
    if (!fenced_.ok()) return fenced_;
  }
  return link_->status();
}

holdfast_stats Client::Stats() {
  bool connected = link_->status().ok();
  MutexLock lock(mutex_);
  holdfast_stats stats = stats_;
  stats.connected = connected ? 1 : 0;
  stats.records_dropped = collectives_->dropped();
  if (device_ != nullptr) stats.gather_below = device_->table().gather_below(device_->context());
  return stats;
}

// ---- closing -----------------------------------------------------------------------------------

std::string Client::UnsealedStepsLocked() {
  std::string steps;
  for (const auto& [step, record] : records_) {
    if (record.state > SaveState::kCopied) continue;
    steps += (steps.empty() ? "" : ", ") + std::to_string(step);
  }
  return steps;
}

bool Client::AwaitWorkerEnd() {
  if (!worker_.joinable() || !device_) return true;
  const MonotonicTime deadline = After(kDeviceGraceMs);
  MutexLock lock(mutex_);
  while (!worker_ended_ && MonotonicNow() < deadline) changed_.WaitUntil(mutex_, deadline);
  return worker_ended_;
}

Status Client::Close(uint64_t timeout_ms) {
  if (!link_) return Status::Ok();
  MonotonicTime deadline = After(timeout_ms);
  std::string unflushed;
  bool stop = false;  // the caller cancelled the wait
  {
    MutexLock lock(mutex_);
    for (;;) {
      unflushed = UnsealedStepsLocked();
      auto left = deadline - MonotonicNow();
      if (unflushed.empty() || left <= left.zero() || stop) break;
      changed_.WaitUntil(mutex_, std::min(deadline, NextStopCheck()));
      mutex_.Unlock();
      stop = StopRequested();
      mutex_.Lock();
    }
    stopping_ = true;
    changed_.NotifyAll();
  }
  link_->Interrupt();
  if (!AwaitWorkerEnd()) {
    worker_.detach();
    MutexLock lock(logging_);
    silent_ = true;
    abandoned_ = true;
    return DeadlineExceededError((unflushed.empty() ? "" : "not sealed: step " + unflushed + "; ") +
                                 "a GPU has not finished a copy (does it hang?), so the memory "
                                 "that it writes to is kept until this process ends");
  }
  if (worker_.joinable()) worker_.join();
  link_->Stop();
  link_.reset();
  MutexLock lock(mutex_);
  if (!first_error_.ok() && unflushed.empty()) return first_error_;
  if (unflushed.empty()) return Status::Ok();
  if (stop) return CancelledError("closed before it was sealed: step " + unflushed);
  return DeadlineExceededError("not sealed within " + std::to_string(timeout_ms) +
                               " ms and perhaps lost: step " + unflushed +
                               (first_error_.ok() ? "" : "; earlier: " + first_error_.ToString()));
}

// ---- from the link -----------------------------------------------------------------------------

void Client::OnConnected(uint64_t incarnation, bool first) {
  phases_.Republish();
  collectives_->Republish();
  {
    MutexLock lock(mutex_);
    stats_.incarnation = incarnation;
    if (!first) ++stats_.reconnects;
    if (std::exchange(mapping_is_new_, false)) unpopulated_ = 0;
    populate_at_ = MonotonicNow() + kPopulatePause;
    changed_.NotifyAll();
  }
  Log(HOLDFAST_LOG_INFO,
      (first ? "connected to the agent at " : "connected again to the agent at ") +
          options_.socket_path + ", incarnation " + std::to_string(incarnation));
}

void Client::OnDisconnected(const Status& reason) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  for (auto& [step, record] : records_) {
    if (record.state != SaveState::kCopied) continue;
    record.status = UnavailableError(
        "the connection to the agent was lost before the agent reported the shard as sealed (" +
        reason.message() + ")");
    SetState(record, SaveState::kFailed);
    RaiseAsyncError(step, record.status);
  }
}

void Client::OnNotice(const agent::NoticeMessage& notice) {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
  VersionId version{Incarnation{notice.incarnation}, Step{notice.step}};
  bool tier_known = IsTierNumber(notice.tier);
  auto found =
      notice.incarnation == stats_.incarnation ? records_.find(notice.step) : records_.end();
  SaveRecord* record = found == records_.end() ? nullptr : &found->second;
  switch (notice.kind) {
    case agent::NoticeKind::kSealed:
      if (record != nullptr) SetState(*record, SaveState::kSealed);
      break;
    case agent::NoticeKind::kCommitted: {
      if (!tier_known) break;
      VersionId& latest = latest_[notice.tier];
      latest = std::max(latest, version);
      if (notice.tier == HOLDFAST_TIER_MEMORY) ++stats_.committed_memory;
      if (notice.tier == HOLDFAST_TIER_DISK) ++stats_.committed_disk;
      if (record == nullptr) break;
      // A commit includes this rank's shard, even if the notice of its seal was lost.
      if (record->state == SaveState::kCopied || record->state == SaveState::kFailed) {
        SetState(*record, SaveState::kSealed);
      }
      break;
    }
    case agent::NoticeKind::kFailed: {
      Status status(ErrorFromNumber(notice.code), agent::GetText(notice.text));
      bool superseded = status.code() == ErrorCode::kAborted;
      if (superseded) ++stats_.superseded;
      if (record != nullptr) {
        record->tier_failures.insert_or_assign(notice.tier, status);
        // A farther tier may fail before the notice of the seal arrives. That does not fail the
        // save.
        if (record->state == SaveState::kCopied && notice.tier <= HOLDFAST_TIER_MEMORY) {
          record->status = status;
          SetState(*record, SaveState::kFailed);
        }
      }
      if (!superseded) RaiseAsyncError(notice.step, status);
      break;
    }
    case agent::NoticeKind::kFenced:
      fenced_ = FencedError("a newer start of job " + options_.job +
                            " is running; this process must stop: " + agent::GetText(notice.text));
      break;
    case agent::NoticeKind::kSlotFree:
    case agent::NoticeKind::kReserving:
      break;
  }
}

void Client::OnMapped(std::byte* base, uint64_t bytes) {
  auto& control = *reinterpret_cast<agent::SegmentControl*>(base);
  phases_.Attach(control);
  collectives_->Attach(control);
  if (device_) {
    const Status pinned = device_->Pin(base, bytes);
    if (pinned.ok()) {
      pinned_ = base;  // pinning has populated all pages
      return;
    }
    Log(HOLDFAST_LOG_WARN, "slots are not pinned, device copies will be slow: " + pinned.message());
  }
  mapping_is_new_ = true;
}

void Client::OnUnmapping(std::byte* base) {
  phases_.Detach();
  collectives_->Detach();
  if (device_ && pinned_ == base) device_->Unpin(std::exchange(pinned_, nullptr));
}

void Client::OnLog(int level, const std::string& text) { Log(level, text); }

}  // namespace holdfast::client
