#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/http/http_options.h"
#include "base/status.h"

namespace holdfast {

struct HttpRequest {
  std::string path;
  std::map<std::string, std::string> parameters;  // of the query
  std::string host;                               // the header Host, without its port
};

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::map<std::string, std::string> headers{};
  /// Set: called repeatedly after `body`, for the next part. It waits for that part, and returns
  /// nullopt at the end.
  std::function<std::optional<std::string>()> more{};
};

/// Decides what a server answers. Threads: several at the same time.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Answers a GET request that had the token, if one is needed. Must not block for long.
  virtual HttpAnswer Get(const HttpRequest& request) = 0;
  /// Whether the path has no secrets, and needs no token.
  virtual bool IsOpen(const std::string& path) const = 0;
  /// Longest time of a connection that asks for the path, from its start to the end of the answer.
  virtual std::chrono::seconds TimeLimit(const std::string& path) const = 0;
};

/// Listens for HTTP or HTTPS requests, or on a unix socket. Only GET is answered. The process must
/// ignore SIGPIPE.
class HttpServer {
 public:
  /// Starts the server, which listens when this returns. `threads` connections are served at the
  /// same time; further ones wait. `handler` and `clock` outlive the server. Errors as from
  /// CheckHttp; Unavailable if the address is in use or cannot be bound.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpOptions& options,
                                                   const HttpCertificate& tls, int threads,
                                                   HttpHandler& handler, Clock& clock);
  /// Ends open connections at once. A call of `more` must return soon.
  ~HttpServer();

  /// Returns the listening address, with the port that was bound.
  const std::string& address() const { return address_; }
  /// Returns whether the address is served by HTTPS.
  bool https() const { return https_; }

 private:
  class Library;
  HttpServer();

  std::string address_;
  bool https_ = false;
  std::unique_ptr<Library> library_;
};

}  // namespace holdfast
