#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "agent/api/agent.grpc.pb.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "storage/volume/volume.h"

namespace holdfast::cli {

enum class Fault { kNone, kFlip, kCut, kSilent, kBusy, kWrongShard, kDisorder };

/// Serves the shards of a volume.
class VolumeAgent : public agent::Agent::Service {
 public:
  explicit VolumeAgent(Volume& volume) : volume_(volume) {}

  std::atomic<Fault> fault{Fault::kNone};
  std::atomic<int> reads{0};

  grpc::Status ReadShard(grpc::ServerContext* context, const agent::ReadShardRequest* request,
                         grpc::ServerWriter<agent::ShardPiece>* writer) override {
    int read = ++reads;
    if (fault == Fault::kBusy && read <= 2) return coord::ToGrpc(UnavailableError("busy"));
    ShardKey key{request->job(),
                 {Incarnation{request->incarnation()}, Step{request->step()}},
                 Rank{request->rank()}};
    if (fault == Fault::kWrongShard) key.rank.value ^= 1;
    auto chunks = volume_.OpenChunks(key);
    if (!chunks) return coord::ToGrpc(chunks.error());
    ShardSeal sent = (*chunks)->seal();
    sent.parts.clear();
    agent::ShardPiece piece;
    piece.set_seal(EncodeSeal(sent));
    writer->Write(piece);
    Status status;
    const uint64_t end = request->offset() + request->bytes();
    for (uint64_t at = request->offset(); status.ok() && at < end; at += kChunkBytes) {
      const auto bytes = (*chunks)->Read(at / kChunkBytes);
      status = bytes ? Send(context, at, *bytes, writer) : bytes.error();
    }
    return coord::ToGrpc(status.code() == ErrorCode::kAborted ? Status::Ok() : status);
  }

  grpc::Status VerifyShard(grpc::ServerContext*, const agent::VerifyShardRequest* request,
                           agent::VerifyShardReply* reply) override {
    ShardKey key{request->job(),
                 {Incarnation{request->incarnation()}, Step{request->step()}},
                 Rank{request->rank()}};
    Status status = volume_.VerifyShard(key, request->deep());
    reply->set_code(static_cast<uint32_t>(status.code()));
    reply->set_message(status.message());
    if (auto seal = volume_.ReadSeal(key)) reply->set_digest(seal->digest());
    return grpc::Status::OK;
  }

  grpc::Status Dump(grpc::ServerContext*, const agent::DumpRequest*,
                    agent::DumpReply* reply) override {
    reply->set_json(R"({"slots": 3})");
    return grpc::Status::OK;
  }

 private:
  Status Send(grpc::ServerContext* context, uint64_t offset, std::span<const std::byte> bytes,
              grpc::ServerWriter<agent::ShardPiece>* writer) {
    agent::ShardPiece piece;
    piece.set_offset(offset);
    piece.set_data(bytes.data(), bytes.size());
    bool second = offset == kChunkBytes;
    if (second && fault == Fault::kFlip) (*piece.mutable_data())[100] ^= 4;
    if (second && fault == Fault::kDisorder) piece.set_offset(2 * kChunkBytes);
    if (second && fault == Fault::kCut) return AbortedError("cut");
    while (second && fault == Fault::kSilent && !context->IsCancelled())
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return writer->Write(piece) ? Status::Ok() : CancelledError("the caller has ended");
  }

  Volume& volume_;
};

struct Served {  // the server stops first
  std::unique_ptr<coord::GuardedService> guarded;
  std::unique_ptr<coord::ApiServer> server;
};

template <typename Rpcs>
Served Serve(grpc::Service& service, const std::string& socket) {
  const char* name = Rpcs::service_full_name();
  // Without any user, gRPC shuts itself down, which may take 10 s: it keeps one until the end.
  static const auto* const user = std::make_unique<grpc::CompletionQueue>().release();
  static_cast<void>(user);
  Served served{coord::GuardedService::Make(service, name, "test", {}, Clock::Real()).value(), {}};
  Endpoint at = ParseEndpoint("unix:" + socket).value();
  served.server = coord::StartServer(*served.guarded, at, {}, "listen").value();
  return served;
}

}  // namespace holdfast::cli
