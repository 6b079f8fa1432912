#include "agent/pipeline/shared_readers.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::milliseconds kStopPollInterval(100);
constexpr size_t kKeptForPeers = 2;
}  // namespace

std::shared_ptr<VersionReader> SharedReaders::Open(const std::string& job, VersionId version,
                                                   uint32_t world, Incarnation incarnation) {
  MutexLock lock(mutex_);
  std::erase_if(readers_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<VersionReader>& known = readers_[{job, version, incarnation}];
  if (auto reader = known.lock()) return reader;
  PlaceFinder& finder = *this;
  auto reader = std::make_shared<VersionReader>(tools_, finder, job, version, world, incarnation);
  known = reader;
  Log(LogLevel::kInfo, "ReaderOpened", {Kv("job", job), Kv("version", ToString(version))});
  return reader;
}

Result<std::shared_ptr<const VersionReader::IndexFile>> SharedReaders::IndexForPeer(
    const IndexedVersion& of) {
  auto reader = Open(of.job, of.version, of.world, of.incarnation);
  if (reader->world() != of.world) {
    return Fail(InvalidArgumentError("the version was saved by another number of ranks"));
  }
  if (auto known = reader->KnownIndex()) return known;
  MutexLock lock(mutex_);
  if (std::find(kept_.begin(), kept_.end(), reader) == kept_.end()) {
    if (kept_.size() == kKeptForPeers) kept_.pop_front();
    kept_.push_back(reader);
  }
  if (making_.insert(reader.get()).second) {
    const bool posted = threads_.Post([this, reader] {
      const auto made = reader->Index();
      if (!made) Log(LogLevel::kDebug, "IndexNotMade", {Kv("error", made.error().ToString())});
      MutexLock done(mutex_);
      making_.erase(reader.get());
    });
    if (!posted) making_.erase(reader.get());
  }
  return Fail(FailedPreconditionError("the index is being made: ask again"));
}

Result<VersionPlaces> SharedReaders::FindPlaces(const std::string& job, VersionId version) {
  struct Answer {
    Mutex mutex;
    CondVar given;
    std::optional<Result<VersionPlaces>> places HOLDFAST_GUARDED_BY(mutex);
  };
  auto answer = std::make_shared<Answer>();
  tools_.link.FindPlaces(job, version, [answer](Result<VersionPlaces> places) {
    MutexLock lock(answer->mutex);
    answer->places = std::move(places);
    answer->given.NotifyAll();
  });
  MutexLock lock(answer->mutex);
  while (!answer->places) {
    if (stopping()) return Fail(CancelledError("the agent is stopping"));
    answer->given.WaitFor(answer->mutex, kStopPollInterval);
  }
  return *std::move(answer->places);
}

}  // namespace holdfast::agent
