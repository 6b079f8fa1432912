#include "agent/parity/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/crash_point.h"
#include "storage/erasure/code.h"
#include "storage/format/checksum.h"
#include "storage/parity/group_decoder.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {

// How long to wait for a member that another one can replace.
constexpr std::chrono::seconds kMemberTimeout(2);

class Decoder final : public PeerReader {
 public:
  Decoder(GroupPlan plan, const PeerRequest& request, const std::string& self, PeerSource& local,
          PeerTransport& transport, Clock& clock)
      : plan_(std::move(plan)),
        stripe_(request.stripe),
        wanted_(request.index),
        at_(request.offset),
        end_(request.offset + request.bytes),
        access_{plan_,     self,          request.job, request.version, request.incarnation, local,
                transport, cancellation_, clock},
        decoded_(kStripeUnitBytes) {}

  /// Selects the members to read from: this node first, then data before parity, since data needs
  /// no decoding.
  Status SelectInputs(const std::string& self) {
    const StripeLayout& layout = plan_.layout();
    const uint32_t k = layout.data_count();
    HOLDFAST_ASSIGN_OR_RETURN(code_, ErasureCode::Make(k, layout.parity_count()));
    end_ = std::min(end_, RealBytes(wanted_));
    for (uint32_t index = 0; index < layout.node_count(); ++index) {
      const PlanMember& member = plan_.members()[layout.NodeOf(stripe_, index)];
      const bool present = index < k ? member.has_data : member.has_parity;
      if (index == wanted_ || !present) continue;
      const bool local = member.node == self;
      inputs_.insert(local ? inputs_.begin() : inputs_.end(),
                     Input{index, 0, nullptr, nullptr, {}});
    }
    if (inputs_.size() >= k) return Status::Ok();
    return DataLossError(
        fmt::format("stripe {} has {} segments left and needs {}", stripe_, inputs_.size(), k));
  }

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    if (offset != at_) {
      return Fail(InvalidArgumentError("a segment can only be decoded from front to back"));
    }
    const uint64_t unit = std::min({bytes, kStripeUnitBytes, end_ - std::min(at_, end_)});
    if (unit == 0) return std::span<const std::byte>();
    const auto made = std::span(decoded_).first(unit);
    Outcome outcome = Decode(at_, made, /*piecewise=*/false, deadline);
    // A bad chunk of a member may cover only a part of the unit: retry in pieces within one chunk.
    if (!outcome.status.ok() && outcome.bad_bytes) {
      outcome = {};
      for (uint64_t done = 0; done < unit && outcome.status.ok();) {
        const uint64_t piece = PieceInOneChunk(plan_, stripe_, at_ + done, unit - done);
        outcome = Decode(at_ + done, made.subspan(done, piece), /*piecewise=*/true, deadline);
        done += piece;
      }
    }
    HOLDFAST_RETURN_IF_ERROR(outcome.status);
    at_ += unit;
    HOLDFAST_CRASH_POINT("agent.mid_decode");
    return std::span<const std::byte>(made);
  }
  void Cancel() override {
    cancellation_.Cancel(CancelledError("the segment is no longer needed"));
  }

 private:
  struct Input {
    uint32_t index = 0;
    uint64_t next = 0;                      // next position of the open stream in the segment
    std::unique_ptr<NodeImageReader> data;  // data or row is set once reading has begun
    std::unique_ptr<PeerStream> row;
    std::vector<std::byte> unit;
  };
  struct Outcome {
    Status status;
    bool bad_bytes = false;  // a member has bad bytes in this range
  };

  uint64_t RealBytes(uint32_t index) const {
    const StripeLayout& layout = plan_.layout();
    return index < layout.data_count() ? layout.DataMember(stripe_, index).bytes()
                                       : layout.ParityBytes(stripe_);
  }

  /// Decodes [at, at + into.size()) from the first k members that deliver their bytes. A member
  /// that does not is an erasure here, and is tried last from now on.
  Outcome Decode(uint64_t at, std::span<std::byte> into, bool piecewise,
                 Clock::TimePoint deadline) {
    const uint32_t k = plan_.layout().data_count();
    std::vector<PresentSegment> present;
    std::vector<uint32_t> failed;
    Outcome outcome;
    size_t left = inputs_.size();
    for (Input& input : inputs_) {
      if (present.size() == k) break;
      const bool replaceable = left-- > k - present.size();
      const Clock::TimePoint member_deadline =
          replaceable ? std::min(deadline, access_.clock.Now() + kMemberTimeout) : deadline;
      input.unit.resize(kStripeUnitBytes);
      const auto unit = std::span(input.unit).first(into.size());
      const auto any = Fill(input, at, unit, piecewise, member_deadline);
      if (any) {
        present.push_back({input.index, *any ? unit : std::span<std::byte>()});
        continue;
      }
      if (const Status over = cancellation_.status(); !over.ok()) return {over, false};
      Close(input);
      failed.push_back(input.index);
      const bool bad = any.error().code() == ErrorCode::kDataLoss;
      outcome.bad_bytes = outcome.bad_bytes || bad;
      // Prefer a transient error to one that will not go away.
      if (outcome.status.ok() || !bad) outcome.status = any.error();
    }
    std::stable_partition(inputs_.begin(), inputs_.end(), [&](const Input& input) {
      return std::find(failed.begin(), failed.end(), input.index) == failed.end();
    });
    if (present.size() < k) return outcome;
    const WantedSegment wanted{wanted_, into};
    return {code_->Decode(present, {&wanted, 1}), false};
  }

  /// Reads the input's bytes of the segment from `at` on. Returns false when all of them are zeros.
  /// A piece gets a separate request, because the bytes after it may be bad.
  Result<bool> Fill(Input& input, uint64_t at, std::span<std::byte> into, bool piecewise,
                    Clock::TimePoint deadline) {
    if (piecewise || input.next != at) Close(input);
    const uint64_t end = piecewise ? at + into.size() : end_;
    const bool is_data = input.index < plan_.layout().data_count();
    Result<bool> any = is_data ? FillData(input, at, end, into, deadline)
                               : FillRow(input, at, end, into, deadline);
    input.next = at + into.size();
    return any;
  }

  static void Close(Input& input) {
    input.data.reset();
    input.row.reset();
  }

  Result<bool> FillData(Input& input, uint64_t at, uint64_t end, std::span<std::byte> into,
                        Clock::TimePoint deadline) {
    if (input.data == nullptr) {
      const StripeMember segment = plan_.layout().DataMember(stripe_, input.index);
      input.data = std::make_unique<NodeImageReader>(access_, segment.node,
                                                     std::min(segment.begin + at, segment.end),
                                                     std::min(segment.begin + end, segment.end));
    }
    return input.data->Next(into, deadline);
  }

  Result<bool> FillRow(Input& input, uint64_t at, uint64_t end, std::span<std::byte> into,
                       Clock::TimePoint deadline) {
    if (input.row == nullptr) {
      const StripeLayout& layout = plan_.layout();
      const uint32_t position = layout.NodeOf(stripe_, input.index);
      PeerRequest request;
      request.kind = PeerRequestKind::kShard;
      request.rank = ParityRank(plan_.members()[position].number);
      request.offset = ParityImage::RowBegin(layout, input.index - layout.data_count()) + at;
      request.bytes = end - at;
      HOLDFAST_ASSIGN_OR_RETURN(input.row, access_.Open(position, std::move(request), deadline));
    }
    for (uint64_t done = 0; done < into.size();) {
      HOLDFAST_ASSIGN_OR_RETURN(const size_t got, input.row->Read(into.subspan(done), deadline));
      if (got == 0) return Fail(DataLossError("a parity shard is shorter than its rows"));
      done += got;
    }
    return true;
  }

  const GroupPlan plan_;
  const uint32_t stripe_;
  const uint32_t wanted_;
  uint64_t at_;
  uint64_t end_;
  Cancellation cancellation_;
  const GroupAccess access_;
  std::unique_ptr<ErasureCode> code_;
  std::vector<Input> inputs_;  // usable members, in the order in which they are tried
  std::vector<std::byte> decoded_;
};

}  // namespace

Result<std::unique_ptr<PeerReader>> OpenDecoder(const PeerRequest& request, const std::string& self,
                                                PeerSource& local, PeerTransport& transport,
                                                Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(GroupPlan plan, GroupPlan::FromJson(request.group));
  const StripeLayout& layout = plan.layout();
  if (request.stripe >= layout.node_count() || request.index >= layout.node_count() ||
      request.offset > layout.segment_bytes() ||
      request.bytes > layout.segment_bytes() - request.offset) {
    return Fail(InvalidArgumentError("the group has no such segment"));
  }
  auto decoder = std::make_unique<Decoder>(std::move(plan), request, self, local, transport, clock);
  HOLDFAST_RETURN_IF_ERROR(decoder->SelectInputs(self));
  return decoder;
}

}  // namespace holdfast::agent
