#include "base/http/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <openssl/crypto.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <semaphore>
#include <thread>

#include "base/clock.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/http/http_connection.h"
#include "base/log.h"

namespace holdfast {
namespace {
// Longest time from the start of a connection to the end of the request.
constexpr auto kRequestTimeout = std::chrono::seconds(5);
constexpr auto kRetryPause = std::chrono::milliseconds(100);
constexpr size_t kHeadBytesMax = 16 << 10;
constexpr mode_t kSocketMode = 0660;
constexpr std::string_view kRangeHeader = "range:";

/// Removes a socket file that no process listens on. Unavailable if one does.
Status RemoveStaleSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return UnavailableError("another process listens there");
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return Status::Ok();
  if (!S_ISSOCK(info.st_mode)) return InvalidArgumentError("the path exists and is no socket");
  return ::unlink(path.c_str()) == 0 ? Status::Ok() : ErrnoStatus(errno, "unlink");
}

/// Compares in a time that does not depend on where the texts differ.
bool AreEqualSecrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool HasToken(const httplib::Request& request, const std::string& token) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string value = request.get_header_value("authorization");
  return value.size() > kScheme.size() &&
         ::strncasecmp(value.c_str(), kScheme.data(), kScheme.size()) == 0 &&
         AreEqualSecrets(std::string_view(value).substr(kScheme.size()), token);
}

/// Returns a host without its port: "[::1]:80" and "localhost:80" name "[::1]" and "localhost".
std::string WithoutPort(const std::string& host) {
  const size_t colon = host.rfind(':');
  const bool has_port = colon != std::string::npos && host.find(']', colon) == std::string::npos;
  return has_port ? host.substr(0, colon) : host;
}

HttpRequest Convert(const httplib::Request& request) {
  HttpRequest out{request.path, {}, WithoutPort(request.get_header_value("host"))};
  for (const auto& [name, value] : request.params) out.parameters[name] = value;
  return out;
}

/// The stream on which the library reads requests from a connection and writes answers.
class HttpStream final : public httplib::Stream {
 public:
  explicit HttpStream(HttpConnection& connection) : connection_(connection) {}
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  /// The library has no limit on the size of all headers. It matches a range with a recursive
  /// std::regex, which could need megabytes of stack, so requests with a range are refused.
  ssize_t read(char* bytes, size_t size) override {
    const auto got = connection_.Read(bytes, std::min(size, left_));
    if (!got) return -1;
    left_ -= *got;
    for (const char c : std::string_view(bytes, *got)) {
      if (c == '\n') {
        line_.clear();
      } else if (line_.size() < kRangeHeader.size()) {
        line_ += c;
        if (::strcasecmp(line_.c_str(), kRangeHeader.data()) == 0) return -1;
      }
    }
    return static_cast<ssize_t>(*got);
  }
  ssize_t write(const char* bytes, size_t size) override {
    return connection_.Write({bytes, size}).ok() ? static_cast<ssize_t>(size) : -1;
  }
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  HttpConnection& connection_;
  size_t left_ = kHeadBytesMax;
  std::string line_;  // the beginning of the current line
};

/// The library's threads. A connection is accepted only when a thread is free; until then it waits
/// in the socket's backlog.
class HttpThreads final : public httplib::ThreadPool {
 public:
  explicit HttpThreads(int count) : httplib::ThreadPool(static_cast<size_t>(count)), free_(count) {}
  void enqueue(std::function<void()> answer) override {
    free_.acquire();
    httplib::ThreadPool::enqueue([this, answer = std::move(answer)] {
      answer();
      free_.release();
    });
  }

 private:
  std::counting_semaphore<> free_;
};
}  // namespace

/// The library's server, with connections that have a deadline and end when the server stops.
class HttpServer::Library final : public httplib::Server {
 public:
  Library(const HttpOptions& options, const HttpCertificate& tls, int threads, HttpHandler& handler,
          Clock& clock)
      : options_(options),
        tls_(tls),
        https_(!options.token_file.empty() && !tls.cert.empty()),
        handler_(handler),
        clock_(clock) {
    new_task_queue = [threads] { return std::make_unique<HttpThreads>(threads).release(); };
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      Respond(request, response);
      return HandlerResponse::Handled;
    });
  }
  ~Library() override;

  /// Binds and starts. Changes the endpoint's port to the bound one.
  Status Start(Endpoint& endpoint);
  bool https() const { return https_; }

 private:
  Status BindUnix(const std::string& path);
  void Serve();
  bool process_and_close_socket(socket_t accepted) override;
  void Answer(UniqueFd accepted);
  void Respond(const httplib::Request& request, httplib::Response& response);

  const HttpOptions options_;
  const HttpCertificate tls_;
  const bool https_;
  HttpHandler& handler_;
  Clock& clock_;
  std::string socket_path_;  // of a unix socket, which the destructor removes
  UniqueFd listener_;
  UniqueFd stop_;  // readable once the server stops
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

HttpServer::Library::~Library() {
  stopping_ = true;
  if (stop_.valid()) ::eventfd_write(stop_.get(), 1);
  if (listener_.valid()) ::shutdown(listener_.get(), SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
  if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
}

Status HttpServer::Library::BindUnix(const std::string& path) {
  HOLDFAST_RETURN_IF_ERROR(RemoveStaleSocket(path));
  set_address_family(AF_UNIX);
  // The file gets the socket's mode less the umask: never wider than requested.
  set_socket_options([](socket_t socket) { ::fchmod(socket, kSocketMode); });
  constexpr int kAnyPort = 1;  // the library requires one and does not use it
  if (!bind_to_port(path, kAnyPort)) return ErrnoStatus(errno, "bind");
  socket_path_ = path;
  // Adds the bits that the umask has removed.
  return ::chmod(path.c_str(), kSocketMode) == 0 ? Status::Ok() : ErrnoStatus(errno, "chmod");
}

Status HttpServer::Library::Start(Endpoint& endpoint) {
  errno = 0;
  if (endpoint.kind == Endpoint::Kind::kUnix) {
    HOLDFAST_RETURN_IF_ERROR(BindUnix(endpoint.path));
  } else {
    if (endpoint.host == "localhost") endpoint.host = "127.0.0.1";
    // The library's default also shares the port with other processes.
    set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    const int port = endpoint.port == 0                           ? bind_to_any_port(endpoint.host)
                     : bind_to_port(endpoint.host, endpoint.port) ? endpoint.port
                                                                  : -1;
    if (port < 0) {
      return errno != 0 ? ErrnoStatus(errno, "bind") : UnavailableError("no address for the host");
    }
    endpoint.port = static_cast<uint16_t>(port);
  }
  listener_ = UniqueFd(svr_sock_.exchange(INVALID_SOCKET));
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return ErrnoStatus(errno, "eventfd");
  thread_ = std::thread([this] { Serve(); });
  return Status::Ok();
}

void HttpServer::Library::Serve() {
  while (!stopping_) {
    // The library closes this duplicate and returns when it cannot accept: when the server stops,
    // or when files or memory are exhausted.
    svr_sock_ = ::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0);
    try {
      listen_after_bind();
    } catch (const std::exception& error) {
      Log(LogLevel::kWarn, "HttpServerFailed", {Kv("error", error.what())});
    }
    if (!stopping_) clock_.SleepFor(kRetryPause);
  }
}

bool HttpServer::Library::process_and_close_socket(socket_t accepted) {
  try {
    Answer(UniqueFd(accepted));
  } catch (const std::exception& error) {
    Log(LogLevel::kWarn, "HttpRequestFailed", {Kv("error", error.what())});
  }
  return true;
}

void HttpServer::Library::Answer(UniqueFd accepted) {
  ::fcntl(accepted.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(accepted.get(), F_SETFL, O_NONBLOCK);
  // Declared before the connection, which uses it. Loaded for each connection, so that a renewed
  // certificate needs no restart.
  std::unique_ptr<HttpTls> tls;
  const Clock::TimePoint start = clock_.Now();
  HttpConnection connection(std::move(accepted), stop_.get(), start + kRequestTimeout, clock_);
  if (https_) {
    auto loaded = HttpTls::Load(tls_);
    if (!loaded) {
      Log(LogLevel::kWarn, "HttpTlsFailed", {Kv("error", loaded.error().ToString())});
      return;
    }
    tls = *std::move(loaded);
    if (!connection.StartTls(*tls).ok()) return;
  }
  HttpStream stream(connection);
  bool closed = false;
  // To compress a page would take the library longer than the network takes to send the page.
  const auto set_up = [&](httplib::Request& request) {
    request.headers.erase("Accept-Encoding");
    connection.set_deadline(start + handler_.TimeLimit(request.path));
  };
  if (process_request(stream, true, closed, set_up)) connection.Finish();
}

void HttpServer::Library::Respond(const httplib::Request& request, httplib::Response& response) {
  const auto refuse = [&response](int status, const std::string& body) {
    response.status = status;
    response.set_content(body, "text/plain; charset=utf-8");
  };
  if (!options_.token_file.empty() && !handler_.IsOpen(request.path)) {
    // Read for each request, so that a new token needs no restart.
    const std::string key = options_.section + ".token_file";
    auto token = ReadHttpToken(key, options_.token_file);
    if (!token) {
      Log(LogLevel::kWarn, "HttpTokenFailed", {Kv("error", token.error().ToString())});
      return refuse(503, "the token cannot be read\n");
    }
    if (!HasToken(request, *token)) {
      response.set_header("WWW-Authenticate", "Bearer");
      return refuse(401, "the request needs the token of " + key + "\n");
    }
  }
  if (request.method != "GET") {
    response.set_header("Allow", "GET");
    return refuse(405, "only GET\n");
  }
  HttpAnswer answer = handler_.Get(Convert(request));
  response.status = answer.status;
  for (const auto& [name, value] : answer.headers) response.set_header(name, value);
  if (!answer.more) return response.set_content(answer.body, answer.type);
  response.set_chunked_content_provider(
      answer.type, [this, first = std::move(answer.body), more = std::move(answer.more)](
                       size_t offset, httplib::DataSink& sink) {
        if (stopping_) return false;
        const std::optional<std::string> part = offset == 0 ? first : more();
        if (!part) {
          sink.done();
          return true;
        }
        return sink.write(part->data(), part->size());
      });
}

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                      const HttpCertificate& tls, int threads,
                                                      HttpHandler& handler, Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(CheckHttp(options, tls));
  std::unique_ptr<HttpServer> server(new HttpServer());
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(options.listen));
  server->library_ = std::make_unique<Library>(options, tls, threads, handler, clock);
  if (Status status = server->library_->Start(endpoint); !status.ok()) {
    return Fail(UnavailableError(fmt::format("{}.listen {}: cannot listen there ({})",
                                             options.section, options.listen, status.message())));
  }
  server->address_ = endpoint.ToString();
  server->https_ = server->library_->https();
  return server;
}

}  // namespace holdfast
