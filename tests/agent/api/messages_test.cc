#include "agent/api/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/random.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

std::vector<std::byte> BytesOf(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}

const std::map<uint32_t, size_t>& SizesOfTypes() {
  static const std::map<uint32_t, size_t> sizes = {
      {1, 304}, {2, 48},  {3, 32},  {4, 32},  {5, 40},  {6, 32},   {7, 16},    {8, 40},
      {9, 48},  {10, 24}, {11, 32}, {12, 40}, {13, 24}, {32, 200}, {33, 1080}, {34, 1072}};
  return sizes;
}

TEST(MessagesTest, EveryTypeIsAcceptedOnlyAtItsSize) {
  for (auto [type, size] : SizesOfTypes()) {
    for (size_t bytes : {size - 1, size, size + 1, size_t{0}, kMessageBytesMax}) {
      std::vector<std::byte> packet(bytes);
      MessageHeader header{.type = static_cast<MessageType>(type), .ticket = 77};
      if (bytes >= sizeof(header)) std::memcpy(packet.data(), &header, sizeof(header));
      auto checked = CheckPacket(packet);
      ASSERT_EQ(checked.has_value(), bytes == size) << type << " " << bytes;
      if (!checked) {
        EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidArgument);
        continue;
      }
      EXPECT_EQ(checked->type, static_cast<MessageType>(type));
      EXPECT_EQ(checked->ticket, 77U);
      EXPECT_NE(NameOf(checked->type), "Unknown");
    }
  }
}

TEST(MessagesTest, HelloHasTheBytesOfTheFormatPage) {
  HelloMessage hello;
  hello.header.ticket = 0x0102030405060708;
  hello.rank = 2;
  hello.world = 4;
  hello.slot_bytes = 0x1122334455667788;
  PutText(hello.job, "job");
  PutText(hello.run_id, "run");
  auto packet = BytesOf(&hello, sizeof(hello));
  const unsigned char head[40] = {'H',  'R',  'F',  '1',  1,    0,    0,    0,  // magic, type
                                  0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 3,    0,   0,
                                  0,    2,    0,    0,    0,    4,    0,    0,    0,    3,   0,
                                  0,    0,    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  EXPECT_EQ(std::memcmp(packet.data(), head, sizeof(head)), 0);
  EXPECT_EQ(std::memcmp(packet.data() + 40, "job\0", 4), 0);
  EXPECT_EQ(std::memcmp(packet.data() + 40 + 129, "run\0", 4), 0);
}

TEST(MessagesTest, ErrorsNameTheProblem) {
  std::vector<std::byte> packet(304);
  EXPECT_THAT(CheckPacket(packet).error().message(), HasSubstr("does not speak"));
  MessageHeader header{.type = static_cast<MessageType>(99)};
  std::memcpy(packet.data(), &header, sizeof(header));
  EXPECT_THAT(CheckPacket(packet).error().message(), HasSubstr("unknown message type 99"));
  header.type = MessageType::kBeginSave;
  std::memcpy(packet.data(), &header, sizeof(header));
  EXPECT_THAT(CheckPacket(packet).error().message(),
              HasSubstr("a BeginSave message has 304 bytes, expected 48"));
  EXPECT_THAT(CheckPacket({}).error().message(), HasSubstr("0 bytes"));
}

// Random packets, half of them mutations of valid ones, are accepted exactly when magic, type and
// size are right. Text fields are read within their bounds for any content.
TEST(MessagesTest, RandomPacketsAreAcceptedOnlyWhenValid) {
  Random random(20240817);
  std::vector<std::pair<uint32_t, size_t>> types(SizesOfTypes().begin(), SizesOfTypes().end());
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    auto [type, size] = types[random.Below(types.size())];
    size_t bytes = random.OneIn(2) ? size : random.Below(kMessageBytesMax + 1);
    std::vector<std::byte> packet(bytes);
    for (std::byte& b : packet) b = static_cast<std::byte>(random.Next());
    MessageHeader header{.type = static_cast<MessageType>(type), .ticket = random.Next()};
    if (bytes >= sizeof(header) && random.OneIn(2)) {
      std::memcpy(packet.data(), &header, sizeof(header));
      if (random.OneIn(4)) packet[random.Below(8)] ^= std::byte{1} << random.Below(8);
    }
    bool valid = false;
    if (bytes >= sizeof(header)) {
      std::memcpy(&header, packet.data(), sizeof(header));
      auto known = SizesOfTypes().find(static_cast<uint32_t>(header.type));
      valid =
          header.magic == kProtocolMagic && known != SizesOfTypes().end() && known->second == bytes;
    }
    ASSERT_EQ(CheckPacket(packet).has_value(), valid) << "round " << round;
    if (!valid) continue;
    ++accepted;
    if (header.type == MessageType::kHello) {
      HelloMessage hello;
      std::memcpy(&hello, packet.data(), sizeof(hello));
      EXPECT_LE(GetText(hello.job).size(), kNameBytes);
      EXPECT_LE(GetText(hello.run_id).size(), kNameBytes);
    }
  }
  EXPECT_GT(accepted, 10'000);
}

TEST(MessagesTest, TextIsCutTerminatedAndCleared) {
  char field[8];
  std::memset(field, 'x', sizeof(field));
  PutText(field, "abc");
  EXPECT_EQ(std::memcmp(field, "abc\0\0\0\0\0", 8), 0) << "no old bytes leak";
  PutText(field, "abcdefghij");
  EXPECT_EQ(GetText(field), "abcdefg");
  PutText(field, "abcdef\xc3\xa9");  // é would straddle the end
  EXPECT_EQ(GetText(field), "abcdef");
  PutText(field, "");
  EXPECT_EQ(GetText(field), "");
  PutText({}, "abc");
  std::memset(field, 'x', sizeof(field));
  EXPECT_EQ(GetText(field), "xxxxxxxx") << "no NUL: the whole field, not one byte more";
}

}  // namespace
}  // namespace holdfast::agent
