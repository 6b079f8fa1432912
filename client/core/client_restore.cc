// Restore: the agent chooses the version and provides it in a slot; this side copies it into the
// tensors.

#include <algorithm>
#include <thread>
#include <utility>

#include "base/tiers.h"
#include "client/core/client.h"

namespace holdfast::client {
/// While one exists, the worker does not populate the mapping.
class Client::LoadInProgress {
 public:
  explicit LoadInProgress(Client& client) : client_(client) {
    MutexLock lock(client_.mutex_);
    ++client_.loads_;
  }
  ~LoadInProgress() {
    MutexLock lock(client_.mutex_);
    --client_.loads_;
    client_.populate_at_ = MonotonicNow() + kPopulatePause;
    client_.changed_.NotifyAll();
  }
  LoadInProgress(const LoadInProgress&) = delete;
  LoadInProgress& operator=(const LoadInProgress&) = delete;

 private:
  Client& client_;
};

Result<RestoredState> Client::Restore(std::optional<VersionId> wanted, uint64_t timeout_ms) {
  MonotonicTime deadline = After(timeout_ms);
  MutexLock one(restoring_);
  {
    MutexLock lock(mutex_);
    differences_.clear();
    while (!tasks_.empty()) {
      auto left = deadline - MonotonicNow();
      if (left <= left.zero()) {
        return Fail(DeadlineExceededError(
            "nothing was restored: an earlier save is still copying the tensors"));
      }
      changed_.WaitUntil(mutex_, std::min(deadline, NextStopCheck()));
      mutex_.Unlock();
      const bool stop = StopRequested();
      mutex_.Lock();
      if (stop) return Fail(CancelledError("the caller cancelled the wait"));
    }
  }
  for (;;) {
    HOLDFAST_RETURN_IF_ERROR(link_->AwaitConnected(deadline));
    bool again = false;
    auto restored = RestoreOnce(wanted, deadline, &again);
    if (restored || !again || MonotonicNow() + kRetryPause >= deadline) return restored;
    Log(HOLDFAST_LOG_WARN, "trying the restore again after " + restored.error().ToString());
    std::this_thread::sleep_for(kRetryPause);
  }
}

Result<RestoredState> Client::RestoreOnce(std::optional<VersionId> wanted, MonotonicTime deadline,
                                          bool* again) {
  auto use = link_->Enter();
  if (!use) {
    *again = use.error().code() == ErrorCode::kUnavailable;
    return Fail(use.error());
  }
  agent::FindRestoreMessage find;
  if (wanted) {
    find.wanted_incarnation = wanted->incarnation.value;
    find.wanted_step = wanted->step.value;
  }
  find.timeout_ms = std::max<uint64_t>(MillisecondsUntil(deadline), 1);
  auto reply = link_->Call(*use, find, deadline + kAnswerSlack);
  if (!reply) {
    *again = reply.error().code() == ErrorCode::kUnavailable;
    return Fail(reply.error());
  }
  if (reply->code != 0) {
    Status status = StatusOf(*reply);
    *again = status.code() == ErrorCode::kUnavailable;
    return Fail(status);
  }
  auto restored = RestoreSlot(*use, *reply, again);
  agent::EndSaveMessage end;
  end.header.type = agent::MessageType::kEndRestore;
  end.slot = reply->slot;
  end.step = reply->step;
  static_cast<void>(link_->Send(*use, end));
  return restored;
}

Result<std::unique_ptr<VersionReader>> Client::OpenReader(std::optional<VersionId> wanted,
                                                          uint64_t timeout_ms) {
  MutexLock one(restoring_);
  const LoadInProgress load(*this);
  return VersionReader::Open(*link_, options_, wanted, After(timeout_ms));
}

Status Client::ListVersion(VersionReader& reader, uint64_t timeout_ms) {
  const LoadInProgress load(*this);
  return reader.List(After(timeout_ms));
}

Result<const holdfast_reader_info*> Client::ListTensors(VersionReader& reader,
                                                        uint64_t timeout_ms) {
  const LoadInProgress load(*this);
  return reader.Tensors(After(timeout_ms));
}

Result<holdfast_extra> Client::ReadExtra(VersionReader& reader, Rank rank, const char* name,
                                         uint64_t timeout_ms) {
  const LoadInProgress load(*this);
  return reader.Extra(rank, name, After(timeout_ms));
}

Status Client::LoadTensors(VersionReader& reader, const StateDescription& wanted,
                           uint64_t timeout_ms) {
  const LoadInProgress load(*this);
  std::vector<std::string> differences;
  Status status = reader.Load(wanted, After(timeout_ms), &differences);
  MutexLock lock(mutex_);
  differences_ = std::move(differences);
  return status;
}

Status Client::CheckImage(const ParsedImage& image, const agent::ReplyMessage& reply) {
  VersionId version{Incarnation{reply.incarnation}, Step{reply.step}};
  const ShardIdentity& saved = image.identity;
  if (saved.job != options_.job || saved.rank.value != options_.rank || saved.version != version) {
    return InternalError("requested " +
                         ToString(ShardKey{options_.job, version, Rank{options_.rank}}) +
                         ", but the agent provided " + ToString(saved.key()));
  }
  if (saved.world != options_.world) {
    return InvalidArgumentError(
        "version " + ToString(version) + " was saved by a world of " + std::to_string(saved.world) +
        " ranks, but this world has " + std::to_string(options_.world) +
        ": load it through a reader (holdfast_reader_open), or start the job with " +
        std::to_string(saved.world) + " ranks");
  }
  if (image.has_expected) return Status::Ok();
  std::vector<std::string> differences = DescribeDifferences(image.tensors, state_.specs);
  if (differences.empty()) return Status::Ok();
  Status status = InvalidArgumentError(
      "version " + ToString(version) + " does not fit the described state, nothing was restored; " +
      std::to_string(differences.size()) + " differences: " + JoinDefects(differences));
  MutexLock lock(mutex_);
  differences_ = std::move(differences);
  return status;
}

Result<RestoredState> Client::RestoreSlot(const AgentLink::Use& use,
                                          const agent::ReplyMessage& reply, bool* again) {
  const SegmentMapping& segment = use.segment();
  if (reply.slot >= segment.slots() || reply.image_bytes > segment.slot(reply.slot).size() ||
      reply.image_bytes < 8 || !IsTierNumber(reply.tier)) {
    return Fail(InternalError("the agent offers slot " + std::to_string(reply.slot) + " with " +
                              std::to_string(reply.image_bytes) + " bytes from tier " +
                              std::to_string(reply.tier)));
  }
  std::span<const std::byte> bytes = segment.slot(reply.slot).first(reply.image_bytes);
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t header_bytes, HeaderBytes(bytes.first(8), bytes.size()));
  HOLDFAST_ASSIGN_OR_RETURN(ParsedImage image,
                            ParseImage(bytes.first(header_bytes), bytes.size(), &layout_));
  HOLDFAST_RETURN_IF_ERROR(CheckImage(image, reply));
  // From here on the tensors change, so a failure leaves a mixture.
  std::span<const std::byte> data = bytes.subspan(image.data_offset);
  // The plan of a save is also that of a restore of the same tensors.
  const CopyPlan other =
      image.has_expected ? CopyPlan{} : PlanRestore(image, state_.specs, state_.memory);
  const CopyPlan& plan = image.has_expected ? plan_ : other;
  RestoredState restored{.version = image.identity.version,
                         .tier = static_cast<Tier>(reply.tier),
                         .bytes = data.size(),
                         .extras = {}};
  for (const PlacedExtra& extra : image.extras) {
    auto* from = reinterpret_cast<const char*>(data.data() + extra.begin);
    restored.extras.push_back({extra.name, std::string(from, extra.bytes())});
  }
  const LoadInProgress load(*this);
  Status copied =
      CopyOut(plan, data, device_.get(), options_.copy_threads, [&] { return use.alive(); });
  if (copied.code() == ErrorCode::kCancelled) {
    *again = true;
    copied = UnavailableError(
        "the connection to the agent was lost during the restore: the tensors hold a mixture until "
        "a restore succeeds");
  }
  if (!copied.ok()) return Fail(copied);
  return restored;
}

}  // namespace holdfast::client
