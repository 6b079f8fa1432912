#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"

namespace holdfast::coord {

/// Where an audit log is, and how much disk it takes at most: files_max times file_bytes_max.
struct AuditLogOptions {
  std::string path;  // of the newest file; older ones have the suffixes .1, .2 and so on
  uint64_t file_bytes_max = 8 << 20;
  uint32_t files_max = 4;
};

/// One record: a line of JSON in the log.
struct AuditRecord {
  std::string method;
  std::string who;      // e.g. "user alice (uid 1001)"
  std::string from;     // the address of the caller
  std::string what;     // the request as JSON, or text
  std::string outcome;  // "begun", "ok" or an error
  uint64_t begun = 0;   // of an outcome: the number of the record that began the call
};

/// A part of the log.
struct AuditPage {
  std::vector<std::string> lines;  // oldest first
  uint64_t last = 0;               // number of the newest record in `lines`
  bool more = false;
};

/// The append-only record of the calls that changed the cluster. Durable once Append() returns OK.
/// A record that was torn by a crash is removed at the next start: its call was not answered.
/// Thread-safe.
class AuditLog {
 public:
  /// Opens the log, or makes one with mode 0600. `clock` outlives the log.
  static Result<std::unique_ptr<AuditLog>> Open(AuditLogOptions options, const Clock& clock);

  /// Writes and syncs a record. Returns its number, from 1 on. After an error the log does not
  /// contain the record.
  Result<uint64_t> Append(const AuditRecord& record);

  /// Returns the records since a wall time and with numbers above `after`, at most `bytes_max`
  /// bytes and at least one record.
  Result<AuditPage> Read(int64_t since_wall_nanos, uint64_t after, size_t bytes_max) const;

 private:
  AuditLog(AuditLogOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock) {}
  std::string NameOf(uint32_t age) const;
  Status OpenFile() HOLDFAST_REQUIRES(mutex_);
  Status Recover() HOLDFAST_REQUIRES(mutex_);
  Status Rotate() HOLDFAST_REQUIRES(mutex_);
  Status Write(const std::string& line) HOLDFAST_REQUIRES(mutex_);

  const AuditLogOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  UniqueFd file_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t bytes_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  uint64_t last_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

}  // namespace holdfast::coord
