#include "agent/pipeline/node_indexes.h"

#include <algorithm>
#include <span>
#include <utility>

namespace holdfast::agent {
namespace {
// Several starts of several jobs may restore at the same time.
constexpr size_t kKept = 4;

/// Makes the index when its first bytes are requested.
class NodeIndexReader final : public PeerReader {
 public:
  NodeIndexReader(NodeIndexes& indexes, IndexedVersion of, std::vector<IndexedShard> wanted)
      : indexes_(indexes), of_(std::move(of)), wanted_(std::move(wanted)) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    if (index_ == nullptr) {
      HOLDFAST_ASSIGN_OR_RETURN(index_, indexes_.OfNode(of_, wanted_));
    }
    const auto all = std::as_bytes(std::span(*index_));
    const auto rest = all.subspan(std::min<uint64_t>(offset, all.size()));
    return rest.first(std::min<uint64_t>(bytes, rest.size()));
  }

 private:
  NodeIndexes& indexes_;
  const IndexedVersion of_;
  const std::vector<IndexedShard> wanted_;
  IndexBytes index_;
};
}  // namespace

void NodeIndexes::SetWhole(Whole whole) {
  MutexLock lock(mutex_);
  whole_ = std::move(whole);
}

Result<std::unique_ptr<PeerReader>> NodeIndexes::Open(const PeerRequest& request) {
  const IndexedVersion of{request.job, request.version, request.index, request.incarnation};
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<IndexedShard> wanted, ShardsOf(request));
  if (!wanted.empty()) return std::make_unique<NodeIndexReader>(*this, of, std::move(wanted));
  Whole whole;
  {
    MutexLock lock(mutex_);
    whole = whole_;
  }
  if (!whole) return Fail(UnavailableError("the agent is starting or stopping"));
  return whole(of);
}

Result<IndexBytes> NodeIndexes::OfNode(const IndexedVersion& of,
                                       const std::vector<IndexedShard>& wanted) {
  // The incarnation of the peers does not change the index.
  const std::string request =
      of.job + "/" + ToString(of.version) + "/" + NodeIndexRequest(of, wanted).group;
  MutexLock lock(making_);
  const auto known = std::find_if(made_.begin(), made_.end(),
                                  [&](const Made& made) { return made.request == request; });
  if (known != made_.end()) return known->bytes;
  HOLDFAST_ASSIGN_OR_RETURN(std::string bytes, MakeNodeIndex(shards_, damage_, of, wanted));
  auto made = std::make_shared<const std::string>(std::move(bytes));
  if (made_.size() == kKept) made_.pop_front();
  made_.push_back({request, made});
  return IndexBytes(made);
}

}  // namespace holdfast::agent
