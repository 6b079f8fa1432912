#include "base/metrics/metrics_server.h"

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/base/metrics/scrape.h"

namespace holdfast::coord {
namespace {
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr MetricSpec kPlain{"holdfast_test_bytes", MetricKind::kGauge, "Bytes."};
constexpr MetricSpec kCounted{"holdfast_test_total", MetricKind::kCounter, "Things.", {"job"}};
constexpr MetricSpec kTimes{"holdfast_test_seconds", MetricKind::kSummary, "Times.", {"job"}};
constexpr const MetricSpec* kSpecs[] = {&kPlain, &kCounted, &kTimes};
constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

MetricsOptions At(const std::string& listen) { return {.listen = listen}; }
MetricsPage OnePage() {
  MetricsPage page(kSpecs);
  page.Set(kPlain, 42);
  return page;
}

/// A folder that is removed at the end of the test.
class MetricsFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "metrics-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  /// Returns the path.
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  std::string dir_;
};

TEST(MetricsServer, CollectsAPageForEachRequest) {
  std::atomic<int> collections{0};
  auto server = MetricsServer::Start(
      At("127.0.0.1:0"), {},
      [&] {
        MetricsPage page(kSpecs);
        page.Set(kPlain, 1'234'567'890'123);
        page.Set(kCounted, ++collections, {"a \"b\"\n"});
        page.SetSummary(kTimes, {4, 1, 3, 2}, {"gpt"});
        page.SetSummary(kTimes, {}, {"none"});
        return page;
      },
      Clock::Real());
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
              ElementsAre("holdfast_invariant_violations_total", "holdfast_metrics_dropped_series",
                          "holdfast_test_bytes", "holdfast_test_seconds", "holdfast_test_total"));
  const Scrape second((*server)->address());
  EXPECT_EQ(second.Value(R"(holdfast_test_total{job="a \"b\"\n"})"), 2);
  EXPECT_THAT(HttpGet((*server)->address(), "/etc/passwd"), HasSubstr("404"));
}

TEST(MetricsServer, OtherMachinesNeedATokenAndTls) {
  struct Case {
    const char* listen;
    const char* why;  // empty: it is fine
  };
  for (const Case& with :
       {Case{"127.0.0.1:9464", ""}, Case{"localhost:0", ""}, Case{"", ""}, Case{"[::1]:0", ""},
        Case{"0.0.0.0:9464", "metrics.token_file"}, Case{"10.0.0.1:9464", "tls.cert"},
        Case{"node-7:9464", "metrics.token_file"}, Case{"unix:/tmp/m.sock", ""},
        Case{"9464", "metrics.listen"}}) {
    const Status status = CheckMetrics(At(with.listen), {});
    EXPECT_EQ(status.ok(), *with.why == '\0') << with.listen << ": " << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(with.why)) << with.listen;
    if (status.ok()) continue;
    EXPECT_FALSE(MetricsServer::Start(At(with.listen), {}, OnePage, Clock::Real())) << with.listen;
  }
}

TEST_F(MetricsFilesTest, BadTokensAndFilesAreNamed) {
  MetricsOptions options{.listen = "0.0.0.0:9464", .token_file = Write("token", kToken)};
  EXPECT_THAT(CheckMetrics(options, {}).message(), HasSubstr("tls.cert")) << "no TLS";
  const std::string pem = Write("pem", "no certificate");
  EXPECT_THAT(CheckMetrics(options, {pem, pem}).message(), HasSubstr("tls.cert '" + pem));
  options.listen = "127.0.0.1:0";
  EXPECT_TRUE(CheckMetrics(options, {}).ok()) << "a token without TLS, on loopback";
  options.token_file = Write("open", kToken, 0644);
  EXPECT_EQ(CheckMetrics(options, {}).code(), ErrorCode::kPermissionDenied);
  options.token_file = Write("short", "0123456789abcde\n");
  EXPECT_THAT(CheckMetrics(options, {}).message(), HasSubstr("16 to 4096"));
  options.token_file = Write("two-lines", std::string(kToken) + "\n" + kToken);
  EXPECT_THAT(CheckMetrics(options, {}).message(), HasSubstr("one line"));
  options.token_file = Write("percent", std::string(kToken) + "%41");
  EXPECT_THAT(CheckMetrics(options, {}).message(), HasSubstr("except %"));
  options = {.listen = "unix:" + dir_ + "/m.sock", .token_file = Write("token", kToken)};
  EXPECT_THAT(CheckMetrics(options, {}).message(), HasSubstr("mode of the socket"));
  for (const char* path : {"m.prom", "/tmp/m.txt", "/tmp/"}) {
    EXPECT_THAT(CheckMetrics({.textfile = path}, {}).message(), HasSubstr("metrics.textfile"))
        << path;
  }
}

TEST_F(MetricsFilesTest, ARequestNeedsTheToken) {
  const MetricsOptions options{.listen = "127.0.0.1:0",
                               .token_file = Write("token", std::string(kToken) + "\n")};
  auto server = MetricsServer::Start(options, {}, OnePage, Clock::Real());
  ASSERT_TRUE(server.has_value()) << server.error().ToString();
  const std::string at = (*server)->address();
  const auto with = [&](const std::string& value) {
    return HttpGet(at, "/metrics", "User-Agent: test\r\nauthorization: " + value + "\r\n");
  };
  EXPECT_THAT(HttpGet(at, "/metrics"), HasSubstr("401"));
  EXPECT_THAT(HttpGet(at, "/metrics"), Not(HasSubstr("holdfast_test")));
  EXPECT_THAT(with("Bearer 0123456789abcdef0123456789abcdee"), HasSubstr("401"));
  EXPECT_THAT(with("Bearer 0123456789abcdef"), HasSubstr("401")) << "a prefix";
  EXPECT_THAT(with("Bearer "), HasSubstr("401"));
  EXPECT_THAT(with(std::string("Basic ") + kToken), HasSubstr("401"));
  EXPECT_THAT(with(std::string("Bearer ") + kToken), HasSubstr("holdfast_test_bytes 42"));
  Write("token", "fedcba9876543210fedcba9876543210");
  EXPECT_THAT(with(std::string("Bearer ") + kToken), HasSubstr("401")) << "a new token applies";
  ::unlink(options.token_file.c_str());
  EXPECT_THAT(with(std::string("Bearer ") + kToken), HasSubstr("503"));
}

TEST_F(MetricsFilesTest, AUnixSocketIsForItsGroup) {
  const std::string path = dir_ + "/m.sock";
  auto server = MetricsServer::Start(At("unix:" + path), {}, OnePage, Clock::Real());
  ASSERT_TRUE(server.has_value()) << server.error().ToString();
  EXPECT_THAT(HttpGet("unix:" + path, "/metrics"), HasSubstr("holdfast_test_bytes 42"));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660U);
  EXPECT_FALSE(MetricsServer::Start(At("unix:" + path), {}, OnePage, Clock::Real()))
      << "it is in use";
  server->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  // A socket that a killed process left is replaced; a file is not.
  sockaddr_un left{};
  left.sun_family = AF_UNIX;
  path.copy(left.sun_path, sizeof(left.sun_path) - 1);
  {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&left), sizeof(left)), 0);
  }
  EXPECT_TRUE(MetricsServer::Start(At("unix:" + path), {}, OnePage, Clock::Real()));
  Write("m.sock", "a file");
  EXPECT_FALSE(MetricsServer::Start(At("unix:" + path), {}, OnePage, Clock::Real()));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(MetricsFilesTest, ATextfileIsAlwaysComplete) {
  const std::string path = dir_ + "/holdfast.prom";
  std::atomic<int> pages{0};
  auto server = MetricsServer::Start(
      {.textfile = path, .textfile_period_s = 1}, {},
      [&] {
        MetricsPage page(kSpecs);
        page.Set(kPlain, ++pages);
        return page;
      },
      Clock::Real());
  ASSERT_TRUE(server.has_value()) << server.error().ToString();
  EXPECT_EQ((*server)->address(), "");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::set<std::string> seen;
  while (seen.size() < 2 && std::chrono::steady_clock::now() < deadline) {
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.empty()) continue;  // not written yet
    ASSERT_THAT(text, HasSubstr("\nholdfast_test_bytes "));
    ASSERT_EQ(text.back(), '\n');
    seen.insert(text);
  }
  EXPECT_EQ(seen.size(), 2U) << "it is written again";
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644U) << "another user's collector reads it";
  server->reset();
  EXPECT_TRUE(std::filesystem::is_empty(dir_)) << "nothing claims that a stopped process is up";
}

TEST(MetricsServer, BadRequestsAreAnswered) {
  auto server = MetricsServer::Start(At("127.0.0.1:0"), {}, OnePage, Clock::Real());
  ASSERT_TRUE(server.has_value()) << server.error().ToString();
  const std::string at = (*server)->address();
  EXPECT_THAT(HttpSend(at, "POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("405"));
  EXPECT_THAT(HttpSend(at, "\r\n\r\n"), HasSubstr("400"));
  EXPECT_THAT(HttpSend(at, "GET /metrics\r\n\r\n"), HasSubstr("400"));
  EXPECT_THAT(HttpSend(at, "GET /metricsx HTTP/1.1\r\n\r\n"), HasSubstr("404"));
  EXPECT_THAT(HttpSend(at, "GET /metrics?x=1 HTTP/1.1\r\n\r\n"), HasSubstr("200 OK"));
  // A request without an end: the server must not keep more of it than its limit.
  EXPECT_THAT(HttpSend(at, "GET /metrics HTTP/1.1\r\nx: " + std::string(40'000, 'x')),
              AnyOf(HasSubstr("400"), IsEmpty()));
  // The library would need megabytes of a thread's stack for these ranges.
  const std::string ranges = "raNGe: bytes=0-1" + std::string(8'000, '1');
  EXPECT_THAT(HttpGet(at, "/metrics", ranges + "\r\n"), AnyOf(HasSubstr("400"), IsEmpty()));
  EXPECT_THAT(HttpGet(at, "/metrics", "Arrange: 1\r\nAccept-Encoding: gzip, br\r\n"),
              HasSubstr("holdfast_test_bytes 42"));
  EXPECT_THAT(HttpGet(at, "/metrics"), HasSubstr("holdfast_test_bytes 42"));
}

TEST(MetricsServer, SilentClientsDelayNeitherOthersNorTheEnd) {
  auto server = MetricsServer::Start(At("127.0.0.1:0"), {}, OnePage, Clock::Real());
  ASSERT_TRUE(server.has_value()) << server.error().ToString();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(ConnectToMetrics((*server)->address()));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(HttpGet((*server)->address(), "/metrics"), HasSubstr("holdfast_test_bytes 42"));
  server->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST(MetricsPage, HasABoundedNumberOfSeries) {
  MetricsPage page(kSpecs);
  for (size_t job = 0; job < kSeriesMax + 7; ++job) page.Set(kCounted, 1, {std::to_string(job)});
  std::map<std::string, prometheus::MetricFamily> families;
  for (auto& family : std::move(page).Take()) families[family.name] = family;
  EXPECT_EQ(families[std::string(kCounted.name)].metric.size(), kSeriesMax);
  EXPECT_EQ(families[std::string(kDroppedSeries.name)].metric.at(0).gauge.value, 7);
}

TEST(MetricsServer, APortInUseIsAnError) {
  auto first = MetricsServer::Start(At("127.0.0.1:0"), {}, OnePage, Clock::Real());
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  auto second = MetricsServer::Start(At((*first)->address()), {}, OnePage, Clock::Real());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message(), HasSubstr((*first)->address()));
  first->reset();
  EXPECT_EQ(HttpGet("127.0.0.1:1", "/metrics"), "");
}

}  // namespace
}  // namespace holdfast::coord
