#include "coordinator/ui/ui_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "base/endpoint.h"
#include "base/ids.h"
#include "base/json/values.h"
#include "coordinator/ui/page.h"
#include "coordinator/view/impact_json.h"
#include "coordinator/view/incident_json.h"
#include "coordinator/view/status_json.h"
#include "coordinator/view/version_json.h"

namespace holdfast::ui {
namespace {
constexpr int kThreads = kStreamsMax + 4;
constexpr std::chrono::seconds kRequestTime(10);
// A browser opens the next stream at once, so a client that left is noticed after this time.
constexpr std::chrono::seconds kStreamTime(60);
constexpr std::chrono::seconds kStreamPause(1);
constexpr int64_t kStaleAfterNanos = 600'000'000'000;  // as `holdfast status`
constexpr size_t kVersionsMax = 300;                   // of each job
constexpr int kIncidentsMax = 200;
constexpr const char* kJsonType = "application/json; charset=utf-8";

/// Headers of every answer.
std::map<std::string, std::string> SafeHeaders() {
  return {{"Cache-Control", "no-store"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Cross-Origin-Opener-Policy", "same-origin"},
          {"Referrer-Policy", "no-referrer"},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"}};
}

HttpAnswer Answer(int status, std::string type, std::string body) {
  return {status, std::move(type), std::move(body), SafeHeaders(), nullptr};
}

/// Text with bytes that are not UTF-8 must not end the server.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json VersionsOf(const view::ClusterSnapshot& cluster) {
  std::vector<view::ListedVersion> listed;
  size_t left_out = 0;
  for (const auto& [job, reply] : cluster.versions) {
    size_t count = 0;
    for (const auto& info : reply.versions()) {
      if (info.state() == "aborted") {
        ++left_out;
      } else if (++count <= kVersionsMax) {
        listed.push_back({job, info});
      }
    }
  }
  return view::VersionsDocument(listed, left_out, cluster.now_wall_nanos);
}

/// The ranks of a job: nodes once, and one short row for each rank.
Json RanksJson(const std::map<std::string, std::vector<RankReading>>& ranks) {
  Json jobs = Json::array();
  for (const auto& [job, readings] : ranks) {
    std::map<std::string, size_t> index;
    Json nodes = Json::array();
    Json rows = Json::array();
    for (const RankReading& one : readings) {
      const auto [found, added] = index.try_emplace(one.node, index.size());
      if (added) nodes.push_back(one.node);
      rows.push_back({one.rank, found->second, one.step, one.stall_ms, one.silent_ms, one.wait_us,
                      one.data, one.tensor, one.pipeline, one.parity_lag_versions,
                      one.parity_lag_ms});
    }
    jobs.push_back({{"job", job},
                    {"columns",
                     {"rank", "node", "step", "stall_ms", "silent_ms", "wait_us", "data", "tensor",
                      "pipeline", "parity_lag_versions", "parity_lag_ms"}},
                    {"nodes", std::move(nodes)},
                    {"rows", std::move(rows)}});
  }
  return jobs;
}
}  // namespace

/// One client that receives updates. Threads: one of the server's.
class UiServer::Stream {
 public:
  explicit Stream(UiServer& server)
      : server_(server), end_(server.clock_.Now() + kStreamTime - 2 * kStreamPause) {}
  ~Stream() { --server_.streams_; }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Waits for the next snapshot. A comment shows whether the client is still there.
  std::optional<std::string> Next() {
    MutexLock lock(server_.mutex_);
    if (server_.number_ == seen_ && !server_.stopping_) {
      server_.changed_.WaitFor(server_.mutex_, kStreamPause);
    }
    if (server_.stopping_ || server_.clock_.Now() >= end_) return std::nullopt;
    if (server_.number_ == seen_) return ": waiting\n\n";
    seen_ = server_.number_;
    return fmt::format("id: {}\nevent: snapshot\ndata: {}\n\n", seen_, *server_.snapshot_);
  }

 private:
  UiServer& server_;
  const Clock::TimePoint end_;
  uint64_t seen_ = 0;
};

UiServer::UiServer(const UiOptions& options, UiSource& source, Clock& clock,
                   std::chrono::milliseconds interval)
    : checks_host_(options.token_file.empty() && !options.listen.starts_with("unix:")),
      source_(source),
      clock_(clock),
      interval_(interval),
      policy_(ContentPolicy(PageText())),
      snapshot_(std::make_shared<const std::string>(Render({}))) {}

Result<std::unique_ptr<UiServer>> UiServer::Start(const UiOptions& options,
                                                  const HttpCertificate& tls, UiSource& source,
                                                  Clock& clock,
                                                  std::chrono::milliseconds interval) {
  std::unique_ptr<UiServer> server(new UiServer(options, source, clock, interval));
  HOLDFAST_ASSIGN_OR_RETURN(server->http_,
                            HttpServer::Start(HttpOf(options), tls, kThreads, *server, clock));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

UiServer::~UiServer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  http_.reset();
  if (thread_.joinable()) thread_.join();
}

std::string UiServer::url() const {
  const std::string& address = http_->address();
  if (address.starts_with("unix:")) return address;
  return (http_->https() ? "https://" : "http://") + address + "/";
}

std::chrono::seconds UiServer::TimeLimit(const std::string& path) const {
  return path == "/api/events" ? kStreamTime : kRequestTime;
}

void UiServer::Run() {
  for (;;) {
    UiInput input = source_.Collect();
    input.cluster.status.set_page_url(url());
    if (input.loaded) history_.Observe(input.cluster);
    auto text = std::make_shared<const std::string>(Render(input));
    MutexLock lock(mutex_);
    snapshot_ = std::move(text);
    ++number_;
    changed_.NotifyAll();
    // A spurious wake-up only makes the pause longer.
    while (!stopping_ && changed_.WaitFor(mutex_, interval_)) {
    }
    if (stopping_) return;
  }
}

std::string UiServer::Render(const UiInput& input) {
  const int64_t now = input.loaded ? input.cluster.now_wall_nanos : clock_.WallNanos();
  Json document = {{"schema", kJsonSchema},
                   {"kind", "ui"},
                   {"time", FormatUtc(now)},
                   {"time_ms", now / 1'000'000},
                   {"loaded", input.loaded}};
  if (input.loaded) {
    coordinator::ListIncidentsReply incidents = input.incidents;
    if (incidents.incidents_size() > kIncidentsMax) {
      incidents.mutable_incidents()->DeleteSubrange(kIncidentsMax,
                                                    incidents.incidents_size() - kIncidentsMax);
    }
    document["status"] =
        view::StatusDocument(input.cluster, view::Examine(input.cluster, kStaleAfterNanos));
    document["versions"] = VersionsOf(input.cluster);
    document["incidents"] = view::IncidentsDocument(incidents, now);
    document["history"] = history_.ToJson(input.incidents, now);
    document["ranks"] = RanksJson(input.ranks);
  }
  return Dump(document);
}

/// A web site can make a browser connect to loopback under the site's own name.
bool UiServer::IsFromOtherSite(const HttpRequest& request) const {
  if (!checks_host_) return false;
  // A name such as 127.0.0.1.example.org can belong to anybody.
  in_addr address{};
  const bool is_address = ::inet_pton(AF_INET, request.host.c_str(), &address) == 1;
  const bool is_loopback = is_address && ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET;
  return !is_loopback && request.host != "localhost" && request.host != "[::1]";
}

HttpAnswer UiServer::Get(const HttpRequest& request) {
  if (IsFromOtherSite(request)) {
    return Answer(421, "text/plain; charset=utf-8",
                  "open the page as http://localhost:PORT/ or http://127.0.0.1:PORT/\n");
  }
  if (request.path == "/") {
    HttpAnswer page = Answer(200, "text/html; charset=utf-8", std::string(PageText()));
    page.headers["Content-Security-Policy"] = policy_;
    return page;
  }
  if (request.path == "/api/snapshot") return Snapshot();
  if (request.path == "/api/events") return Events();
  if (request.path == "/api/impact") return Impact(request);
  return Answer(404, "text/plain; charset=utf-8", "the page is at /\n");
}

HttpAnswer UiServer::Snapshot() {
  MutexLock lock(mutex_);
  return Answer(200, kJsonType, *snapshot_);
}

HttpAnswer UiServer::Events() {
  if (++streams_ > kStreamsMax) {
    --streams_;
    return Answer(503, "text/plain; charset=utf-8", "too many pages are open: use /api/snapshot\n");
  }
  // Shared: the library copies the function.
  auto stream = std::make_shared<Stream>(*this);
  HttpAnswer answer = Answer(200, "text/event-stream; charset=utf-8", "retry: 1000\n\n");
  answer.more = [stream] { return stream->Next(); };
  return answer;
}

HttpAnswer UiServer::Impact(const HttpRequest& request) {
  const auto refuse = [](int status, const std::string& why) {
    return Answer(status, kJsonType, Dump({{"error", why}}));
  };
  const auto node = request.parameters.find("node");
  if (node == request.parameters.end()) return refuse(400, "name a node: /api/impact?node=NODE");
  if (Status valid = ValidateName("node", node->second); !valid.ok()) {
    return refuse(400, valid.message());
  }
  if (asking_.exchange(true)) return refuse(503, "another answer is being computed: try again");
  auto reply = source_.Impact(node->second);
  asking_ = false;
  if (!reply) {
    return refuse(reply.error().code() == ErrorCode::kNotFound ? 404 : 503,
                  reply.error().message());
  }
  return Answer(200, kJsonType, Dump(view::ImpactDocument(*reply, {node->second})));
}

}  // namespace holdfast::ui
