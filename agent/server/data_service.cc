#include "agent/server/data_service.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "agent/pipeline/rank_status.h"
#include "base/log.h"
#include "base/tiers.h"
#include "coordinator/api/convert.h"

namespace holdfast::agent {
namespace {

// Concurrent calls that read shards; each has a few MiB in flight.
constexpr int kCallsMax = 16;
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
  if (HasReplicas(tier)) return tier;
  return Fail(
      InvalidArgumentError(fmt::format("no agent has replicas at tier {}", ToString(tier))));
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
  CallCount count(running_);
  const auto send = [&]() -> Status {
    HOLDFAST_ASSIGN_OR_RETURN(const ShardKey key, KeyOf(*request));
    HOLDFAST_ASSIGN_OR_RETURN(const Tier tier, LocalTier(request->tier()));
    HOLDFAST_RETURN_IF_ERROR(count.Check());
    const Status status = Send(key, tier, *request, writer);
    if (!status.ok() && status.code() != ErrorCode::kCancelled) {
      Log(LogLevel::kWarn, "ShardNotSent",
          {Kv("shard", ToString(key)), Kv("error", status.ToString())});
    }
    return status;
  };
  return coord::ToGrpc(send());
}

Status DataService::Send(const ShardKey& key, Tier tier, const ReadShardRequest& request,
                         grpc::ServerWriter<ShardPiece>* writer) {
  const auto source = node_.shards().Source(key, tier);
  auto seal = source->ReadSeal();
  if (!seal) return seal.error();
  const uint64_t begin = request.part() ? request.offset() : 0;
  const uint64_t bytes = request.part() ? request.bytes() : seal->image_bytes;
  if (begin % kChunkBytes != 0 || begin > seal->image_bytes || bytes > seal->image_bytes - begin) {
    return InvalidArgumentError(
        fmt::format("cannot read {} bytes at offset {} of an image of {}: the range must begin "
                    "at a chunk and end within the image",
                    bytes, begin, seal->image_bytes));
  }
  HOLDFAST_RETURN_IF_ERROR(SendSeal(*seal, writer));
  std::vector<std::byte> buffer(std::min(kChunkBytes, seal->image_bytes));
  for (uint64_t at = begin; at < begin + bytes; at += kChunkBytes) {
    const uint64_t index = at / kChunkBytes;
    WantedChunk chunk{index, std::span(buffer).first(ChunkBytes(*seal, index))};
    const Status read = source->Read(*seal, {&chunk, 1}).WithContext(source->where());
    // A damaged replica must be reported, since it no longer counts.
    if (read.code() == ErrorCode::kDataLoss) node_.damage().OnDamaged(key, tier, read);
    HOLDFAST_RETURN_IF_ERROR(read);
    HOLDFAST_RETURN_IF_ERROR(SendChunk(at, chunk.into, writer));
  }
  return Status::Ok();
}

grpc::Status DataService::VerifyShard(grpc::ServerContext* /*context*/,
                                      const VerifyShardRequest* request, VerifyShardReply* reply) {
  CallCount count(running_);
  const auto verify = [&]() -> Status {
    HOLDFAST_RETURN_IF_ERROR(count.Check());
    HOLDFAST_ASSIGN_OR_RETURN(const ShardKey key, KeyOf(*request));
    HOLDFAST_ASSIGN_OR_RETURN(const Tier tier, LocalTier(request->tier()));
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal,
                              node_.shards().Verify(key, tier, request->deep()));
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
