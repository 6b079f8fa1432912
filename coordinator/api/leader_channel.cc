#include "coordinator/api/leader_channel.h"

#include <algorithm>

namespace holdfast::coord {

bool StandsBy(const grpc::ClientContext& failed) {
  const auto& metadata = failed.GetServerTrailingMetadata();
  return metadata.find(kLeaderMetadata) != metadata.end();
}

Result<std::unique_ptr<LeaderChannel>> LeaderChannel::Make(std::string_view text,
                                                           const TlsFiles& tls, ServerRole server) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto endpoints, ParseEndpointList(text));
  auto list = std::make_unique<LeaderChannel>();
  for (const Endpoint& endpoint : endpoints) {
    HOLDFAST_ASSIGN_OR_RETURN(auto channel,
                              MakeChannel(endpoint, tls, kControlMessageBytesMax, server));
    list->members_.push_back(
        {endpoint.ToString(), channel, coordinator::Coordinator::NewStub(channel)});
  }
  return list;
}

void LeaderChannel::Follow(size_t member, const grpc::ClientContext& failed) {
  size_t next = (member + 1) % members_.size();
  const auto& metadata = failed.GetServerTrailingMetadata();
  const auto hint = metadata.find(kLeaderMetadata);
  if (hint != metadata.end()) {
    const std::string_view leader(hint->second.data(), hint->second.size());
    const auto named = std::find_if(members_.begin(), members_.end(),
                                    [&](const Member& one) { return one.address == leader; });
    if (named != members_.end()) next = static_cast<size_t>(named - members_.begin());
  }
  current_.compare_exchange_strong(member, next);
}

}  // namespace holdfast::coord
