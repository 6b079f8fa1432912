// User errors against real processes: each mistake gives a clear error with a remedy, and no saved
// version is lost.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::Test;
constexpr milliseconds kTimeout(60'000);

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class BadInputTest : public ClusterTest {
 protected:
  void SetUp() override {
    options_.nodes = 1;
    options_.arena_bytes = 64ULL << 20;
    StartServers();
  }

  v1::Options OptionsFor(const std::string& run_id) {
    v1::Options options;
    options.job = "job";
    options.run_id = run_id;
    options.socket_path = cluster_->AgentSocket(0);
    options.connect_timeout = milliseconds(15'000);
    return options;
  }
  v1::Result<v1::Client> Open(const v1::Options& options) {
    std::vector<v1::Tensor> state = {v1::Whole("weights", weights_, {weights_.size()}),
                                     v1::Whole("bias", bias_, {bias_.size()})};
    return v1::Client::Open(options, state);
  }
  /// Saves one version and waits until it is durable.
  void SaveOne() {
    auto client = Open(OptionsFor("first"));
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    ASSERT_TRUE(client->Save(1).ok());
    v1::Status durable = client->Wait(1, v1::Tier::kDisk, kTimeout);
    ASSERT_TRUE(durable.ok()) << durable.ToString();
    ASSERT_TRUE(client->Close().ok());
  }
  /// Restores the version of SaveOne() and compares all bytes.
  void ExpectNothingLost() {
    std::vector<float> weights = weights_;
    std::vector<float> bias = bias_;
    std::fill(weights_.begin(), weights_.end(), 0.0F);
    std::fill(bias_.begin(), bias_.end(), 0.0F);
    auto client = Open(OptionsFor("last"));
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    auto restored = client->Restore(std::nullopt, kTimeout);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ(restored->version.step, 1U);
    EXPECT_EQ(weights_, weights);
    EXPECT_EQ(bias_, bias);
  }

  std::vector<float> weights_ = std::vector<float>(100'000, 1.5F);
  std::vector<float> bias_ = std::vector<float>(300, -2.0F);
};

TEST_F(BadInputTest, EveryDifferenceOfTheStateIsNamed) {
  SaveOne();
  std::vector<double> wide(300);
  std::vector<float> extra(5);
  std::vector<v1::Tensor> state = {v1::Whole("weights", weights_, {1000, 100}),
                                   v1::Whole("bias", wide, {300}),
                                   v1::Whole("unknown", extra, {5})};
  {
    auto client = v1::Client::Open(OptionsFor("second"), state);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    std::vector<float> before = weights_;
    auto restored = client->Restore(std::nullopt, kTimeout);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), v1::Code::kInvalidArgument);
    std::string all;
    for (const std::string& difference : client->Differences()) all += difference + "\n";
    EXPECT_TRUE(Contains(all, "weights") && Contains(all, "bias") && Contains(all, "unknown"))
        << all;
    EXPECT_EQ(weights_, before) << "a refused restore changed a tensor";
  }
  ExpectNothingLost();
}

TEST_F(BadInputTest, AWrongWorldSizeNamesBothSizes) {
  SaveOne();
  {
    v1::Options options = OptionsFor("wider");
    options.world = 2;
    auto client = Open(options);
    v1::Status status = client.status();
    if (client.ok()) status = client->Restore(std::nullopt, milliseconds(20'000)).status();
    ASSERT_FALSE(status.ok());
    EXPECT_TRUE(Contains(status.message(), "1") && Contains(status.message(), "2"))
        << status.ToString();
    EXPECT_EQ(status.code(), v1::Code::kInvalidArgument) << status.ToString();
  }
  ExpectNothingLost();
}

TEST_F(BadInputTest, StateLargerThanTheArenaIsRefusedWithTheNumbers) {
  std::vector<float> huge(30'000'000);
  std::vector<v1::Tensor> state = {v1::Whole("huge", huge, {huge.size()})};
  auto client = v1::Client::Open(OptionsFor("huge"), state);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), v1::Code::kResourceExhausted) << client.status().ToString();
  EXPECT_TRUE(Contains(client.status().message(), "arena")) << client.status().ToString();
}

TEST_F(BadInputTest, TheErrorOfAMissingAgentNamesTheSocket) {
  v1::Options options = OptionsFor("no-agent");
  options.socket_path = options_.root + "/none.sock";
  options.connect_timeout = milliseconds(200);
  auto client = Open(options);
  ASSERT_FALSE(client.ok());
  EXPECT_TRUE(Contains(client.status().message(), "none.sock")) << client.status().ToString();
}

TEST_F(BadInputTest, AnotherUsersJobIsRefused) {
  if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
  SaveOne();
  ASSERT_EQ(::chmod(options_.root.c_str(), 0755), 0);
  pid_t pid = ::fork();
  if (pid == 0) {
    if (::setuid(65534) != 0) ::_exit(9);
    v1::Options options = OptionsFor("intruder");
    options.connect_timeout = milliseconds(3000);
    auto client = Open(options);
    bool refused = !client.ok() && client.status().code() == v1::Code::kPermissionDenied;
    if (!refused) std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  ExpectNothingLost();
}

TEST_F(BadInputTest, PathsInJobNamesAreRefused) {
  for (const char* job : {"../etc", "a/b", "..", ""}) {
    v1::Options options = OptionsFor("x");
    options.job = job;
    auto client = Open(options);
    ASSERT_FALSE(client.ok()) << job;
    EXPECT_EQ(client.status().code(), v1::Code::kInvalidArgument) << client.status().ToString();
  }
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Runs a server binary with settings. Returns its exit code and its output.
std::pair<int, std::string> RunServer(const std::string& root, const std::string& binary,
                                      const std::vector<std::string>& settings) {
  ProcessOptions process;
  process.argv = {BinaryDir() + "/" + binary};
  for (const std::string& setting : settings) {
    process.argv.insert(process.argv.end(), {"--set", setting});
  }
  process.log_path = root + "/server.out";
  fs::remove(process.log_path);
  auto child = Process::Start(process);
  if (!child) return {-1, child.error().ToString()};
  child->WaitFor(milliseconds(15'000));
  return {child->exit_code().value_or(-2), TextOf(process.log_path)};
}

TEST_F(BadInputTest, UnknownConfigurationKeysAreNamed) {
  for (const char* binary : {"holdfast-agent", "holdfast-coordinator"}) {
    auto [code, text] = RunServer(options_.root, binary, {"clustre=x"});
    EXPECT_EQ(code, 1) << text;
    EXPECT_TRUE(Contains(text, "clustre") && Contains(text, "did you mean 'cluster'")) << text;
  }
}

TEST_F(BadInputTest, AnAddressInUseIsNamed) {
  // The agents may be ready before the coordinator listens.
  ASSERT_TRUE(WaitUntil(
      [&] { return Contains(TextOf(cluster_->CoordinatorLog()), "CoordinatorListening"); },
      kTimeout));
  auto [code, text] = RunServer(
      options_.root, "holdfast-coordinator",
      {"cluster=local", "listen=" + cluster_->endpoint(), "data_dir=" + options_.root + "/other"});
  EXPECT_EQ(code, 1) << text;
  EXPECT_TRUE(Contains(text, "c.sock")) << text;
  EXPECT_TRUE(Contains(text, "in use")) << text;
}

TEST_F(BadInputTest, AnotherClustersDataDirectoryIsRefusedAndKept) {
  SaveOne();
  cluster_->KillEverything();
  auto [code, text] = RunServer(
      options_.root, "holdfast-agent",
      {"cluster=elsewhere", "node=n0", "coordinator=" + cluster_->endpoint(),
       "data_listen=unix:" + options_.root + "/e.sock", "run_dir=" + options_.root + "/erun",
       "data_dirs=[\"" + cluster_->DataDirs(0)[0] + "\"]", "arena.bytes=64MiB"});
  EXPECT_EQ(code, 1) << text;
  EXPECT_TRUE(Contains(text, "elsewhere") && Contains(text, "local")) << text;
  ASSERT_TRUE(cluster_->Start().ok());
  ExpectNothingLost();
}

TEST_F(BadInputTest, AForeignFolderAsDataDirectoryIsRefusedAndKept) {
  std::string foreign = options_.root + "/home";
  fs::create_directories(foreign);
  std::ofstream(foreign + "/thesis.txt") << "precious";
  auto [code, text] = RunServer(
      options_.root, "holdfast-agent",
      {"cluster=local", "node=n9", "coordinator=" + cluster_->endpoint(),
       "data_listen=unix:" + options_.root + "/e.sock", "run_dir=" + options_.root + "/erun",
       "data_dirs=[\"" + foreign + "\"]", "arena.bytes=64MiB"});
  EXPECT_EQ(code, 1) << text;
  EXPECT_TRUE(Contains(text, "home")) << text;
  EXPECT_TRUE(fs::exists(foreign + "/thesis.txt"));
}

}  // namespace
}  // namespace holdfast::local
