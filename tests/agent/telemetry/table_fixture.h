#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "agent/api/segment_layout.h"
#include "agent/telemetry/table_reader.h"
#include "client/core/collectives.h"

namespace holdfast::agent {

/// A control block with the agent's reader of it, and helpers for a trainer's recorder.
class TableFixture : public ::testing::Test {
 protected:
  using Recorder = client::CollectiveRecorder;

  static constexpr uint64_t kGroup = 42;

  RankTelemetry Read() {
    auto read = reader_.Read(client::MonotonicNs());
    EXPECT_TRUE(read.has_value()) << read.error().ToString();
    return read ? *std::move(read) : RankTelemetry{};
  }
  static Status DescribeGroup(Recorder& recorder, uint64_t id = kGroup, uint32_t size = 4,
                              uint32_t index = 1) {
    return recorder.Describe({.id = id, .size = size, .index = index, .members = {}});
  }
  static CollectiveValues AllReduce(uint64_t bytes, uint64_t communicator = kGroup) {
    CollectiveValues values;
    values.communicator = communicator;
    values.kind = CollectiveKind::kAllReduce;
    values.bytes = bytes;
    return values;
  }
  CollectiveTable& table() { return control_->collectives; }

  std::unique_ptr<SegmentControl> control_ = std::make_unique<SegmentControl>();
  TableReader reader_{*control_};
};

}  // namespace holdfast::agent
