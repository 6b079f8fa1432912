#include "agent/pipeline/trainer_record.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace holdfast::agent {
namespace {
constexpr size_t kRecordsMax = 4096;
}  // namespace

Status WriteTrainers(const std::string& path, const std::vector<TrainerRecord>& records) {
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    for (const TrainerRecord& record : records) {
      file << record.job << ' ' << record.rank.value << ' ' << record.pid << ' '
           << record.start_ticks << ' ' << record.incarnation.value_or(Incarnation{}).value << '\n';
    }
    file.flush();
    if (!file) return ErrnoStatus(errno, "write " + temporary);
  }
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return Status::Ok();
  return ErrnoStatus(errno, "rename " + temporary);
}

std::vector<TrainerRecord> ReadTrainers(const std::string& path) {
  std::vector<TrainerRecord> records;
  std::ifstream file(path);
  std::string line;
  while (records.size() < kRecordsMax && std::getline(file, line)) {
    TrainerRecord record;
    std::istringstream fields(line);
    if (!(fields >> record.job >> record.rank.value >> record.pid >> record.start_ticks)) continue;
    // 0 stands for none. An older agent wrote no incarnation.
    Incarnation incarnation;
    if (fields >> incarnation.value && incarnation.value != 0) record.incarnation = incarnation;
    if (!ValidateName("job", record.job).ok() || record.pid <= 0) continue;
    records.push_back(record);
  }
  return records;
}

}  // namespace holdfast::agent
