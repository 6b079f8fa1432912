#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "storage/base/fd.h"

namespace holdfast::coord {

/// Sends a GET over a plain socket and returns the complete answer with headers; empty if there is
/// none.
inline std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &where.sin_addr);
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0) return "";
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: " + address + "\r\n\r\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char piece[4096];
  for (ssize_t got = 0; (got = ::recv(socket.get(), piece, sizeof(piece), 0)) > 0;) {
    answer.append(piece, static_cast<size_t>(got));
  }
  return answer;
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

 private:
  std::string text_;
};

}  // namespace holdfast::coord
