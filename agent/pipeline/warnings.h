#pragma once

#include <map>
#include <string>

#include "agent/pipeline/coordinator_link.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// The topic of failed writes to disk.
constexpr const char* kDiskWarning = "disk";

/// The warnings of this node that an operator should see, by topic. Thread-safe; its mutex is taken
/// before those of the link.
class Warnings {
 public:
  /// `link` outlives the object.
  explicit Warnings(CoordinatorLink& link) : link_(link) {}

  /// Sets the warning of a topic; an empty text clears it. Sends the complete list to the
  /// coordinator when it has changed.
  void Set(const std::string& topic, const std::string& text);
  /// Returns the warning of a topic; empty: none.
  std::string Text(const std::string& topic);

 private:
  CoordinatorLink& link_;
  Mutex mutex_;
  std::map<std::string, std::string> by_topic_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
