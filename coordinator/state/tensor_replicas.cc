#include "coordinator/state/tensor_replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

namespace holdfast::coord {
namespace {
/// Most disputes of one version; further ones are dropped.
constexpr size_t kDisputesMax = 16;
constexpr size_t kNamedInFinding = 4;
using ByRank = std::map<uint32_t, uint32_t>;

/// Returns nothing if all ranks have the same checksum.
std::optional<Dispute> DisputeOf(const TensorBytes& bytes, const ByRank& crcs) {
  std::map<uint32_t, std::vector<uint32_t>> ranks_by_crc;
  for (const auto& [rank, crc] : crcs) ranks_by_crc[crc].push_back(rank);
  if (ranks_by_crc.size() < 2) return std::nullopt;
  const auto largest = std::max_element(
      ranks_by_crc.begin(), ranks_by_crc.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  // Without a majority it is unknown which ranks are right.
  const bool majority = 2 * largest->second.size() > crcs.size();
  Dispute dispute{bytes, {}, majority ? largest->second : std::vector<uint32_t>{}};
  for (const auto& [crc, ranks] : ranks_by_crc) {
    if (majority && crc == largest->first) continue;
    dispute.odd.insert(dispute.odd.end(), ranks.begin(), ranks.end());
  }
  std::sort(dispute.odd.begin(), dispute.odd.end());
  return dispute;
}

/// Removes `bytes` from the disputes: only the latest comparison of a byte counts. Samples may have
/// other bounds than earlier ones, so a dispute can be cut in two.
void RemoveBytes(std::vector<Dispute>& disputes, const TensorBytes& bytes) {
  std::vector<Dispute> left;
  for (Dispute& dispute : disputes) {
    const uint64_t first = dispute.bytes.first;
    const uint64_t last = dispute.bytes.last;
    if (dispute.bytes.tensor != bytes.tensor || first >= bytes.last || bytes.first >= last) {
      left.push_back(std::move(dispute));
      continue;
    }
    if (first < bytes.first) {
      left.push_back(dispute);
      left.back().bytes.last = bytes.first;
    }
    if (bytes.last < last) {
      left.push_back(std::move(dispute));
      left.back().bytes.first = bytes.last;
    }
  }
  disputes = std::move(left);
}

/// Adds a dispute. Adjacent bytes of one tensor with the same ranks become one dispute.
void Add(std::vector<Dispute>& disputes, Dispute dispute) {
  for (Dispute& known : disputes) {
    if (known.bytes.tensor != dispute.bytes.tensor || known.odd != dispute.odd ||
        known.others != dispute.others) {
      continue;
    }
    if (known.bytes.last == dispute.bytes.first) {
      known.bytes.last = dispute.bytes.last;
      return;
    }
    if (known.bytes.first == dispute.bytes.last) {
      known.bytes.first = dispute.bytes.first;
      return;
    }
  }
  if (disputes.size() < kDisputesMax) disputes.push_back(std::move(dispute));
}

std::string RanksText(const std::vector<uint32_t>& ranks) {
  constexpr size_t kShown = 8;
  const std::span<const uint32_t> shown(ranks.data(), std::min(ranks.size(), kShown));
  return fmt::format(
      "{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(shown, ", "),
      ranks.size() > kShown ? fmt::format(" and {} more", ranks.size() - kShown) : "");
}
}  // namespace

void CompareTensorReplicas(Context& context, Job& job, VersionState& version) {
  std::set<uint32_t> known;
  for (const Dispute& dispute : job.disputes) {
    known.insert(dispute.odd.begin(), dispute.odd.end());
  }
  std::set<uint32_t> ranks;
  std::vector<std::string> texts;
  size_t found = 0;
  for (const auto& [bytes, crcs] : version.samples) {
    if (crcs.size() < 2) continue;
    RemoveBytes(job.disputes, bytes);
    std::optional<Dispute> dispute = DisputeOf(bytes, crcs);
    if (!dispute) continue;
    ++found;
    ranks.insert(dispute->odd.begin(), dispute->odd.end());
    if (texts.size() < kNamedInFinding) texts.push_back(ToString(*dispute));
    Add(job.disputes, *std::move(dispute));
  }
  version.samples.clear();
  version.disputes = job.disputes;
  // A rank that keeps differing is one incident, not one for each save.
  if (std::includes(known.begin(), known.end(), ranks.begin(), ranks.end())) return;
  Finding finding;
  finding.job = job.name;
  finding.kind = "replicas differ";
  finding.what = DataLossError(
      fmt::format("version {} is disputed: {}{}", ToString(version.id), fmt::join(texts, "; "),
                  found > texts.size() ? fmt::format("; and {} more", found - texts.size()) : ""));
  for (uint32_t rank : ranks) finding.ranks.push_back(Rank{rank});
  context.effects.emplace_back(std::move(finding));
}

void ReportDisputedRestore(Context& context, const Job& job, const VersionState& version) {
  Finding finding;
  finding.job = job.name;
  finding.kind = "disputed version restored";
  finding.what = DataLossError(fmt::format(
      "version {} is restored although it is disputed: {}{}; `holdfast versions {}` shows which "
      "versions are not",
      ToString(version.id), ToString(version.disputes.front()),
      version.disputes.size() > 1 ? fmt::format(" and {} more", version.disputes.size() - 1) : "",
      job.name));
  context.effects.emplace_back(std::move(finding));
}

std::string ToString(const Dispute& dispute) {
  const std::string where = fmt::format("{}, bytes {} to {}", dispute.bytes.tensor,
                                        dispute.bytes.first, dispute.bytes.last);
  if (dispute.others.empty()) {
    return fmt::format("{}: {} differ from each other", where, RanksText(dispute.odd));
  }
  return fmt::format("{}: {} {} from {}", where, RanksText(dispute.odd),
                     dispute.odd.size() == 1 ? "differs" : "differ", RanksText(dispute.others));
}

}  // namespace holdfast::coord
