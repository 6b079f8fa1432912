#include "client/cuda/copy_schedule.h"

#include <algorithm>
#include <map>

namespace holdfast::cuda {
namespace {

bool Follows(const CopyRun& run, const holdfast_device_piece& piece) {
  return run.device + run.bytes == reinterpret_cast<uint64_t>(piece.device_memory) &&
         run.slot_offset + run.bytes == piece.slot_offset;
}

void AddItems(const CopyRun& run, std::vector<GatherItem>* items) {
  for (uint64_t done = 0; done < run.bytes; done += kGatherItemBytesMax) {
    const uint64_t bytes = std::min<uint64_t>(kGatherItemBytesMax, run.bytes - done);
    items->push_back({run.device + done, run.slot_offset + done, static_cast<uint32_t>(bytes), 0});
  }
}

/// Merges the pieces of one group, and adds its runs and items to the schedule.
void FillGroup(std::span<const holdfast_device_piece> pieces, const ScheduleRules& rules,
               CopyGroup* group, CopySchedule* schedule) {
  const uint64_t gather_below = rules.gather_below(group->device_index);
  group->runs_begin = schedule->runs.size();
  group->items_begin = schedule->items.size();
  CopyRun run;
  std::vector<CopyRun> shorter;
  const auto end_run = [&] {
    (run.bytes >= gather_below ? schedule->runs : shorter).push_back(run);
  };
  for (const holdfast_device_piece& piece : pieces) {
    if (run.bytes > 0 && Follows(run, piece) &&
        rules.same_allocation(group->device_index, run.device,
                              reinterpret_cast<uint64_t>(piece.device_memory))) {
      run.bytes += piece.bytes;
      continue;
    }
    if (run.bytes > 0) end_run();
    run = {reinterpret_cast<uint64_t>(piece.device_memory), piece.slot_offset, piece.bytes};
  }
  end_run();
  if (shorter.size() >= rules.limits.gather_runs_min) {
    for (const CopyRun& one : shorter) AddItems(one, &schedule->items);
  } else {
    schedule->runs.insert(schedule->runs.end(), shorter.begin(), shorter.end());
  }
  group->runs_end = schedule->runs.size();
  group->items_end = schedule->items.size();
}

}  // namespace

ScheduleLimits LimitsFor(uint64_t bytes) {
  return {.group_bytes_max = std::clamp<uint64_t>(bytes / 16, 8 << 20, 64 << 20),
          .group_pieces_max = 4096,
          .group_runs_max = 64,
          .gather_runs_min = 16};
}

CopySchedule MakeSchedule(std::span<const holdfast_device_piece> pieces,
                          const ScheduleRules& rules) {
  CopySchedule schedule;
  uint64_t bytes = 0;
  size_t runs = 0;
  std::vector<CopyGroup>& groups = schedule.groups;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const holdfast_device_piece& piece = pieces[i];
    const bool fits = !groups.empty() && groups.back().device_index == piece.device_index &&
                      bytes + piece.bytes <= rules.limits.group_bytes_max &&
                      i - groups.back().begin < rules.limits.group_pieces_max &&
                      runs < rules.limits.group_runs_max;
    if (!fits) {
      groups.push_back({.begin = i, .end = i, .device_index = piece.device_index});
      bytes = 0;
      runs = 0;
    }
    groups.back().end = i + 1;
    bytes += piece.bytes;
    groups.back().bytes = bytes;
    if (piece.bytes >= rules.gather_below(piece.device_index)) ++runs;
  }
  std::map<int32_t, size_t> groups_of;
  for (CopyGroup& group : groups) {
    group.stream = groups_of[group.device_index]++ % kStreamsPerDevice;
    FillGroup(pieces.subspan(group.begin, group.end - group.begin), rules, &group, &schedule);
  }
  return schedule;
}

}  // namespace holdfast::cuda
