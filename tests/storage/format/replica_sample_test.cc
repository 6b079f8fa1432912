#include "storage/format/replica_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/format/checksum.h"
#include "tests/storage/format/test_images.h"

namespace holdfast {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Returns the samples of an image with this list; its tensors are `w` (24 bytes) and `b` (3).
std::vector<ReplicaSample> SamplesOf(const std::string& list, std::string* image_out = nullptr) {
  const auto layout =
      ImageLayout::Plan({Whole("w", DType::kF32, {2, 3}), Whole("b", DType::kU8, {3})});
  const ExtraSize extra{kReplicaSamplesExtra, list.size()};
  std::string image = *layout->RenderHeader(Identity(), {&extra, 1});
  for (int i = 0; i < 27; ++i) image += static_cast<char>(i);
  image += list;
  if (image_out != nullptr) *image_out = image;
  return TakeReplicaSamples(Bytes(image), *Parse(image));
}

uint32_t CrcOf(int first, int bytes) {
  std::string data;
  for (int i = 0; i < bytes; ++i) data += static_cast<char>(first + i);
  return Crc32c(Bytes(data));
}

TEST(ReplicaSampleTest, ChecksumsCoverTheListedBytes) {
  EXPECT_THAT(SamplesOf(R"([["one",100,8,"w",4],["two",0,3,"b",0],["end",7,1,"w",23]])"),
              ElementsAre(ReplicaSample{"one", 100, 8, CrcOf(4, 8)},
                          ReplicaSample{"two", 0, 3, CrcOf(24, 3)},
                          ReplicaSample{"end", 7, 1, CrcOf(23, 1)}));
}

TEST(ReplicaSampleTest, InvalidEntriesAreSkipped) {
  EXPECT_THAT(SamplesOf(R"([["a",0,21,"w",4],["b",0,1,"x",0],["c",0,2,"w",18446744073709551615],
                            ["d",0,0,"w",25],["e",0,1,"w",-1],["f",0,1,"w",0.5],["",0,1,"w",0],[],
                            7,null,["g",0,1,"w"],["h",0,0,"w",0],["i",18446744073709551615,1,"w",0],
                            ["good",5,1,"b",1]])"),
              ElementsAre(ReplicaSample{"good", 5, 1, CrcOf(25, 1)}));
}

TEST(ReplicaSampleTest, AnInvalidListIsIgnored) {
  for (const char* list : {"", "{", "{}", "\"w\"", "[[\"a\",0,1,\"w\",0]", "\xff[]"}) {
    EXPECT_THAT(SamplesOf(list), IsEmpty()) << list;
  }
  EXPECT_THAT(SamplesOf("[[\"" + std::string(kReplicaSampleNameMax + 1, 'n') + "\",0,1,\"w\",0]]"),
              IsEmpty());
  EXPECT_THAT(SamplesOf("[" + std::string(kReplicaSamplesBytesMax, ' ') + "]"), IsEmpty());
  const size_t deep = kReplicaSamplesBytesMax / 2;
  EXPECT_THAT(SamplesOf(std::string(deep, '[') + std::string(deep, ']')), IsEmpty());
}

TEST(ReplicaSampleTest, TheNumberOfSamplesIsBounded) {
  std::string list;
  for (size_t i = 0; i <= kReplicaSamplesMax; ++i)
    list += (i == 0 ? "[" : ",") + std::string(R"(["s",0,1,"w",0])");
  EXPECT_EQ(SamplesOf(list + "]").size(), kReplicaSamplesMax);
}

TEST(ReplicaSampleTest, TheBytesOfSamplesAreBoundedByTheImage) {
  constexpr size_t kBytes = 65536;
  const auto layout = ImageLayout::Plan({Whole("w", DType::kU8, {kBytes})});
  std::string list;
  for (size_t i = 0; i < 100; ++i) {
    list += (i == 0 ? "[" : ",") + std::string(R"(["s",0,65536,"w",0])");
  }
  list += "]";
  const ExtraSize extra{kReplicaSamplesExtra, list.size()};
  const std::string image =
      *layout->RenderHeader(Identity(), {&extra, 1}) + std::string(kBytes, 'w') + list;
  EXPECT_EQ(TakeReplicaSamples(Bytes(image), *Parse(image)).size(), 1U);
}

}  // namespace
}  // namespace holdfast
