#include "agent/pipeline/index_gatherer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "agent/pipeline/parallel.h"
#include "base/log.h"
#include "storage/chunks/source_selector.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::seconds kAnswerTime(5);
constexpr std::chrono::seconds kUnitTime(30);
// How many nodes get the index from one node.
constexpr size_t kBranches = 8;
constexpr std::chrono::seconds kAboveTime(20);
constexpr std::chrono::milliseconds kAbovePause(50);
constexpr size_t kShardBytes = sizeof(uint32_t) + sizeof(uint64_t);
}  // namespace

PeerRequest NodeIndexRequest(const IndexedVersion& of, const std::vector<IndexedShard>& shards) {
  PeerRequest request;
  request.kind = PeerRequestKind::kNodeIndex;
  request.job = of.job;
  request.version = of.version;
  request.incarnation = of.incarnation;
  request.index = of.world;
  request.bytes = kIndexBytesMax;
  for (const IndexedShard& shard : shards) {
    request.group.append(reinterpret_cast<const char*>(&shard.rank.value), sizeof(uint32_t));
    request.group.append(reinterpret_cast<const char*>(&shard.digest), sizeof(uint64_t));
  }
  return request;
}

Result<std::vector<IndexedShard>> ShardsOf(const PeerRequest& request) {
  const uint32_t world = request.index;
  std::vector<IndexedShard> shards(request.group.size() / kShardBytes);
  if (request.group.size() % kShardBytes != 0 || world == 0 || world > kWorldMax) {
    return Fail(InvalidArgumentError("a request for the index of a node names no ranks"));
  }
  const char* at = request.group.data();
  for (IndexedShard& shard : shards) {
    std::memcpy(&shard.rank.value, at, sizeof(uint32_t));
    std::memcpy(&shard.digest, at + sizeof(uint32_t), sizeof(uint64_t));
    at += kShardBytes;
    if (shard.rank.value >= world) {
      return Fail(InvalidArgumentError("a request for the index of a node names rank " +
                                       std::to_string(shard.rank.value) + " of " +
                                       std::to_string(world)));
    }
  }
  return shards;
}

Result<std::string> MakeNodeIndex(const LocalShards& local, DamageReporter& damage,
                                  const IndexedVersion& of,
                                  const std::vector<IndexedShard>& shards) {
  VersionIndexBuilder builder(of.job, of.version, of.world);
  for (const IndexedShard& shard : shards) {
    const ShardKey key{of.job, of.version, shard.rank};
    SourceList sources;
    sources.push_back(local.Source(key, Tier::kMemory));
    sources.push_back(local.Source(key, Tier::kDisk));
    SourceSelector selector(key, shard.digest, sources, damage);
    const auto seal = selector.ReadSeal();
    if (!seal) continue;  // the caller reads the header elsewhere
    ParsedImage image;
    const auto header = ReadShardHeader(
        *seal,
        [&](uint64_t offset, std::span<std::byte> into) {
          std::vector<WantedChunk> chunks = ChunksOf(*seal, offset / kChunkBytes, into);
          return selector.Read(*seal, chunks);
        },
        &image);
    if (!header) continue;
    const Status added = builder.Add(image, header->extras);
    if (!added.ok()) Log(LogLevel::kDebug, "ShardNotIndexed", {Kv("error", added.ToString())});
  }
  return builder.Finish();
}

std::vector<IndexGatherer::Node> IndexGatherer::Assign() const {
  std::map<std::string, Node> nodes;
  for (uint32_t rank = 0; rank < places_.shards.size(); ++rank) {
    const VersionPlaces::Shard& shard = places_.shards[rank];
    // Nearest first: this node, then memory, then disks. Replicas take turns.
    const ShardPlace* best = nullptr;
    const auto cost = [&](const ShardPlace& place) {
      if (place.node == tools_.node()) return 0;
      return place.tier == Tier::kMemory ? 1 : 2;
    };
    const size_t turn = FirstOf(tools_.node(), shard.places.size());
    for (size_t i = 0; i < shard.places.size(); ++i) {
      const ShardPlace& place = shard.places[(turn + i) % shard.places.size()];
      const bool reachable = place.node == tools_.node() || !place.peer_address.empty();
      if (!reachable || IsShared(place.tier)) continue;
      if (best == nullptr || cost(place) < cost(*best)) best = &place;
    }
    if (best == nullptr) continue;
    Node& node = nodes[best->node];
    node.name = best->node;
    if (best->node != tools_.node()) node.address = best->peer_address;
    // A request has room for many ranks, but not for any number.
    if (node.shards.size() < kPeerGroupBytesMax / kShardBytes) {
      node.shards.push_back({Rank{rank}, shard.digest});
    }
  }
  std::vector<Node> list;
  for (auto& [name, node] : nodes) list.push_back(std::move(node));
  return list;
}

Result<std::string> IndexGatherer::Own(const Node& node) {
  // The one that was made at the commit, or for a peer.
  const auto reader = tools_.reach.local.Open(NodeIndexRequest(of_, node.shards));
  if (!reader) return MakeNodeIndex(tools_.local, tools_.damage, of_, node.shards);
  std::string bytes;
  for (;;) {
    HOLDFAST_ASSIGN_OR_RETURN(const auto piece, (*reader)->Read(bytes.size(), kPeerUnitBytes,
                                                                tools_.clock.Now() + kUnitTime));
    if (piece.empty()) return bytes;
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
}

Result<std::string> IndexGatherer::Fetch(const Node& node) {
  if (node.address.empty()) return Own(node);
  return Receive(node, NodeIndexRequest(of_, node.shards));
}

Result<std::string> IndexGatherer::Receive(const Node& node, const PeerRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(
      const auto stream,
      tools_.reach.transport.Open(node.address, request, tools_.clock.Now() + kAnswerTime));
  std::string bytes;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kPeerUnitBytes);
    HOLDFAST_ASSIGN_OR_RETURN(const size_t read,
                              stream->Read(std::as_writable_bytes(std::span(bytes)).subspan(before),
                                           tools_.clock.Now() + kUnitTime));
    bytes.resize(before + read);
    if (read == 0) return bytes;
    if (bytes.size() > kIndexBytesMax) {
      return Fail(DataLossError("the index of node " + node.name + " has no end"));
    }
  }
}

Status IndexGatherer::Check(const std::string& bytes) const {
  HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex index,
                            VersionIndex::Open(std::as_bytes(std::span(bytes))));
  HOLDFAST_RETURN_IF_ERROR(index.Verify());
  const bool same = index.job() == of_.job && index.version() == of_.version &&
                    index.world() == of_.world && index.shards() == of_.world;
  return same ? Status::Ok() : DataLossError("the index is of another version");
}

Result<std::string> IndexGatherer::AwaitFrom(const Node& node) {
  const Clock::TimePoint until = tools_.clock.Now() + kAboveTime;
  for (;;) {
    auto bytes = Receive(node, NodeIndexRequest(of_, {}));
    if (bytes) HOLDFAST_RETURN_IF_ERROR(Check(*bytes));
    const bool wait = !bytes && bytes.error().code() == ErrorCode::kFailedPrecondition &&
                      tools_.clock.Now() + kAbovePause < until && !stopping_();
    if (!wait) return bytes;
    tools_.clock.SleepFor(kAbovePause);
  }
}

std::optional<std::string> IndexGatherer::FromAbove(const std::vector<Node>& nodes) {
  if (nodes.size() <= kBranches) return std::nullopt;
  const auto own = std::find_if(nodes.begin(), nodes.end(),
                                [](const Node& node) { return node.address.empty(); });
  // A node without shards of the version is below one of the others.
  size_t at = own != nodes.end() ? static_cast<size_t>(own - nodes.begin())
                                 : nodes.size() + FirstOf(tools_.node(), nodes.size());
  while (at > 0 && !stopping_()) {
    at = (at - 1) / kBranches;
    auto bytes = AwaitFrom(nodes[at]);
    if (bytes) return *std::move(bytes);
    Log(LogLevel::kDebug, "IndexNotReceived",
        {Kv("node", nodes[at].name), Kv("error", bytes.error().ToString())});
  }
  return std::nullopt;
}

Status IndexGatherer::AddNode(const Node& node) {
  HOLDFAST_ASSIGN_OR_RETURN(const std::string bytes, Fetch(node));
  HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex part,
                            VersionIndex::Open(std::as_bytes(std::span(bytes))));
  HOLDFAST_RETURN_IF_ERROR(part.Verify());
  MutexLock lock(mutex_);
  return builder_.Add(part);
}

Result<std::string> IndexGatherer::Gather() {
  const std::vector<Node> nodes = Assign();
  if (auto received = FromAbove(nodes)) return *std::move(received);
  HOLDFAST_RETURN_IF_ERROR(
      InParallel(nodes.size(), FirstOf(tools_.node(), nodes.size()), [&](size_t i) -> Status {
        if (stopping_()) return CancelledError("the agent is stopping");
        const Status added = AddNode(nodes[i]);
        if (!added.ok()) {
          Log(LogLevel::kDebug, "NodeNotIndexed",
              {Kv("node", nodes[i].name), Kv("error", added.ToString())});
        }
        return Status::Ok();
      }));
  std::vector<uint32_t> missing;
  {
    MutexLock lock(mutex_);
    for (uint32_t rank = 0; rank < of_.world; ++rank) {
      if (!builder_.Has(Rank{rank})) missing.push_back(rank);
    }
  }
  HOLDFAST_RETURN_IF_ERROR(
      InParallel(missing.size(), FirstOf(tools_.node(), missing.size()), [&](size_t i) -> Status {
        ParsedImage image;
        HOLDFAST_ASSIGN_OR_RETURN(const ShardHeader header, read_header_(Rank{missing[i]}, &image));
        MutexLock lock(mutex_);
        return builder_.Add(image, header.extras);
      }));
  MutexLock lock(mutex_);
  return builder_.Finish();
}

}  // namespace holdfast::agent
