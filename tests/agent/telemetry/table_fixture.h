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

  static constexpr CommunicatorId kGroup{42};

  RankTelemetry Read() {
    auto read = reader_.Read(client::MonotonicNs());
    EXPECT_TRUE(read.has_value()) << read.error().ToString();
    return read ? *std::move(read) : RankTelemetry{};
  }
  static Status DescribeGroup(Recorder& recorder, CommunicatorId id = kGroup, uint32_t size = 4,
                              uint32_t index = 1) {
    return recorder.Describe({.id = id, .size = size, .index = index});
  }
  static CollectiveRecord AllReduce(uint64_t bytes, CommunicatorId communicator = kGroup) {
    CollectiveRecord record;
    record.communicator = communicator;
    record.kind = CollectiveKind::kAllReduce;
    record.bytes = bytes;
    return record;
  }
  CollectiveTable& table() { return control_->collectives; }

  std::unique_ptr<SegmentControl> control_ = std::make_unique<SegmentControl>();
  TableReader reader_{*control_};
};

}  // namespace holdfast::agent
