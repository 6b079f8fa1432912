#include "agent/pipeline/warnings.h"

#include <utility>
#include <vector>

namespace holdfast::agent {

void Warnings::Set(const std::string& topic, const std::string& text) {
  MutexLock lock(mutex_);
  const auto known = by_topic_.find(topic);
  const std::string before = known == by_topic_.end() ? "" : known->second;
  if (text == before) return;
  if (text.empty()) {
    by_topic_.erase(topic);
  } else {
    by_topic_[topic] = text;
  }
  std::vector<std::string> all;
  for (const auto& [name, warning] : by_topic_) all.push_back(warning);
  link_.SetWarnings(std::move(all));
}

std::string Warnings::Text(const std::string& topic) {
  MutexLock lock(mutex_);
  const auto known = by_topic_.find(topic);
  return known == by_topic_.end() ? "" : known->second;
}

}  // namespace holdfast::agent
