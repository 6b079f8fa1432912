// The bytes in a slot after a save, and the guarantee of a guard.

#include <nlohmann/json.hpp>

#include "base/random.h"
#include "tests/client/core/client_fixture.h"

namespace holdfast::client {
namespace {

/// Tensors with random bytes that own what a holdfast_tensor points to.
class State {
 public:
  void Add(std::string name, uint32_t dtype, uint64_t item_bytes, std::vector<uint64_t> shape,
           std::vector<uint64_t> global = {}, std::vector<uint64_t> offset = {}) {
    uint64_t count = 1;
    for (uint64_t extent : shape) count *= extent;
    std::string bytes(count * item_bytes, '\0');
    for (char& c : bytes) c = static_cast<char>(random_.Next());
    entries_.push_back({std::move(name), dtype, item_bytes, std::move(shape), std::move(global),
                        std::move(offset), std::move(bytes)});
  }
  std::vector<holdfast_tensor> Describe() {
    std::vector<holdfast_tensor> tensors;
    for (Entry& e : entries_) {
      tensors.push_back({.name = e.name.c_str(),
                         .data = e.bytes.empty() ? nullptr : e.bytes.data(),
                         .shape = e.shape.data(),
                         .dimensions = static_cast<uint32_t>(e.shape.size()),
                         .dtype = e.dtype,
                         .device = HOLDFAST_HOST,
                         .device_index = 0,
                         .global_shape = e.global.empty() ? nullptr : e.global.data(),
                         .offset = e.offset.empty() ? nullptr : e.offset.data(),
                         .reserved = {}});
    }
    return tensors;
  }
  /// Returns the data region, computed without Holdfast's layout code: by element size, then name.
  std::string ExpectedData() const {
    std::vector<const Entry*> order;
    for (const Entry& e : entries_) order.push_back(&e);
    std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
      return a->item_bytes != b->item_bytes ? a->item_bytes > b->item_bytes : a->name < b->name;
    });
    std::string data;
    for (const Entry* e : order) data += e->bytes;
    return data;
  }

 private:
  struct Entry {
    std::string name;
    uint32_t dtype;
    uint64_t item_bytes;
    std::vector<uint64_t> shape, global, offset;
    std::string bytes;
  };
  std::vector<Entry> entries_;
  Random random_{42};
};

/// Header length and JSON of an image.
nlohmann::json HeaderOf(const std::string& image, uint64_t* data_offset) {
  uint64_t length = 0;
  std::memcpy(&length, image.data(), 8);
  *data_offset = 8 + length;
  return nlohmann::json::parse(image.substr(8, length));
}

using SaveTest = ClientFixture;

TEST_F(SaveTest, ImageIsSafetensorsWithEveryDtype) {
  struct Kind {
    const char* name;
    uint32_t dtype;
    uint64_t bytes;
  };
  const Kind kinds[] = {{"BOOL", HOLDFAST_BOOL, 1},       {"U8", HOLDFAST_U8, 1},
                        {"I8", HOLDFAST_I8, 1},           {"F8_E4M3", HOLDFAST_F8_E4M3, 1},
                        {"F8_E5M2", HOLDFAST_F8_E5M2, 1}, {"U16", HOLDFAST_U16, 2},
                        {"I16", HOLDFAST_I16, 2},         {"F16", HOLDFAST_F16, 2},
                        {"BF16", HOLDFAST_BF16, 2},       {"U32", HOLDFAST_U32, 4},
                        {"I32", HOLDFAST_I32, 4},         {"F32", HOLDFAST_F32, 4},
                        {"U64", HOLDFAST_U64, 8},         {"I64", HOLDFAST_I64, 8},
                        {"F64", HOLDFAST_F64, 8},         {"C64", HOLDFAST_C64, 8}};
  State state;
  for (const Kind& kind : kinds) state.Add(kind.name, kind.dtype, kind.bytes, {3, 7});
  state.Add("scalar", HOLDFAST_F64, 8, {});
  state.Add("empty", HOLDFAST_F32, 4, {0, 5});
  state.Add(
      "gr\xc3\xb6\xc3\x9f"
      "e",
      HOLDFAST_F32, 4, {2, 3}, {8, 3}, {4, 0});
  tensors_ = state.Describe();
  options_.rank = 1;
  options_.world = 4;
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  std::string progress = "{\"epoch\": 3}";
  holdfast_extra extras[] = {{"progress", progress.data(), progress.size()},
                             {"nothing", nullptr, 0}};
  holdfast_save_options save = {sizeof save, extras, 2, nullptr, 0, 0};
  ASSERT_EQ(holdfast_save(client_, 120, &save, &error_), HOLDFAST_OK) << Message();
  progress.assign(progress.size(), 'x');  // the save has copied the extras
  ASSERT_EQ(Wait(120), HOLDFAST_OK) << Message();

  std::string image = agent_->images().at(120).image;
  uint64_t data_offset = 0;
  nlohmann::json header = HeaderOf(image, &data_offset);
  EXPECT_EQ(data_offset % 4096, 0u);
  EXPECT_EQ(image.substr(data_offset), state.ExpectedData() + "{\"epoch\": 3}");
  for (const Kind& kind : kinds) {
    EXPECT_EQ(header[kind.name]["dtype"], kind.name);
    EXPECT_EQ(header[kind.name]["shape"], (std::vector<int>{3, 7}));
  }
  EXPECT_EQ(header["scalar"]["shape"], nlohmann::json::array());
  EXPECT_EQ(header["empty"]["shape"], (std::vector<int>{0, 5}));
  auto parsed = ParseImage(std::as_bytes(std::span(image)), image.size());
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(parsed->identity, (ShardIdentity{"job", {{7}, {120}}, {1}, 4}));
  for (const PlacedTensor& tensor : parsed->tensors) {
    if (tensor.spec.name !=
        "gr\xc3\xb6\xc3\x9f"
        "e")
      continue;
    EXPECT_EQ(tensor.spec.global_shape, (std::vector<uint64_t>{8, 3}));
    EXPECT_EQ(tensor.spec.offset, (std::vector<uint64_t>{4, 0}));
  }
}

TEST_F(SaveTest, TenThousandTensors) {
  State state;
  for (int i = 0; i < 10'000; ++i) {
    state.Add("layer." + std::to_string(i), HOLDFAST_F32, 4, {static_cast<uint64_t>(i % 300), 2});
  }
  tensors_ = state.Describe();
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  ASSERT_EQ(Wait(1), HOLDFAST_OK) << Message();
  std::string image = agent_->images().at(1).image;
  uint64_t data_offset = 0;
  HeaderOf(image, &data_offset);
  EXPECT_TRUE(image.substr(data_offset) == state.ExpectedData());
}

TEST_F(SaveTest, ManySavesEachHoldTheirOwnValues) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  for (uint64_t step = 1; step <= 50; ++step) {
    ASSERT_EQ(Guard(), HOLDFAST_OK) << Message();
    values_.assign(values_.size(), static_cast<float>(step));
    ASSERT_EQ(Save(step), HOLDFAST_OK) << Message();
  }
  ASSERT_EQ(Wait(50), HOLDFAST_OK) << Message();
  auto images = agent_->images();
  ASSERT_EQ(images.size(), 50u);
  for (auto& [step, saved] : images) {
    std::vector<float> expected(values_.size(), static_cast<float>(step));
    const std::string_view bytes(reinterpret_cast<const char*>(expected.data()), 4096);
    EXPECT_TRUE(saved.image.ends_with(bytes)) << step;
  }
  holdfast_stats stats = Stats();
  EXPECT_EQ(stats.saves, 50u);
  EXPECT_EQ(stats.sealed, 50u);
  EXPECT_EQ(stats.skipped + stats.failed + stats.pending, 0u);
}

/// A copy that takes long enough to be interrupted: after the save and an optional guard, the first
/// and last values are changed at once.
class GuardTest : public ClientFixture {
 protected:
  static constexpr size_t kCount = 16 << 20;
  void SetUp() override {
    ClientFixture::SetUp();
    values_.assign(kCount, 0);
    shape_ = {kCount};
    tensors_[0].shape = shape_.data();
    tensors_[0].data = values_.data();
    options_.slots = 2;
    agent_->Start();
    ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  }
  /// Returns whether all values in the image of `step` are `step`.
  bool Whole(uint64_t step) {
    auto all = agent_->images();
    const std::string& image = all.at(step).image;
    std::vector<float> saved(kCount);
    std::memcpy(saved.data(), image.data() + image.size() - kCount * 4, kCount * 4);
    return saved == std::vector<float>(kCount, static_cast<float>(step));
  }
};

TEST_F(GuardTest, WithAGuardNoVersionIsTorn) {
  for (uint64_t step = 1; step <= 5; ++step) {
    values_.assign(kCount, static_cast<float>(step));
    ASSERT_EQ(Save(step), HOLDFAST_OK) << Message();
    ASSERT_EQ(Guard(), HOLDFAST_OK) << Message();
    values_.assign(kCount, -1);
    ASSERT_EQ(Wait(step), HOLDFAST_OK) << Message();
    EXPECT_TRUE(Whole(step)) << "step " << step << " is torn";
  }
  EXPECT_GT(Stats().guard_ns, 0u);
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(GuardTest, WithoutAGuardVersionsAreTorn) {
  bool torn = false;
  for (uint64_t step = 1; step <= 20 && !torn; ++step) {
    values_.assign(kCount, static_cast<float>(step));
    ASSERT_EQ(Save(step), HOLDFAST_OK) << Message();
    values_.assign(kCount, -1);
    ASSERT_EQ(Wait(step), HOLDFAST_OK) << Message();
    torn = !Whole(step);
  }
  EXPECT_TRUE(torn) << "the guard's test is inconclusive: no copy was interrupted";
}
#endif

TEST_F(SaveTest, StepsMustIncrease) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_EQ(Save(5), HOLDFAST_OK);
  EXPECT_EQ(Save(5), HOLDFAST_ALREADY_EXISTS);
  EXPECT_EQ(Save(4), HOLDFAST_ALREADY_EXISTS);
  EXPECT_EQ(Save(6), HOLDFAST_OK);
}

TEST_F(SaveTest, ExtrasAreChecked) {
  options_.extra_bytes_max = 100;
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  std::string big(101, 'x');
  holdfast_extra extra = {"rng", big.data(), big.size()};
  holdfast_save_options save = {sizeof save, &extra, 1, nullptr, 0, 0};
  EXPECT_EQ(holdfast_save(client_, 1, &save, &error_), HOLDFAST_RESOURCE_EXHAUSTED);
  EXPECT_THAT(Message(), testing::HasSubstr("extra_bytes_max"));
  extra = {"../rng", "x", 1};
  EXPECT_EQ(holdfast_save(client_, 1, &save, &error_), HOLDFAST_INVALID_ARGUMENT);
  holdfast_extra twice[] = {{"rng", "x", 1}, {"rng", "y", 1}};
  save = {sizeof save, twice, 2, nullptr, 0, 0};
  EXPECT_EQ(holdfast_save(client_, 1, &save, &error_), HOLDFAST_INVALID_ARGUMENT);
  EXPECT_EQ(Save(1), HOLDFAST_OK) << "a refused save does not use up its step";
}

TEST_F(SaveTest, SkipsAndReportsWhenFull) {
  options_.slots = 2;
  agent_->Edit([](Script& s) { s.hold_slots = true; });
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(Save(step), HOLDFAST_OK) << Message();
    EXPECT_EQ(Guard(), HOLDFAST_OK) << Message();
  }
  EXPECT_EQ(Wait(1), HOLDFAST_OK);
  EXPECT_EQ(Wait(2), HOLDFAST_OK);
  EXPECT_EQ(Wait(3), HOLDFAST_RESOURCE_EXHAUSTED);
  EXPECT_EQ(Stats().skipped, 1u);
  EXPECT_EQ(Stats().failed, 0u);
  EXPECT_EQ(Close(), HOLDFAST_OK) << "a skipped step is no failure: " << Message();
}

TEST_F(SaveTest, TheWaitPolicyIsSentToTheAgent) {
  options_.when_full = HOLDFAST_WAIT;
  options_.wait_ms = 60'000;
  options_.agent_timeout_ms = 300;
  agent_->Edit([](Script& s) { s.silent = true; });
  agent_->Start();
  // The Hello waits, too; the agent answers it when it is no longer silent.
  std::thread speak([&] {
    ::usleep(50'000);
    agent_->Edit([](Script& s) { s.silent = false; });
  });
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  speak.join();
  agent_->Edit([](Script& s) { s.silent = true; });
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  std::thread later([&] {
    ::usleep(700'000);  // longer than agent_timeout_ms alone
    agent_->Edit([](Script& s) { s.silent = false; });
  });
  EXPECT_EQ(Guard(), HOLDFAST_OK) << Message();
  later.join();
  EXPECT_EQ(Wait(1), HOLDFAST_OK) << Message();
}

TEST_F(SaveTest, ASingleSaveMayHaveItsOwnWait) {
  options_.agent_timeout_ms = 300;
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent_->Edit([](Script& s) { s.silent = true; });
  holdfast_save_options save = {sizeof save, nullptr, 0, nullptr, 60'000, 0};
  ASSERT_EQ(holdfast_save(client_, 1, &save, &error_), HOLDFAST_OK) << Message();
  std::thread later([&] {
    ::usleep(700'000);  // longer than agent_timeout_ms alone
    agent_->Edit([](Script& s) { s.silent = false; });
  });
  EXPECT_EQ(Guard(), HOLDFAST_OK) << Message();
  later.join();
  EXPECT_EQ(Wait(1), HOLDFAST_OK) << Message();
}

}  // namespace
}  // namespace holdfast::client
