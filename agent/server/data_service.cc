#include "agent/server/data_service.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "agent/pipeline/rank_status.h"
#include "base/log.h"
#include "coordinator/api/convert.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

// Concurrent calls that read complete shards; each has a few MiB in flight.
constexpr int kCallsMax = 6;
// Parts are small, and many ranks request theirs at once. Therefore calls for parts wait for a free
// place, for at most kPartWait.
constexpr int kPartsAtOnce = 8;
constexpr std::chrono::seconds kPartWait(10);
/// Each waiting call occupies a thread; readers beyond this number wait in the client and retry.
constexpr int kPartsWaitingMax = 32;
constexpr int kRetryAfterMs = 500;
constexpr size_t kLogPieceBytes = 256 << 10;

template <typename Request>
Result<ShardKey> KeyOf(const Request& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", request.job()));
  if (request.incarnation() == 0) {
    return Fail(InvalidArgumentError("a version needs an incarnation from 1"));
  }
  if (!RankInWorld(Rank{request.rank()}, kWorldMax)) {
    return Fail(
        InvalidArgumentError(fmt::format("rank {} is not below {}", request.rank(), kWorldMax)));
  }
  return ShardKey{request.job(),
                  {Incarnation{request.incarnation()}, Step{request.step()}},
                  Rank{request.rank()}};
}

Result<Tier> LocalTier(uint32_t number) {
  HOLDFAST_ASSIGN_OR_RETURN(const Tier tier, coord::TierFromNumber(number));
  if (tier == Tier::kMemory || tier == Tier::kDisk) return tier;
  return Fail(
      InvalidArgumentError(fmt::format("an agent keeps shards at tiers memory and disk, not "
                                       "at tier {}",
                                       ToString(tier))));
}

class CallCount {
 public:
  explicit CallCount(std::atomic<int>& running) : running_(running), mine_(++running) {}
  ~CallCount() { --running_; }
  CallCount(const CallCount&) = delete;
  CallCount& operator=(const CallCount&) = delete;
  Status Check() const {
    if (mine_ <= kCallsMax) return Status::Ok();
    return UnavailableError(
        fmt::format("{} shards are being read from this agent already; try again", kCallsMax));
  }

 private:
  std::atomic<int>& running_;
  int mine_;
};

Status ReaderDisconnected() { return CancelledError("the reader has disconnected"); }

Status SendSeal(ShardSeal seal, grpc::ServerWriter<ShardPiece>* writer) {
  // Readers need only the image, not how this volume splits it into parts.
  seal.parts.clear();
  seal.image_header.clear();
  ShardPiece piece;
  piece.set_seal(EncodeSeal(seal));
  return writer->Write(piece) ? Status::Ok() : ReaderDisconnected();
}

Status SendChunk(uint64_t offset, std::span<const std::byte> chunk,
                 grpc::ServerWriter<ShardPiece>* writer) {
  ShardPiece piece;
  piece.set_offset(offset);
  piece.set_data(chunk.data(), chunk.size());
  return writer->Write(piece) ? Status::Ok() : ReaderDisconnected();
}

std::string_view NameOf(SlotState state) {
  switch (state) {
    case SlotState::kFree:
      return "free";
    case SlotState::kLeased:
      return "leased";
    case SlotState::kSealed:
      return "sealed";
  }
  return "unknown";
}

nlohmann::json Describe(const TcpPeerServer* peers) {
  if (peers == nullptr) return nullptr;
  const PeerServerCounters& counters = peers->counters();
  const auto yielded = std::chrono::duration_cast<std::chrono::milliseconds>(peers->yielded());
  return {{"address", peers->address()},
          {"connections", counters.connections.load()},
          {"refused", counters.refused.load()},
          {"rejected", counters.rejected.load()},
          {"streams", counters.streams.load()},
          {"data_bytes", counters.data_bytes.load()},
          {"frame_bytes", counters.frame_bytes.load()},
          {"yielded_ms", yielded.count()}};
}

}  // namespace

DataService::DataService(Node& node, Volume& volume, Arena& arena, const std::string& node_name)
    : node_(node), volume_(volume), arena_(arena), node_name_(node_name) {}

grpc::Status DataService::ReadShard(grpc::ServerContext* /*context*/,
                                    const ReadShardRequest* request,
                                    grpc::ServerWriter<ShardPiece>* writer) {
  auto key = KeyOf(*request);
  if (!key) return coord::ToGrpc(key.error());
  auto tier = LocalTier(request->tier());
  if (!tier) return coord::ToGrpc(tier.error());
  if (request->part()) return coord::ToGrpc(SendPart(*key, *tier, *request, writer));
  CallCount count(running_);
  Status status = count.Check();
  if (!status.ok()) return coord::ToGrpc(status);
  status = *tier == Tier::kMemory ? SendFromMemory(*key, writer) : SendFromDisk(*key, writer);
  if (!status.ok() && status.code() != ErrorCode::kCancelled) {
    Log(LogLevel::kWarn, "ShardNotSent",
        {Kv("shard", ToString(*key)), Kv("error", status.ToString())});
  }
  return coord::ToGrpc(status);
}

Status DataService::SendFromMemory(const ShardKey& key, grpc::ServerWriter<ShardPiece>* writer) {
  HOLDFAST_ASSIGN_OR_RETURN(auto reader, node_.memory_shards().Open(key));
  HOLDFAST_RETURN_IF_ERROR(SendSeal(reader->seal(), writer));
  std::vector<std::byte> chunk;
  for (uint64_t index = 0; index < reader->seal().chunk_crcs.size(); ++index) {
    HOLDFAST_RETURN_IF_ERROR(reader->ReadChunk(index, &chunk));
    HOLDFAST_RETURN_IF_ERROR(SendChunk(index * kChunkBytes, chunk, writer));
  }
  return Status::Ok();
}

Status DataService::SendFromDisk(const ShardKey& key, grpc::ServerWriter<ShardPiece>* writer) {
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, volume_.ReadSeal(key));
  HOLDFAST_RETURN_IF_ERROR(SendSeal(seal, writer));
  return volume_.StreamShard(seal, [writer](uint64_t offset, std::span<const std::byte> chunk) {
    return SendChunk(offset, chunk, writer);
  });
}

Status DataService::SendPart(const ShardKey& key, Tier tier, const ReadShardRequest& request,
                             grpc::ServerWriter<ShardPiece>* writer) {
  const auto deadline = Clock::Real().Now() + kPartWait;
  {
    MutexLock lock(parts_mutex_);
    if (parts_ >= kPartsAtOnce && parts_waiting_ >= kPartsWaitingMax) {
      return UnavailableError(
          fmt::format("{} parts of shards are being read from this agent and {} readers wait; try "
                      "again in {} ms",
                      parts_, parts_waiting_, kRetryAfterMs));
    }
    // Wait for a turn. The number of waiting calls is bounded, because each occupies a thread.
    ++parts_waiting_;
    while (parts_ >= kPartsAtOnce && Clock::Real().Now() < deadline) {
      part_ended_.WaitFor(parts_mutex_, deadline - Clock::Real().Now());
    }
    --parts_waiting_;
    if (parts_ >= kPartsAtOnce) {
      return UnavailableError(fmt::format(
          "too many parts are being read from this agent; try again in {} ms", kRetryAfterMs));
    }
    ++parts_;
  }
  const auto send = [&]() -> Status {
    std::unique_ptr<ShardReader> in_memory;
    std::unique_ptr<ShardChunks> on_disk;
    if (tier == Tier::kMemory) {
      HOLDFAST_ASSIGN_OR_RETURN(in_memory, node_.memory_shards().Open(key));
    } else {
      HOLDFAST_ASSIGN_OR_RETURN(on_disk, volume_.OpenChunks(key));
    }
    const ShardSeal& seal = in_memory != nullptr ? in_memory->seal() : on_disk->seal();
    if (request.offset() % kChunkBytes != 0 || request.offset() > seal.image_bytes ||
        request.bytes() > seal.image_bytes - request.offset()) {
      return InvalidArgumentError(
          fmt::format("cannot read {} bytes at offset {} of an image of {}: the range must begin "
                      "at a chunk and end within the image",
                      request.bytes(), request.offset(), seal.image_bytes));
    }
    HOLDFAST_RETURN_IF_ERROR(SendSeal(seal, writer));
    std::vector<std::byte> chunk;
    const uint64_t end = request.offset() + request.bytes();
    for (uint64_t at = request.offset(); at < end; at += kChunkBytes) {
      std::span<const std::byte> bytes;
      if (in_memory != nullptr) {
        HOLDFAST_RETURN_IF_ERROR(in_memory->ReadChunk(at / kChunkBytes, &chunk));
        bytes = chunk;
      } else {
        HOLDFAST_ASSIGN_OR_RETURN(bytes, on_disk->Read(at / kChunkBytes));
      }
      HOLDFAST_RETURN_IF_ERROR(SendChunk(at, bytes, writer));
    }
    return Status::Ok();
  };
  Status status = send();
  // A damaged replica must be reported, since it no longer counts.
  if (status.code() == ErrorCode::kDataLoss) node_.damage().OnDamaged(key, tier, status);
  MutexLock lock(parts_mutex_);
  --parts_;
  part_ended_.NotifyOne();
  return status;
}

grpc::Status DataService::VerifyShard(grpc::ServerContext* /*context*/,
                                      const VerifyShardRequest* request, VerifyShardReply* reply) {
  CallCount count(running_);
  const auto verify = [&]() -> Status {
    HOLDFAST_RETURN_IF_ERROR(count.Check());
    HOLDFAST_ASSIGN_OR_RETURN(const ShardKey key, KeyOf(*request));
    HOLDFAST_ASSIGN_OR_RETURN(const Tier tier, LocalTier(request->tier()));
    ShardSeal seal;
    if (tier == Tier::kMemory) {
      HOLDFAST_RETURN_IF_ERROR(node_.memory_shards().Verify(key, request->deep(), &seal));
    } else {
      HOLDFAST_ASSIGN_OR_RETURN(seal, volume_.ReadSeal(key));
      const Status status = volume_.VerifyShard(key, request->deep());
      if (status.code() == ErrorCode::kDataLoss) node_.damage().OnDamaged(key, Tier::kDisk, status);
      HOLDFAST_RETURN_IF_ERROR(status);
    }
    reply->set_image_bytes(seal.image_bytes);
    reply->set_digest(seal.digest());
    return Status::Ok();
  };
  const Status status = verify();
  reply->set_code(static_cast<uint32_t>(status.code()));
  reply->set_message(status.message());
  return grpc::Status::OK;
}

grpc::Status DataService::ReadWorkerLog(grpc::ServerContext* /*context*/,
                                        const ReadWorkerLogRequest* request,
                                        ReadWorkerLogReply* reply) {
  const WorkerManager* workers = workers_.load();
  Result<std::string> data =
      workers == nullptr
          ? Fail(NotFoundError("this node launches no workers (workers.enabled is false)"))
          : workers->ReadLog(request->job(), request->run_id(), Rank{request->rank()},
                             request->offset(), kLogPieceBytes);
  if (data) {
    reply->set_data(*std::move(data));
  } else {
    reply->set_code(static_cast<uint32_t>(data.error().code()));
    reply->set_message(data.error().message());
  }
  return grpc::Status::OK;
}

grpc::Status DataService::InjectFault(grpc::ServerContext* /*context*/,
                                      const InjectFaultRequest* request, InjectFaultReply* reply) {
  Injector* injector = injector_.load();
  Result<std::string> what = injector == nullptr
                                 ? Fail(UnavailableError("this agent is still starting; try again"))
                                 : injector->Inject(*request);
  if (what) {
    reply->set_what(*std::move(what));
  } else {
    reply->set_code(static_cast<uint32_t>(what.error().code()));
    reply->set_message(what.error().message());
  }
  return grpc::Status::OK;
}

grpc::Status DataService::EndFault(grpc::ServerContext* /*context*/, const EndFaultRequest* request,
                                   EndFaultReply* reply) {
  Injector* injector = injector_.load();
  const Status status = injector == nullptr
                            ? UnavailableError("this agent is still starting; try again")
                            : injector->End(request->drill());
  reply->set_code(static_cast<uint32_t>(status.code()));
  reply->set_message(status.message());
  return grpc::Status::OK;
}

grpc::Status DataService::Dump(grpc::ServerContext* /*context*/, const DumpRequest* /*request*/,
                               DumpReply* reply) {
  using nlohmann::json;
  const ArenaUsage usage = arena_.usage();
  const Scrubber::Counts scrub = node_.scrub_counts();
  json ranks = json::array();
  for (const RankStatus& rank : StatusOf(node_.ranks())) {
    json slots = json::array();
    for (const SlotStatus& slot : rank.slots) {
      slots.push_back({{"slot", slot.info.slot},
                       {"state", NameOf(slot.info.state)},
                       {"version", ToString(slot.info.version)},
                       {"in_use", slot.info.in_use},
                       {"held", slot.info.held},
                       {"verified", slot.verified},
                       {"image_bytes", slot.image_bytes},
                       {"checksummed_bytes", slot.checksummed},
                       {"disk", slot.disk}});
    }
    ranks.push_back({{"job", rank.owner.job},
                     {"rank", rank.owner.rank.value},
                     {"uid", rank.owner.uid},
                     {"slot_bytes", rank.slot_bytes},
                     {"in_collective", rank.in_collective},
                     {"collectives", rank.collectives},
                     {"slots", std::move(slots)}});
  }
  const json dump = {
      {"schema", 1},
      {"node", node_name_},
      {"sessions", node_.session_count()},
      {"arena",
       {{"budget_bytes", usage.budget_bytes},
        {"reserved_bytes", usage.reserved_bytes},
        {"segments", usage.segments}}},
      {"peers", Describe(peers_.load())},
      {"disk",
       {{"shards", volume_.List().size()},
        {"free_bytes", volume_.FreeBytes()},
        {"directories", volume_.Describe()}}},
      {"scrub",
       {{"passes", scrub.passes}, {"checked_bytes", scrub.bytes}, {"damaged", scrub.damaged}}},
      {"ranks", std::move(ranks)}};
  reply->set_json(dump.dump());
  return grpc::Status::OK;
}

}  // namespace holdfast::agent
