#include "agent/pipeline/shared_readers.h"

#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::milliseconds kStopPollInterval(100);
}  // namespace

/// Returns the entry of the key, which stays until Release(). Removes entries without a reader.
SharedReaders::Entry& SharedReaders::Acquire(const Key& key) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [](const auto& entry) {
    return entry.second.openers == 0 && entry.second.reader.expired();
  });
  Entry& entry = entries_[key];
  ++entry.openers;
  return entry;
}

void SharedReaders::Release(Entry& entry) {
  MutexLock lock(mutex_);
  --entry.openers;
}

Result<std::shared_ptr<VersionReader>> SharedReaders::Open(const std::string& job,
                                                           VersionId version,
                                                           Incarnation incarnation) {
  Entry& entry = Acquire({job, version, incarnation});
  const auto open = [&]() -> Result<std::shared_ptr<VersionReader>> {
    MutexLock lock(entry.mutex);
    if (std::shared_ptr<VersionReader> reader = entry.reader.lock()) return reader;
    HOLDFAST_ASSIGN_OR_RETURN(auto reader,
                              VersionReader::Open(tools_, *this, job, version, incarnation));
    entry.reader = reader;
    Log(LogLevel::kInfo, "ReaderOpened", {Kv("job", job), Kv("version", ToString(version))});
    return reader;
  };
  auto reader = open();
  Release(entry);
  return reader;
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
