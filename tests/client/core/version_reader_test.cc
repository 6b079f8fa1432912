#include <fcntl.h>
#include <sys/mman.h>

#include "agent/api/version_listing.h"
#include "tests/client/core/client_fixture.h"

// Readers against a scripted agent, which may also give invalid answers.

namespace holdfast::client {
namespace {
using ::testing::HasSubstr;

/// The agent's side of one reader: a version of one shard that has the tensor "w".
struct ReaderScript {
  std::string image;
  std::vector<std::string> others;  // images of the further ranks
  bool sealed = true;
  bool with_memory = true;
  uint64_t memory_bytes = agent::kReadWindowBytes + (1 << 20);
  uint32_t world = 1;
  uint32_t tier = 1;
  uint32_t own_slot = agent::kNoSlot;
  std::optional<uint64_t> listing_bytes;
  std::function<void(std::span<std::byte>)> spoil;
  Status read;
  bool hang_up_on_read = false;
  bool silent_on_read = false;

  uint32_t opened = 0;
  uint32_t closed = 0;
  uint32_t reads = 0;
  std::vector<uint64_t> wanted_steps;
  UniqueFd fd;
  std::span<std::byte> memory;

  ~ReaderScript() { Unmap(); }
  void Unmap() {
    if (!memory.empty()) ::munmap(memory.data(), memory.size());
    memory = {};
  }

  void MakeMemory() {
    Unmap();
    fd = UniqueFd(::memfd_create("reader", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(memory_bytes)), 0);
    const int seals = sealed ? F_SEAL_SHRINK : 0;
    ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    void* base = ::mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(base, MAP_FAILED);
    memory = {static_cast<std::byte*>(base), memory_bytes};
  }

  const std::string& ImageOf(uint32_t rank) const { return rank == 0 ? image : others[rank - 1]; }

  bool OnOpen(int socket, const agent::FindRestoreMessage& message) {
    ++opened;
    wanted_steps.push_back(message.wanted_step);
    MakeMemory();
    std::vector<agent::ListedShard> shards;
    for (uint32_t rank = 0; rank <= others.size(); ++rank) {
      const auto bytes = std::as_bytes(std::span(ImageOf(rank)));
      const uint64_t header = HeaderBytes(bytes.first(8), bytes.size()).value();
      const ParsedImage parsed = ParseImage(bytes.first(header), bytes.size()).value();
      const uint64_t extras =
          parsed.extras.empty() ? bytes.size() - header : parsed.extras[0].begin;
      shards.push_back(
          {rank, true, bytes.size(), bytes.first(header), bytes.subspan(header + extras)});
    }
    const uint64_t listing = agent::ListingBytes(shards);
    if (memory.size() >= agent::kReadWindowBytes + listing) {
      agent::WriteListing(shards, memory.subspan(agent::kReadWindowBytes, listing));
      if (spoil) spoil(memory.subspan(agent::kReadWindowBytes, listing));
    }
    agent::ReplyMessage reply;
    reply.header.ticket = message.header.ticket;
    reply.slot = 5;
    reply.incarnation = 3;
    reply.step = 9;
    reply.image_bytes = listing_bytes.value_or(listing);
    reply.tier = tier;
    reply.world = world;
    reply.own_slot = own_slot;
    const int passed = fd.get();
    return agent::SendPacket(socket, std::as_bytes(std::span(&reply, 1)),
                             std::span(&passed, with_memory ? 1 : 0))
        .ok();
  }

  bool OnRead(int socket, const agent::ReadRangeMessage& message) {
    ++reads;
    if (silent_on_read) return true;
    if (hang_up_on_read) return false;
    EXPECT_EQ(message.reader, 5U);
    EXPECT_LT(message.place, agent::kReadPlaces);
    EXPECT_LE(message.bytes, agent::kReadPlaceBytes);
    const std::string& from = ImageOf(message.rank);
    EXPECT_LE(message.offset + message.bytes, from.size());
    std::memcpy(memory.data() + message.place * agent::kReadPlaceBytes,
                from.data() + message.offset, message.bytes);
    agent::ReplyMessage reply;
    reply.header.ticket = message.header.ticket;
    reply.code = static_cast<uint32_t>(read.code());
    agent::PutText(reply.text, read.message());
    return agent::SendPacket(socket, std::as_bytes(std::span(&reply, 1))).ok();
  }

  bool Handle(int socket, std::span<const std::byte> packet) {
    const agent::MessageType type = agent::CheckPacket(packet)->type;
    if (type == agent::MessageType::kCloseReader) return ++closed > 0;
    if (type == agent::MessageType::kOpenReader) {
      agent::FindRestoreMessage message;
      std::memcpy(&message, packet.data(), sizeof message);
      return OnOpen(socket, message);
    }
    agent::ReadRangeMessage message;
    std::memcpy(&message, packet.data(), sizeof message);
    return OnRead(socket, message);
  }
};

class VersionReaderTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    script_.image = MakeImage("job");
    agent_->Edit([this](Script& script) {
      script.on_reader = [this](int socket, std::span<const std::byte> packet) {
        return script_.Handle(socket, packet);
      };
    });
    agent_->Start();
    ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  }
  void TearDown() override {
    holdfast_reader_close(reader_);
    ClientFixture::TearDown();
  }
  static std::string MakeImage(const std::string& job) {
    auto layout = ImageLayout::Plan({{"w", DType::kF32, {1024}, {1024}, {0}}});
    const ShardIdentity identity{job, {Incarnation{3}, Step{9}}, Rank{0}, 1};
    std::string image = layout->RenderHeader(identity, {}).value();
    const std::vector<float> values(1024, 2.5F);
    image.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    return image;
  }
  /// An image of a world of three. Each rank has a part of "w", an own tensor in two slices and two
  /// extras; the last rank has one more tensor.
  static std::string ImageOfThree(uint32_t rank) {
    const std::string own = "own@rank" + std::to_string(rank);
    std::vector<TensorSpec> specs = {{"w", DType::kF32, {1}, {3}, {rank}},
                                     {own, DType::kF32, {1}, {2}, {0}},
                                     {own + kSliceSeparator + "1", DType::kF32, {1}, {2}, {1}}};
    if (rank == 2) specs.push_back({"last", DType::kF32, {1}, {1}, {0}});
    const ShardIdentity identity{"job", {Incarnation{3}, Step{9}}, Rank{rank}, 3};
    const std::vector<ExtraSize> extras = {{"small", 1}, {"large", 5000}};
    const auto layout = ImageLayout::Plan(specs);
    std::string image = layout->RenderHeader(identity, extras).value();
    image.append(layout->tensor_bytes(), '\0');
    return image.append(1, 's').append(5000, static_cast<char>('a' + rank));
  }
  /// Only the agent's thread accesses the script while the agent runs.
  void Edit(const std::function<void(ReaderScript&)>& edit) {
    agent_->Edit([&](Script&) { edit(script_); });
  }
  holdfast_code OpenReader(uint32_t timeout_ms = 20'000) {
    return holdfast_reader_open(client_, nullptr, timeout_ms, &reader_, &error_);
  }
  holdfast_code Load(uint32_t timeout_ms = 20'000) {
    return holdfast_reader_load(reader_, tensors_.data(), tensors_.size(), timeout_ms, &error_);
  }

  ReaderScript script_;
  holdfast_reader* reader_ = nullptr;
};

TEST_F(VersionReaderTest, ListsAndLoads) {
  ASSERT_EQ(OpenReader(), HOLDFAST_OK) << Message();
  const holdfast_reader_info* info = holdfast_reader_get(reader_);
  EXPECT_EQ(info->version.incarnation, 3U);
  EXPECT_EQ(info->version.step, 9U);
  EXPECT_EQ(info->world, 1U);
  ASSERT_EQ(info->piece_count, 1U);
  EXPECT_STREQ(info->pieces[0].name, "w");
  EXPECT_EQ(info->pieces[0].dtype, static_cast<uint32_t>(HOLDFAST_F32));
  EXPECT_EQ(info->pieces[0].shape[0], 1024U);
  EXPECT_EQ(info->pieces[0].offset[0], 0U);
  EXPECT_EQ(Load(), HOLDFAST_OK) << Message();
  EXPECT_EQ(values_, std::vector<float>(1024, 2.5F));
  holdfast_reader_close(std::exchange(reader_, nullptr));
  EXPECT_TRUE(Eventually([&] {
    uint32_t closed = 0;
    Edit([&](ReaderScript& script) { closed = script.closed; });
    return closed == 1;
  }));
}

TEST_F(VersionReaderTest, EachTensorIsListedOnceAndExtrasAreReadOneByOne) {
  Edit([&](ReaderScript& script) {
    script.image = ImageOfThree(0);
    script.others = {ImageOfThree(1), ImageOfThree(2)};
    script.world = 3;
  });
  ASSERT_EQ(OpenReader(), HOLDFAST_OK) << Message();
  const holdfast_reader_info* info = nullptr;
  ASSERT_EQ(holdfast_reader_tensors(reader_, 20'000, &info, &error_), HOLDFAST_OK) << Message();
  EXPECT_EQ(info->world, 3U);
  EXPECT_EQ(info->extra_count, 0U);
  std::vector<std::pair<std::string, uint32_t>> found;
  for (size_t i = 0; i < info->piece_count; ++i) {
    found.emplace_back(info->pieces[i].name, info->pieces[i].rank);
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre(
                         std::pair("w", 0), std::pair("own@rank0", 0), std::pair("own@rank1", 1),
                         std::pair("own@rank2", 2), std::pair("last", 2)));
  Edit([](ReaderScript& script) { EXPECT_EQ(script.reads, 0U); });

  holdfast_extra extra{};
  const auto read = [&](uint32_t rank, const char* name) {
    return holdfast_reader_extra(reader_, rank, name, 20'000, &extra, &error_);
  };
  const auto text = [&] { return std::string(static_cast<const char*>(extra.data), extra.bytes); };
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(read(rank, "small"), HOLDFAST_OK) << Message();
    EXPECT_EQ(text(), "s");
    ASSERT_EQ(read(rank, "large"), HOLDFAST_OK) << Message();
    EXPECT_EQ(text(), std::string(5000, static_cast<char>('a' + rank)));
  }
  ASSERT_EQ(read(2, "large"), HOLDFAST_OK) << Message();
  Edit([](ReaderScript& script) {
    EXPECT_EQ(script.reads, 2U) << "of the large extras of ranks 1 and 2, once each";
  });
  EXPECT_EQ(read(1, "other"), HOLDFAST_NOT_FOUND);
  EXPECT_EQ(read(3, "small"), HOLDFAST_NOT_FOUND);
  EXPECT_EQ(read(1, nullptr), HOLDFAST_INVALID_ARGUMENT);
  EXPECT_EQ(holdfast_reader_tensors(reader_, 1, nullptr, &error_), HOLDFAST_INVALID_ARGUMENT);
}

TEST_F(VersionReaderTest, ItsOwnShardIsReadInPlace) {
  Edit([&](ReaderScript& script) {
    script.own_slot = 1;
    const auto image = std::as_bytes(std::span(script.image));
    std::copy(image.begin(), image.end(), agent_->segment()->slot(1).begin());
  });
  ASSERT_EQ(OpenReader(), HOLDFAST_OK) << Message();
  EXPECT_EQ(Load(), HOLDFAST_OK) << Message();
  EXPECT_EQ(values_, std::vector<float>(1024, 2.5F));
  Edit([](ReaderScript& script) { EXPECT_EQ(script.reads, 0U); });
}

TEST_F(VersionReaderTest, InvalidCallsAreRefused) {
  EXPECT_EQ(holdfast_reader_open(nullptr, nullptr, 1, &reader_, &error_),
            HOLDFAST_INVALID_ARGUMENT);
  EXPECT_EQ(holdfast_reader_open(client_, nullptr, 1, nullptr, &error_), HOLDFAST_INVALID_ARGUMENT);
  const holdfast_version none = {0, 1};
  EXPECT_EQ(holdfast_reader_open(client_, &none, 1, &reader_, &error_), HOLDFAST_INVALID_ARGUMENT);
  EXPECT_EQ(holdfast_reader_load(nullptr, nullptr, 0, 1, &error_), HOLDFAST_INVALID_ARGUMENT);
  EXPECT_EQ(holdfast_reader_get(nullptr), nullptr);
  holdfast_reader_close(nullptr);
}

TEST_F(VersionReaderTest, InvalidAnswersOfTheAgentAreRefused) {
  const auto refused = [&](const std::function<void(ReaderScript&)>& change) {
    Edit([&](ReaderScript& script) {
      script.with_memory = script.sealed = true;
      script.memory_bytes = agent::kReadWindowBytes + (1 << 20);
      script.world = script.tier = 1;
      script.own_slot = agent::kNoSlot;
      script.listing_bytes.reset();
      script.spoil = nullptr;
      script.image = MakeImage("job");
      change(script);
    });
    const holdfast_code code = OpenReader();
    EXPECT_EQ(reader_, nullptr);
    EXPECT_NE(Message(), "");
    return code;
  };
  EXPECT_EQ(refused([](ReaderScript& s) { s.with_memory = false; }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.sealed = false; }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.memory_bytes = 4096; }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.memory_bytes = agent::kReadWindowBytes; }),
            HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.listing_bytes = ~0ULL; }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.listing_bytes = 40; }), HOLDFAST_DATA_LOSS);
  EXPECT_EQ(refused([](ReaderScript& s) { s.world = 2; }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.tier = 0; }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.own_slot = 3; }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) { s.image = MakeImage("other"); }), HOLDFAST_INTERNAL);
  EXPECT_EQ(refused([](ReaderScript& s) {
              s.spoil = [](std::span<std::byte> listing) { listing[0] ^= std::byte{1}; };
            }),
            HOLDFAST_DATA_LOSS);
  EXPECT_EQ(refused([](ReaderScript& s) {
              s.spoil = [](std::span<std::byte> listing) { listing[60] ^= std::byte{255}; };
            }),
            HOLDFAST_DATA_LOSS);
  ASSERT_EQ(refused([](ReaderScript& s) { s.image = MakeImage("job2"); }), HOLDFAST_INTERNAL);
}

TEST_F(VersionReaderTest, ErrorsOfAReadAreReported) {
  ASSERT_EQ(OpenReader(), HOLDFAST_OK) << Message();
  Edit([](ReaderScript& script) { script.read = DataLossError("chunk 0 is bad everywhere"); });
  EXPECT_EQ(Load(), HOLDFAST_DATA_LOSS);
  EXPECT_THAT(Message(), HasSubstr("chunk 0 is bad everywhere"));
  Edit([](ReaderScript& script) { script.read = Status::Ok(); });
  EXPECT_EQ(Load(), HOLDFAST_OK) << Message();
}

TEST_F(VersionReaderTest, AfterAHangUpTheSameVersionIsOpenedAgain) {
  ASSERT_EQ(OpenReader(), HOLDFAST_OK) << Message();
  Edit([](ReaderScript& script) { script.hang_up_on_read = true; });
  EXPECT_EQ(Load(), HOLDFAST_UNAVAILABLE);
  Edit([](ReaderScript& script) { script.hang_up_on_read = false; });
  EXPECT_EQ(Load(), HOLDFAST_OK) << Message();
  EXPECT_EQ(values_, std::vector<float>(1024, 2.5F));
  Edit([](ReaderScript& script) {
    EXPECT_EQ(script.opened, 2U);
    EXPECT_EQ(script.wanted_steps, (std::vector<uint64_t>{0, 9}));
  });
}

TEST_F(VersionReaderTest, AWindowWithAPendingAnswerIsNotReused) {
  ASSERT_EQ(OpenReader(), HOLDFAST_OK) << Message();
  Edit([](ReaderScript& script) { script.silent_on_read = true; });
  EXPECT_EQ(Load(/*timeout_ms=*/50), HOLDFAST_DEADLINE_EXCEEDED);
  Edit([](ReaderScript& script) { script.silent_on_read = false; });
  EXPECT_EQ(Load(), HOLDFAST_OK) << Message();
  Edit([](ReaderScript& script) {
    EXPECT_EQ(script.opened, 2U);
    EXPECT_EQ(script.closed, 1U);
  });
}

}  // namespace
}  // namespace holdfast::client
