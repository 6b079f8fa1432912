#include "agent/parity/member_streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace holdfast::agent {
namespace {

// Timeout for opening an object. Members answer an open immediately, and it cannot be cancelled, so
// this bounds the wait for a member that does not respond.
constexpr std::chrono::seconds kAnswerTime(5);

/// An object of this node, read without the network.
class LocalStream final : public PeerStream {
 public:
  LocalStream(std::unique_ptr<PeerReader> reader, uint64_t offset, uint64_t bytes)
      : reader_(std::move(reader)), at_(offset), left_(bytes) {}

  Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint deadline) override {
    const uint64_t want = std::min({left_, uint64_t{into.size()}, kStripeUnitBytes});
    if (want == 0) return 0;
    HOLDFAST_ASSIGN_OR_RETURN(const auto bytes, reader_->Read(at_, want, deadline));
    std::copy(bytes.begin(), bytes.end(), into.begin());
    at_ += bytes.size();
    left_ = bytes.size() < want ? 0 : left_ - want;
    return bytes.size();
  }
  void Cancel() override { reader_->Cancel(); }

 private:
  std::unique_ptr<PeerReader> reader_;
  uint64_t at_;
  uint64_t left_;
};

/// A stream that is registered with the cancellation while it lives.
class RegisteredStream final : public PeerStream {
 public:
  RegisteredStream(std::unique_ptr<PeerStream> stream, Cancellation& cancellation, std::string from)
      : stream_(std::move(stream)), cancellation_(cancellation), from_(std::move(from)) {}
  ~RegisteredStream() override { cancellation_.Unregister(stream_.get()); }

  Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint deadline) override {
    auto got = stream_->Read(into, deadline);
    if (got) return got;
    HOLDFAST_RETURN_IF_ERROR(cancellation_.status());
    return Fail(got.error().WithContext("from node " + from_));
  }
  void Cancel() override { stream_->Cancel(); }

 private:
  std::unique_ptr<PeerStream> stream_;
  Cancellation& cancellation_;
  const std::string from_;
};

}  // namespace

void Cancellation::Cancel(Status why) {
  MutexLock lock(mutex_);
  if (!why_.ok()) return;
  why_ = std::move(why);
  for (PeerStream* stream : streams_) stream->Cancel();
}

Status Cancellation::status() const {
  MutexLock lock(mutex_);
  return why_;
}

Status Cancellation::Register(PeerStream* stream) {
  MutexLock lock(mutex_);
  if (why_.ok()) streams_.insert(stream);
  return why_;
}

void Cancellation::Unregister(PeerStream* stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

Result<std::unique_ptr<PeerStream>> GroupAccess::Open(uint32_t position, PeerRequest request,
                                                      Clock::TimePoint deadline) const {
  HOLDFAST_RETURN_IF_ERROR(cancellation.status());
  const PlanMember& member = plan.members()[position];
  request.job = job;
  request.version = version;
  request.incarnation = incarnation;
  const auto open = [&]() -> Result<std::unique_ptr<PeerStream>> {
    if (member.node == self) {
      HOLDFAST_ASSIGN_OR_RETURN(auto reader, local.Open(request));
      return std::make_unique<LocalStream>(std::move(reader), request.offset, request.bytes);
    }
    if (member.address.empty()) {
      return Fail(UnavailableError("the node has no peer address: it is not attached"));
    }
    request.node = member.node;
    return transport.Open(member.address, request, std::min(deadline, clock.Now() + kAnswerTime));
  };
  auto stream = open();
  if (!stream) return Fail(stream.error().WithContext("node " + member.node));
  HOLDFAST_RETURN_IF_ERROR(cancellation.Register(stream->get()));
  return std::make_unique<RegisteredStream>(*std::move(stream), cancellation, member.node);
}

NodeImageReader::NodeImageReader(const GroupAccess& access, uint32_t position, uint64_t begin,
                                 uint64_t end)
    : access_(access), position_(position), pieces_(access.plan.Pieces(position, begin, end)) {}

NodeImageReader::~NodeImageReader() = default;

void NodeImageReader::CloseStream() {
  stream_.reset();
  piece_ended_ = false;
}

Result<bool> NodeImageReader::Next(std::span<std::byte> into, Clock::TimePoint deadline) {
  bool any = false;
  uint64_t done = 0;
  const auto zeros = [&](uint64_t until) {
    // Zeros before the first byte of a shard are written only once there is such a byte.
    if (any) std::memset(into.data() + done, 0, until - done);
    done = until;
  };
  while (done < into.size()) {
    if (piece_ == pieces_.size()) {
      at_ += into.size() - done;
      zeros(into.size());
      break;
    }
    const GroupPlan::Piece& piece = pieces_[piece_];
    const uint64_t room =
        std::min<uint64_t>(into.size() - done, piece.range_offset + piece.bytes - at_);
    size_t got = 0;
    if (!piece_ended_) {
      HOLDFAST_ASSIGN_OR_RETURN(got, ReadPiece(into.subspan(done, room), deadline));
    }
    if (got > 0 && !any) {
      std::memset(into.data(), 0, done);
      any = true;
    }
    done += got;
    at_ += got;
    if (got == 0) {
      piece_ended_ = true;
      at_ += room;
      zeros(done + room);
    }
    if (at_ == piece.range_offset + piece.bytes) {
      CloseStream();
      ++piece_;
    }
  }
  return any;
}

/// Reads some of the current piece's bytes; returns 0 where the shard ends.
Result<size_t> NodeImageReader::ReadPiece(std::span<std::byte> into, Clock::TimePoint deadline) {
  const GroupPlan::Piece& piece = pieces_[piece_];
  if (stream_ == nullptr) {
    PeerRequest request;
    request.kind = PeerRequestKind::kShard;
    request.rank = piece.rank;
    request.offset = piece.rank_offset;
    request.bytes = piece.bytes;
    HOLDFAST_ASSIGN_OR_RETURN(stream_, access_.Open(position_, std::move(request), deadline));
  }
  return stream_->Read(into, deadline);
}

Result<std::vector<std::byte>> ReadObject(const GroupAccess& access, uint32_t position,
                                          PeerRequest request, uint64_t bytes_max,
                                          Clock::TimePoint deadline) {
  request.bytes = bytes_max;
  HOLDFAST_ASSIGN_OR_RETURN(auto stream, access.Open(position, std::move(request), deadline));
  std::vector<std::byte> bytes;
  std::vector<std::byte> unit(kStripeUnitBytes);
  for (;;) {
    HOLDFAST_ASSIGN_OR_RETURN(const size_t got, stream->Read(unit, deadline));
    if (got == 0) return bytes;
    if (got > bytes_max - bytes.size()) {
      return Fail(InvalidArgumentError(fmt::format("a peer sent more than {} bytes", bytes_max)));
    }
    bytes.insert(bytes.end(), unit.begin(), unit.begin() + static_cast<ptrdiff_t>(got));
  }
}

Result<std::vector<ShardSeal>> CollectSeals(const GroupAccess& access, Clock::TimePoint deadline) {
  std::vector<ShardSeal> seals;
  for (uint32_t position = 0; position < access.plan.members().size(); ++position) {
    for (const PlanRank& rank : access.plan.members()[position].ranks) {
      PeerRequest request;
      request.kind = PeerRequestKind::kSeal;
      request.rank = rank.rank;
      HOLDFAST_ASSIGN_OR_RETURN(const auto record, ReadObject(access, position, std::move(request),
                                                              kSealBytesMax, deadline));
      HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, DecodeSeal(record));
      if (seal.identity.key() != ShardKey{access.job, access.version, rank.rank}) {
        return Fail(DataLossError("a peer sent the seal of " + ToString(seal.identity.key())));
      }
      seals.push_back(std::move(seal));
    }
  }
  return seals;
}

}  // namespace holdfast::agent
