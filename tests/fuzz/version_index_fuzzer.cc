#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <tuple>
#include <vector>

#include "storage/format/version_index_builder.h"
#include "tests/fuzz/require.h"

namespace {
using namespace holdfast;

/// Asks for everything. All that is returned is within the bytes, and each error is DataLoss.
void ReadAll(const VersionIndex& index) {
  const auto sound = [](const auto& result) {
    const bool known = result.has_value() || result.error().code() == ErrorCode::kDataLoss ||
                       result.error().code() == ErrorCode::kNotFound;
    FUZZ_REQUIRE(known);
    return result.has_value();
  };
  for (uint64_t i = 0; i < index.shards(); ++i) {
    const auto shard = index.ShardAt(i);
    if (sound(shard)) sound(index.ExtrasOf(*shard));
  }
  uint64_t reads = 0;  // a class may have the tensors of another
  for (uint64_t c = 0; c < index.classes(); ++c) {
    const auto of = index.ClassAt(c);
    if (!sound(of)) continue;
    for (uint64_t t = 0; t < of->tensors && reads < 1000; ++t, ++reads) {
      const auto tensor = index.TensorAt(*of, t);
      if (!sound(tensor)) continue;
      const Box all{std::vector<uint64_t>(tensor->shape.size()),
                    {tensor->global_shape.begin(), tensor->global_shape.end()}};
      const Status walked = index.ForEachOverlap(*of, *tensor, all, 1, [&](Rank, const Box& box) {
        for (size_t d = 0; d < box.shape.size(); ++d) {
          FUZZ_REQUIRE(box.offset[d] <= all.shape[d] - box.shape[d]);
        }
        return ++reads < 1000;
      });
      FUZZ_REQUIRE(walked.ok() || walked.code() == ErrorCode::kDataLoss);
    }
  }
  for (uint64_t n = 0; n < index.names(); ++n) {
    const auto name = index.NameAt(n);
    if (sound(name)) sound(index.Find(name->text));
  }
}
}  // namespace

/// Opens an index, as a trainer does with that of its agent, and joins it with another one, as an
/// agent does with those of its peers.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint64_t> memory((size + 7) / 8);
  if (size != 0) std::memcpy(memory.data(), data, size);
  const auto index = VersionIndex::Open(std::as_bytes(std::span(memory)).first(size));
  if (!index) {
    FUZZ_REQUIRE(index.error().code() == ErrorCode::kDataLoss);
    FUZZ_REQUIRE(!index.error().message().empty());
    return 0;
  }
  std::ignore = index->Verify();
  ReadAll(*index);
  VersionIndexBuilder builder(std::string(index->job()), index->version(), index->world());
  if (!builder.Add(*index).ok()) return 0;
  const auto again = builder.Finish();
  if (!again) return 0;
  std::memcpy(memory.data(), again->data(), std::min(memory.size() * 8, again->size()));
  return 0;
}
