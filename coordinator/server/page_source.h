#pragma once

#include <string>

#include "coordinator/server/applier.h"
#include "coordinator/server/watcher.h"
#include "coordinator/ui/ui_source.h"

namespace holdfast::coord {

/// Collects what the page shows from the applier and the watcher. Threads: any.
class PageSource final : public ui::UiSource {
 public:
  /// `applier`, `watcher` and `clock` outlive the source.
  PageSource(std::string cluster, Applier& applier, Watcher& watcher, Clock& clock)
      : cluster_(std::move(cluster)), applier_(applier), watcher_(watcher), clock_(clock) {}
  ui::UiInput Collect() override;
  Result<coordinator::WhatIfLostReply> Impact(const std::string& node) override;

 private:
  const std::string cluster_;
  Applier& applier_;
  Watcher& watcher_;
  Clock& clock_;
};

}  // namespace holdfast::coord
