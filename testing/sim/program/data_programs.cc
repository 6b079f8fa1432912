// Programs in which all ranks do the same: data, sharded, tensor and expert parallelism, and jobs
// without collectives. The shares of an iteration are those of dense transformers on eight-GPU
// nodes: 10–30 % communication, most of it during the backward pass.

#include "testing/sim/program/writer.h"

namespace holdfast::sim::program {

std::vector<uint32_t> Groups::Strided(CommunicatorRole role, uint32_t size, uint32_t stride) {
  std::vector<uint32_t> channel_of(job_.world);
  for (uint32_t first = 0; first < job_.world; first += size * stride) {
    for (uint32_t offset = 0; offset < stride; ++offset) {
      std::vector<uint32_t> members;
      for (uint32_t i = 0; i < size; ++i) members.push_back(first + offset + i * stride);
      const uint32_t channel = Group(role, members);
      for (const uint32_t member : members) channel_of[member] = channel;
    }
  }
  return channel_of;
}

uint32_t Groups::Group(CommunicatorRole role, const std::vector<uint32_t>& members, bool recorded) {
  const auto comm = static_cast<uint32_t>(job_.comms.size());
  // IDs without order, like hashes.
  const uint64_t id = (uint64_t{comm} + 1) * 0x9E37'79B9'7F4A'7C15 | 1;
  job_.comms.push_back({CommunicatorId{id}, role, members, recorded});
  job_.channels.push_back({comm, members, false, false});
  return static_cast<uint32_t>(job_.channels.size() - 1);
}

uint32_t Groups::Pair(uint32_t comm, uint32_t from, uint32_t to, uint32_t lane) {
  const auto [found, added] =
      pairs_.emplace(std::array{comm, from, to, lane}, static_cast<uint32_t>(job_.channels.size()));
  if (added) job_.channels.push_back({comm, {from, to}, true, false});
  return found->second;
}

namespace {

constexpr uint32_t kBuckets = 6;

/// Writes the backward pass: each bucket is reduced while the next one is computed.
std::vector<uint16_t> BackwardInBuckets(Writer& writer, uint32_t channel, uint8_t stream,
                                        double compute_s, double transfer_s) {
  std::vector<uint16_t> labels;
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    writer.Compute(compute_s / kBuckets);
    labels.push_back(writer.Transfer(channel, CollectiveKind::kAllReduce, stream,
                                     transfer_s / kBuckets, 25 * kMiB));
  }
  return labels;
}

}  // namespace

void WriteData(Job& job, const JobOptions& options) {
  Groups groups(job);
  std::vector<uint32_t> all_ranks = job.replica_of;
  const uint32_t channel = groups.Group(CommunicatorRole::kData, all_ranks);
  const bool local = job.family == Family::kLocalSgd;
  const uint32_t batches = job.family == Family::kAccumulation ? 8 : 1;
  for (Program& program : job.programs) {
    Writer writer(program);
    for (uint32_t batch = 0; batch < batches; ++batch) {
      writer.Load(0.004 / batches);
      writer.Host(0.01 / batches);
      for (int layer = 0; layer < 3; ++layer) writer.Compute(0.09 / batches);
      const bool last = batch + 1 == batches;
      if (local) {
        writer.Compute(0.6);
        writer.Every(options.local_steps);
        writer.Wait(writer.Transfer(channel, CollectiveKind::kAllReduce, 1, 0.4, 400 * kMiB));
        writer.Every(1);
      } else if (last) {
        for (const uint16_t label :
             BackwardInBuckets(writer, channel, 1, 0.54 / batches, batches > 1 ? 0.04 : 0.3)) {
          writer.Wait(label);
        }
      } else {
        writer.Compute(0.54 / batches);
      }
    }
    writer.Compute(0.03, Work::kFixed);  // the optimizer
    if (options.sync_each_step) writer.Sync();
    writer.Step();
  }
}

void WriteSharded(Job& job, const JobOptions& options) {
  constexpr uint32_t kLayers = 8;
  constexpr double kGather = 0.2 / (2 * kLayers);
  constexpr double kScatter = 0.12 / kLayers;
  Groups groups(job);
  const uint32_t channel = groups.Group(CommunicatorRole::kData, job.replica_of);
  for (Program& program : job.programs) {
    Writer writer(program);
    writer.Load(0.004);
    writer.Host(0.01);
    const auto gather = [&] {
      return writer.Transfer(channel, CollectiveKind::kAllGather, 1, kGather, 64 * kMiB);
    };
    for (const bool backward : {false, true}) {
      uint16_t next = gather();
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const uint16_t label = next;
        if (layer + 1 < kLayers) next = gather();
        writer.Wait(label);
        writer.Compute((backward ? 0.54 : 0.27) / kLayers);
        if (backward) {
          writer.Transfer(channel, CollectiveKind::kReduceScatter, 1, kScatter, 64 * kMiB);
        }
      }
    }
    // The norm of the gradients follows the last scatter on the communicator's stream.
    writer.Wait(writer.Transfer(channel, CollectiveKind::kAllReduce, 1, 0.0005, 4));
    writer.Compute(0.03, Work::kFixed);
    if (options.sync_each_step) writer.Sync();
    writer.Step();
  }
}

void WriteTensor(Job& job, const JobOptions& options) {
  constexpr uint32_t kLayers = 4;
  const uint32_t tensor = job.world >= 16 ? 8 : job.world >= 8 ? 4 : 2;
  Groups groups(job);
  const auto layers = groups.Strided(CommunicatorRole::kTensor, tensor, 1);
  const bool replicas = job.world > tensor;
  const auto data = replicas ? groups.Strided(CommunicatorRole::kData, job.world / tensor, tensor)
                             : std::vector<uint32_t>();
  for (uint32_t rank = 0; rank < job.world; ++rank) {
    job.replica_of[rank] = rank / tensor;
    Writer writer(job.programs[rank]);
    writer.Load(0.004);
    writer.Host(0.01);
    std::vector<uint16_t> labels;
    for (const bool backward : {false, true}) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (int half = 0; half < 2; ++half) {
          writer.Compute((backward ? 0.48 : 0.24) / (2 * kLayers));
          writer.Wait(writer.Transfer(layers[rank], CollectiveKind::kAllReduce, 1,
                                      0.12 / (4 * kLayers), 32 * kMiB));
        }
        if (backward && replicas) {
          labels.push_back(writer.Transfer(data[rank], CollectiveKind::kAllReduce, 2, 0.2 / kLayers,
                                           128 * kMiB));
        }
      }
    }
    for (const uint16_t label : labels) writer.Wait(label);
    writer.Compute(0.03, Work::kFixed);
    if (options.sync_each_step) writer.Sync();
    writer.Step();
  }
}

void WriteExperts(Job& job, const JobOptions& options) {
  constexpr uint32_t kLayers = 3;
  const uint32_t experts = job.world >= 16 ? 8 : job.world >= 8 ? 4 : 2;
  job.experts = experts;
  Groups groups(job);
  const auto exchange = groups.Strided(CommunicatorRole::kExpert, experts, 1);
  const uint32_t data = groups.Group(CommunicatorRole::kData, job.replica_of);
  for (uint32_t rank = 0; rank < job.world; ++rank) {
    Writer writer(job.programs[rank]);
    writer.Load(0.004);
    writer.Host(0.01);
    std::vector<uint16_t> labels;
    for (const bool backward : {false, true}) {
      const double share = (backward ? 0.44 : 0.22) / kLayers;
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        writer.Compute(share / 2, Work::kFixed);
        writer.Wait(writer.Transfer(exchange[rank], CollectiveKind::kAllToAll, 1,
                                    0.14 / (4 * kLayers), 16 * kMiB, Work::kExperts));
        writer.Compute(share / 2, Work::kExperts);
        writer.Wait(writer.Transfer(exchange[rank], CollectiveKind::kAllToAll, 1,
                                    0.14 / (4 * kLayers), 16 * kMiB, Work::kExperts));
        if (backward) {
          labels.push_back(
              writer.Transfer(data, CollectiveKind::kAllReduce, 2, 0.15 / kLayers, 64 * kMiB));
        }
      }
    }
    for (const uint16_t label : labels) writer.Wait(label);
    writer.Compute(0.03, Work::kFixed);
    if (options.sync_each_step) writer.Sync();
    writer.Step();
  }
}

/// A ring of sends and receives (halo exchange, asynchronous SGD between neighbours), or steps
/// whose communication is not recorded.
void WriteWithoutCollectives(Job& job, const JobOptions& options) {
  Groups groups(job);
  const bool sends = job.family == Family::kSendReceive;
  const uint32_t all = groups.Group(CommunicatorRole::kUnknown, job.replica_of, sends);
  const uint32_t comm = job.channels[all].comm;
  for (uint32_t rank = 0; rank < job.world; ++rank) {
    const uint32_t next = (rank + 1) % job.world;
    const uint32_t previous = (rank + job.world - 1) % job.world;
    Writer writer(job.programs[rank]);
    writer.Load(0.004);
    writer.Host(0.01);
    for (int part = 0; part < 4; ++part) {
      writer.Compute(0.2);
      if (!sends) continue;
      writer.Transfer(groups.Pair(comm, rank, next), CollectiveKind::kSend, 1, 0.02, 16 * kMiB);
      writer.Wait(writer.Transfer(groups.Pair(comm, previous, rank), CollectiveKind::kReceive, 2,
                                  0.02, 16 * kMiB));
    }
    if (!sends && options.hidden_barrier) {
      writer.Wait(writer.Transfer(all, CollectiveKind::kAllReduce, 1, 0.1, 64 * kMiB));
    }
    writer.Compute(0.03, Work::kFixed);
    writer.Sync();
    writer.Step();
  }
}

}  // namespace holdfast::sim::program
