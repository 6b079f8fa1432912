#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

namespace holdfast {
namespace {

Status ReturnsIf(Status status) {
  HOLDFAST_RETURN_IF_ERROR(std::move(status));
  return InternalError("continued");
}
Result<int> Doubled(Result<int> number) {
  HOLDFAST_ASSIGN_OR_RETURN(int value, std::move(number));
  return 2 * value;
}

TEST(StatusTest, MacrosReturnErrorsAndAssignValues) {
  EXPECT_EQ(ReturnsIf(DataLossError("chunk 3")), DataLossError("chunk 3"));
  EXPECT_EQ(ReturnsIf(Status::Ok()).code(), ErrorCode::kInternal);
  EXPECT_EQ(Doubled(21).value(), 42);
  EXPECT_EQ(Doubled(Fail(FencedError("old"))).error(), FencedError("old"));
}

TEST(StatusTest, NumbersAreStable) {
  // The wire and exit codes use these numbers: a change breaks deployed clients.
  EXPECT_EQ(static_cast<int>(ErrorCode::kDataLoss), 9);
  EXPECT_EQ(static_cast<int>(ErrorCode::kUnavailable), 10);
  EXPECT_EQ(static_cast<int>(ErrorCode::kFenced), 13);
  EXPECT_EQ(static_cast<int>(ErrorCode::kInternal), 16);
  EXPECT_EQ(ErrorFromNumber(13), ErrorCode::kFenced);
  EXPECT_EQ(ErrorFromNumber(4711), ErrorCode::kInternal);
}

TEST(StatusTest, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (uint32_t i = 0; i <= 16; ++i) names.insert(ErrorName(static_cast<ErrorCode>(i)));
  EXPECT_EQ(names.size(), 17U);
  EXPECT_EQ(ErrorName(static_cast<ErrorCode>(200)), "Unknown");
}

TEST(StatusTest, ErrnoStatusHasContextAndReason) {
  Status status = ErrnoStatus(ENOSPC, "fallocate /data/x");
  EXPECT_EQ(status.code(), ErrorCode::kOutOfSpace);
  EXPECT_EQ(status.ToString(), "OutOfSpace: fallocate /data/x: No space left on device");
  EXPECT_EQ(status.WithContext("rank 3").message(),
            "rank 3: fallocate /data/x: No space left on device");
  EXPECT_TRUE(ErrnoStatus(0, "nothing").ok());
}

}  // namespace
}  // namespace holdfast
