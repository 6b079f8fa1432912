#include "agent/pipeline/trainer_processes.h"

#include <vector>

#include "agent/pipeline/session.h"
#include "agent/pipeline/trainer_record.h"
#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr size_t kDepartedMax = 4096;
constexpr size_t kGoodbyesMax = 65'536;
}  // namespace

void TrainerProcesses::Load() {
  if (file_.empty()) return;
  for (const TrainerRecord& record : ReadTrainers(file_)) {
    auto pid_fd = table_.PidFdOf(record.pid);
    // Compare after the descriptor is open: from here on the PID cannot be reused.
    if (!pid_fd || table_.StartTicksOf(record.pid) != record.start_ticks) continue;
    processes_[{record.job, record.rank}] =
        Process{record.pid, record.start_ticks, record.incarnation, std::move(*pid_fd)};
  }
}

void TrainerProcesses::Store() const {
  if (file_.empty()) return;
  std::vector<TrainerRecord> records;
  for (const auto& [key, process] : processes_) {
    records.push_back(
        {key.first, key.second, process.pid, process.start_ticks, process.incarnation});
  }
  Status status = WriteTrainers(file_, records);
  if (!status.ok()) Log(LogLevel::kWarn, "TrainersNotRecorded", {Kv("error", status.ToString())});
}

void TrainerProcesses::OnJoined(const RankKey& rank, pid_t pid, UniqueFd pid_fd,
                                Incarnation incarnation) {
  processes_[rank] = Process{pid, table_.StartTicksOf(pid), incarnation, std::move(pid_fd)};
  goodbyes_.erase(rank);
  Store();
}

void TrainerProcesses::OnGoodbye(const RankKey& rank, Incarnation incarnation) {
  auto process = processes_.extract(rank);
  if (!process.empty() && (departed_.size() < kDepartedMax || departed_.contains(rank))) {
    departed_[rank] = std::move(process.mapped());
    departed_[rank].pid_fd.Reset();
  }
  if (goodbyes_.size() < kGoodbyesMax) goodbyes_[rank] = incarnation;
  Store();
}

std::optional<pid_t> TrainerProcesses::OtherProcessOf(const RankKey& rank, pid_t pid) const {
  auto process = processes_.find(rank);
  if (process == processes_.end() || process->second.pid == pid) return std::nullopt;
  if (ProcessGone(process->second.pid_fd.get())) return std::nullopt;
  return process->second.pid;
}

std::optional<Incarnation> TrainerProcesses::JoinedBefore(const RankKey& rank, pid_t pid) const {
  const uint64_t start_ticks = table_.StartTicksOf(pid);
  for (const auto* known : {&processes_, &departed_}) {
    auto found = known->find(rank);
    if (found == known->end()) continue;
    const Process& process = found->second;
    if (process.pid == pid && process.start_ticks == start_ticks) return process.incarnation;
  }
  return std::nullopt;
}

void TrainerProcesses::Sweep() {
  std::erase_if(processes_,
                [](const auto& entry) { return ProcessGone(entry.second.pid_fd.get()); });
}

void TrainerProcesses::ForgetIncarnations() {
  for (auto& [rank, process] : processes_) process.incarnation.reset();
  departed_.clear();
  Store();
}

void TrainerProcesses::ForgetGoodbyes(const std::string& job) {
  std::erase_if(departed_, [&](const auto& entry) { return entry.first.first == job; });
  std::erase_if(goodbyes_, [&](const auto& entry) { return entry.first.first == job; });
}

}  // namespace holdfast::agent
