#include "client/cuda/copy_schedule.h"

#include <algorithm>
#include <map>

namespace holdfast::cuda {
namespace {

/// Returns for each piece whether it continues the run of the piece before.
std::vector<bool> Continuations(std::span<const holdfast_device_piece> pieces,
                                const ScheduleRules& rules) {
  std::vector<bool> continues(pieces.size());
  for (size_t i = 1; i < pieces.size(); ++i) {
    const holdfast_device_piece& one = pieces[i - 1];
    const holdfast_device_piece& next = pieces[i];
    const auto begin = reinterpret_cast<uint64_t>(one.device_memory);
    const auto end = reinterpret_cast<uint64_t>(next.device_memory);
    continues[i] = one.device_index == next.device_index && begin + one.bytes == end &&
                   one.slot_offset + one.bytes == next.slot_offset &&
                   rules.same_allocation(one.device_index, begin, end);
  }
  return continues;
}

void AddItems(const CopyRun& run, std::vector<GatherItem>* items) {
  for (uint64_t done = 0; done < run.bytes; done += kGatherItemBytesMax) {
    const uint64_t bytes = std::min<uint64_t>(kGatherItemBytesMax, run.bytes - done);
    items->push_back({run.device + done, run.slot_offset + done, static_cast<uint32_t>(bytes), 0});
  }
}

/// Adds the runs and items of one group to the schedule.
void FillGroup(std::span<const holdfast_device_piece> pieces, const std::vector<bool>& continues,
               const ScheduleRules& rules, CopyGroup* group, CopySchedule* schedule) {
  const uint64_t gather_below = rules.gather_below(group->device_index);
  group->runs_begin = schedule->runs.size();
  group->items_begin = schedule->items.size();
  std::vector<CopyRun> shorter;
  size_t next = 0;
  for (size_t i = group->begin; i < group->end; i = next) {
    CopyRun run = {reinterpret_cast<uint64_t>(pieces[i].device_memory), pieces[i].slot_offset, 0};
    for (next = i; next < group->end && (next == i || continues[next]); ++next) {
      run.bytes += pieces[next].bytes;
    }
    (run.bytes >= gather_below ? schedule->runs : shorter).push_back(run);
  }
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
  const std::vector<bool> continues = Continuations(pieces, rules);
  CopySchedule schedule;
  uint64_t bytes = 0;      // of the last group
  uint64_t run_bytes = 0;  // of its last run
  size_t runs = 0;         // in it that a copy engine copies
  std::vector<CopyGroup>& groups = schedule.groups;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const holdfast_device_piece& piece = pieces[i];
    const bool fits = !groups.empty() && groups.back().device_index == piece.device_index &&
                      bytes + piece.bytes <= rules.limits.group_bytes_max &&
                      i - groups.back().begin < rules.limits.group_pieces_max &&
                      (continues[i] || runs < rules.limits.group_runs_max);
    if (!fits) {
      groups.push_back({.begin = i, .end = i, .device_index = piece.device_index});
      bytes = 0;
      runs = 0;
    }
    if (!fits || !continues[i]) run_bytes = 0;
    groups.back().end = i + 1;
    bytes += piece.bytes;
    groups.back().bytes = bytes;
    const uint64_t gather_below = rules.gather_below(piece.device_index);
    const bool was_long = run_bytes > 0 && run_bytes >= gather_below;
    run_bytes += piece.bytes;
    if (!was_long && run_bytes >= gather_below) ++runs;
  }
  std::map<int32_t, size_t> groups_of;
  for (CopyGroup& group : groups) {
    group.stream = groups_of[group.device_index]++ % kStreamsPerDevice;
    FillGroup(pieces, continues, rules, &group, &schedule);
  }
  return schedule;
}

}  // namespace holdfast::cuda
