// Single chunks become corrupt on several members of a group at once. Each chunk is decoded from
// the others' chunks of the same stripe and repaired in place. No complete shard is decoded or
// moved.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/fd.h"
#include "testing/cluster/observer.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kImage = 4 * kMiB;  // an image of a rank is at least this large

/// Counts the lines that contain all the words.
size_t CountIn(const std::string& path, const std::vector<std::string>& words) {
  std::ifstream file(path);
  size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    const auto has = [&](const std::string& word) { return line.find(word) != std::string::npos; };
    if (std::all_of(words.begin(), words.end(), has)) ++count;
  }
  return count;
}

/// The bytes of one image, from `begin` on, in a file or in an agent's memory.
class Bytes {
 public:
  Bytes(const std::string& path, uint64_t begin)
      : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)), begin_(begin) {}

  std::string Read(uint64_t offset, uint64_t bytes) const {
    std::string text(bytes, '\0');
    const auto got = ::pread(file_.get(), text.data(), bytes, static_cast<off_t>(begin_ + offset));
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }
  void Flip(uint64_t offset) const {
    std::string byte = Read(offset, 1);
    ASSERT_EQ(byte.size(), 1U);
    byte[0] = static_cast<char>(byte[0] ^ 4);
    ASSERT_EQ(::pwrite(file_.get(), byte.data(), 1, static_cast<off_t>(begin_ + offset)), 1);
  }

 private:
  UniqueFd file_;
  uint64_t begin_;
};

/// A chunk to corrupt: a shard and an offset in it.
struct Bad {
  std::string shard;  // "rank-1", "parity-1"; the number is that of the node
  uint64_t offset = 0;
  int node() const { return shard.back() - '0'; }
};

class ChunkRepairTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    ProtectedCluster::SetUp();
    words_ = 1280 << 10;  // 10 MiB: segments of three chunks
    options_.agent_settings.push_back("scrub.pause_ms=3600000");
  }

  /// Saves steps until the newest version in memory is protected, also on the disks with `on_disk`.
  /// Returns this version.
  VersionId SaveOne(bool on_disk) {
    VersionId version;
    const uint64_t before = job_->step();
    const auto is_safe = [&] {
      const auto newest = job_->Newest(v1::Tier::kMemory);
      if (!newest || newest->step.value <= before) return false;
      if (newest != job_->Newest(v1::Tier::kPeer)) return false;
      version = *newest;
      return !on_disk ||
             Survives(version).find("node of each group + full power cut") != std::string::npos;
    };
    const bool safe = WaitUntil(
        [&] {
          job_->Save();
          return WaitUntil(is_safe, std::chrono::seconds(6));
        },
        kTimeout);
    EXPECT_TRUE(safe) << ToString(version) << " survives: " << Survives(version) << "\n"
                      << Evidence();
    return version;
  }
  std::string Survives(VersionId version) {
    auto result = cluster_->Cli({"versions", "saved", "-o", "json"});
    if (!result) return "";
    const auto document = nlohmann::json::parse(result->out, nullptr, false);
    if (!document.contains("versions")) return "";
    for (const auto& entry : document["versions"]) {
      if (entry.value("version", "") == ToString(version)) return entry.value("survives", "");
    }
    return "";
  }

  std::string PathOf(const std::string& shard, VersionId version, int node) const {
    return fmt::format("{}/saved/v{}/{}.safetensors", cluster_->DataDirs(node)[0],
                       ToString(version), shard);
  }
  Bytes OnDisk(const std::string& shard, VersionId version) const {
    return {PathOf(shard, version, shard.back() - '0'), 0};
  }
  /// The slot in the agent's memory that holds the shard's image.
  Bytes InMemory(const std::string& shard, VersionId version) {
    const int node = shard.back() - '0';
    const uint64_t rank = (shard[0] == 'p' ? uint64_t{1} << 31 : 0) + static_cast<uint64_t>(node);
    const std::vector<std::string> words = {
        fmt::format("\"holdfast.incarnation\":\"{}\"", version.incarnation.value),
        fmt::format("\"holdfast.step\":\"{}\"", version.step.value),
        fmt::format("\"holdfast.rank\":\"{}\"", rank)};
    const std::string process = fmt::format("/proc/{}/", cluster_->agent(node).pid());
    const Bytes memory(process + "mem", 0);
    std::ifstream maps(process + "maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:") == std::string::npos) continue;
      const uint64_t end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
      for (uint64_t at = std::stoull(line, nullptr, 16); at < end; at += 4096) {
        const std::string head = memory.Read(at, 512);
        const auto has = [&](const std::string& word) {
          return head.find(word) != std::string::npos;
        };
        if (std::all_of(words.begin(), words.end(), has)) return {process + "mem", at};
      }
    }
    ADD_FAILURE() << shard << " of " << ToString(version) << " is not in memory";
    return {"/dev/null", 0};
  }
  /// The number of bytes of a segment, from the header of a parity shard.
  static uint64_t SegmentBytes(const Bytes& parity) {
    const std::string head = parity.Read(8, 4088);
    const auto header = nlohmann::json::parse(head, nullptr, false);
    EXPECT_TRUE(header.contains("parity")) << head.substr(0, 200);
    return header.contains("parity") ? header["parity"]["shape"][1].get<uint64_t>() : 0;
  }
  /// Stripe 0 contains segment 2 of node 1 and segment 1 of node 2. Returns a chunk of each at
  /// different places of the stripe, and a parity chunk of another stripe.
  static std::vector<Bad> DifferentPlaces(uint64_t segment) {
    const uint64_t first = (2 * segment + kMiB - 1) / kMiB;
    const uint64_t last = 2 * segment / kMiB - 1;
    EXPECT_LE((first + 1) * kMiB - 2 * segment, last * kMiB - segment) << segment;
    return {{"rank-1", first * kMiB + 5}, {"rank-2", last * kMiB + 7}, {"parity-1", kMiB + 9}};
  }
  /// Returns two chunks at the same place of stripe 0.
  static std::vector<Bad> OnePlace(uint64_t segment) {
    return {{"rank-1", 2 * segment + segment / 2}, {"rank-2", segment + segment / 2}};
  }

  /// Runs a deep verify, and expects this exit code. Returns the output.
  std::string Verify(VersionId version, int exit_code) {
    const auto result =
        cluster_->Cli({"verify", "saved", "--version", ToString(version), "--deep"});
    EXPECT_TRUE(result.has_value());
    if (!result) return "";
    EXPECT_EQ(result->exit_code, exit_code) << result->out << result->errors << Evidence();
    return result->out + result->errors;
  }
  size_t Repaired(const std::string& shard, const std::string& tier) const {
    return CountIn(cluster_->CoordinatorLog(), {"ShardRepaired", shard, "tier=" + tier});
  }
  void AwaitRepaired(const std::string& shard, const std::string& tier) {
    EXPECT_TRUE(WaitUntil([&] { return Repaired(shard, tier) > 0; }, kTimeout))
        << shard << " at " << tier << "\n"
        << Evidence();
  }
  /// No node decoded a complete shard, and none was quarantined.
  void ExpectOnlyChunkRepairs() {
    for (int node = 0; node < options_.nodes; ++node) {
      EXPECT_THAT(AgentLog(node), Not(HasSubstr("ShardDecoded")));
      EXPECT_THAT(AgentLog(node), Not(HasSubstr("Quarantined")));
      EXPECT_THAT(AgentLog(node), Not(HasSubstr("ShardLost")));
    }
  }
};

TEST_F(ChunkRepairTest, MembersRepairEachOthersBadChunksInMemory) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId version = SaveOne(/*on_disk=*/false);
  const std::vector<Bad> bad = DifferentPlaces(SegmentBytes(InMemory("parity-0", version)));
  std::vector<Bytes> slots;
  std::vector<std::string> good;
  for (const Bad& one : bad) {
    slots.push_back(InMemory(one.shard, version));
    good.push_back(slots.back().Read(0, one.offset + kMiB));
  }
  for (size_t i = 0; i < bad.size(); ++i) ASSERT_NO_FATAL_FAILURE(slots[i].Flip(bad[i].offset));
  const std::string output = Verify(version, /*exit_code=*/2);
  for (const Bad& one : bad) EXPECT_THAT(output, HasSubstr(one.shard));
  for (size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(bad[i].shard);
    AwaitRepaired(bad[i].shard, "memory");
    EXPECT_TRUE(slots[i].Read(0, good[i].size()) == good[i]) << "the repaired bytes differ";
    // Only the corrupt chunk was transferred.
    EXPECT_EQ(CountIn(cluster_->AgentLog(bad[i].node()),
                      {"ShardChunksRepaired", bad[i].shard, "chunks=1", "decoded_bytes=1"}),
              1U)
        << AgentLog(bad[i].node());
    EXPECT_EQ(CountIn(cluster_->CoordinatorLog(), {"Finding", bad[i].shard, "at memory on node"}),
              1U);
  }
  ExpectOnlyChunkRepairs();
  Verify(version, /*exit_code=*/0);
  // The repaired shards can be used to decode another one.
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(3));
  EXPECT_EQ(ExpectBack(version, {3}).version, version);
}

TEST_F(ChunkRepairTest, BothTiersOfTwoMembersAreRepaired) {
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId version = SaveOne(/*on_disk=*/true);
  const std::vector<Bad> bad = DifferentPlaces(SegmentBytes(OnDisk("parity-0", version)));
  std::vector<std::string> good;
  std::vector<Bytes> slots;
  for (const Bad& one : bad) {
    good.push_back(ReadAll(PathOf(one.shard, version, one.node())));
    slots.push_back(InMemory(one.shard, version));
  }
  for (size_t i = 0; i < bad.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(slots[i].Flip(bad[i].offset));
    ASSERT_NO_FATAL_FAILURE(OnDisk(bad[i].shard, version).Flip(bad[i].offset));
  }
  Verify(version, /*exit_code=*/2);
  for (size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(bad[i].shard);
    AwaitRepaired(bad[i].shard, "memory");
    AwaitRepaired(bad[i].shard, "disk");
    EXPECT_TRUE(slots[i].Read(0, good[i].size()) == good[i]);
    EXPECT_TRUE(ReadAll(PathOf(bad[i].shard, version, bad[i].node())) == good[i]);
    const std::string log = cluster_->AgentLog(bad[i].node());
    // One tier was repaired from the group, the other one from the first tier.
    EXPECT_EQ(CountIn(log, {"ShardChunksRepaired", bad[i].shard, "chunks=1"}), 2U) << ReadAll(log);
    EXPECT_EQ(CountIn(log, {"ShardChunksRepaired", bad[i].shard, "decoded_bytes=0"}), 1U)
        << ReadAll(log);
  }
  ExpectOnlyChunkRepairs();
  Verify(version, /*exit_code=*/0);
}

TEST_F(ChunkRepairTest, ThreeDisksWithDifferentBadChunksRestoreTheVersion) {
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId version = SaveOne(/*on_disk=*/true);
  std::vector<Bad> bad = DifferentPlaces(SegmentBytes(OnDisk("parity-0", version)));
  std::vector<std::string> good;
  for (const Bad& one : bad) good.push_back(ReadAll(PathOf(one.shard, version, one.node())));
  job_->Close();
  cluster_->KillEverything();
  for (const Bad& one : bad) {
    ASSERT_NO_FATAL_FAILURE(OnDisk(one.shard, version).Flip(one.offset));
  }
  ASSERT_TRUE(cluster_->Start().ok());
  const auto restored = ExpectBack(version, {1, 2});
  EXPECT_EQ(restored.version, version);
  // The files on disk have their original bytes again.
  for (size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(bad[i].shard);
    if (bad[i].shard != "parity-1") AwaitRepaired(bad[i].shard, "disk");
  }
  // The restore may not have read the corrupt parity chunk yet.
  ASSERT_TRUE(cluster_->Cli({"verify", "saved", "--version", ToString(version), "--deep"}));
  AwaitRepaired("parity-1", "disk");
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_TRUE(ReadAll(PathOf(bad[i].shard, version, bad[i].node())) == good[i]) << bad[i].shard;
  }
  Verify(version, 0);
}

TEST_F(ChunkRepairTest, ChunksBadAtTheSamePlaceAreLostAndTheOlderVersionIsRestored) {
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId older = SaveOne(/*on_disk=*/true);
  const VersionId version = SaveOne(/*on_disk=*/true);
  ASSERT_LT(older, version);
  const std::vector<Bad> bad = OnePlace(SegmentBytes(OnDisk("parity-0", version)));
  job_->Close();
  cluster_->KillEverything();
  for (const Bad& one : bad) {
    ASSERT_NO_FATAL_FAILURE(OnDisk(one.shard, version).Flip(one.offset));
  }
  ASSERT_TRUE(cluster_->Start().ok());
  const auto restored = ExpectBack(older, {});
  EXPECT_LT(restored.version, version);
  for (const Bad& one : bad) {
    EXPECT_GE(CountIn(cluster_->CoordinatorLog(), {"Finding", one.shard, "at disk on node"}), 1U);
  }
  for (int node : {1, 2}) EXPECT_THAT(AgentLog(node), Not(HasSubstr("ShardChunksRepaired")));
}

TEST_F(ChunkRepairTest, AKillDuringTheRepairOfADisk) {
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId version = SaveOne(/*on_disk=*/true);
  const std::string path = PathOf("rank-1", version, 1);
  const std::string good = ReadAll(path);
  cluster_->agent(1).Kill();
  ASSERT_TRUE(cluster_->StartAgent(1, "volume.mid_rewrite:2").ok());
  ASSERT_NO_FATAL_FAILURE(AwaitAgent(1));
  // The whole chunk is corrupt, so that the part written before the crash is visible.
  for (uint64_t at = 2 * kMiB; at < 3 * kMiB; at += 4096) OnDisk("rank-1", version).Flip(at);
  Verify(version, /*exit_code=*/2);
  ASSERT_TRUE(cluster_->agent(1).WaitFor(kTimeout)) << "nothing was rewritten\n" << Evidence();
  const std::string torn = ReadAll(path);
  EXPECT_EQ(torn.substr(0, 2 * kMiB + kMiB / 2), good.substr(0, 2 * kMiB + kMiB / 2));
  EXPECT_NE(torn, good);
  ASSERT_TRUE(cluster_->StartAgent(1).ok());
  ASSERT_NO_FATAL_FAILURE(AwaitAgent(1));
  AwaitRepaired("rank-1", "disk");
  EXPECT_TRUE(ReadAll(path) == good);
  ExpectOnlyChunkRepairs();
  Verify(version, /*exit_code=*/0);
}

TEST_F(ChunkRepairTest, AKillDuringTheRepairOfMemory) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId version = SaveOne(/*on_disk=*/false);
  cluster_->agent(1).Kill();
  ASSERT_TRUE(cluster_->StartAgent(1, "agent.mid_repair").ok());
  ASSERT_NO_FATAL_FAILURE(AwaitAgent(1));
  ASSERT_TRUE(WaitUntil([&] { return Survives(version) == "any 1 node of each group"; }, kTimeout))
      << Survives(version);
  const std::string good = InMemory("rank-1", version).Read(0, kImage);
  const Bytes slot = InMemory("rank-1", version);
  for (uint64_t at = 2 * kMiB; at < 3 * kMiB; at += 4096) slot.Flip(at);
  Verify(version, /*exit_code=*/2);
  ASSERT_TRUE(cluster_->agent(1).WaitFor(kTimeout)) << "nothing was repaired\n" << Evidence();
  ASSERT_TRUE(cluster_->StartAgent(1).ok());
  ASSERT_NO_FATAL_FAILURE(AwaitAgent(1));
  // The ranks still run, but their sessions have ended. The job restores from its memory.
  const auto restored = ExpectBack(version, {});
  EXPECT_EQ(restored.version, version);
  EXPECT_TRUE(InMemory("rank-1", version).Read(0, kImage) == good);
  EXPECT_EQ(CountIn(cluster_->AgentLog(1), {"ShardChunksRepaired", "rank-1", "tier=memory"}), 1U);
  ExpectOnlyChunkRepairs();
}

}  // namespace
}  // namespace holdfast::local
