// holdfast.hpp, with no internals of Holdfast except the scripted agent.

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <holdfast/holdfast.hpp>

#include "tests/client/core/scripted_agent.h"

namespace {
namespace hf = holdfast::v1;
using std::chrono::milliseconds;

class CppTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "hf-cpp-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    agent_.emplace(dir_ + "/agent.sock");
    agent_->Start();
    options_.job = "job";
    options_.rank = 1;
    options_.world = 2;
    options_.run_id = "run";
    options_.socket_path = agent_->path();
    options_.connect_timeout = options_.agent_timeout = milliseconds(60'000);
  }
  void TearDown() override {
    agent_.reset();
    std::filesystem::remove_all(dir_);
  }
  std::string dir_;
  std::optional<holdfast::client::ScriptedAgent> agent_;
  hf::Options options_;
};

TEST_F(CppTest, SaveAndRestore) {
  std::vector<float> weights(12, 2.5F);
  std::vector<int64_t> counts = {1, 2, 3};
  std::vector<hf::Tensor> state = {hf::Slice("weights", weights, {3, 4}, {6, 4}, {3, 0}),
                                   hf::Whole("counts", counts, {3})};
  std::vector<std::string> log;
  options_.log = [&](hf::LogLevel, std::string_view text) { log.emplace_back(text); };
  auto client = hf::Client::Open(options_, state);
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  EXPECT_TRUE(client->Connection().ok());
  EXPECT_FALSE(client->Latest(hf::Tier::kMemory));

  std::string rng = "seed 5";
  ASSERT_TRUE(client->Save(10, {{"rng", rng}, {"json", "{}"}}).ok());
  ASSERT_TRUE(client->Guard().ok());
  ASSERT_TRUE(client->Wait(10, hf::Tier::kSealed, milliseconds(60'000)).ok());
  weights.assign(12, 0);
  counts = {};
  counts.resize(3);  // keeps its memory
  agent_->OfferRestore({{7}, {10}}, agent_->images().at(10).image, holdfast::Tier::kDisk);
  auto restored = client->Restore();
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(weights, std::vector<float>(12, 2.5F));
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(restored->version, (hf::Version{7, 10}));
  EXPECT_EQ(restored->version.ToString(), "7-10");
  EXPECT_EQ(restored->tier, hf::Tier::kDisk);
  ASSERT_NE(restored->extra("rng"), nullptr);
  EXPECT_EQ(*restored->extra("rng"), "seed 5");
  EXPECT_EQ(restored->extra("other"), nullptr);
  EXPECT_EQ(client->Stats().saves, 1u);
  EXPECT_TRUE(client->Close().ok());
  EXPECT_THAT(log, testing::Contains(
                       testing::HasSubstr("connected")));  // no thread writes the log any more
  EXPECT_TRUE(client->Close().ok()) << "closing twice is allowed";
  EXPECT_EQ(client->Save(11).code(), hf::Code::kInvalidArgument);
}

TEST_F(CppTest, ErrorsAreValues) {
  std::vector<float> weights(4);
  std::vector<hf::Tensor> bad = {hf::Slice("w", weights, {4}, {8, 1}, {0})};
  auto client = hf::Client::Open(options_, bad);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), hf::Code::kInvalidArgument);
  EXPECT_THAT(client.status().ToString(), testing::HasSubstr("InvalidArgument: tensor 'w'"));

  std::vector<hf::Tensor> outside = {hf::Slice("w", weights, {4}, {6}, {3})};
  EXPECT_EQ(hf::Client::Open(options_, outside).status().code(), hf::Code::kInvalidArgument);
  std::vector<hf::Tensor> twice = {hf::Whole("w", weights, {4}), hf::Whole("w", weights, {4})};
  EXPECT_EQ(hf::Client::Open(options_, twice).status().code(), hf::Code::kInvalidArgument);
}

TEST_F(CppTest, DifferencesAreListed) {
  std::vector<float> weights(4, 1);
  auto client = hf::Client::Open(options_, std::vector{hf::Whole("w", weights, {4})});
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  ASSERT_TRUE(client->Save(1).ok());
  ASSERT_TRUE(client->Wait(1, hf::Tier::kSealed, milliseconds(60'000)).ok());
  agent_->OfferRestore({{7}, {1}}, agent_->images().at(1).image);
  hf::Client other = std::move(*client);  // moving keeps the connection
  ASSERT_TRUE(other.Close().ok());
  auto wider = hf::Client::Open(options_, std::vector{hf::Whole("w", weights, {2, 2})});
  ASSERT_TRUE(wider.ok()) << wider.status().ToString();
  EXPECT_EQ(wider->Restore().status().code(), hf::Code::kInvalidArgument);
  EXPECT_THAT(wider->Differences(),
              testing::Contains(testing::HasSubstr("'w' was saved with shape")));
}

TEST(CppTypesTest, DTypes) {
  EXPECT_EQ(hf::DTypeOf<float>(), hf::DType::kF32);
  EXPECT_EQ(hf::DTypeOf<bool>(), hf::DType::kBool);
  EXPECT_EQ(hf::DTypeOf<int8_t>(), hf::DType::kI8);
  EXPECT_EQ(hf::DTypeOf<uint64_t>(), hf::DType::kU64);
  EXPECT_EQ(hf::DTypeOf<std::byte>(), hf::DType::kU8);
  EXPECT_EQ(hf::ToString(hf::Tier::kDisk), "disk");
}

// The public numbers equal the internal ones.
static_assert(static_cast<int>(hf::Code::kInternal) ==
              static_cast<int>(holdfast::ErrorCode::kInternal));
static_assert(static_cast<int>(hf::Code::kFenced) ==
              static_cast<int>(holdfast::ErrorCode::kFenced));
static_assert(static_cast<int>(hf::Tier::kRemote) == static_cast<int>(holdfast::Tier::kRemote));
static_assert(static_cast<int>(hf::DType::kC64) == static_cast<int>(holdfast::DType::kC64));
static_assert(static_cast<int>(hf::DType::kBF16) == static_cast<int>(holdfast::DType::kBF16));

}  // namespace
