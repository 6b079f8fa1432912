#include "coordinator/server/rank_readings.h"

#include <algorithm>

#include "storage/collective/collective.h"

namespace holdfast::coord {
namespace {
constexpr uint64_t kNsInMs = 1'000'000;
constexpr uint64_t kNsInUs = 1'000;
constexpr uint64_t kShownMsMax = 86'400'000;
// Share of a new value in the shown one, so that the shown one is calm.
constexpr int64_t kNewShare = 4;

int64_t Ms(uint64_t ns) { return static_cast<int64_t>(std::min(ns / kNsInMs, kShownMsMax)); }

void NoteCoordinate(const coordinator::Communicator& communicator, ui::RankReading& reading) {
  const auto index = static_cast<int32_t>(std::min(communicator.index(), kWorldMax));
  switch (static_cast<CommunicatorRole>(communicator.role())) {
    case CommunicatorRole::kData:
      reading.data = index;
      return;
    case CommunicatorRole::kTensor:
      reading.tensor = index;
      return;
    case CommunicatorRole::kPipeline:
      reading.pipeline = index;
      return;
    default:
      return;
  }
}
}  // namespace

void RankReadings::Note(const std::string& node, const coordinator::Digest& digest) {
  for (const auto& rank : digest.ranks()) {
    if (rank.rank() >= digest.world()) continue;
    ui::RankReading& reading = ranks_[rank.rank()];
    reading.rank = rank.rank();
    reading.node = node;
    reading.step = rank.step();
    reading.stall_ms = Ms(rank.since_step_ns());
    reading.silent_ms = Ms(rank.silent_ns());
    uint64_t blocked_us = 0;
    for (const auto& record : rank.ended()) {
      blocked_us += std::min(record.blocked_ns() / kNsInUs, kShownMsMax);
    }
    if (rank.ended_size() > 0) {
      const auto mean = static_cast<int64_t>(blocked_us) / rank.ended_size();
      reading.wait_us =
          reading.wait_us < 0 ? mean : (reading.wait_us * (kNewShare - 1) + mean) / kNewShare;
    }
    for (const auto& communicator : rank.communicators()) NoteCoordinate(communicator, reading);
  }
}

std::vector<ui::RankReading> RankReadings::All() const {
  std::vector<ui::RankReading> all;
  all.reserve(ranks_.size());
  for (const auto& [rank, reading] : ranks_) all.push_back(reading);
  return all;
}

}  // namespace holdfast::coord
