// The worker: takes saves in order, requests a slot from the agent, copies, and sends EndSave.

#include <exception>
#include <utility>

#include "client/core/client.h"

namespace holdfast::client {
namespace {
constexpr uint64_t kIdleWaitMs = 60'000;
}  // namespace

void Client::RunWorker() {
  for (;;) {
    SaveTask* task = nullptr;
    uint64_t populate_from = 0;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) {
        const bool may_populate = unpopulated_ && loads_ == 0;
        if (may_populate && MonotonicNow() >= populate_at_) break;
        changed_.WaitUntil(mutex_, may_populate ? populate_at_ : After(kIdleWaitMs));
      }
      if (tasks_.empty() && stopping_) {
        worker_ended_ = true;
        changed_.NotifyAll();
        return;
      }
      if (tasks_.empty()) {
        populate_from = *std::exchange(unpopulated_, std::nullopt);
      } else {
        task = &tasks_.front();
      }
    }
    if (task == nullptr) {
      Populate(populate_from);
      continue;
    }
    try {
      RunTask(*task);
    } catch (const std::exception& error) {
      Finish(*task, SaveState::kFailed,
             ResourceExhaustedError(std::string("no memory for a save: ") + error.what()), true);
    }
    // Removed from the list first, so that no guard finds the copy while it is being destroyed.
    std::list<SaveTask> done;
    {
      MutexLock lock(mutex_);
      done.splice(done.begin(), tasks_, tasks_.begin());
      --stats_.pending;
      changed_.NotifyAll();
    }
  }
}

void Client::Populate(uint64_t from) {
  auto use = link_->Enter();
  if (!use) return;
  const uint64_t done = use->segment().Populate(from);
  if (done == use->segment().bytes()) return;
  MutexLock lock(mutex_);
  // Keeps the offset of a new mapping that OnConnected has set meanwhile.
  if (!unpopulated_) unpopulated_ = done;
}

void Client::Finish(const SaveTask& task, SaveState state, const Status& status, bool raise) {
  std::string text;
  {
    MutexLock lock(mutex_);
    SaveRecord& record = records_[task.step];
    // OnDisconnected may already have failed the save, or a commit may have shown that it is safe.
    if (record.state == SaveState::kFailed || record.state == SaveState::kSealed) return;
    record.status = status;
    SetState(record, state);
    if (status.code() == ErrorCode::kFenced) fenced_ = status;
    if (raise) RaiseAsyncError(task.step, status);
    text = "step " + std::to_string(task.step) + " is not saved: " + status.ToString();
  }
  Log(raise ? HOLDFAST_LOG_WARN : HOLDFAST_LOG_DEBUG, text);
}

void Client::RunTask(SaveTask& task) {
  auto use = link_->Enter();
  if (!use) return Finish(task, SaveState::kFailed, use.error(), true);
  std::vector<ExtraSize> sizes;
  uint64_t image_bytes = plan_.tensor_bytes;
  for (const ExtraBytes& extra : task.extras) {
    sizes.push_back({extra.name, extra.bytes.size()});
    image_bytes += extra.bytes.size();
  }
  ShardIdentity identity{
      .job = options_.job,
      .version = {.incarnation = Incarnation{use->incarnation()}, .step = Step{task.step}},
      .rank = Rank{options_.rank},
      .world = options_.world};
  auto header = layout_.RenderHeader(identity, sizes);
  if (!header) return Finish(task, SaveState::kFailed, header.error(), true);
  image_bytes += header->size();

  auto slot = LeaseSlot(task, *use, image_bytes);
  if (!slot) return;
  // From here on the slot is leased: every path sends EndSave or AbandonSave.
  Status copied = CopyInto(task, *use, *slot, *header);
  if (copied.code() == ErrorCode::kCancelled && !use->alive()) {
    copied = UnavailableError(
        "the connection to the agent was lost while the tensors were being copied");
  }
  if (copied.ok()) {
    {
      MutexLock lock(mutex_);
      ++stats_.copied;
      stats_.bytes_copied += image_bytes;
      SetState(records_[task.step], SaveState::kCopied);
    }
    agent::EndSaveMessage end;
    end.slot = *slot;
    end.step = task.step;
    copied = link_->Send(*use, end);
    if (copied.ok()) return;
  } else {
    agent::EndSaveMessage abandon;
    abandon.header.type = agent::MessageType::kAbandonSave;
    abandon.slot = *slot;
    abandon.step = task.step;
    static_cast<void>(link_->Send(*use, abandon));
  }
  Finish(task, SaveState::kFailed, copied, true);
}

Result<uint32_t> Client::LeaseSlot(SaveTask& task, const AgentLink::Use& use,
                                   uint64_t image_bytes) {
  {
    MutexLock lock(mutex_);
    if (!task.cancelled) SetState(records_[task.step], SaveState::kRequesting);
  }
  agent::BeginSaveMessage begin;
  begin.step = task.step;
  begin.image_bytes = image_bytes;
  begin.wait = task.wait_ms > 0 ? 1 : 0;
  begin.wait_ms = task.wait_ms;
  begin.skipping = 1;
  auto reply = link_->Call(use, begin, After(uint64_t{options_.agent_timeout_ms} + begin.wait_ms));
  // A save that merely found no slot is skipped, not failed, and raises no asynchronous error.
  Status status;
  SaveState state = SaveState::kFailed;
  bool raise = true;
  if (!reply) {
    status = reply.error();
    if (status.code() == ErrorCode::kDeadlineExceeded) {
      status = UnavailableError("not saved: " + status.message());
      state = SaveState::kSkipped;
    }
  } else if (reply->code != 0) {
    status = StatusOf(*reply);
    if (status.code() == ErrorCode::kResourceExhausted) {
      state = SaveState::kSkipped;
      raise = false;
    }
  } else if (reply->slot >= use.segment().slots() ||
             image_bytes > use.segment().slot(reply->slot).size()) {
    status = InternalError("the agent granted slot " + std::to_string(reply->slot) + " of " +
                           std::to_string(use.segment().slots()));
  } else {
    MutexLock lock(mutex_);
    if (!task.cancelled) {
      task.granted = true;
      SetState(records_[task.step], SaveState::kCopying);
      return reply->slot;
    }
    status = UnavailableError("not saved: the agent granted a slot too late");
    state = SaveState::kSkipped;
  }
  // A slot that was granted but is not used goes back to the agent.
  if (reply && reply->code == 0) {
    agent::EndSaveMessage abandon;
    abandon.header.type = agent::MessageType::kAbandonSave;
    abandon.slot = reply->slot;
    abandon.step = task.step;
    static_cast<void>(link_->Send(use, abandon));
  }
  Finish(task, state, status, raise);
  return Fail(status);
}

Status Client::CopyInto(SaveTask& task, const AgentLink::Use& use, uint32_t slot,
                        const std::string& header) {
  agent::SlotProgress& progress = use.segment().progress(slot);
  MonotonicTime start = MonotonicNow();
  Status status = task.copy->Run({
      .header = header,
      .extras = task.extras,
      .slot = use.segment().slot(slot),
      .progress = [&](uint64_t copied) { agent::PublishProgress(progress, copied); },
      .alive = [&] { return use.alive(); },
      .released =
          [&] {
            MutexLock lock(mutex_);
            task.released = true;
            changed_.NotifyAll();
          },
  });
  MutexLock lock(mutex_);
  stats_.copy_ns += static_cast<uint64_t>((MonotonicNow() - start).count());
  return status;
}

}  // namespace holdfast::client
