#include "cli/cluster/agent_client.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/cluster/rpc.h"
#include "cli/core/interrupt.h"
#include "storage/format/chunk.h"

namespace holdfast::cli {

namespace {

constexpr const char* kAgentHint = "is holdfast-agent running there?";
/// The read rate of the slowest device that a deep check is expected to read.
constexpr uint64_t kSlowBytesPerMs = 20'000;

/// Checks the pieces of one stream and passes them to the sink.
class PieceChecker {
 public:
  PieceChecker(const ShardKey& key, const agent::ReadShardRequest& request, const std::string& peer,
               ShardSink& sink)
      : key_(key),
        peer_(peer),
        sink_(sink),
        next_(request.offset()),
        end_(request.offset() + request.bytes()) {}

  Status Take(const agent::ShardPiece& piece) {
    if (!piece.seal().empty()) HOLDFAST_RETURN_IF_ERROR(TakeSeal(piece.seal()));
    if (!begun_) return Damage("the stream does not begin with a seal");
    if (piece.data().empty()) return Status::Ok();
    if (next_ >= end_) return Damage("the stream continues after its end");
    uint64_t chunk = next_ / kChunkBytes;
    uint64_t expected = std::min(kChunkBytes, seal_.image_bytes - next_);
    if (piece.offset() != next_ || piece.data().size() != expected) {
      return Damage(fmt::format("expected {} bytes at {}, got {} at {}", expected, next_,
                                piece.data().size(), piece.offset()));
    }
    auto bytes = std::as_bytes(std::span(piece.data()));
    if (!IsChunk(seal_, chunk, bytes)) return BadChunkError(seal_, chunk, "from " + peer_);
    next_ += expected;
    return sink_.Chunk(piece.offset(), bytes);
  }

  Status End() {
    if (!begun_) return Damage("the stream ended before its seal");
    if (next_ >= end_) return Status::Ok();
    return Damage(fmt::format("the stream ended at {} of {} bytes", next_, end_));
  }

 private:
  Status TakeSeal(const std::string& bytes) {
    if (begun_) return Damage("the stream has a second seal");
    Result<ShardSeal> seal = DecodeSeal(std::as_bytes(std::span(bytes)));
    if (!seal) return seal.error().WithContext(ToString(key_) + " from " + peer_);
    if (seal->identity.key() != key_)
      return Damage("the agent sent " + ToString(seal->identity.key()) + " instead");
    seal_ = *std::move(seal);
    if (end_ > seal_.image_bytes) {
      return Damage(
          fmt::format("the image has {} bytes, {} were expected", seal_.image_bytes, end_));
    }
    begun_ = true;
    return sink_.Begin(seal_);
  }

  Status Damage(const std::string& what) const {
    return DataLossError(ToString(key_) + " from " + peer_ + ": " + what);
  }

  const ShardKey& key_;
  const std::string& peer_;
  ShardSink& sink_;
  ShardSeal seal_;
  uint64_t next_;
  const uint64_t end_;
  bool begun_ = false;
};

/// Fills in the fields that read and verify requests share.
template <typename Request>
Request RequestOf(const ShardKey& key, Tier tier) {
  Request request;
  request.set_job(key.job);
  request.set_incarnation(key.version.incarnation.value);
  request.set_step(key.version.step.value);
  request.set_rank(key.rank.value);
  request.set_tier(static_cast<uint32_t>(tier));
  return request;
}

}  // namespace

Result<AgentClient> AgentClient::Open(const std::string& name, const std::string& address,
                                      const GlobalOptions& options, const Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(auto channel, OpenChannel(address, options));
  return AgentClient(agent::Agent::NewStub(channel), "the agent of node " + name + " at " + address,
                     options.timeout_ms, clock);
}

Status AgentClient::ReadPart(const ShardKey& key, Tier tier, uint64_t offset, uint64_t bytes,
                             ShardSink& sink) const {
  auto request = RequestOf<agent::ReadShardRequest>(key, tier);
  request.set_part(true);
  request.set_offset(offset);
  request.set_bytes(bytes);
  return RetryBusy([&](bool* busy) { return ReadOnce(key, request, sink, busy); });
}

Status AgentClient::ReadOnce(const ShardKey& key, const agent::ReadShardRequest& request,
                             ShardSink& sink, bool* busy) const {
  PieceChecker checker(key, request, peer_, sink);
  HOLDFAST_ASSIGN_OR_RETURN(
      const StreamEnd end,
      ReadStream<agent::ShardPiece>(
          timeout_ms_, *clock_,
          [&](grpc::ClientContext* call) { return stub_->ReadShard(call, request); },
          [&](const agent::ShardPiece& piece) { return checker.Take(piece); }));
  const grpc::Status& finished = end.finished;
  Status status = FromTransport(finished, peer_, timeout_ms_, kAgentHint);
  // Error details come from the agent itself: it refused the read because it is busy.
  bool refused = status.code() == ErrorCode::kUnavailable && !finished.error_details().empty();
  *busy = !end.any && (refused || IsSlowHandshake(finished));
  HOLDFAST_RETURN_IF_ERROR(status);
  return checker.End();
}

Status AgentClient::VerifyShard(const ShardKey& key, Tier tier, bool deep, uint64_t image_bytes,
                                uint64_t* digest) const {
  auto request = RequestOf<agent::VerifyShardRequest>(key, tier);
  request.set_deep(deep);
  int64_t timeout_ms =
      timeout_ms_ + (deep ? static_cast<int64_t>(image_bytes / kSlowBytesPerMs) : 0);
  return RetryBusy([&](bool* busy) -> Status {
    grpc::ClientContext call;
    SilenceGuard guard(call, timeout_ms, *clock_);
    OnInterrupt cancel([&call] { call.TryCancel(); });
    agent::VerifyShardReply reply;
    grpc::Status finished = stub_->VerifyShard(&call, request, &reply);
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    if (guard.expired()) finished = {grpc::StatusCode::DEADLINE_EXCEEDED, "silent"};
    *busy = IsSlowHandshake(finished);
    HOLDFAST_RETURN_IF_ERROR(FromTransport(finished, peer_, timeout_ms, kAgentHint));
    if (digest != nullptr) *digest = reply.digest();
    if (reply.code() == 0) return Status::Ok();
    Status status(ErrorFromNumber(reply.code()), reply.message());
    *busy = status.code() == ErrorCode::kUnavailable;
    return status;
  });
}

Status AgentClient::RetryBusy(const std::function<Status(bool*)>& attempt) const {
  Clock::TimePoint until = clock_->Now() + std::chrono::milliseconds(timeout_ms_);
  while (true) {
    bool busy = false;
    Status status = attempt(&busy);
    if (!busy || clock_->Now() >= until) return status;
    HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(kRetryPauseMs));
  }
}

Result<std::string> AgentClient::ReadWorkerLog(const std::string& job, const std::string& run_id,
                                               Rank rank, uint64_t offset) const {
  agent::ReadWorkerLogRequest request;
  request.set_job(job);
  request.set_run_id(run_id);
  request.set_rank(rank.value);
  request.set_offset(offset);
  agent::ReadWorkerLogReply reply;
  grpc::ClientContext call;
  SilenceGuard guard(call, timeout_ms_, *clock_);
  OnInterrupt cancel([&call] { call.TryCancel(); });
  HOLDFAST_RETURN_IF_ERROR(
      FromTransport(stub_->ReadWorkerLog(&call, request, &reply), peer_, timeout_ms_, kAgentHint));
  if (reply.code() != 0) return Fail(Status(ErrorFromNumber(reply.code()), reply.message()));
  return reply.data();
}

Result<std::string> AgentClient::Dump() const {
  agent::DumpReply reply;
  Status sent = RetryBusy([&](bool* busy) -> Status {
    grpc::ClientContext call;
    SilenceGuard guard(call, timeout_ms_, *clock_);
    OnInterrupt cancel([&call] { call.TryCancel(); });
    grpc::Status finished = stub_->Dump(&call, agent::DumpRequest(), &reply);
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    if (guard.expired()) finished = {grpc::StatusCode::DEADLINE_EXCEEDED, "silent"};
    *busy = IsSlowHandshake(finished);
    return FromTransport(finished, peer_, timeout_ms_, kAgentHint);
  });
  HOLDFAST_RETURN_IF_ERROR(sent);
  return reply.json();
}

}  // namespace holdfast::cli
