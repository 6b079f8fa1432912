#include "coordinator/metrics/metrics_server.h"

#include <gmock/gmock.h>

#include <atomic>

#include "tests/coordinator/metrics/scrape.h"

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr MetricSpec kPlain{"holdfast_test_bytes", MetricKind::kGauge, "Bytes."};
constexpr MetricSpec kCounted{"holdfast_test_total", MetricKind::kCounter, "Things.", {"job"}};
constexpr MetricSpec kTimes{"holdfast_test_seconds", MetricKind::kSummary, "Times.", {"job"}};
constexpr const MetricSpec* kSpecs[] = {&kPlain, &kCounted, &kTimes};

TEST(MetricsServer, CollectsAPageForEachRequest) {
  std::atomic<int> collections{0};
  auto server = MetricsServer::Start("127.0.0.1:0", [&] {
    MetricsPage page(kSpecs);
    page.Set(kPlain, 1'234'567'890'123);
    page.Set(kCounted, ++collections, {"a \"b\"\n"});
    page.SetSummary(kTimes, {4, 1, 3, 2}, {"gpt"});
    page.SetSummary(kTimes, {}, {"none"});
    return page;
  });
  ASSERT_TRUE(server.has_value()) << server.error().ToString();
  EXPECT_EQ(collections, 0) << "nothing is collected before a request";
  const Scrape first((*server)->address());
  EXPECT_EQ(first.Value("holdfast_test_bytes"), 1'234'567'890'123) << "exact";
  EXPECT_EQ(first.Value(R"(holdfast_test_total{job="a \"b\"\n"})"), 1) << first.text();
  EXPECT_EQ(first.Value(R"(holdfast_test_seconds_count{job="gpt"})"), 4);
  EXPECT_EQ(first.Value(R"(holdfast_test_seconds_sum{job="gpt"})"), 10);
  EXPECT_EQ(first.Value(R"(holdfast_test_seconds{job="gpt",quantile="0.5"})"), 2);
  EXPECT_EQ(first.Value(R"(holdfast_test_seconds{job="gpt",quantile="1"})"), 4);
  EXPECT_EQ(first.Value(R"(holdfast_test_seconds_count{job="none"})"), 0);
  EXPECT_THAT(first.text(), HasSubstr("# HELP holdfast_test_total Things.\n"));
  EXPECT_THAT(first.text(), HasSubstr("# TYPE holdfast_test_total counter\n"));
  EXPECT_THAT(first.Names(),
              ElementsAre("holdfast_test_bytes", "holdfast_test_seconds", "holdfast_test_total"));
  const Scrape second((*server)->address());
  EXPECT_EQ(second.Value(R"(holdfast_test_total{job="a \"b\"\n"})"), 2);
  EXPECT_THAT(HttpGet((*server)->address(), "/etc/passwd"), HasSubstr("404"));
}

TEST(MetricsServer, OnlyLoopbackAddressesAreServed) {
  struct Case {
    const char* listen;
    const char* why;  // empty: it is fine
  };
  for (const Case& with :
       {Case{"127.0.0.1:9464", ""}, Case{"localhost:0", ""}, Case{"", ""}, Case{"[::1]:0", ""},
        Case{"0.0.0.0:9464", "without TLS"}, Case{"10.0.0.1:9464", "without TLS"},
        Case{"node-7:9464", "without TLS"}, Case{"unix:/tmp/m.sock", "needs a port"},
        Case{"9464", "metrics.listen"}}) {
    const Status status = CheckMetricsListen(with.listen);
    EXPECT_EQ(status.ok(), *with.why == '\0') << with.listen << ": " << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(with.why)) << with.listen;
    if (status.ok()) continue;
    EXPECT_FALSE(MetricsServer::Start(with.listen, [] { return MetricsPage(kSpecs); }))
        << with.listen;
  }
}

TEST(MetricsServer, APortInUseIsAnError) {
  auto first = MetricsServer::Start("127.0.0.1:0", [] { return MetricsPage(kSpecs); });
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  auto second = MetricsServer::Start((*first)->address(), [] { return MetricsPage(kSpecs); });
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message(), HasSubstr((*first)->address()));
  first->reset();
  EXPECT_EQ(HttpGet("127.0.0.1:1", "/metrics"), "");
}

}  // namespace
}  // namespace holdfast::coord
