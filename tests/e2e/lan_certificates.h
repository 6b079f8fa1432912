#pragma once

#include <string>
#include <vector>

#include "tests/agent/peers/peers_test_util.h"
#include "tests/e2e/lan.h"

namespace holdfast::local {

/// A certificate for all places of a Lan.
class LanCertificates {
 public:
  explicit LanCertificates(int places) : certificates_(Names(places)) {}
  /// Returns false where the openssl command is not installed.
  bool made() const { return certificates_.made(); }
  agent::PeerTlsFiles files() const { return certificates_.Node(); }
  /// The settings of a server that other places reach.
  std::vector<std::string> Settings() const {
    return {"tls.ca=" + files().ca, "tls.cert=" + files().cert, "tls.key=" + files().key};
  }

 private:
  static std::string Names(int places) {
    std::string names = "IP:" + Lan::Address(0);
    for (int place = 1; place < places; ++place) names += ",IP:" + Lan::Address(place);
    return names;
  }

  const agent::TestCertificates certificates_;
};

}  // namespace holdfast::local
