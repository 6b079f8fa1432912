#include "agent/pipeline/trainer_record.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace holdfast::agent {
namespace {
constexpr size_t kRecordsMax = 4096;
constexpr int kStartTimeField = 22;  // of /proc/<pid>/stat, see proc(5)
}  // namespace

uint64_t StartTicksOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The name (field 2) is in parentheses and may hold anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i < kStartTimeField; ++i) fields >> field;
  uint64_t ticks = 0;
  fields >> ticks;
  return fields ? ticks : 0;
}

Status WriteTrainers(const std::string& path, const std::vector<TrainerRecord>& records) {
  const std::string beside = path + ".new";
  {
    std::ofstream file(beside, std::ios::trunc);
    for (const TrainerRecord& record : records) {
      file << record.job << ' ' << record.rank.value << ' ' << record.pid << ' '
           << record.start_ticks << '\n';
    }
    file.flush();
    if (!file) return ErrnoStatus(errno, "write " + beside);
  }
  if (std::rename(beside.c_str(), path.c_str()) == 0) return Status::Ok();
  return ErrnoStatus(errno, "rename " + beside);
}

std::vector<TrainerRecord> ReadTrainers(const std::string& path) {
  std::vector<TrainerRecord> records;
  std::ifstream file(path);
  TrainerRecord record;
  while (records.size() < kRecordsMax &&
         file >> record.job >> record.rank.value >> record.pid >> record.start_ticks) {
    if (!ValidateName("job", record.job).ok() || record.pid <= 0) continue;
    records.push_back(record);
  }
  return records;
}

}  // namespace holdfast::agent
