#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "base/fd.h"

namespace holdfast::coord {

/// Connects to HOST:PORT or unix:/path. The socket is invalid if nothing listens there.
inline UniqueFd ConnectToMetrics(const std::string& address) {
  sockaddr_storage where{};
  if (address.rfind("unix:", 0) == 0) {
    auto& unix = reinterpret_cast<sockaddr_un&>(where);
    unix.sun_family = AF_UNIX;
    address.copy(unix.sun_path, sizeof(unix.sun_path) - 1, 5);
  } else {
    const size_t colon = address.rfind(':');
    auto& tcp = reinterpret_cast<sockaddr_in&>(where);
    tcp.sin_family = AF_INET;
    tcp.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &tcp.sin_addr);
  }
  UniqueFd socket(::socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const socklen_t bytes = where.ss_family == AF_UNIX ? sizeof(sockaddr_un) : sizeof(sockaddr_in);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&where), bytes) != 0) return {};
  return socket;
}

/// Sends a request and returns the complete answer with headers; empty if there is none.
inline std::string HttpSend(const std::string& address, const std::string& request) {
  const UniqueFd socket = ConnectToMetrics(address);
  if (!socket.valid()) return "";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char piece[4096];
  for (ssize_t got = 0; (got = ::recv(socket.get(), piece, sizeof(piece), 0)) > 0;) {
    answer.append(piece, static_cast<size_t>(got));
  }
  return answer;
}

inline std::string HttpGet(const std::string& address, const std::string& path,
                           const std::string& headers = "") {
  return HttpSend(address,
                  "GET " + path + " HTTP/1.0\r\nHost: " + address + "\r\n" + headers + "\r\n");
}

inline bool HasPromtool() {
  return std::system("command -v promtool >/dev/null") == 0;  // NOLINT: a fixed command
}

/// Returns what `promtool check metrics` reports about a page; empty if it reports nothing.
inline std::string CheckByPromtool(const std::string& page) {
  std::string path = ::testing::TempDir() + "metrics-XXXXXX";
  const UniqueFd file(::mkstemp(path.data()));
  if (::write(file.get(), page.data(), page.size()) != static_cast<ssize_t>(page.size())) {
    return "cannot write " + path;
  }
  std::string report;
  FILE* output = ::popen(("promtool check metrics 2>&1 <" + path).c_str(), "re");
  char piece[4096];
  while (std::fgets(piece, sizeof(piece), output) != nullptr) report += piece;
  const int status = ::pclose(output);
  ::unlink(path.c_str());
  return status == 0 ? report : report + "promtool failed";
}

/// One scrape of /metrics.
class Scrape {
 public:
  explicit Scrape(const std::string& address) : text_(HttpGet(address, "/metrics")) {
    EXPECT_EQ(text_.compare(0, 15, "HTTP/1.1 200 OK"), 0) << text_;
  }
  /// Returns the value of a series, written name{label="value",…}; nullopt if it is missing.
  std::optional<double> Value(const std::string& series) const {
    const size_t at = text_.find("\n" + series + " ");
    if (at == std::string::npos) return std::nullopt;
    return std::strtod(text_.c_str() + at + series.size() + 2, nullptr);
  }
  /// Returns the names of all Holdfast metrics.
  std::set<std::string> Names() const {
    std::set<std::string> names;
    std::istringstream lines(text_);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("# TYPE holdfast_", 0) != 0) continue;
      names.insert(line.substr(7, line.find(' ', 7) - 7));
    }
    return names;
  }
  const std::string& text() const { return text_; }
  /// Returns the answer without its headers.
  std::string page() const { return text_.substr(text_.find("\r\n\r\n") + 4); }

 private:
  std::string text_;
};

}  // namespace holdfast::coord
