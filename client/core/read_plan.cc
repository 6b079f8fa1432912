#include "client/core/read_plan.h"

#include <algorithm>
#include <utility>

#include "client/core/stream_copy.h"
#include "storage/format/checksum.h"

namespace holdfast::client {
namespace {
/// Chunks [first, second) of an image.
using Chunks = std::pair<uint64_t, uint64_t>;

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

/// Adds the chunks that have bytes of the copy, in ascending order.
void AddChunks(const PlannedCopy& planned, std::vector<Chunks>& chunks) {
  uint64_t at = planned.copy.source_begin();
  while (const auto run = planned.copy.RunFrom(at)) {
    const uint64_t begin = planned.image_begin + run->source;
    const Chunks found = {begin / kChunkBytes, (begin + run->bytes - 1) / kChunkBytes + 1};
    if (!chunks.empty() && chunks.back().first <= found.first &&
        found.first <= chunks.back().second) {
      chunks.back().second = std::max(chunks.back().second, found.second);
    } else {
      chunks.push_back(found);
    }
    // Skips further runs in these chunks.
    at = std::max(found.second * kChunkBytes - planned.image_begin, run->source + run->bytes);
  }
}

class Planner {
 public:
  Planner(std::span<const PlannedShard> shards, const PieceIndex& pieces, uint32_t reader,
          uint64_t unit_bytes)
      : shards_(shards),
        pieces_(pieces),
        reader_(reader),
        unit_chunks_(unit_bytes / kChunkBytes),
        by_shard_(shards.size()) {}

  void Add(const TensorSpec& spec, std::byte* target, std::vector<std::string>* differences) {
    const auto differs = [&](const std::string& how) {
      differences->push_back("tensor '" + spec.name.substr(0, 200) + "' " + how);
    };
    auto found = pieces_.find(spec.name);
    if (found == pieces_.end()) return differs("was not saved");
    std::vector<std::pair<uint32_t, uint32_t>> order = found->second;
    const auto& first = TensorAt(order.front()).spec;
    for (const auto& place : order) {
      const TensorSpec& saved = TensorAt(place).spec;
      if (saved.dtype != spec.dtype) {
        return differs("was saved as " + std::string(NameOf(saved.dtype)) + ", not as " +
                       std::string(NameOf(spec.dtype)));
      }
      if (saved.global_shape != spec.global_shape) {
        return differs("was saved with the global shape " + ShapeText(saved.global_shape) +
                       ", not " + ShapeText(spec.global_shape));
      }
    }
    // Cover() uses the first piece that has an element, so near shards are first. Each reader
    // begins at another shard, to spread the load over replicas.
    const auto distance = [&](const std::pair<uint32_t, uint32_t>& place) {
      const auto count = static_cast<uint32_t>(shards_.size());
      const uint32_t turn = (place.first + count - reader_ % count) % count;
      return std::pair(shards_[place.first].near ? 0 : 1, turn);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    std::vector<Box> boxes;
    boxes.reserve(order.size());
    for (const auto& place : order) {
      const TensorSpec& saved = TensorAt(place).spec;
      boxes.push_back({saved.offset, saved.shape});
    }
    const Box box{spec.offset, spec.shape};
    std::vector<Box> missing;
    const std::vector<BoxPart> parts = Cover(box, boxes, missing);
    if (!missing.empty()) {
      return differs(
          "is not covered: no rank saved " + ToString(missing.front()) +
          (missing.size() > 1 ? " and " + std::to_string(missing.size() - 1) + " more boxes" : "") +
          " of its global shape " + ShapeText(first.global_shape));
    }
    for (const BoxPart& part : parts) {
      const auto& [shard, tensor] = order[part.from];
      const PlacedTensor& placed = TensorAt(order[part.from]);
      by_shard_[shard].push_back(static_cast<uint32_t>(plan_.copies.size()));
      plan_.copies.push_back({BoxCopy(boxes[part.from], box, part.box, SizeOf(spec.dtype)),
                              shards_[shard].image.data_offset + placed.begin, target});
    }
  }

  LoadPlan Finish() {
    std::vector<std::vector<ReadUnit>> units(shards_.size());
    size_t most = 0;
    for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
      units[shard] = UnitsOf(shard);
      most = std::max(most, units[shard].size());
    }
    // Takes units from all shards in turn. Readers begin at different shards, to spread the load.
    for (size_t round = 0; round < most; ++round) {
      for (size_t i = 0; i < units.size(); ++i) {
        auto& of = units[(i + reader_) % units.size()];
        if (round < of.size()) plan_.units.push_back(std::move(of[round]));
      }
    }
    return std::move(plan_);
  }

 private:
  const PlacedTensor& TensorAt(const std::pair<uint32_t, uint32_t>& place) const {
    return shards_[place.first].image.tensors[place.second];
  }

  std::vector<ReadUnit> UnitsOf(uint32_t shard) {
    std::vector<Chunks> chunks;
    for (uint32_t copy : by_shard_[shard]) AddChunks(plan_.copies[copy], chunks);
    std::sort(chunks.begin(), chunks.end());
    std::vector<ReadUnit> units;
    const uint64_t image_bytes = shards_[shard].image.image_bytes;
    uint64_t next = 0;  // the first chunk that is in no unit yet
    for (const Chunks& wanted : chunks) {
      for (next = std::max(next, wanted.first); next < wanted.second;) {
        const uint64_t offset = next * kChunkBytes;
        ReadUnit* last = units.empty() ? nullptr : &units.back();
        // Extends the last unit by this chunk if they are adjacent and the unit has room.
        const bool joins = last != nullptr && last->offset + last->bytes == offset &&
                           last->bytes < unit_chunks_ * kChunkBytes;
        if (!joins) last = &units.emplace_back(ReadUnit{shard, offset, 0, {}});
        last->bytes += std::min(kChunkBytes, image_bytes - offset);
        ++next;
      }
    }
    for (uint32_t index : by_shard_[shard]) {
      const PlannedCopy& planned = plan_.copies[index];
      const uint64_t begin = planned.image_begin + planned.copy.source_begin();
      const uint64_t end = planned.image_begin + planned.copy.source_end();
      auto unit = std::partition_point(units.begin(), units.end(), [&](const ReadUnit& u) {
        return u.offset + u.bytes <= begin;
      });
      for (; unit != units.end() && unit->offset < end; ++unit) unit->copies.push_back(index);
    }
    return units;
  }

  const std::span<const PlannedShard> shards_;
  const PieceIndex& pieces_;
  const uint32_t reader_;
  const uint64_t unit_chunks_;
  std::vector<std::vector<uint32_t>> by_shard_;  // indices of copies
  LoadPlan plan_;
};
}  // namespace

void PlannedCopy::Run(const ReadUnit& unit, const std::byte* data) const {
  const uint64_t end = unit.offset + unit.bytes;
  uint64_t at = unit.offset > image_begin ? unit.offset - image_begin : 0;
  while (const auto run = copy.RunFrom(at)) {
    const uint64_t begin = image_begin + run->source;
    if (begin >= end) return;
    const uint64_t bytes = std::min(run->bytes, end - begin);
    StreamCopy(target + run->target, data + (begin - unit.offset), bytes);
    at = run->source + bytes;
  }
}

PieceIndex IndexPieces(std::span<const PlannedShard> shards) {
  PieceIndex pieces;
  for (uint32_t shard = 0; shard < shards.size(); ++shard) {
    const auto& tensors = shards[shard].image.tensors;
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      pieces[std::string(BaseTensorName(tensors[i].spec.name))].emplace_back(shard, i);
    }
  }
  return pieces;
}

LoadPlan PlanLoad(std::span<const PlannedShard> shards, const PieceIndex& pieces,
                  const StateDescription& wanted, uint32_t reader, uint64_t unit_bytes,
                  std::vector<std::string>* differences) {
  Planner planner(shards, pieces, reader, unit_bytes);
  for (size_t i = 0; i < wanted.specs.size(); ++i) {
    planner.Add(wanted.specs[i], wanted.memory[i].data, differences);
  }
  return planner.Finish();
}

}  // namespace holdfast::client
