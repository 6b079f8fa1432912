#include "coordinator/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <prometheus/text_serializer.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "coordinator/metrics/scrape_connection.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"

namespace holdfast::coord {
namespace {
constexpr int kScrapeThreads = 4;
constexpr int kScrapeBacklog = 16;
// Longest time of a connection, from its start to the end of the answer.
constexpr auto kScrapeTimeout = std::chrono::seconds(10);
constexpr size_t kScrapeHeadBytesMax = 16 << 10;
constexpr mode_t kScrapeSocketMode = 0660;

/// The address of a socket of either kind.
struct ListenAddress {
  sockaddr_storage value{};
  socklen_t bytes = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&value); }
};

Result<ListenAddress> AddressOf(const Endpoint& endpoint) {
  ListenAddress address;
  if (endpoint.kind == Endpoint::Kind::kUnix) {
    auto& unix = reinterpret_cast<sockaddr_un&>(address.value);
    unix.sun_family = AF_UNIX;
    std::memcpy(unix.sun_path, endpoint.path.c_str(), endpoint.path.size() + 1);
    address.bytes = sizeof(sockaddr_un);
    return address;
  }
  std::string host = endpoint.host == "localhost" ? "127.0.0.1" : endpoint.host;
  HOLDFAST_ASSIGN_OR_RETURN(const auto hosts,
                            NumericAddresses({Endpoint::Kind::kTcp, "", host, endpoint.port}));
  host = hosts.front();
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.value);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.value);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(endpoint.port);
    address.bytes = sizeof(v4);
    return address;
  }
  address.value = {};
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) {
    return Fail(UnavailableError(fmt::format("no address for host {}", endpoint.host)));
  }
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(endpoint.port);
  address.bytes = sizeof(v6);
  return address;
}

/// Removes a socket file that no process listens on. Unavailable if one does.
Status RemoveStaleSocket(const std::string& path, ListenAddress& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(probe.get(), address.get(), address.bytes) == 0 || errno == EAGAIN) {
    return UnavailableError("another process listens there");
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return Status::Ok();
  if (!S_ISSOCK(info.st_mode)) return InvalidArgumentError("the path exists and is no socket");
  return ::unlink(path.c_str()) == 0 ? Status::Ok() : ErrnoStatus(errno, "unlink");
}

Result<UniqueFd> BindAndListen(Endpoint& endpoint) {
  HOLDFAST_ASSIGN_OR_RETURN(ListenAddress address, AddressOf(endpoint));
  UniqueFd fd(::socket(address.value.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "socket"));
  if (endpoint.kind == Endpoint::Kind::kUnix) {
    HOLDFAST_RETURN_IF_ERROR(RemoveStaleSocket(endpoint.path, address));
    // The file gets the socket's mode less the umask: never wider than requested.
    if (::fchmod(fd.get(), kScrapeSocketMode) != 0) return Fail(ErrnoStatus(errno, "fchmod"));
  } else {
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (::bind(fd.get(), address.get(), address.bytes) != 0) {
    return Fail(ErrnoStatus(errno, "bind"));
  }
  if (endpoint.kind == Endpoint::Kind::kUnix) {
    // Adds the bits that the umask took.
    if (::chmod(endpoint.path.c_str(), kScrapeSocketMode) != 0) {
      return Fail(ErrnoStatus(errno, "chmod"));
    }
  }
  if (::listen(fd.get(), kScrapeBacklog) != 0) return Fail(ErrnoStatus(errno, "listen"));
  if (endpoint.kind == Endpoint::Kind::kTcp) {
    if (::getsockname(fd.get(), address.get(), &address.bytes) != 0) {
      return Fail(ErrnoStatus(errno, "getsockname"));
    }
    // The port is at the same place in addresses of both kinds.
    endpoint.port = ntohs(reinterpret_cast<sockaddr_in&>(address.value).sin_port);
    if (endpoint.host == "localhost") endpoint.host = "127.0.0.1";
  }
  return fd;
}

std::string AnswerOf(std::string_view status, std::string_view headers, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
      "{}\r\nConnection: close\r\n{}\r\n{}",
      status, body.size(), headers, body);
}

/// Returns the value of a header of a request; the name has lower-case letters.
std::string HeaderOf(const std::string& head, std::string_view name) {
  for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at)) {
    at += 2;
    const size_t colon = head.find(':', at);
    if (colon == std::string::npos || colon > head.find("\r\n", at)) continue;
    std::string found = head.substr(at, colon - at);
    for (char& c : found) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (found != name) continue;
    const size_t begin = head.find_first_not_of(" \t", colon + 1);
    const size_t end = head.find("\r\n", at);
    std::string value = begin < end ? head.substr(begin, end - begin) : "";
    while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.pop_back();
    return value;
  }
  return "";
}

/// Compares in a time that does not depend on where the texts differ.
bool AreEqualSecrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool HasToken(const std::string& head, const std::string& token) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string value = HeaderOf(head, "authorization");
  return value.size() > kScheme.size() &&
         ::strncasecmp(value.c_str(), kScheme.data(), kScheme.size()) == 0 &&
         AreEqualSecrets(std::string_view(value).substr(kScheme.size()), token);
}

std::string Render(const MetricsServer::Collect& collect) {
  return prometheus::TextSerializer().Serialize(collect().Take());
}
}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const MetricsOptions& options,
                                                            const MetricsTls& tls,
                                                            Collect collect) {
  HOLDFAST_RETURN_IF_ERROR(CheckMetrics(options, tls));
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  server->options_ = options;
  server->tls_ = tls;
  server->collect_ = std::move(collect);
  if (!options.listen.empty()) HOLDFAST_RETURN_IF_ERROR(server->Listen());
  if (!options.textfile.empty()) {
    server->textfile_ = std::make_unique<MetricsTextfile>(
        options.textfile, std::chrono::seconds(options.textfile_period_s),
        [raw = server.get()] { return Render(raw->collect_); });
  }
  return server;
}

Status MetricsServer::Listen() {
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(options_.listen));
  auto listener = BindAndListen(endpoint);
  if (!listener) {
    return UnavailableError(fmt::format("metrics.listen {}: cannot listen there ({})",
                                        options_.listen, listener.error().message()));
  }
  listener_ = *std::move(listener);
  if (endpoint.kind == Endpoint::Kind::kUnix) socket_path_ = endpoint.path;
  address_ = endpoint.ToString();
  https_ = !options_.token_file.empty() && !tls_.cert.empty();
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return ErrnoStatus(errno, "eventfd");
  for (int i = 0; i < kScrapeThreads; ++i) threads_.emplace_back([this] { Serve(); });
  return Status::Ok();
}

MetricsServer::~MetricsServer() {
  if (stop_.valid()) ::eventfd_write(stop_.get(), 1);
  for (std::thread& thread : threads_) thread.join();
  if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
}

void MetricsServer::Serve() {
  for (;;) {
    std::array<pollfd, 2> polled{{{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) return;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // Another thread may have accepted it.
    if (socket.valid()) {
      Answer(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE) {
      Clock::Real().SleepFor(std::chrono::milliseconds(100));
    }
  }
}

void MetricsServer::Answer(UniqueFd socket) {
  // Declared before the connection, which uses it. Loaded now, so that a renewed certificate needs
  // no restart.
  std::unique_ptr<ScrapeTls> tls;
  ScrapeConnection connection(std::move(socket), stop_.get(), Clock::Real().Now() + kScrapeTimeout);
  if (https_) {
    auto loaded = ScrapeTls::Load(tls_);
    if (!loaded) {
      Log(LogLevel::kWarn, "MetricsTlsFailed", {Kv("error", loaded.error().ToString())});
      return;
    }
    tls = *std::move(loaded);
    if (!connection.StartTls(*tls).ok()) return;
  }
  auto head = connection.ReadHead(kScrapeHeadBytesMax);
  if (!head && head.error().code() != ErrorCode::kOutOfSpace) return;
  const std::string answer =
      head ? Respond(*head) : AnswerOf("431 Request Header Fields Too Large", "", "too long\n");
  if (connection.Write(answer).ok()) connection.Finish();
}

std::string MetricsServer::Respond(const std::string& head) {
  const std::string line = head.substr(0, head.find("\r\n"));
  const size_t target = line.find(' ');
  const size_t version = line.rfind(' ');
  if (target == std::string::npos || version == target ||
      line.compare(version + 1, 7, "HTTP/1.") != 0) {
    return AnswerOf("400 Bad Request", "", "not a request\n");
  }
  if (!options_.token_file.empty()) {
    // Read now, so that a new token needs no restart.
    auto token = ReadMetricsToken(options_.token_file);
    if (!token) {
      Log(LogLevel::kWarn, "MetricsTokenFailed", {Kv("error", token.error().ToString())});
      return AnswerOf("503 Service Unavailable", "", "the token cannot be read\n");
    }
    if (!HasToken(head, *token)) {
      return AnswerOf("401 Unauthorized", "WWW-Authenticate: Bearer\r\n",
                      "the request needs the token of metrics.token_file\n");
    }
  }
  if (line.compare(0, target, "GET") != 0) {
    return AnswerOf("405 Method Not Allowed", "Allow: GET\r\n", "only GET\n");
  }
  const std::string path = line.substr(target + 1, version - target - 1);
  if (path.substr(0, path.find('?')) != "/metrics") {
    return AnswerOf("404 Not Found", "", "metrics are at /metrics\n");
  }
  return AnswerOf("200 OK", "", Render(collect_));
}

}  // namespace holdfast::coord
