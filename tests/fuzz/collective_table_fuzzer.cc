#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "agent/telemetry/table_reader.h"
#include "tests/agent/telemetry/telemetry_check.h"
#include "tests/fuzz/require.h"

namespace holdfast::agent {
namespace {

/// One store of a faulty trainer: the index of a 64-bit word of the table, and its new value.
struct Store {
  uint32_t word;
  uint32_t unused;
  uint64_t value;
};

void RequireBounded(TableReader& reader, uint64_t now_ns) {
  const auto read = reader.Read(now_ns);
  if (!read) {
    FUZZ_REQUIRE(read.error().code() == ErrorCode::kUnsupported);
    FUZZ_REQUIRE(!read.error().message().empty());
    return;
  }
  const std::string impossible = ImpossibleNumber(*read);
  if (!impossible.empty()) std::fprintf(stderr, "%s\n", impossible.c_str());
  FUZZ_REQUIRE(impossible.empty());
}

/// Fills a valid table: two communicators, operations in flight and completed, sums. The input then
/// corrupts it.
void Fill(CollectiveTable& table) {
  table.layout = kCollectiveTableMagic | kCollectiveTableVersion;
  table.writer = 7;
  for (uint32_t i = 0; i < 2; ++i) {
    CommunicatorEntry& entry = table.communicators[i];
    entry.id = i;
    entry.size = entry.member_count = 4;
    for (uint32_t m = 0; m < 4; ++m) entry.members[m] = m;
    entry.begun[1] = 3;
    entry.tag = 3;
  }
  CollectiveRecord record;
  record.kind = CollectiveKind::kAllReduce;
  record.enqueued_ns = record.started_ns = 1000;
  StoreRecord(table.in_flight[0], record);
  table.in_flight[0].tag = 1;
  record.ended_ns = 2000;
  for (uint64_t ticket = 0; ticket < 3; ++ticket) {
    record.sequence = ticket;
    StoreRecord(table.ring[ticket], record);
    table.ring[ticket].tag = 2 * ticket + 2;
  }
  table.ring_head = 3;
  table.peers[0].key = PackPeerKey({.communicator = 1, .generation = 1, .peer = 2});
  table.peers[0].transfers = 1;
  table.peers[0].now = 3ULL << 56 | 1500;
  table.progress.step = 4;
  table.progress.advanced_ns = 900;
  table.progress.version = 2;
  table.progress.steps = 1;
  table.steps[0].tag = 2;
}

}  // namespace
}  // namespace holdfast::agent

/// The input is the time, followed by stores into the table. The table is read after every fourth
/// store.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast::agent;
  static const auto control = [] {
    auto filled = std::make_unique<SegmentControl>();
    Fill(filled->collectives);
    return filled;
  }();
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(&control->collectives);
  constexpr size_t kWords = sizeof(CollectiveTable) / sizeof(uint64_t);
  uint64_t now_ns = 0;
  if (size < sizeof now_ns) return 0;
  std::memcpy(&now_ns, data, sizeof now_ns);
  TableReader reader(*control);
  RequireBounded(reader, 3000);
  std::vector<std::pair<size_t, uint64_t>> before;  // undo log: filling the table again is slow
  for (size_t at = sizeof now_ns; at + sizeof(Store) <= size; at += sizeof(Store)) {
    Store store{};
    std::memcpy(&store, data + at, sizeof store);
    const size_t word = store.word % kWords;
    before.emplace_back(word, words[word].exchange(store.value));
    if (before.size() % 4 == 0) RequireBounded(reader, now_ns);
    if (before.size() == 64) break;
  }
  RequireBounded(reader, now_ns);
  RequireBounded(reader, ~uint64_t{0});
  for (auto undo = before.rbegin(); undo != before.rend(); ++undo)
    words[undo->first] = undo->second;
  return 0;
}
