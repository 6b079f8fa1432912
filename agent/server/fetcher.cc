#include "agent/server/fetcher.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <thread>

#include "agent/api/agent.grpc.pb.h"
#include "base/clock.h"
#include "base/endpoint.h"
#include "base/mutex.h"
#include "coordinator/api/convert.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

// When the other agent sends nothing for this long, because it is stopped or cut off, the call is
// cancelled. Otherwise the thread that waits for the data would wait for ever.
constexpr std::chrono::seconds kStall(40);
constexpr size_t kChannelsMax = 1024;

/// Cancels a call that makes no progress for kStall. Has a thread and lives as long as the call.
class StallGuard {
 public:
  explicit StallGuard(grpc::ClientContext& context)
      : context_(context), thread_([this] { Run(); }) {}
  ~StallGuard() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  void Progress() {
    MutexLock lock(mutex_);
    deadline_ = Clock::Real().Now() + kStall;
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    for (;;) {
      const auto left = deadline_ - Clock::Real().Now();
      if (stopping_) return;
      if (left <= Clock::Duration::zero()) break;
      changed_.WaitFor(mutex_, left);
    }
    context_.TryCancel();
  }

  grpc::ClientContext& context_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Clock::TimePoint deadline_ HOLDFAST_GUARDED_BY(mutex_) = Clock::Real().Now() + kStall;
  std::thread thread_;
};

class GrpcShardStream final : public ShardStream {
 public:
  GrpcShardStream(std::string address, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)),
        channel_(std::move(channel)),
        stub_(Agent::NewStub(channel_)),
        guard_(context_) {}
  ~GrpcShardStream() override {
    context_.TryCancel();
    if (reader_ != nullptr) reader_->Finish();
  }

  struct Part {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  Status Begin(const ShardKey& key, Tier tier, std::optional<Part> part = std::nullopt) {
    ReadShardRequest request;
    if (part) {
      request.set_part(true);
      request.set_offset(part->offset);
      request.set_bytes(part->bytes);
    }
    request.set_job(key.job);
    request.set_incarnation(key.version.incarnation.value);
    request.set_step(key.version.step.value);
    request.set_rank(key.rank.value);
    request.set_tier(static_cast<uint32_t>(tier));
    reader_ = stub_->ReadShard(&context_, request);
    if (!reader_->Read(&piece_)) return Ended();
    auto seal = DecodeSeal(std::as_bytes(std::span(piece_.seal())));
    if (!seal) return seal.error().WithContext("seal from " + address_);
    seal_ = *std::move(seal);
    guard_.Progress();
    return Status::Ok();
  }

  const ShardSeal& seal() const override { return seal_; }

  Status ReadInto(std::span<std::byte> into,
                  const std::function<void(uint64_t)>& progress) override {
    if (into.size() < seal_.image_bytes) {
      return InvalidArgumentError(
          fmt::format("an image of {} bytes does not fit into {}", seal_.image_bytes, into.size()));
    }
    return ReadChunks(0, into.first(seal_.image_bytes), progress);
  }

  /// Reads the image bytes from `offset` on, which must be the start of a chunk; `into` must end at
  /// the end of a chunk.
  Status ReadChunks(uint64_t offset, std::span<std::byte> into,
                    const std::function<void(uint64_t)>& progress) {
    uint64_t done = 0;
    for (uint64_t chunk = offset / kChunkBytes; done < into.size(); ++chunk) {
      if (piece_.data().empty() && !reader_->Read(&piece_)) return Ended();
      const std::span<const std::byte> data = std::as_bytes(std::span(piece_.data()));
      const uint64_t expected = std::min<uint64_t>(kChunkBytes, into.size() - done);
      if (piece_.offset() != offset + done || data.size() != expected) {
        return DataLossError(fmt::format("{} sent {} bytes at offset {} instead of {} at {}",
                                         address_, data.size(), piece_.offset(), expected,
                                         offset + done));
      }
      if (chunk >= seal_.chunk_crcs.size()) {
        return InvalidArgumentError(
            fmt::format("the shard of {} has no chunk {}", address_, chunk));
      }
      if (Crc32c(data) != seal_.chunk_crcs[chunk]) {
        return DataLossError(fmt::format("chunk {} of {} from {} does not match its checksum",
                                         chunk, ToString(seal_.identity.key()), address_));
      }
      std::memcpy(into.data() + done, data.data(), data.size());
      done += data.size();
      guard_.Progress();
      piece_.Clear();
      if (progress) progress(done);
    }
    return Status::Ok();
  }

 private:
  Status Ended() {
    const grpc::Status finished = reader_->Finish();
    reader_.reset();
    if (finished.error_code() == grpc::StatusCode::CANCELLED) {
      return UnavailableError(fmt::format("{} sent nothing for {} s", address_, kStall.count()));
    }
    if (finished.ok()) return DataLossError(address_ + " ended the shard before its last chunk");
    return coord::FromGrpc(finished, address_);
  }

  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;  // gRPC's own ownership model
  std::unique_ptr<Agent::Stub> stub_;
  grpc::ClientContext context_;
  StallGuard guard_;
  std::unique_ptr<grpc::ClientReader<ShardPiece>> reader_;
  ShardPiece piece_;
  ShardSeal seal_;
};

}  // namespace

Result<std::shared_ptr<grpc::Channel>> GrpcShardFetcher::ChannelTo(const std::string& address) {
  MutexLock lock(mutex_);
  auto known = channels_.find(address);
  if (known != channels_.end()) return known->second;
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(address));
  HOLDFAST_ASSIGN_OR_RETURN(auto channel,
                            coord::MakeChannel(endpoint, tls_, coord::kDataMessageBytesMax));
  if (channels_.size() >= kChannelsMax) channels_.clear();
  channels_[address] = channel;
  return channel;
}

Result<ShardSeal> GrpcShardFetcher::ReadRange(const std::string& address, const ShardKey& key,
                                              Tier tier, uint64_t offset,
                                              std::span<std::byte> into) {
  HOLDFAST_ASSIGN_OR_RETURN(auto channel, ChannelTo(address));
  GrpcShardStream stream(address, std::move(channel));
  HOLDFAST_RETURN_IF_ERROR(stream.Begin(key, tier, GrpcShardStream::Part{offset, into.size()}));
  if (stream.seal().identity.key() != key) {
    return Fail(
        DataLossError(address + " sent the seal of " + ToString(stream.seal().identity.key())));
  }
  HOLDFAST_RETURN_IF_ERROR(stream.ReadChunks(offset, into, {}));
  return stream.seal();
}

Result<std::unique_ptr<ShardStream>> GrpcShardFetcher::Open(const std::string& address,
                                                            const ShardKey& key, Tier tier) {
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(address));
  HOLDFAST_ASSIGN_OR_RETURN(auto channel,
                            coord::MakeChannel(endpoint, tls_, coord::kDataMessageBytesMax));
  auto stream = std::make_unique<GrpcShardStream>(address, std::move(channel));
  HOLDFAST_RETURN_IF_ERROR(stream->Begin(key, tier));
  return stream;
}

}  // namespace holdfast::agent
