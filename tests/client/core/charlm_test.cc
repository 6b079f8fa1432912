// The example trainer: its ring, its model, and that runs are reproducible bit for bit.

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "charlm/adam.h"
#include "charlm/corpus.h"
#include "charlm/model.h"
#include "charlm/random.h"
#include "charlm/ring.h"

namespace charlm {
namespace {

class CharlmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "hf-charlm-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    std::ofstream(dir_ + "/text") << std::string(200, 'a') + " quick brown fox jumps over it. ";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  /// Runs `body(ring, rank)` in one thread per rank.
  template <typename Body>
  void OnRing(uint32_t world, Body body) {
    std::string rendezvous = dir_ + "/ring-" + std::to_string(++rings_);
    std::filesystem::create_directories(rendezvous);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([=] {
        Ring ring;
        ASSERT_TRUE(
            ring.Connect({.rank = rank, .world = world, .run_id = "r", .rendezvous = rendezvous}))
            << ring.error();
        body(ring, rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  /// Starts the trainer as a process and returns its PID.
  pid_t Start(std::vector<std::string> args) {
    const char* folder = std::getenv("HOLDFAST_BIN_DIR");
    args.insert(args.begin(), std::string(folder == nullptr ? "." : folder) + "/holdfast-charlm");
    args.insert(args.end(), {"--text", dir_ + "/text", "--params", "6000", "--log-every", "0"});
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_t pid = ::fork();
    if (pid == 0) {
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    return pid;
  }
  static int ExitCode(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  /// Returns the final weights of a complete job without checkpoints.
  std::string Train(uint32_t world, const std::string& seed) {
    std::string name = dir_ + "/job-" + std::to_string(++rings_);
    std::filesystem::create_directories(name);
    std::vector<pid_t> ranks;
    for (uint32_t rank = 0; rank < world; ++rank) {
      ranks.push_back(Start({"--rank", std::to_string(rank), "--world", std::to_string(world),
                             "--rendezvous", name, "--no-checkpoint", "--steps", "12", "--seed",
                             seed, "--final", name + "/final"}));
    }
    for (pid_t rank : ranks) EXPECT_EQ(ExitCode(rank), 0);
    std::ifstream file(name + "/final", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string dir_;
  int rings_ = 0;
};

TEST_F(CharlmTest, RingReducesAndGathers) {
  for (uint32_t world : {1U, 2U, 3U, 4U, 5U}) {
    // Blocks of unequal size, one of them empty, large enough to fill socket buffers.
    std::vector<uint64_t> bounds = {0};
    for (uint32_t r = 0; r < world; ++r) bounds.push_back(bounds.back() + r * 300'000);
    uint64_t count = bounds.back();
    OnRing(world, [&](Ring& ring, uint32_t rank) {
      std::vector<float> values(count);
      for (uint64_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>(i % 97) + static_cast<float>(rank) * 1000;
      }
      ASSERT_TRUE(ring.ReduceScatter(values, bounds));
      for (uint64_t i = bounds[rank]; i < bounds[rank + 1]; ++i) {
        const auto sum_of_ranks = world * (world - 1) / 2;
        const float ranks = static_cast<float>(sum_of_ranks) * 1000;
        ASSERT_EQ(values[i], static_cast<float>(world * (i % 97)) + ranks);
      }
      std::fill(values.begin(), values.begin() + static_cast<long>(bounds[rank]), -1.0F);
      std::fill(values.begin() + static_cast<long>(bounds[rank + 1]), values.end(), -1.0F);
      ASSERT_TRUE(ring.AllGather(values, bounds));
      EXPECT_EQ(std::count(values.begin(), values.end(), -1.0F), 0);
      std::vector<uint64_t> all;
      ASSERT_TRUE(ring.Exchange(rank * 10, &all));
      for (uint32_t r = 0; r < world; ++r) EXPECT_EQ(all[r], r * 10);
    });
  }
}

TEST_F(CharlmTest, RingRefusesRanksOfOtherStarts) {
  std::string rendezvous = dir_ + "/both";
  std::filesystem::create_directories(rendezvous);
  // Rank 1 of another start connects to rank 0's port. Rank 0 must wait for the rank 1 of its
  // start.
  RingOptions mine{.rank = 0, .world = 2, .run_id = "new", .rendezvous = rendezvous};
  mine.timeout_ms = 1500;
  Ring ring;
  bool connected = true;
  std::thread zero([&] { connected = ring.Connect(mine); });
  while (!std::filesystem::exists(rendezvous + "/new-rank-0")) ::usleep(1000);
  std::filesystem::copy_file(rendezvous + "/new-rank-0", rendezvous + "/old-rank-0");
  RingOptions old{.rank = 1, .world = 2, .run_id = "old", .rendezvous = rendezvous};
  old.timeout_ms = 300;
  Ring stranger;
  EXPECT_FALSE(stranger.Connect(old));
  zero.join();
  EXPECT_FALSE(connected);
}

TEST_F(CharlmTest, PeerDeathEndsTheOthers) {
  OnRing(3, [&](Ring& ring, uint32_t rank) {
    if (rank == 1) return;  // its ring is closed
    std::vector<float> values(3'000'000, 1);
    std::vector<uint64_t> bounds = {0, 1'000'000, 2'000'000, 3'000'000};
    EXPECT_FALSE(ring.ReduceScatter(values, bounds));
    EXPECT_THAT(ring.error(), testing::HasSubstr("lost the connection to"));
  });
}

TEST_F(CharlmTest, GradientsMatchFiniteDifferences) {
  Corpus corpus;
  std::string error;
  ASSERT_TRUE(corpus.Load("/usr/share/common-licenses/GPL-3", &error)) << error;
  Random random(5);
  std::vector<Example> batch = corpus.Sample(4, random);
  Model model(33, 9);
  model.ComputeGradients(batch);
  for (Parameter& parameter : model.parameters()) {
    std::vector<float> gradient = parameter.gradient;
    // The weight with the largest gradient gives the most precise comparison.
    size_t at = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (std::abs(gradient[i]) > std::abs(gradient[at])) at = i;
    }
    float before = parameter.value[at];
    constexpr float kStep = 1e-2F;
    parameter.value[at] = before + kStep;
    double up = model.ComputeGradients(batch);
    parameter.value[at] = before - kStep;
    double down = model.ComputeGradients(batch);
    parameter.value[at] = before;
    double numeric = (up - down) / (2.0 * kStep);
    EXPECT_NEAR(numeric, gradient[at], 0.02 * std::abs(numeric) + 1e-4) << parameter.name;
  }
}

TEST_F(CharlmTest, LearnsAndIsDeterministic) {
  Corpus corpus;
  std::string error;
  ASSERT_TRUE(corpus.Load("/usr/share/common-licenses/GPL-3", &error)) << error;
  auto train = [&](double* first, double* last) {
    Model model(Model::HiddenFor(20'000), 1);
    std::vector<AdamShard> adam;
    for (const Parameter& parameter : model.parameters()) adam.emplace_back(parameter, 0, 1);
    Random random(1);
    for (uint64_t step = 1; step <= 150; ++step) {
      *last = model.ComputeGradients(corpus.Sample(32, random));
      if (step == 1) *first = *last;
      for (size_t i = 0; i < adam.size(); ++i) adam[i].Apply(model.parameters()[i], step, 2e-3F);
    }
    return model.parameters()[1].value;
  };
  double first = 0;
  double last = 0;
  auto weights = train(&first, &last);
  EXPECT_NEAR(first, std::log(128.0), 0.5);
  EXPECT_LT(last, first - 1);
  EXPECT_TRUE(weights == train(&first, &last));
}

TEST_F(CharlmTest, RowsAreSplitWithoutGapsOrOverlap) {
  for (uint32_t world : {1U, 2U, 3U, 7U, 200U}) {
    uint64_t next = 0;
    for (uint32_t rank = 0; rank < world; ++rank) {
      AdamShard shard({"p", 128, 16, {}, {}}, rank, world);
      EXPECT_EQ(shard.first_row, next);
      EXPECT_EQ(shard.moment1.size(), shard.rows * 16);
      next += shard.rows;
    }
    EXPECT_EQ(next, 128u);
  }
}

TEST_F(CharlmTest, JobsRepeatBitForBit) {
  for (uint32_t world : {1U, 2U, 4U}) {
    std::string once = Train(world, "3");
    EXPECT_GT(once.size(), 4u * 5000);
    EXPECT_EQ(once, Train(world, "3")) << world << " ranks";
    EXPECT_NE(once, Train(world, "4")) << "the seed matters";
  }
}

TEST_F(CharlmTest, KilledPeerIsExitCode3) {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(Start({"--rank", std::to_string(rank), "--world", "2", "--rendezvous", dir_,
                           "--no-checkpoint", "--steps", "1000000", "--step-sleep-ms", "5",
                           "--events", dir_ + "/events-" + std::to_string(rank)}));
  }
  for (int i = 0; i < 5000; ++i) {
    std::ifstream events(dir_ + "/events-0");
    std::string first;
    if (std::getline(events, first) && first.find("\"step\"") != std::string::npos) break;
    ::usleep(1000);
  }
  ::kill(ranks[1], SIGKILL);
  EXPECT_EQ(ExitCode(ranks[1]), -SIGKILL);
  EXPECT_EQ(ExitCode(ranks[0]), 3);
}

TEST_F(CharlmTest, BadArgumentsAreRefused) {
  EXPECT_EQ(ExitCode(Start({"--rank", "2", "--world", "2"})), 64);
  EXPECT_EQ(ExitCode(Start({"--no-such-flag"})), 64);
  EXPECT_EQ(ExitCode(Start({"--socket", dir_ + "/none.sock", "--connect-timeout", "100"})), 1)
      << "without an agent the trainer must not start at step 0";
}

}  // namespace
}  // namespace charlm
