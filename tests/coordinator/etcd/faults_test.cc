// The store and the election against every fault that etcd documents, with a simulated etcd.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/random.h"
#include "coordinator/etcd/session.h"
#include "coordinator/etcd/url.h"
#include "testing/etcd/sim_etcd.h"

namespace holdfast::coord {
namespace {
using local::SimEtcd;
using local::TxnFault;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr milliseconds kTimeout(20'000);
constexpr std::chrono::seconds kLease(2);

template <typename Condition>
bool WaitUntil(Condition condition) {
  const auto until = steady_clock::now() + kTimeout;
  while (!condition()) {
    if (steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

class EtcdFaultsTest : public ::testing::Test {
 protected:
  std::unique_ptr<EtcdSession> Join(const std::string& address, const std::string& cluster = "c") {
    const EtcdUrl url = ParseEtcdUrl(sim_.url()).value();
    EtcdSessionOptions options;
    options.address = address;
    options.lease = kLease;
    options.store.prefix = url.PrefixOf(cluster);
    options.store.try_timeout = milliseconds(300);
    options.store.patience = milliseconds(4'000);
    return EtcdSession::Start(EtcdClient::Make(url.members, {}).value(), options);
  }
  std::unique_ptr<EtcdSession> Lead(const std::string& address, const std::string& cluster = "c") {
    auto session = Join(address, cluster);
    EXPECT_TRUE(WaitUntil([&] { return session->leads(); })) << session->why();
    return session;
  }
  static Result<bool> Put(MetaStore& store, const std::string& key, const std::string& value) {
    const Mutation mutation{key, value};
    return store.Commit({}, {&mutation, 1});
  }

  SimEtcd sim_;
};

TEST_F(EtcdFaultsTest, AnUnknownOutcomeIsResolvedAndNothingIsAppliedTwice) {
  auto session = Lead("a:1");
  auto store = session->OpenStore().value();
  ASSERT_TRUE(Put(*store, "n", "0").value());
  constexpr TxnFault kAll[] = {TxnFault::kNone,         TxnFault::kAnswerLost,
                               TxnFault::kRequestLost,  TxnFault::kAppliedLate,
                               TxnFault::kLeaderChange, TxnFault::kNoLeader};
  Random random(7);
  const int64_t before = sim_.revision();
  constexpr int kCommits = 150;
  for (int i = 0; i < kCommits; ++i) {
    std::deque<TxnFault> faults;
    for (uint64_t left = random.Below(4); left > 0; --left) {
      faults.push_back(kAll[random.Below(std::size(kAll))]);
    }
    sim_.Fail(faults);
    const Compare compare{"n", std::to_string(i)};
    const Mutation mutation{"n", std::to_string(i + 1)};
    // Every other commit relies on the store's own compare alone.
    auto applied = store->Commit({&compare, i % 2 == 0 ? 1U : 0U}, {&mutation, 1});
    ASSERT_TRUE(applied.has_value()) << i << ": " << applied.error().ToString();
    ASSERT_TRUE(*applied) << i;
    sim_.Fail({});
    ASSERT_EQ(store->Get("n").value(), std::to_string(i + 1));
  }
  EXPECT_EQ(sim_.revision() - before, kCommits) << "each commit is one revision";
}

TEST_F(EtcdFaultsTest, AFailedCompareIsKnownAfterALostAnswer) {
  auto session = Lead("a:1");
  auto store = session->OpenStore().value();
  ASSERT_TRUE(Put(*store, "n", "1").value());
  for (TxnFault fault : {TxnFault::kAnswerLost, TxnFault::kRequestLost, TxnFault::kAppliedLate}) {
    sim_.Fail({fault});
    const Compare wrong{"n", "2"};
    const Mutation mutation{"n", "3"};
    EXPECT_FALSE(store->Commit({&wrong, 1}, {&mutation, 1}).value());
    EXPECT_EQ(store->Get("n").value(), "1");
  }
  EXPECT_TRUE(Put(*store, "n", "4").value());
}

TEST_F(EtcdFaultsTest, TheCompareFencesALeaderWhoseLeaseLastsByItsOwnClock) {
  auto old = Lead("a:1");
  auto old_store = old->OpenStore().value();
  ASSERT_TRUE(Put(*old_store, "n", "old").value());
  auto next = Join("b:1");
  ASSERT_TRUE(WaitUntil([&] { return next->leader() == "a:1"; }));
  EXPECT_FALSE(next->OpenStore().has_value());
  EXPECT_THAT(next->why(), HasSubstr("the leader is a:1"));
  sim_.EndLeases();
  ASSERT_TRUE(old_store->Held()) << "by its own clock";
  auto stale = Put(*old_store, "n", "stale");
  ASSERT_FALSE(stale.has_value());
  EXPECT_EQ(stale.error().code(), ErrorCode::kFenced);
  EXPECT_FALSE(old_store->Held());
  ASSERT_TRUE(WaitUntil([&] { return next->leads() || old->leads(); }));
  auto& leader = next->leads() ? next : old;
  EXPECT_EQ(leader->OpenStore().value()->Get("n").value(), "old");
}

TEST_F(EtcdFaultsTest, AWriteInFlightOfTheOldLeaderIsNotAppliedUnderTheNewOne) {
  auto old = Lead("a:1");
  auto old_store = old->OpenStore().value();
  ASSERT_TRUE(Put(*old_store, "n", "old").value());
  // The first try is in flight when the lease ends; the second one finds no leader's key.
  sim_.Fail({TxnFault::kLateUnled});
  auto stale = Put(*old_store, "n", "stale");
  ASSERT_FALSE(stale.has_value());
  EXPECT_EQ(stale.error().code(), ErrorCode::kFenced);
  old->Stop();
  auto next = Lead("b:1");
  auto store = next->OpenStore().value();
  EXPECT_EQ(store->Get("n").value(), "old");
  EXPECT_TRUE(Put(*store, "m", "1").value());
  EXPECT_EQ(store->Get("n").value(), "old");
}

TEST_F(EtcdFaultsTest, AFullQuotaIsReportedWithWhatToDo) {
  auto session = Lead("a:1");
  auto store = session->OpenStore().value();
  sim_.SetQuotaAlarm(true);
  auto refused = Put(*store, "n", "1");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kOutOfSpace);
  EXPECT_THAT(refused.error().message(), HasSubstr("alarm disarm"));
  EXPECT_FALSE(Put(*store, "n", "1").has_value()) << "the store must be opened again";
  sim_.SetQuotaAlarm(false);
  auto again = session->OpenStore().value();
  EXPECT_EQ(again->Get("n").value(), std::nullopt);
  EXPECT_TRUE(Put(*again, "n", "2").value());
}

TEST_F(EtcdFaultsTest, ACompactionBetweenTwoPagesDoesNotTearARange) {
  auto session = Lead("a:1");
  auto store = session->OpenStore().value();
  std::vector<Mutation> puts;
  for (int i = 0; i < 300; ++i) puts.push_back({fmt::format("k/{:03}", i), "v"});
  ASSERT_TRUE(store->Commit({}, puts).value());
  for (int after = 1; after < 5; ++after) {
    sim_.CompactAfter(after);
    const auto all = store->Range("k/");
    ASSERT_TRUE(all.has_value()) << all.error().ToString();
    ASSERT_EQ(all->size(), 300U);
    EXPECT_EQ(all->back().key, "k/299");
  }
}

TEST_F(EtcdFaultsTest, CancelledAndCompactedWatchesDelayNoTakeover) {
  auto old = Lead("a:1");
  auto next = Join("b:1");
  ASSERT_TRUE(WaitUntil([&] { return next->leader() == "a:1"; }));
  // The current watch, unless there is none at the moment, and three more.
  sim_.CancelWatches(3);
  ASSERT_TRUE(WaitUntil([&] { return sim_.watches_cancelled() >= 3; }));
  sim_.Compact();
  EXPECT_FALSE(next->leads());
  const auto begin = steady_clock::now();
  old->Stop();
  ASSERT_TRUE(WaitUntil([&] { return next->leads(); }));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(1'500));
}

TEST_F(EtcdFaultsTest, TheLeaderStaysKnownWhileCallsOfTheWatchEnd) {
  auto leader = Lead("a:1");
  auto next = Join("b:1");
  ASSERT_TRUE(WaitUntil([&] { return next->leader() == "a:1"; }));
  sim_.EndWatches(5);
  ASSERT_TRUE(WaitUntil([&] {
    EXPECT_EQ(next->leader(), "a:1") << next->why();
    return sim_.watches_cancelled() >= 5 || next->leader().empty();
  }));
  EXPECT_EQ(next->leader(), "a:1");
}

TEST_F(EtcdFaultsTest, TheLeaderStaysKnownForItsLeaseWhileEtcdDoesNotAnswer) {
  auto leader = Lead("a:1");
  auto next = Join("b:1");
  ASSERT_TRUE(WaitUntil([&] { return next->leader() == "a:1"; }));
  const auto begin = steady_clock::now();
  const int before = sim_.watches_cancelled();
  sim_.EndWatches(2);  // the coordinator reads the leader between the two
  ASSERT_TRUE(WaitUntil([&] { return sim_.watches_cancelled() >= before + 2; }));
  sim_.SetHang(true);
  ASSERT_TRUE(WaitUntil([&] { return next->leader().empty(); }));
  EXPECT_GE(steady_clock::now() - begin, kLease);
  EXPECT_THAT(next->why(), HasSubstr("no leader is known"));
  sim_.SetHang(false);
}

TEST_F(EtcdFaultsTest, ALeaderThatCannotRenewStopsBeforeItsLeaseEnds) {
  auto session = Lead("a:1");
  auto store = session->OpenStore().value();
  const auto begin = steady_clock::now();
  sim_.SetHang(true);
  auto stuck = Put(*store, "n", "1");
  EXPECT_FALSE(stuck.has_value());
  EXPECT_LT(steady_clock::now() - begin, kLease + milliseconds(500));
  EXPECT_FALSE(store->Held());
  EXPECT_FALSE(session->leads());
  sim_.SetHang(false);
  EXPECT_TRUE(WaitUntil([&] { return session->leads(); })) << "it leads again";
}

TEST_F(EtcdFaultsTest, TwoClustersShareAnEtcd) {
  auto one = Lead("a:1", "one");
  auto two = Lead("b:1", "two");
  auto first = one->OpenStore().value();
  auto second = two->OpenStore().value();
  ASSERT_TRUE(Put(*first, "n", "1").value());
  ASSERT_TRUE(Put(*second, "n", "2").value());
  EXPECT_EQ(first->Get("n").value(), "1");
  EXPECT_EQ(second->Range("").value(), (std::vector<KeyValue>{{"n", "2"}}));
}

TEST_F(EtcdFaultsTest, ATransactionAboveTheLimitIsRefusedWithWhatToDo) {
  auto session = Lead("a:1");
  auto store = session->OpenStore().value();
  auto refused = Put(*store, "n", std::string(2 << 20, 'x'));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("--max-request-bytes"));
}

TEST(EtcdUrlTest, AddressesAndFoldersAreRead) {
  const EtcdUrl url = ParseEtcdUrl("etcd://h1:2379,127.0.0.1:2,[::1]:3/team-a").value();
  ASSERT_EQ(url.members.size(), 3U);
  EXPECT_EQ(url.members[2].ToString(), "[::1]:3");
  EXPECT_EQ(url.PrefixOf("c"), "/team-a/c/");
  EXPECT_EQ(ParseEtcdUrl("etcd://h1:2379").value().PrefixOf("c"), "/holdfast/c/");
  for (const char* bad : {"etcd://", "etcd://h1", "etcd://h1:0", "etcd://h1:1,", "etcd://h1:1/a/b",
                          "http://h1:1", "etcd://h1:1/"}) {
    EXPECT_FALSE(ParseEtcdUrl(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace holdfast::coord
