// A restore fills the caller's tensors, or reports every difference and changes no byte.

#include "base/random.h"
#include "tests/client/core/client_fixture.h"

namespace holdfast::client {
namespace {
using testing::HasSubstr;

class RestoreTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    agent_->Start();
  }
  /// Saves the current state as a version of (incarnation 7, step) and offers its image.
  void SaveAndOffer(uint64_t step, Tier tier = Tier::kMemory) {
    std::string progress = "position 5";
    holdfast_extra extras[] = {{"progress", progress.data(), progress.size()}, {"none", "", 0}};
    holdfast_save_options save = {sizeof save, extras, 2, nullptr, 0, 0};
    ASSERT_EQ(holdfast_save(client_, step, &save, &error_), HOLDFAST_OK) << Message();
    ASSERT_EQ(Wait(step), HOLDFAST_OK) << Message();
    image_ = agent_->images().at(step).image;
    version_ = {{7}, {step}};
    agent_->OfferRestore(version_, image_, tier);
  }
  holdfast_code Restore(uint64_t timeout_ms = 60'000) {
    holdfast_restored_free(std::exchange(restored_, nullptr));
    return holdfast_restore(client_, nullptr, timeout_ms, &restored_, &error_);
  }
  void TearDown() override {
    holdfast_restored_free(restored_);
    ClientFixture::TearDown();
  }
  std::vector<std::string> Differences() {
    std::vector<std::string> all;
    for (size_t i = 0; i < holdfast_difference_count(client_); ++i) {
      all.emplace_back(holdfast_difference(client_, i));
    }
    return all;
  }

  std::string image_;
  VersionId version_;
  holdfast_restored* restored_ = nullptr;
};

TEST_F(RestoreTest, RestoresTensorsAndExtras) {
  Random random(3);
  values_.assign((12 << 20) + 77, 0);  // more than one thread's share, an odd size
  for (float& value : values_) value = static_cast<float>(random.Unit());
  shape_ = {values_.size()};
  std::vector<double> second = {1, 2, 3};
  double scalar = 0.25;
  uint64_t second_shape[] = {3};
  tensors_[0].data = values_.data();
  tensors_[0].shape = shape_.data();
  tensors_.push_back(tensors_[0]);
  tensors_[1].name = "a.second";
  tensors_[1].data = second.data();
  tensors_[1].shape = second_shape;
  tensors_[1].dtype = HOLDFAST_F64;
  tensors_.push_back(tensors_[1]);
  tensors_[2].name = "scalar";
  tensors_[2].data = &scalar;
  tensors_[2].dimensions = 0;
  options_.copy_threads = 3;
  options_.slots = 2;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(41, Tier::kDisk);
  std::vector<float> expected = values_;
  values_.assign(values_.size(), -1);
  second = {9, 9, 9};
  scalar = 9;
  ASSERT_EQ(Restore(), HOLDFAST_OK) << Message();
  EXPECT_TRUE(values_ == expected);
  EXPECT_EQ(second, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(scalar, 0.25);
  EXPECT_EQ(restored_->version.incarnation, 7u);
  EXPECT_EQ(restored_->version.step, 41u);
  EXPECT_EQ(restored_->tier, static_cast<uint32_t>(HOLDFAST_TIER_DISK));
  EXPECT_EQ(restored_->bytes, expected.size() * 4 + 24 + 8 + 10);
  ASSERT_EQ(restored_->extra_count, 2u);
  EXPECT_STREQ(restored_->extras[0].name, "progress");
  EXPECT_STREQ(static_cast<const char*>(restored_->extras[0].data), "position 5");
  EXPECT_EQ(restored_->extras[1].bytes, 0u);
  EXPECT_TRUE(Eventually([&] { return agent_->Count(agent::MessageType::kEndRestore) == 1; }));
}

TEST_F(RestoreTest, TensorsOfAVersionMayHaveAnotherOrder) {
  std::vector<float> first = {1, 2, 3};
  std::vector<float> second = {4, 5, 6};
  uint64_t shape[] = {3};
  tensors_[0].data = first.data();
  tensors_[0].shape = shape;
  tensors_.push_back(tensors_[0]);
  tensors_[1].name = "x";
  tensors_[1].data = second.data();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(1);

  const ParsedImage saved = ParseImage(std::as_bytes(std::span(image_)), image_.size()).value();
  ASSERT_EQ(saved.tensors.size(), 2u);
  const std::vector<uint64_t> reversed = {2, 1};
  const ImageLayout layout =
      ImageLayout::Plan({saved.tensors[0].spec, saved.tensors[1].spec}, reversed).value();
  const std::string data = image_.substr(saved.data_offset);
  image_ =
      layout.RenderHeader(saved.identity, {}).value() + data.substr(12, 12) + data.substr(0, 12);
  agent_->OfferRestore(version_, image_, Tier::kMemory);
  first.assign(3, 0);
  second.assign(3, 0);
  ASSERT_EQ(Restore(), HOLDFAST_OK) << Message();
  EXPECT_EQ(first, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(second, (std::vector<float>{4, 5, 6}));
}

TEST_F(RestoreTest, NotFoundIsAFreshStart) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent_->Edit([](Script& s) { s.find_restore = NotFoundError("job has no version"); });
  values_.assign(values_.size(), 3);
  EXPECT_EQ(Restore(), HOLDFAST_NOT_FOUND);
  EXPECT_EQ(restored_, nullptr);
  EXPECT_EQ(values_, std::vector<float>(1024, 3));
}

TEST_F(RestoreTest, EveryDifferenceIsNamedAndNothingIsChanged) {
  std::vector<float> more(1024, 2);
  for (const char* name : {"gone", "reshaped", "retyped", "moved"}) {
    tensors_.push_back(tensors_[0]);
    tensors_.back().name = name;
    tensors_.back().data = more.data();
  }
  uint64_t global[] = {4096};
  uint64_t offset[] = {1024};
  tensors_[4].global_shape = global;
  tensors_[4].offset = offset;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(3);
  Close();

  uint64_t reshape[] = {512, 2};
  uint64_t other_offset[] = {2048};
  tensors_[1].name = "new";
  tensors_[2].shape = reshape;
  tensors_[2].dimensions = 2;
  tensors_[3].dtype = HOLDFAST_I32;
  tensors_[4].offset = other_offset;
  values_.assign(values_.size(), -5);
  more.assign(more.size(), -6);
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_EQ(Restore(), HOLDFAST_INVALID_ARGUMENT);
  for (const char* part : {"gone", "new", "reshaped", "retyped", "moved"}) {
    EXPECT_THAT(Message(), HasSubstr(part));
    EXPECT_THAT(Differences(), testing::Contains(HasSubstr(part)));
  }
  EXPECT_THAT(Differences(), testing::Not(testing::Contains(HasSubstr("'w'"))));
  EXPECT_EQ(values_, std::vector<float>(1024, -5));
  EXPECT_EQ(more, std::vector<float>(1024, -6));
  EXPECT_TRUE(Eventually([&] { return agent_->Count(agent::MessageType::kEndRestore) == 1; }))
      << "the slot is returned after a refusal, too";
}

TEST_F(RestoreTest, TheErrorForAnotherWorldNamesBoth) {
  options_.world = 8;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(3);
  Close();
  options_.world = 4;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_EQ(Restore(), HOLDFAST_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), HasSubstr("world of 8"));
  EXPECT_THAT(Message(), HasSubstr("4"));
}

TEST_F(RestoreTest, WrongOrDamagedImagesAreRefused) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(3);
  agent_->OfferRestore({{7}, {4}}, image_);
  EXPECT_EQ(Restore(), HOLDFAST_INTERNAL) << "not the version of the answer";
  agent_->OfferRestore(version_, image_.substr(0, image_.size() - 1));
  EXPECT_NE(Restore(), HOLDFAST_OK);
  agent_->OfferRestore(version_, image_.substr(0, 5));
  EXPECT_NE(Restore(), HOLDFAST_OK);
  agent_->OfferRestore(version_, "");
  EXPECT_NE(Restore(), HOLDFAST_OK);
  std::string garbled = image_;
  garbled[0] = '\xff';
  garbled[7] = '\xff';
  agent_->OfferRestore(version_, garbled);
  EXPECT_NE(Restore(), HOLDFAST_OK);
  EXPECT_EQ(values_, std::vector<float>(1024, 1.5F));
  agent_->OfferRestore(version_, image_);
  EXPECT_EQ(Restore(), HOLDFAST_OK) << Message();
}

TEST_F(RestoreTest, WaitsForAMissingAgent) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(3);
  agent_->Stop();
  ASSERT_TRUE(Eventually([&] { return !Connected(); }));
  EXPECT_LT(Timed([&] { EXPECT_EQ(Restore(200), HOLDFAST_UNAVAILABLE); }), kHangMs);
  std::thread later([&] {
    ::usleep(200'000);
    agent_->Start();
  });
  EXPECT_EQ(Restore(), HOLDFAST_OK) << Message();
  later.join();
}

TEST_F(RestoreTest, RetriesWhileTheAgentIsUnavailable) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(3);
  agent_->Edit([](Script& s) { s.find_restore = UnavailableError("no coordinator"); });
  EXPECT_EQ(Restore(300), HOLDFAST_UNAVAILABLE);
  EXPECT_THAT(Message(), HasSubstr("no coordinator"));
  std::thread later([&] {
    ::usleep(300'000);
    agent_->Edit([](Script& s) { s.find_restore.reset(); });
  });
  EXPECT_EQ(Restore(), HOLDFAST_OK) << Message();
  later.join();
}

TEST_F(RestoreTest, ASilentAgentTimesOut) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  SaveAndOffer(3);
  agent_->Edit([](Script& s) { s.silent = true; });
  EXPECT_LT(Timed([&] { EXPECT_EQ(Restore(200), HOLDFAST_DEADLINE_EXCEEDED); }), kHangMs);
  agent_->Edit([](Script& s) { s.silent = false; });
  EXPECT_TRUE(Eventually([&] { return agent_->Count(agent::MessageType::kEndRestore) == 1; }))
      << "the slot of a late answer is returned";
  EXPECT_EQ(Restore(), HOLDFAST_OK) << Message();
}

}  // namespace
}  // namespace holdfast::client
