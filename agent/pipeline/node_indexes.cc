#include "agent/pipeline/node_indexes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "storage/format/version_index.h"

namespace holdfast::agent {
namespace {
// Several starts of several jobs may restore at the same time.
constexpr size_t kKept = 4;

// Jobs whose index at the newest commit is kept.
constexpr size_t kJobsKept = 16;

/// Returns what an index was made for. The incarnation of the peers does not change the index.
std::string NameOf(const IndexedVersion& of, const std::vector<IndexedShard>& shards) {
  return of.job + "/" + ToString(of.version) + "/" + NodeIndexRequest(of, shards).group;
}

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
  const std::string request = NameOf(of, wanted);
  {
    MutexLock lock(mutex_);
    const auto known = committed_.find(of.job);
    if (known != committed_.end() && known->second.request == request) return known->second.bytes;
  }
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

Status NodeIndexes::MakeForCommit(const IndexedVersion& of,
                                  const std::vector<IndexedShard>& shards) {
  const std::string request = NameOf(of, shards);
  {
    MutexLock lock(mutex_);
    const auto known = committed_.find(of.job);
    if (known != committed_.end() && known->second.request == request) return Status::Ok();
  }
  HOLDFAST_ASSIGN_OR_RETURN(std::string bytes,
                            MakeNodeIndex(shards_, NoDamageReporter(), of, shards));
  HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex made,
                            VersionIndex::Open(std::as_bytes(std::span(bytes))));
  // A shard that could not be read may be readable when it is requested.
  if (made.shards() != shards.size()) {
    return UnavailableError("some of the shards were removed or could not be read");
  }
  MutexLock lock(mutex_);
  if (committed_.size() >= kJobsKept && !committed_.contains(of.job)) {
    committed_.erase(committed_.begin());
  }
  committed_[of.job] = {request, std::make_shared<const std::string>(std::move(bytes))};
  return Status::Ok();
}

}  // namespace holdfast::agent
