#include "coordinator/restart/xid.h"

#include <gtest/gtest.h>

#include <set>

namespace holdfast::coord {
namespace {
// The numbers and their immediate actions are those of NVIDIA's catalogue.
TEST(Xid, AnErrorWhoseActionIsAResetOrARepairMakesTheGpuBroken) {
  for (const uint32_t xid : {46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 136, 140}) {
    EXPECT_EQ(MeaningOf(xid).kind, XidClass::kBroken) << xid;
  }
}

TEST(Xid, AfterAContainedErrorTheGpuCanRunAnotherProgram) {
  // A row that will be remapped (63) is contained, and one that could not be (64) is not.
  for (const uint32_t xid : {63, 92, 94}) {
    EXPECT_EQ(MeaningOf(xid).kind, XidClass::kContained) << xid;
  }
}

TEST(Xid, AnErrorOfTheProgramDoesNotBlameTheGpu) {
  for (const uint32_t xid : {13, 31, 43, 45}) {
    EXPECT_EQ(MeaningOf(xid).kind, XidClass::kApplication) << xid;
  }
}

TEST(Xid, OtherErrorsAreNotClassifiedAndEveryMeaningHasItsOwnText) {
  for (const uint32_t xid : {0U, 1U, 12U, 14U, 141U, ~0U}) {
    EXPECT_EQ(MeaningOf(xid).kind, XidClass::kOther) << xid;
    EXPECT_EQ(MeaningOf(xid).text, "see NVIDIA's catalogue of Xids");
  }
  std::set<std::string_view> texts;
  for (uint32_t xid = 0; xid < 256; ++xid) {
    const XidMeaning meaning = MeaningOf(xid);
    if (meaning.kind == XidClass::kOther) continue;
    EXPECT_FALSE(meaning.text.empty()) << xid;
    EXPECT_TRUE(texts.insert(meaning.text).second) << xid << ": " << meaning.text;
  }
  EXPECT_EQ(texts.size(), 19U);
}

}  // namespace
}  // namespace holdfast::coord
