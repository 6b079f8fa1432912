// Join tokens and the names that get certificates.
#include "coordinator/state/identities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/certificates/join_token.h"
#include "coordinator/state/state.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 1'800'000'000 * kSecond;
constexpr int64_t kDay = 86'400;

class IdentitiesTest : public ::testing::Test {
 protected:
  IdentitiesTest() : state_(*State::Load({}, {}, At())) {}

  Instant At() const { return {Clock::TimePoint(std::chrono::seconds(1)), wall_}; }
  /// Applies the event, records what is stored, and returns the reply.
  Reply Apply(const Event& event) {
    Reply reply;
    for (const Effect& effect : state_.Apply(event, At())) {
      if (const auto* put = std::get_if<PutToken>(&effect)) tokens_[put->record.id] = put->record;
      if (const auto* erase = std::get_if<EraseToken>(&effect)) tokens_.erase(erase->id);
      if (const auto* put = std::get_if<PutIdentity>(&effect)) {
        identities_[{put->record.role, put->record.name}] = put->record;
      }
      if (const auto* answer = std::get_if<Reply>(&effect)) reply = *answer;
    }
    return reply;
  }
  /// A new process reads what was stored.
  void Restart() {
    Records records;
    for (const auto& [id, record] : tokens_) records.tokens.push_back(record);
    for (const auto& [key, record] : identities_) records.identities.push_back(record);
    state_ = *State::Load({}, records, At());
  }
  void Create(const std::string& id, const std::string& name, int64_t ttl_s = 900,
              const std::string& role = "agent") {
    TokenRecord record{
        id, certificates::HashSecret(id, "secret"), role, name, wall_, wall_ + ttl_s * kSecond};
    ASSERT_TRUE(Apply(TokenCreated{1, record}).outcome.ok());
  }
  Reply Use(const std::string& id, const std::string& name, const std::string& key,
            const std::string& secret = "secret") {
    return Apply(TokenUsed{1, id, certificates::HashSecret(id, secret), name, key, kDay});
  }

  int64_t wall_ = kStart;
  State state_;
  std::map<std::string, TokenRecord> tokens_;
  std::map<IdentityKey, IdentityRecord> identities_;
};

TEST_F(IdentitiesTest, ATokenWorksOnceAlsoAfterARestart) {
  Create("a", "n1");
  const Reply first = Use("a", "n1", "key1");
  ASSERT_TRUE(first.outcome.ok()) << first.outcome.ToString();
  EXPECT_EQ(first.issued.role, "agent");
  EXPECT_EQ(first.issued.name, "n1");
  EXPECT_EQ(first.issued.not_before_s, kStart / kSecond - 300);
  EXPECT_EQ(first.issued.not_after_s, kStart / kSecond + kDay);
  EXPECT_EQ(Use("a", "n1", "key2").outcome.code(), ErrorCode::kAlreadyExists);
  Restart();
  EXPECT_EQ(Use("a", "n1", "key2").outcome.code(), ErrorCode::kAlreadyExists);
  // The answer to the first machine may have been lost: its key may ask again, for the same name.
  EXPECT_TRUE(Use("a", "n1", "key1").outcome.ok());
  EXPECT_EQ(Use("a", "n2", "key1").outcome.code(), ErrorCode::kPermissionDenied);
}

TEST_F(IdentitiesTest, TheSecretIsNotStored) {
  Create("a", "n1");
  EXPECT_EQ(tokens_["a"].secret_hash, certificates::HashSecret("a", "secret"));
  EXPECT_THAT(tokens_["a"].secret_hash, ::testing::Not(HasSubstr("secret")));
}

TEST_F(IdentitiesTest, ErrorsDifferAndChangeNothing) {
  Create("a", "n1");
  EXPECT_THAT(Use("b", "n1", "key").outcome.message(), HasSubstr("unknown token"));
  EXPECT_THAT(Use("a", "n1", "key", "other").outcome.message(), HasSubstr("unknown token"));
  EXPECT_THAT(Use("a", "n2", "key").outcome.message(), HasSubstr("wrong node"));
  wall_ += 900 * kSecond;
  EXPECT_TRUE(Use("a", "n1", "key").outcome.ok()) << "at its end, the token is still valid";
  wall_ += 1;
  EXPECT_THAT(Use("a", "n1", "key").outcome.message(), HasSubstr("expired token"));
  EXPECT_EQ(Use("a", "n1", "key").outcome.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Use("a", "n1", "key", "other").outcome.code(), ErrorCode::kPermissionDenied)
      << "only a caller with the secret learns more";
}

TEST_F(IdentitiesTest, ATokenWithoutANameTakesNoNameInUse) {
  Create("a", "n1");
  ASSERT_TRUE(Use("a", "n1", "key1").outcome.ok());
  Create("b", "");
  EXPECT_EQ(Use("b", "n1", "key2").outcome.code(), ErrorCode::kFailedPrecondition);
  Create("o", "", 900, "viewer");
  EXPECT_TRUE(Use("o", "n1", "key3").outcome.ok()) << "the same name in another role";
  wall_ += (kDay + 1) * kSecond;
  Create("c", "");
  EXPECT_TRUE(Use("c", "n1", "key4").outcome.ok()) << "the certificate has ended";
}

TEST_F(IdentitiesTest, ARevokedNameGetsACertificateOnlyByANewToken) {
  Create("a", "n1");
  const Reply joined = Use("a", "n1", "key1");
  wall_ += 60 * kSecond;
  ASSERT_TRUE(Apply(IdentityRevoked{1, "agent", "n1", "stolen"}).outcome.ok());
  Restart();
  const IdentityRenewed renewal{1, "agent", "n1", "key2", joined.issued.not_before_s, kDay};
  EXPECT_EQ(Apply(renewal).outcome.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(Apply(renewal).outcome.message(), HasSubstr("stolen"));
  EXPECT_TRUE(Apply(IdentityRenewed{1, "agent", "n2", "key", 1, kDay}).outcome.ok());
  Create("b", "n1");
  const Reply again = Use("b", "n1", "key3");
  ASSERT_TRUE(again.outcome.ok());
  const int64_t revoked_s = state_.Identities().front().revoked_s;
  EXPECT_EQ(revoked_s, wall_ / kSecond);
  EXPECT_GT(again.issued.not_before_s, revoked_s) << "the new certificate is not refused";
  EXPECT_TRUE(Apply(IdentityRenewed{1, "agent", "n1", "key4", again.issued.not_before_s, kDay})
                  .outcome.ok());
}

TEST_F(IdentitiesTest, ARevocationEndsTheStreamOfTheNode) {
  NodeAttached attached;
  attached.attach = 7;
  attached.node = "n1";
  attached.agent_start = 1;
  attached.data_address = "127.0.0.1:1";
  Apply(attached);
  bool closed = false;
  for (const Effect& effect : state_.Apply(IdentityRevoked{1, "agent", "n1", ""}, At())) {
    const auto* close = std::get_if<CloseAttach>(&effect);
    closed = closed || (close != nullptr && close->attach == 7);
  }
  EXPECT_TRUE(closed);
}

TEST_F(IdentitiesTest, TokensAreBoundedAndOldOnesRemoved) {
  for (size_t i = 0; i < kTokensMax; ++i) Create(std::to_string(i), "");
  const TokenRecord one{"x", "h", "agent", "", wall_, wall_ + kSecond};
  EXPECT_EQ(Apply(TokenCreated{1, one}).outcome.code(), ErrorCode::kResourceExhausted);
  wall_ += 900 * kSecond + kTokenKeptNanos + 1;
  EXPECT_TRUE(Apply(TokenCreated{1, one}).outcome.ok());
  EXPECT_EQ(tokens_.size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
