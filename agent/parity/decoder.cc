#include "agent/parity/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "agent/parity/parity_image.h"
#include "storage/base/crash_point.h"
#include "storage/erasure/code.h"

namespace holdfast::agent {
namespace {

class Decoder final : public PeerReader {
 public:
  Decoder(GroupPlan plan, const PeerRequest& request, const std::string& self, PeerSource& local,
          PeerTransport& transport)
      : plan_(std::move(plan)),
        stripe_(request.stripe),
        wanted_(request.index),
        at_(request.offset),
        end_(request.offset + request.bytes),
        access_{plan_, self,      request.job,  request.version, request.incarnation,
                local, transport, cancellation_},
        made_(kStripeUnitBytes) {}

  /// Chooses who is read: this node first, then data before parity, as data needs no decoding.
  Status Choose(const std::string& self) {
    const StripeLayout& layout = plan_.layout();
    const uint32_t k = layout.data_count();
    HOLDFAST_ASSIGN_OR_RETURN(code_, ErasureCode::Make(k, layout.parity_count()));
    end_ = std::min(end_, RealBytes(wanted_));
    std::vector<uint32_t> indices;
    for (uint32_t index = 0; index < layout.node_count(); ++index) {
      const PlanMember& member = plan_.members()[layout.NodeOf(stripe_, index)];
      const bool there = index < k ? member.has_data : member.has_parity;
      if (index != wanted_ && there) indices.push_back(index);
    }
    std::stable_sort(indices.begin(), indices.end(), [&](uint32_t a, uint32_t b) {
      const auto here = [&](uint32_t index) {
        return plan_.members()[layout.NodeOf(stripe_, index)].node == self;
      };
      return here(a) > here(b);
    });
    if (indices.size() < k) {
      return DataLossError(
          fmt::format("stripe {} has {} segments left and needs {}", stripe_, indices.size(), k));
    }
    indices.resize(k);
    for (uint32_t index : indices) {
      inputs_.push_back({index, nullptr, nullptr, std::vector<std::byte>(kStripeUnitBytes)});
    }
    return Status::Ok();
  }

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    if (offset != at_) return Fail(InvalidArgumentError("a segment is decoded front to back"));
    const uint64_t unit = std::min({bytes, kStripeUnitBytes, end_ - std::min(at_, end_)});
    if (unit == 0) return std::span<const std::byte>();
    std::vector<PresentSegment> present;
    for (Input& input : inputs_) {
      const auto into = std::span(input.unit).first(unit);
      HOLDFAST_ASSIGN_OR_RETURN(const bool any, Fill(input, into, deadline));
      if (any || input.index >= plan_.layout().data_count()) {
        present.push_back({input.index, into});
      } else {
        present.push_back({input.index, {}});
      }
    }
    const auto made = std::span(made_).first(unit);
    const WantedSegment wanted{wanted_, made};
    HOLDFAST_RETURN_IF_ERROR(code_->Decode(present, {&wanted, 1}));
    at_ += unit;
    HOLDFAST_CRASH_POINT("agent.mid_decode");
    return std::span<const std::byte>(made);
  }
  void Cancel() override { cancellation_.Cancel(CancelledError("nobody wants the segment now")); }

 private:
  struct Input {
    uint32_t index = 0;
    std::unique_ptr<NodeImageReader> data;  // one of the two, once begun
    std::unique_ptr<PeerStream> row;
    std::vector<std::byte> unit;
  };

  uint64_t RealBytes(uint32_t index) const {
    const StripeLayout& layout = plan_.layout();
    return index < layout.data_count() ? layout.DataMember(stripe_, index).bytes()
                                       : layout.ParityBytes(stripe_);
  }

  /// The input's bytes of the unit at at_. False: all zeros.
  Result<bool> Fill(Input& input, std::span<std::byte> into, Clock::TimePoint deadline) {
    const StripeLayout& layout = plan_.layout();
    if (input.index < layout.data_count()) {
      if (input.data == nullptr) {
        const StripeMember segment = layout.DataMember(stripe_, input.index);
        input.data = std::make_unique<NodeImageReader>(
            access_, segment.node, std::min(segment.begin + at_, segment.end), segment.end);
      }
      return input.data->Next(into, deadline);
    }
    if (input.row == nullptr) {
      HOLDFAST_RETURN_IF_ERROR(OpenRow(input, deadline));
    }
    for (uint64_t done = 0; done < into.size();) {
      HOLDFAST_ASSIGN_OR_RETURN(const size_t got, input.row->Read(into.subspan(done), deadline));
      if (got == 0) return Fail(DataLossError("a parity shard ends too early"));
      done += got;
    }
    return true;
  }

  Status OpenRow(Input& input, Clock::TimePoint deadline) {
    const StripeLayout& layout = plan_.layout();
    const uint32_t parity = input.index - layout.data_count();
    const uint32_t position = layout.NodeOf(stripe_, input.index);
    const Rank rank = ParityRank(plan_.members()[position].number);
    PeerRequest request;
    request.kind = PeerRequestKind::kShard;
    request.rank = rank;
    request.offset = ParityImage::RowBegin(layout, parity) + at_;
    request.bytes = end_ - at_;
    HOLDFAST_ASSIGN_OR_RETURN(input.row, access_.Open(position, std::move(request), deadline));
    return Status::Ok();
  }

  const GroupPlan plan_;
  const uint32_t stripe_;
  const uint32_t wanted_;
  uint64_t at_;
  uint64_t end_;
  Cancellation cancellation_;
  const GroupAccess access_;
  std::unique_ptr<ErasureCode> code_;
  std::vector<Input> inputs_;
  std::vector<std::byte> made_;
};

}  // namespace

Result<std::unique_ptr<PeerReader>> OpenDecoder(const PeerRequest& request, const std::string& self,
                                                PeerSource& local, PeerTransport& transport) {
  HOLDFAST_ASSIGN_OR_RETURN(GroupPlan plan, GroupPlan::FromJson(request.group));
  const StripeLayout& layout = plan.layout();
  if (request.stripe >= layout.node_count() || request.index >= layout.node_count() ||
      request.offset > layout.segment_bytes() ||
      request.bytes > layout.segment_bytes() - request.offset) {
    return Fail(InvalidArgumentError("the group has no such segment"));
  }
  auto decoder = std::make_unique<Decoder>(std::move(plan), request, self, local, transport);
  HOLDFAST_RETURN_IF_ERROR(decoder->Choose(self));
  return decoder;
}

}  // namespace holdfast::agent
