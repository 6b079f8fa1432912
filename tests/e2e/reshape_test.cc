// Versions do not depend on the number of ranks that wrote them. A job of four ranks restarts with
// two, three, one and four ranks, loads the bytes of the global tensors each time, and saves again:
// from memory, from disk after all processes were killed, and with a lost node.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "testing/cluster/observer.h"
#include "tests/e2e/cluster_test.h"
#include "tests/e2e/reshaping_job.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
using ::testing::HasSubstr;
constexpr milliseconds kTimeout(60'000);

class ReshapeTest : public ClusterTest {
 protected:
  void SetUp() override {
    options_.arena_bytes = 512ULL << 20;
    options_.nodes = 2;
    options_.disk_every = 1'000'000;
  }

  void Start() {
    ASSERT_NO_FATAL_FAILURE(StartServers());
    job_.emplace(*cluster_);
  }

  /// Places rank r on node r % nodes.
  static std::vector<int> Spread(int world, int nodes = 2) {
    std::vector<int> places;
    for (int rank = 0; rank < world; ++rank) places.push_back(rank % nodes);
    return places;
  }

  void Open(const std::vector<int>& nodes) {
    Status opened = job_->Open(nodes);
    ASSERT_TRUE(opened.ok()) << opened.ToString() << Evidence();
  }

  /// Saves in the current world, restarts with ranks on `nodes`, and checks what they load.
  ReshapingJob::Loaded SaveAndRestart(v1::Tier tier, const std::vector<int>& nodes) {
    const uint32_t world = job_->world();
    const auto saved = job_->SaveUntil(tier, kTimeout);
    EXPECT_TRUE(saved.has_value()) << Evidence();
    if (!saved) return {};
    EXPECT_NO_FATAL_FAILURE(Open(nodes));
    if (HasFailure()) return {};
    return ExpectLoads(*saved, world);
  }
  ReshapingJob::Loaded ExpectLoads(VersionId at_least, uint32_t world) {
    const auto loaded = job_->LoadAll(kTimeout);
    EXPECT_TRUE(loaded.has_value()) << loaded.error().ToString() << Evidence();
    if (!loaded) return {};
    EXPECT_GE(loaded->version, at_least);
    EXPECT_EQ(loaded->world, world);
    return *loaded;
  }

  /// The formats that the files of a version's ranks name. Those of parity have format 1.
  std::set<int> FormatsOnDisk(VersionId version) const {
    constexpr std::string_view kKey = "\"holdfast.format\":\"";
    const std::string name = fmt::format("{}-{}", version.incarnation.value, version.step.value);
    std::set<int> formats;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.root)) {
      if (!entry.is_regular_file()) continue;
      const std::string path = entry.path().string();
      if (path.find(name) == std::string::npos || path.find("parity") != std::string::npos)
        continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::string head(4096, '\0');
      file.read(head.data(), static_cast<std::streamsize>(head.size()));
      const size_t at = head.find(kKey);
      if (at != std::string::npos) formats.insert(std::stoi(head.substr(at + kKey.size())));
    }
    return formats;
  }

  std::string PageOf(int node) const { return fmt::format("{}/n{}.prom", root_, node); }
  /// The bytes that the node has received from other nodes, from a page that the agent has begun
  /// after this call: the second that it writes.
  double Received(int node) const {
    constexpr std::string_view kMetric = "\nholdfast_agent_peer_received_bytes_total ";
    std::filesystem::file_time_type written;
    for (int pages = 0; pages < 3; ++pages) {
      EXPECT_TRUE(WaitUntil(
          [&] {
            std::error_code none;
            const auto last = written;
            written = std::filesystem::last_write_time(PageOf(node), none);
            return !none && written != last;
          },
          kTimeout));
    }
    const std::string page = ReadAll(PageOf(node));
    const size_t at = page.find(kMetric);
    EXPECT_NE(at, std::string::npos) << page;
    return at == std::string::npos ? 0 : std::stod(page.substr(at + kMetric.size()));
  }
  /// The bytes of the version's shards on the node's disks.
  double ShardBytes(int node, VersionId version) const {
    const std::string name = "/v" + ToString(version) + "/rank-";
    uintmax_t bytes = 0;
    for (const std::string& dir : cluster_->DataDirs(node)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
        const std::string path = entry.path().string();
        const bool shard = path.find(name) != std::string::npos;
        if (shard && entry.is_regular_file()) bytes += entry.file_size();
      }
    }
    return static_cast<double>(bytes);
  }

  std::string NewestThatSurvivesPowerCut() const {
    const auto shown = cluster_->Cli({"versions", "reshaped", "-o", "json"});
    if (!shown) return "";
    const auto document = nlohmann::json::parse(shown->out, nullptr, false);
    if (!document.contains("versions")) return "";
    for (const auto& entry : document["versions"]) {
      const std::string survives = entry.value("survives", "");
      if (survives.find("node of each group + full power cut") != std::string::npos) {
        return entry.value("version", "");
      }
    }
    return "";
  }

  /// The number of times that an agent of the node has attached to the coordinator.
  size_t TimesAttached(int node) const {
    std::ifstream file(cluster_->AgentLog(node));
    size_t times = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.find("CoordinatorAttached") != std::string::npos) ++times;
    }
    return times;
  }

  std::string Evidence() const {
    std::string text;
    for (int node = 0; node < options_.nodes; ++node) {
      std::ifstream file(cluster_->AgentLog(node));
      const std::string log{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      text +=
          fmt::format("\n--- n{}\n", node) + log.substr(log.size() > 3000 ? log.size() - 3000 : 0);
    }
    return text;
  }

  std::optional<ReshapingJob> job_;
};

TEST_F(ReshapeTest, FromMemoryWithAnyNumberOfRanks) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(4)));
  EXPECT_EQ(job_->client(0).OpenReader(std::nullopt, kTimeout).status().code(),
            v1::Code::kNotFound);
  for (int world : {2, 3, 1, 4, 4}) {
    SCOPED_TRACE(world);
    EXPECT_EQ(SaveAndRestart(v1::Tier::kMemory, Spread(world)).tier, v1::Tier::kMemory);
    if (HasFailure()) return;
  }
  // The world now equals that of the version, so a rank can also restore its own shard.
  const auto own = job_->client(3).Restore(std::nullopt, kTimeout);
  ASSERT_TRUE(own.ok()) << own.status().ToString() << Evidence();
  EXPECT_EQ(*own->extra("who"), "rank 3 of 4");
  const auto saved = job_->SaveUntil(v1::Tier::kMemory, kTimeout);
  ASSERT_TRUE(saved.has_value());
  const auto shown = cluster_->Cli({"versions", "reshaped", "-o", "wide"});
  ASSERT_TRUE(shown.has_value());
  EXPECT_THAT(shown->out, HasSubstr("WORLD"));
}

TEST_F(ReshapeTest, FromDiskAfterEverythingWasKilled) {
  options_.disk_every = 1;
  options_.data_dirs = 2;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(4)));
  for (int world : {2, 3, 1, 4}) {
    SCOPED_TRACE(world);
    const uint32_t before = job_->world();
    const auto saved = job_->SaveUntil(v1::Tier::kDisk, kTimeout);
    ASSERT_TRUE(saved.has_value()) << Evidence();
    job_->Close();
    cluster_->KillEverything();
    ASSERT_TRUE(cluster_->Start().ok());
    ASSERT_NO_FATAL_FAILURE(Open(Spread(world)));
    EXPECT_EQ(ExpectLoads(*saved, before).tier, v1::Tier::kDisk);
    if (HasFailure()) return;
  }
}

TEST_F(ReshapeTest, ShardsOfBothFormatsAreRestored) {
  options_.disk_every = 1;
  options_.data_dirs = 2;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(::setenv("HOLDFAST_IMAGE_FORMAT", "2", 1), 0);
  ASSERT_NO_FATAL_FAILURE(Open(Spread(4)));
  for (const auto& [format, next, world] :
       std::vector<std::tuple<int, const char*, int>>{{2, "1", 4}, {1, "2", 3}, {2, "2", 4}}) {
    SCOPED_TRACE(format);
    const uint32_t before = job_->world();
    const auto saved = job_->SaveUntil(v1::Tier::kDisk, kTimeout);
    ASSERT_TRUE(saved.has_value()) << Evidence();
    EXPECT_EQ(FormatsOnDisk(*saved), std::set<int>{format});
    const auto verified = cluster_->Cli({"verify", "reshaped"});
    ASSERT_TRUE(verified.has_value());
    EXPECT_EQ(verified->exit_code, 0) << verified->out << verified->errors;
    job_->Close();
    cluster_->KillEverything();
    ASSERT_TRUE(cluster_->Start().ok());
    ASSERT_EQ(::setenv("HOLDFAST_IMAGE_FORMAT", next, 1), 0);
    ASSERT_NO_FATAL_FAILURE(Open(Spread(world)));
    ExpectLoads(*saved, before);  // the killed keepers had all that was in memory
    if (HasFailure()) return;
    if (static_cast<uint32_t>(world) != before) continue;
    // A rank's own tensors are described in one format and saved in the other.
    const auto own = job_->client(3).Restore(std::nullopt, kTimeout);
    ASSERT_TRUE(own.ok()) << own.status().ToString() << Evidence();
    EXPECT_EQ(*own->extra("who"), "rank 3 of 4");
  }
  ::unsetenv("HOLDFAST_IMAGE_FORMAT");
}

/// All ranks load all tensors, those of one node one after the other and those of the other node at
/// the same time. The chunks that they need from the other node travel once.
TEST_F(ReshapeTest, ANodeReceivesEachByteOfTheOtherNodeOnce) {
  options_.disk_every = 1;
  options_.coordinator_settings = {"peers.enabled=false"};  // no parity travels
  for (int node : {0, 1}) {
    options_.agent_settings_of[node] = {"metrics.textfile=" + PageOf(node),
                                        "metrics.textfile_period_s=1"};
  }
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(8)));
  const auto saved = job_->SaveUntil(v1::Tier::kDisk, kTimeout);
  ASSERT_TRUE(saved.has_value()) << Evidence();
  const std::vector<double> shards = {ShardBytes(0, *saved), ShardBytes(1, *saved)};
  ASSERT_NO_FATAL_FAILURE(Open(Spread(6)));
  const std::vector<double> before = {Received(0), Received(1)};
  std::vector<std::optional<v1::VersionReader>> readers(6);
  const auto load = [&](size_t rank) -> Status {
    auto reader = job_->client(static_cast<int>(rank)).OpenReader(std::nullopt, kTimeout);
    if (!reader.ok()) return InternalError(reader.status().ToString());
    readers[rank].emplace(std::move(*reader));
    std::vector<ReshapingJob::Owned> all = ReshapingJob::Everything();
    const v1::Status loaded = readers[rank]->Load(ReshapingJob::Described(all), kTimeout);
    return loaded.ok() ? ReshapingJob::Check(all, *saved) : InternalError(loaded.ToString());
  };
  std::vector<std::future<Status>> ranks;
  for (const size_t rank : {1, 3, 5}) ranks.push_back(std::async(std::launch::async, load, rank));
  for (std::future<Status>& rank : ranks) EXPECT_TRUE(rank.get().ok());
  for (const size_t rank : {0, 2, 4}) EXPECT_TRUE(load(rank).ok());
  for (int node : {0, 1}) {
    const double needed = shards[1 - node];
    const double received = Received(node) - before[node];
    EXPECT_GE(received, 0.95 * needed) << "node " << node;
    EXPECT_LE(received, 1.02 * needed) << "node " << node;
    RecordProperty(fmt::format("ratio_{}", node), std::to_string(received / needed));
  }
}

TEST_F(ReshapeTest, ShardsOfALostNodeAreDecoded) {
  options_.nodes = 3;
  options_.coordinator_settings = {"peers.group_nodes=3", "peers.parity=1"};
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(4, 3)));
  for (int world : {2, 3, 1, 4}) {
    SCOPED_TRACE(world);
    const uint32_t before = job_->world();
    const bool alone = before == 1;  // one node has no group
    const auto saved = job_->SaveUntil(alone ? v1::Tier::kMemory : v1::Tier::kPeer, kTimeout);
    ASSERT_TRUE(saved.has_value()) << Evidence();
    job_->Close();
    if (!alone) {
      const size_t attached = TimesAttached(1);
      cluster_->DestroyNode(1);
      ASSERT_TRUE(cluster_->StartAgent(1).ok());
      // Before that, the coordinator may still count the replicas of the lost node.
      ASSERT_TRUE(WaitUntil([&] { return TimesAttached(1) > attached; }, kTimeout)) << Evidence();
    }
    ASSERT_NO_FATAL_FAILURE(Open(Spread(world, 3)));
    // The lost node's shards are decoded, unless they are already rebuilt in the new node's memory.
    const v1::Tier tier = ExpectLoads(*saved, before).tier;
    EXPECT_TRUE(tier == v1::Tier::kMemory || (!alone && tier == v1::Tier::kPeer));
    if (HasFailure()) return;
  }
}

TEST_F(ReshapeTest, DamagedChunksOnDiskAreDecoded) {
  options_.nodes = 3;
  options_.disk_every = 1;
  options_.agent_settings = {"scrub.pause_ms=3600000"};
  options_.coordinator_settings = {"peers.group_nodes=3", "peers.parity=1"};
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(3, 3)));
  const auto saved = job_->SaveUntil(v1::Tier::kPeer, kTimeout);
  ASSERT_TRUE(saved.has_value()) << Evidence();
  job_->Close();
  // Wait until the newest version also has its parity on the disks.
  std::string version;
  ASSERT_TRUE(WaitUntil(
      [&] {
        version = NewestThatSurvivesPowerCut();
        const auto now = Observe(*cluster_, "reshaped");
        return now && now->memory_committed && version == ToString(*now->memory_committed);
      },
      kTimeout));
  cluster_->KillEverything();
  const std::string path =
      fmt::format("{}/reshaped/v{}/rank-1.safetensors", cluster_->DataDirs(1).at(0), version);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.is_open()) << path;
    for (const uint64_t at : {1'500'000U, 2'700'000U}) {
      file.seekg(static_cast<std::streamoff>(at));
      const auto byte = static_cast<char>(file.get() ^ 4);
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
    }
  }
  ASSERT_TRUE(cluster_->Start().ok());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(2, 3)));
  const auto loaded = job_->LoadAll(kTimeout);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().ToString() << Evidence();
  EXPECT_EQ(ToString(loaded->version), version);
  std::ifstream log(cluster_->AgentLog(1));
  const std::string text{std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  EXPECT_THAT(text, HasSubstr("ShardDamaged"));
}

TEST_F(ReshapeTest, AllMismatchesAreNamed) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(2)));
  const auto saved = job_->SaveUntil(v1::Tier::kMemory, kTimeout);
  ASSERT_TRUE(saved.has_value());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(1)));
  auto reader = job_->client(0).OpenReader(std::nullopt, kTimeout);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ(reader->Pieces().size(), 12U);
  std::vector<ReshapingJob::Owned> all = ReshapingJob::Everything();
  ReshapingJob::Fill(all, {Incarnation{9}, Step{9}});
  std::vector<v1::Tensor> wanted = ReshapingJob::Described(all);
  wanted[0].dtype = v1::DType::kI32;
  wanted[1].global_shape[1] += 8;
  wanted[2].name = "unknown";
  wanted[3].shape[0] += 9;  // beyond its end
  const v1::Status refused = reader->Load(wanted, kTimeout);
  EXPECT_EQ(refused.code(), v1::Code::kFailedPrecondition);
  EXPECT_EQ(job_->client(0).Differences().size(), 4U);
  EXPECT_THAT(refused.message(), HasSubstr("'rows' was saved as F32, not as I32"));
  EXPECT_THAT(refused.message(),
              HasSubstr("'columns' was saved with the global shape [301, 4099], not [301, 4107]"));
  EXPECT_THAT(refused.message(), HasSubstr("'unknown' was not saved"));
  EXPECT_THAT(refused.message(), HasSubstr("no rank saved [65537:65546]"));
  const Status untouched = ReshapingJob::Check(all, {Incarnation{9}, Step{9}});
  EXPECT_TRUE(untouched.ok()) << untouched.ToString();
  wanted = ReshapingJob::Described(all);
  wanted[0].device = HOLDFAST_CUDA;
  EXPECT_EQ(reader->Load(wanted, kTimeout).code(), v1::Code::kUnsupported);
  // In another world, a rank has no shard to restore.
  const auto own = job_->client(0).Restore(std::nullopt, kTimeout);
  EXPECT_EQ(own.status().code(), v1::Code::kInvalidArgument) << own.status().ToString();
  EXPECT_THAT(own.status().message(), HasSubstr("holdfast_reader_open"));
}

TEST_F(ReshapeTest, AReaderSurvivesRestartsOfAgents) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(3)));
  const auto saved = job_->SaveUntil(v1::Tier::kMemory, kTimeout);
  ASSERT_TRUE(saved.has_value());
  ASSERT_NO_FATAL_FAILURE(Open(Spread(2)));
  auto reader = job_->client(0).OpenReader(std::nullopt, kTimeout);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  std::vector<ReshapingJob::Owned> all = ReshapingJob::Everything();
  const std::vector<v1::Tensor> wanted = ReshapingJob::Described(all);
  for (int node : {0, 1}) {
    cluster_->agent(node).Kill();
    ASSERT_TRUE(cluster_->StartAgent(node).ok());
    ASSERT_TRUE(cluster_->AwaitAgent(node).ok());
    v1::Status loaded = reader->Load(wanted, kTimeout);
    WaitUntil(
        [&] {
          if (loaded.code() != v1::Code::kUnavailable) return true;
          loaded = reader->Load(wanted, kTimeout);
          return false;
        },
        kTimeout);
    ASSERT_TRUE(loaded.ok()) << loaded.ToString() << Evidence();
    const Status right = ReshapingJob::Check(all, *saved);
    EXPECT_TRUE(right.ok()) << right.ToString();
    for (auto& owned : all) std::fill(owned.bytes.begin(), owned.bytes.end(), std::byte{0});
  }
}

}  // namespace
}  // namespace holdfast::local
