#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/parity/builder.h"
#include "agent/parity/decoder.h"
#include "agent/parity/rebuild.h"
#include "base/random.h"
#include "storage/format/chunk.h"
#include "storage/parity/parity_image.h"

// A complete group in one process. Its transport is a table of sources; the real transport has
// separate tests.

namespace holdfast::agent {

inline constexpr VersionId kVersion{Incarnation{2}, Step{7}};
inline constexpr uint32_t kWorld = 64;

struct Shard {
  std::vector<std::byte> bytes;
  ShardSeal seal;
};

inline Shard MakeShard(Rank rank, uint64_t bytes, Random& random) {
  Shard shard;
  shard.bytes.resize(bytes);
  for (auto& byte : shard.bytes) byte = static_cast<std::byte>(random.Next());
  shard.seal.identity = {"gpt", kVersion, rank, kWorld};
  shard.seal.image_bytes = bytes;
  shard.seal.chunk_crcs = ChunkCrcs(shard.bytes);
  return shard;
}

class BytesReader final : public PeerReader {
 public:
  explicit BytesReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    if (bytes > kPeerUnitBytes) return Fail(InvalidArgumentError("more than a unit"));
    const auto from = bytes_.subspan(std::min<uint64_t>(offset, bytes_.size()));
    return from.first(std::min<uint64_t>(bytes, from.size()));
  }

 private:
  std::span<const std::byte> bytes_;
};

class RecordReader final : public PeerReader {
 public:
  explicit RecordReader(std::string record) : record_(std::move(record)) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    return BytesReader(std::as_bytes(std::span(record_))).Read(offset, bytes, deadline);
  }

 private:
  std::string record_;
};

/// Refuses reads that overlap a bad chunk.
class CheckedReader final : public PeerReader {
 public:
  CheckedReader(std::span<const std::byte> bytes, std::set<uint64_t> bad)
      : bytes_(bytes), bad_(std::move(bad)) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    const auto bad = bad_.lower_bound(offset / kChunkBytes);
    if (bad != bad_.end() && *bad * kChunkBytes < offset + bytes) {
      return Fail(DataLossError(fmt::format("chunk {} does not match its checksum", *bad)));
    }
    return bytes_.Read(offset, bytes, deadline);
  }

 private:
  BytesReader bytes_;
  const std::set<uint64_t> bad_;
};

/// A node's memory as its peers see it. It does not verify what it sends; reads of chunks in `bad`
/// are refused.
class TestNode final : public PeerSource {
 public:
  TestNode(std::string name, PeerTransport& transport)
      : name_(std::move(name)), transport_(transport) {}

  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) override {
    if (request.kind == PeerRequestKind::kParityRow) return rows.Open(request);
    if (request.kind == PeerRequestKind::kDecode) {
      return OpenDecoder(request, name_, *this, transport_, Clock::Real());
    }
    auto found = shards.find(request.rank);
    if (found == shards.end() || request.version != kVersion) {
      return Fail(NotFoundError(name_ + " has no " + ShardName(request.rank)));
    }
    if (request.kind == PeerRequestKind::kSeal) {
      return std::make_unique<RecordReader>(EncodeSeal(found->second.seal));
    }
    const auto damaged = bad.find(request.rank);
    return std::make_unique<CheckedReader>(
        found->second.bytes, damaged == bad.end() ? std::set<uint64_t>() : damaged->second);
  }

  std::map<Rank, Shard> shards;
  std::map<Rank, std::set<uint64_t>> bad;  // set before the first read
  RowExchange rows;

 private:
  const std::string name_;
  PeerTransport& transport_;
};

class TableStream final : public PeerStream {
 public:
  TableStream(std::unique_ptr<PeerReader> reader, const PeerRequest& request,
              std::atomic<uint64_t>& sent)
      : reader_(std::move(reader)), at_(request.offset), left_(request.bytes), sent_(sent) {}
  Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint deadline) override {
    if (unit_.empty() && left_ > 0) {
      const uint64_t want = std::min(left_, kPeerUnitBytes);
      HOLDFAST_ASSIGN_OR_RETURN(unit_, reader_->Read(at_, want, deadline));
      sent_ += unit_.size();
      at_ += unit_.size();
      left_ = unit_.size() < want ? 0 : left_ - want;
    }
    const size_t got = std::min(into.size(), unit_.size());
    if (got > 0) std::memcpy(into.data(), unit_.data(), got);
    unit_ = unit_.subspan(got);
    return got;
  }
  void Cancel() override { reader_->Cancel(); }

 private:
  std::unique_ptr<PeerReader> reader_;
  uint64_t at_;
  uint64_t left_;
  std::span<const std::byte> unit_;
  std::atomic<uint64_t>& sent_;
};

class Network final : public PeerTransport {
 public:
  Result<std::unique_ptr<PeerStream>> Open(const std::string& address, const PeerRequest& request,
                                           Clock::TimePoint /*deadline*/) override {
    TestNode* node = nodes.at(address).get();
    if (node == nullptr) return Fail(UnavailableError(address + " is lost"));
    HOLDFAST_ASSIGN_OR_RETURN(auto reader, node->Open(request));
    return std::make_unique<TableStream>(std::move(reader), request, sent.at(address));
  }
  std::map<std::string, std::unique_ptr<TestNode>> nodes;
  std::map<std::string, std::atomic<uint64_t>> sent;
};

/// n nodes with up to three shards each, of random sizes; node 1 has none.
class Group {
 public:
  Group(uint32_t n, uint32_t m, uint64_t seed, uint64_t slot_bytes_max) : built_(n) {
    Random random(seed);
    std::vector<PlanMember> members;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; ++i) {
      PlanMember member{NameOf(i), NameOf(i), 10 + i, {}, false, false};
      network_.nodes[member.node] = std::make_unique<TestNode>(member.node, network_);
      network_.sent[member.node] = 0;
      const uint64_t ranks = i == 1 ? 0 : 1 + random.Below(3);
      for (uint64_t r = 0; r < ranks; ++r, ++rank) {
        const uint64_t slot = kSegmentAlign * (1 + random.Below(slot_bytes_max / kSegmentAlign));
        member.ranks.push_back({Rank{rank}, slot});
        node(i).shards[Rank{rank}] = MakeShard(Rank{rank}, 1 + random.Below(slot), random);
      }
      members.push_back(std::move(member));
    }
    plan_.emplace(*GroupPlan::Make(std::move(members), m));
  }

  static std::string NameOf(uint32_t position) { return fmt::format("n{}", position); }
  GroupPlan& plan() { return *plan_; }
  Network& network() { return network_; }
  TestNode& node(uint32_t position) { return *network_.nodes.at(NameOf(position)); }

  /// Returns the plan in which every member has all its shards, although chunks may be bad.
  GroupPlan PlanOfAll() const {
    std::vector<PlanMember> members = plan_->members();
    for (PlanMember& member : members) member.has_data = member.has_parity = true;
    return *GroupPlan::Make(members, plan_->layout().parity_count());
  }

  /// Decodes chunk `chunk` of a shard of the member at `position` from the other members.
  Result<std::vector<std::byte>> DecodeChunk(uint32_t position, Rank rank, uint64_t chunk) {
    const Shard& shard = node(position).shards.at(rank);
    const GroupPlan plan = PlanOfAll();
    Cancellation cancellation;
    const GroupAccess access{plan,     NameOf(position), "gpt",
                             kVersion, Incarnation{3},   node(position),
                             network_, cancellation,     Clock::Real()};
    const uint64_t begin = chunk * kChunkBytes;
    std::vector<std::byte> bytes(std::min(kChunkBytes, shard.bytes.size() - begin));
    const WantedRange range{begin, bytes};
    HOLDFAST_RETURN_IF_ERROR(DecodeRanges(
        access, shard.seal.identity, {&range, 1}, [](uint64_t) {},
        Clock::Real().Now() + std::chrono::seconds(30)));
    return bytes;
  }

  /// Builds parity at all members concurrently; returns the outcomes by position.
  std::vector<Status> Build(std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    std::vector<Status> outcomes(plan_->members().size());
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < outcomes.size(); ++i) {
      if (network_.nodes.at(NameOf(i)) == nullptr) {
        outcomes[i] = UnavailableError("dead");
      } else {
        threads.emplace_back([this, i, timeout, &outcomes] { outcomes[i] = BuildAt(i, timeout); });
      }
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t i = 0; i < outcomes.size(); ++i) {
      if (outcomes[i].ok()) node(i).shards[ParityRank(plan_->members()[i].number)] = built_[i];
    }
    return outcomes;
  }

  /// Removes the parity of every member, rebuilds it from the data alone and compares it with the
  /// original.
  Status RebuildAllParity() {
    std::vector<PlanMember> members = plan_->members();
    for (PlanMember& member : members) {
      member.has_data = true;
      network_.nodes.at(member.node)->shards.erase(ParityRank(member.number));
    }
    const GroupPlan plan = *GroupPlan::Make(members, plan_->layout().parity_count());
    TestNode fresh("fresh", network_);
    for (uint32_t i = 0; i < members.size(); ++i) {
      TestNode original(members[i].node, network_);
      original.shards[ParityRank(members[i].number)] = built_[i];
      HOLDFAST_RETURN_IF_ERROR(RecoverParity(plan, i, fresh, original));
    }
    return Status::Ok();
  }

  /// Loses the nodes `lost` and rebuilds their shards on a fresh node. Returns the first error.
  Status Recover(const std::vector<uint32_t>& lost) {
    std::vector<PlanMember> members = plan_->members();
    std::map<uint32_t, std::unique_ptr<TestNode>> lost_nodes;
    for (uint32_t i = 0; i < members.size(); ++i) {
      members[i].has_data = std::find(lost.begin(), lost.end(), i) == lost.end();
      members[i].has_parity = members[i].has_data;
      if (members[i].has_data) continue;
      lost_nodes[i] = std::move(network_.nodes[members[i].node]);
      members[i].address.clear();
    }
    Status outcome =
        RecoverWith(*GroupPlan::Make(members, plan_->layout().parity_count()), lost_nodes);
    for (auto& [i, node] : lost_nodes) network_.nodes[NameOf(i)] = std::move(node);
    return outcome;
  }

 private:
  Status BuildAt(uint32_t position, std::chrono::milliseconds timeout) {
    const Rank rank = ParityRank(plan_->members()[position].number);
    HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                              ParityImage::Make(*plan_, position, {"gpt", kVersion, rank, kWorld}));
    Shard& parity = built_[position];
    parity.bytes.assign(image.image_bytes(), std::byte{0xA5});  // old content
    Cancellation cancellation;
    const GroupAccess access{*plan_,   NameOf(position),     "gpt",
                             kVersion, kVersion.incarnation, node(position),
                             network_, cancellation,         Clock::Real()};
    HOLDFAST_ASSIGN_OR_RETURN(
        parity.seal, BuildParity(access, kWorld, node(position).rows, parity.bytes, Clock::Real(),
                                 Clock::Real().Now() + timeout));
    return Status::Ok();
  }

  Status RecoverWith(const GroupPlan& plan,
                     const std::map<uint32_t, std::unique_ptr<TestNode>>& lost_nodes) {
    TestNode fresh("fresh", network_);
    for (const auto& [position, node] : lost_nodes) {
      for (const PlanRank& rank : plan.members()[position].ranks) {
        Cancellation cancellation;
        const GroupAccess access{plan,  "fresh",  "gpt",        kVersion,     Incarnation{3},
                                 fresh, network_, cancellation, Clock::Real()};
        const auto deadline = Clock::Real().Now() + std::chrono::seconds(30);
        HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, FetchSeal(access, rank.rank, deadline));
        const Shard& original = node->shards.at(rank.rank);
        if (seal != original.seal) return InternalError("the rebuilt seal differs");
        std::vector<std::byte> image(seal.image_bytes);
        const WantedRange all{0, image};
        HOLDFAST_RETURN_IF_ERROR(DecodeRanges(
            access, seal.identity, {&all, 1}, [](uint64_t) {}, deadline));
        const uint64_t bad = FirstBadChunk(image, seal.chunk_crcs);
        if (bad != kNoChunk) return BadChunkError(seal, bad, "decoded from its group");
        if (image != original.bytes) return InternalError("the rebuilt bytes differ");
      }
      HOLDFAST_RETURN_IF_ERROR(RecoverParity(plan, position, fresh, *node));
    }
    return Status::Ok();
  }

  Status RecoverParity(const GroupPlan& plan, uint32_t position, TestNode& fresh,
                       const TestNode& original_node) {
    const Shard& original = original_node.shards.at(ParityRank(plan.members()[position].number));
    Cancellation cancellation;
    const GroupAccess access{plan,  "fresh",  "gpt",        kVersion,     Incarnation{3},
                             fresh, network_, cancellation, Clock::Real()};
    std::vector<std::byte> image(original.bytes.size(), std::byte{0x5A});
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal,
                              RebuildParity(
                                  access, position, kWorld, image, [](uint64_t) {}, Clock::Real(),
                                  Clock::Real().Now() + std::chrono::seconds(30)));
    if (seal.digest() != original.seal.digest()) {
      return InternalError("the rebuilt parity's seal differs");
    }
    if (image != original.bytes) return InternalError("the rebuilt parity differs");
    return Status::Ok();
  }

  Network network_;
  std::optional<GroupPlan> plan_;
  std::vector<Shard> built_;
};

}  // namespace holdfast::agent
