#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/endpoint.h"
#include "base/status.h"

namespace holdfast::coord {

/// "etcd://h1:2379,h2:2379,h3:2379" or the same with "/folder".
struct EtcdUrl {
  std::vector<Endpoint> members;
  std::string folder = "holdfast";  // first part of all keys

  /// Returns the prefix of all keys of a cluster: "/<folder>/<cluster>/".
  std::string PrefixOf(const std::string& cluster) const;
};

/// Whether the text names an etcd, and not the embedded store.
bool IsEtcdUrl(std::string_view text);
/// Parses the text. InvalidArgument states the error and shows the accepted form.
Result<EtcdUrl> ParseEtcdUrl(std::string_view text);

}  // namespace holdfast::coord
