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
  Planner(const KnownShards& known, uint32_t reader, uint64_t unit_bytes,
          std::vector<std::string>* differences)
      : known_(known),
        reader_(reader),
        unit_chunks_(unit_bytes / kChunkBytes),
        differences_(differences) {}

  Status Add(const TensorSpec& spec, std::byte* target) {
    wanted_ = {&spec, target, {spec.offset, spec.shape}, {}, false, false};
    if (!wanted_.box.empty()) wanted_.open.push_back(wanted_.box);
    TakeFromOwn();
    if (!wanted_.differs && (!wanted_.found || !wanted_.open.empty())) {
      if (known_.index == nullptr) {
        needs_index_ = true;
        return Status::Ok();
      }
      HOLDFAST_RETURN_IF_ERROR(TakeFromIndex());
    }
    if (wanted_.differs) return Status::Ok();
    if (!wanted_.found) {
      Differs("was not saved");
    } else if (!wanted_.open.empty()) {
      const size_t more = wanted_.open.size() - 1;
      Differs("is not covered: no rank saved " + ToString(wanted_.open.front()) +
              (more > 0 ? " and " + std::to_string(more) + " more boxes" : "") +
              " of its global shape " + ShapeText(spec.global_shape));
    }
    return Status::Ok();
  }

  bool needs_index() const { return needs_index_; }

  LoadPlan Finish() {
    std::vector<std::vector<ReadUnit>> units;
    size_t first = 0;  // readers begin at different shards, to spread the load
    size_t most = 0;
    for (const auto& [rank, shard] : shards_) {
      if (rank < reader_) ++first;
      units.push_back(UnitsOf(rank, shard));
      most = std::max(most, units.back().size());
    }
    // Takes units from all shards in turn.
    for (size_t round = 0; round < most; ++round) {
      for (size_t i = 0; i < units.size(); ++i) {
        auto& of = units[(i + first) % units.size()];
        if (round < of.size()) plan_.units.push_back(std::move(of[round]));
      }
    }
    return std::move(plan_);
  }

 private:
  /// The tensor that is planned now.
  struct Wanted {
    const TensorSpec* spec = nullptr;
    std::byte* target = nullptr;
    Box box;
    std::vector<Box> open;  // that no piece covers yet
    bool found = false;     // the version has a tensor of this name
    bool differs = false;
  };
  struct ShardReads {
    uint64_t image_bytes = 0;
    std::vector<uint32_t> copies;  // indices in the plan
  };

  void Differs(const std::string& how) {
    wanted_.differs = true;
    differences_->push_back("tensor '" + wanted_.spec->name.substr(0, 200) + "' " + how);
  }

  /// Compares what a shard has under the name with what is wanted.
  bool Fits(DType dtype, std::span<const uint64_t> global_shape) {
    wanted_.found = true;
    const TensorSpec& spec = *wanted_.spec;
    if (wanted_.differs) return false;
    if (dtype != spec.dtype) {
      Differs("was saved as " + std::string(NameOf(dtype)) + ", not as " +
              std::string(NameOf(spec.dtype)));
    } else if (!std::ranges::equal(global_shape, spec.global_shape)) {
      Differs("was saved with the global shape " + ShapeText(global_shape) + ", not " +
              ShapeText(spec.global_shape));
    }
    return !wanted_.differs;
  }

  /// Plans to copy what the piece has of the boxes that are still open.
  void Take(uint32_t rank, uint64_t image_bytes, uint64_t image_begin, const Box& piece) {
    std::vector<Box> rest;
    for (const Box& box : wanted_.open) {
      if (const std::optional<Box> both = Intersect(box, piece)) {
        ShardReads& shard = shards_[rank];
        shard.image_bytes = image_bytes;
        shard.copies.push_back(static_cast<uint32_t>(plan_.copies.size()));
        plan_.copies.push_back({BoxCopy(piece, wanted_.box, *both, SizeOf(wanted_.spec->dtype)),
                                image_begin, wanted_.target});
      }
      Subtract(box, piece, rest);
    }
    wanted_.open = std::move(rest);
  }

  void TakeFromOwn() {
    if (known_.own == nullptr) return;
    const ParsedImage& image = known_.own->image;
    const auto found = known_.own->by_name.find(wanted_.spec->name);
    if (found == known_.own->by_name.end()) return;
    for (uint32_t tensor : found->second) {
      const PlacedTensor& placed = image.tensors[tensor];
      if (!Fits(placed.spec.dtype, placed.spec.global_shape)) return;
      Take(known_.own->rank, image.image_bytes, image.data_offset + placed.begin,
           {placed.spec.offset, placed.spec.shape});
    }
  }

  Status TakeFromIndex() {
    const VersionIndex& index = *known_.index;
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Found found, index.Find(wanted_.spec->name));
    std::vector<std::pair<VersionIndex::Class, VersionIndex::Tensor>> uses;
    for (const index::UseRow& use : found.uses) {
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Class of, index.ClassAt(use.shard_class));
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Tensor tensor, index.TensorAt(of, use.tensor));
      const bool saved = !found.only || std::ranges::binary_search(of.members, found.only->value);
      if (!saved) continue;
      if (!Fits(tensor.dtype, tensor.global_shape)) return Status::Ok();
      uses.emplace_back(of, tensor);
    }
    const auto take_of = [&](Rank rank) -> Status {
      for (size_t i = 0; i < uses.size() && !wanted_.open.empty(); ++i) {
        const auto& [of, tensor] = uses[i];
        const auto member = std::ranges::lower_bound(of.members, rank.value);
        if (member == of.members.end() || *member != rank.value) continue;
        HOLDFAST_ASSIGN_OR_RETURN(
            auto offset,
            index.OffsetOf(tensor, of, static_cast<uint32_t>(member - of.members.begin())));
        HOLDFAST_RETURN_IF_ERROR(TakeIndexed(
            rank, tensor, {std::move(offset), {tensor.shape.begin(), tensor.shape.end()}}));
      }
      return Status::Ok();
    };
    if (found.only) return take_of(*found.only);
    for (uint32_t rank : known_.near) HOLDFAST_RETURN_IF_ERROR(take_of(Rank{rank}));
    Status failed;
    for (size_t i = 0; i < uses.size() && !wanted_.open.empty(); ++i) {
      const auto& [of, tensor] = uses[(i + reader_) % uses.size()];
      HOLDFAST_RETURN_IF_ERROR(index.ForEachOverlap(
          of, tensor, wanted_.box, reader_, [&, &tensor = tensor](Rank rank, const Box& piece) {
            failed = TakeIndexed(rank, tensor, piece);
            return failed.ok() && !wanted_.open.empty();
          }));
      HOLDFAST_RETURN_IF_ERROR(failed);
    }
    return Status::Ok();
  }

  Status TakeIndexed(Rank rank, const VersionIndex::Tensor& tensor, const Box& piece) {
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Shard shard, known_.index->ShardOf(rank));
    const uint64_t bytes = BytesOf(piece, tensor.dtype);
    // The class checks the place within its tensors, and the shard is long enough for these.
    if (tensor.begin + bytes > shard.image_bytes - shard.data_offset) {
      return DataLossError("the version index is damaged: a tensor is outside of its image");
    }
    Take(rank.value, shard.image_bytes, shard.data_offset + tensor.begin, piece);
    return Status::Ok();
  }

  static uint64_t BytesOf(const Box& box, DType dtype) {
    uint64_t bytes = SizeOf(dtype);
    for (uint64_t length : box.shape) bytes *= length;
    return bytes;
  }

  std::vector<ReadUnit> UnitsOf(uint32_t rank, const ShardReads& shard) {
    std::vector<Chunks> chunks;
    for (uint32_t copy : shard.copies) AddChunks(plan_.copies[copy], chunks);
    std::sort(chunks.begin(), chunks.end());
    std::vector<ReadUnit> units;
    uint64_t next = 0;  // the first chunk that is in no unit yet
    for (const Chunks& wanted : chunks) {
      for (next = std::max(next, wanted.first); next < wanted.second;) {
        const uint64_t offset = next * kChunkBytes;
        ReadUnit* last = units.empty() ? nullptr : &units.back();
        // Extends the last unit by this chunk if they are adjacent and the unit has room.
        const bool joins = last != nullptr && last->offset + last->bytes == offset &&
                           last->bytes < unit_chunks_ * kChunkBytes;
        if (!joins) last = &units.emplace_back(ReadUnit{rank, offset, 0, {}});
        last->bytes += std::min(kChunkBytes, shard.image_bytes - offset);
        ++next;
      }
    }
    for (uint32_t index : shard.copies) {
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

  const KnownShards known_;
  const uint32_t reader_;
  const uint64_t unit_chunks_;
  std::vector<std::string>* const differences_;
  Wanted wanted_;
  bool needs_index_ = false;
  std::map<uint32_t, ShardReads> shards_;  // by rank
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

PlannedShard::PlannedShard(uint32_t rank_in, ParsedImage image_in)
    : rank(rank_in), image(std::move(image_in)) {
  for (uint32_t i = 0; i < image.tensors.size(); ++i) {
    by_name[std::string(BaseTensorName(image.tensors[i].spec.name))].push_back(i);
  }
}

Result<std::optional<LoadPlan>> PlanLoad(const KnownShards& known, const StateDescription& wanted,
                                         uint32_t reader, uint64_t unit_bytes,
                                         std::vector<std::string>* differences) {
  Planner planner(known, reader, unit_bytes, differences);
  for (size_t i = 0; i < wanted.specs.size(); ++i) {
    HOLDFAST_RETURN_IF_ERROR(planner.Add(wanted.specs[i], wanted.memory[i].data));
  }
  if (!planner.needs_index()) return std::optional<LoadPlan>(planner.Finish());
  differences->clear();
  return std::optional<LoadPlan>();
}

}  // namespace holdfast::client
