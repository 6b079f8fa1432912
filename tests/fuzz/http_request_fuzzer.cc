// Feeds bytes to the server of metrics and page, as a client without its token.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "base/endpoint.h"
#include "base/fd.h"
#include "base/http/http_server.h"
#include "base/log.h"
#include "tests/fuzz/require.h"

namespace holdfast {
namespace {
constexpr std::string_view kToken = "0123456789abcdef0123456789abcdef";
constexpr std::string_view kSecret = "what only clients with the token may see";

class Handler final : public HttpHandler {
 public:
  HttpAnswer Get(const HttpRequest& request) override {
    FUZZ_REQUIRE(request.host.size() <= kBytesMax && request.path.size() <= kBytesMax);
    return {.body = std::string(IsOpen(request.path) ? "open" : kSecret)};
  }
  bool IsOpen(const std::string& path) const override { return path == "/open"; }
  std::chrono::seconds TimeLimit(const std::string& /*path*/) const override {
    return std::chrono::seconds(30);
  }
  static constexpr size_t kBytesMax = 16 << 10;
};

/// A server on loopback with a token, for all inputs of the process.
class Server {
 public:
  static const Server& Get() {
    static const Server server;
    return server;
  }
  /// Sends the bytes, closes that side, and returns all that the server answers.
  std::string Answer(const uint8_t* data, size_t size) const {
    const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    FUZZ_REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
                 0);
    // Ends with a reset, so that many inputs do not use up the ports.
    const linger at_once{1, 0};
    ::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    static_cast<void>(::send(client.get(), data, size, MSG_NOSIGNAL));
    ::shutdown(client.get(), SHUT_WR);
    std::string answer;
    std::array<char, 4096> part{};
    for (ssize_t got = 0; (got = ::recv(client.get(), part.data(), part.size(), 0)) > 0;) {
      answer.append(part.data(), static_cast<size_t>(got));
    }
    return answer;
  }

 private:
  Server() {
    ::signal(SIGPIPE, SIG_IGN);
    ConfigureLog("fuzzer", LogLevel::kError);
    std::string pattern = (std::filesystem::temp_directory_path() / "fuzz-http-XXXXXX").string();
    FUZZ_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    dir_ = pattern;
    const std::string token = dir_ + "/token";
    std::ofstream(token) << kToken;
    std::filesystem::permissions(token, std::filesystem::perms::owner_read);
    auto server =
        HttpServer::Start({"metrics", "127.0.0.1:0", token}, {}, 2, handler_, Clock::Real());
    FUZZ_REQUIRE(server.has_value());
    server_ = *std::move(server);
    port_ = ParseEndpoint(server_->address())->port;
  }
  ~Server() {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  Handler handler_;
  std::string dir_;
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
};
}  // namespace
}  // namespace holdfast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  if (size > 64 << 10) return 0;
  const std::string answer = Server::Get().Answer(data, size);
  FUZZ_REQUIRE(answer.empty() || answer.starts_with("HTTP/1.1 "));
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.find(kToken) == std::string_view::npos) {
    FUZZ_REQUIRE(answer.find(kSecret) == std::string::npos);
    FUZZ_REQUIRE(answer.find(kToken) == std::string::npos);
  }
  return 0;
}
