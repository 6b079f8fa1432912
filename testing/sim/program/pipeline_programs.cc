// Pipelines: 1F1B and interleaved, alone and with tensor and data parallelism. The rank is (stage ·
// replicas + replica) · tensor + place, which puts stages on different nodes.

#include "testing/sim/program/writer.h"

namespace holdfast::sim::program {

namespace {

/// A forward or a backward pass of one microbatch through one chunk of a stage.
struct Pass {
  bool backward = false;
  uint32_t chunk = 0;
};

/// Returns the order of passes of one stage: warm-up, alternating forward and backward, cool-down.
std::vector<Pass> Schedule(uint32_t stage, uint32_t stages, uint32_t chunks,
                           uint32_t microbatches) {
  const uint32_t total = microbatches * chunks;
  uint32_t warmup = stages - stage - 1;
  if (chunks > 1) warmup = warmup * 2 + (chunks - 1) * stages;
  warmup = std::min(warmup, total);
  const auto forward = [&](uint32_t k) { return Pass{false, k % (stages * chunks) / stages}; };
  const auto backward = [&](uint32_t k) {
    return Pass{true, chunks - 1 - k % (stages * chunks) / stages};
  };
  std::vector<Pass> passes;
  for (uint32_t k = 0; k < warmup; ++k) passes.push_back(forward(k));
  for (uint32_t k = warmup; k < total; ++k) {
    passes.push_back(forward(k));
    passes.push_back(backward(k - warmup));
  }
  for (uint32_t k = total - warmup; k < total; ++k) passes.push_back(backward(k));
  return passes;
}

enum Stream : uint8_t {
  kForwardIn = 1,
  kForwardOut,
  kBackwardIn,
  kBackwardOut,
  kTensorStream,
  kDataStream,
  kModelStream,
  kTiedStream,
};

struct Shape {
  uint32_t stages = 2;
  uint32_t tensor = 1;
  uint32_t replicas = 1;
  uint32_t chunks = 1;
  uint32_t microbatches = 4;

  uint32_t RankOf(uint32_t stage, uint32_t replica, uint32_t place) const {
    return (stage * replicas + replica) * tensor + place;
  }
};

Shape ShapeOf(const Job& job) {
  Shape shape;
  if (job.family == Family::kThree) {
    shape.tensor = job.world >= 64 ? 4 : 2;
    shape.stages = job.world >= 64 ? 4 : 2;
  } else {
    shape.stages = job.world >= 64 ? 8 : job.world >= 8 ? 4 : 2;
    while (job.world % shape.stages != 0) shape.stages /= 2;
  }
  shape.replicas = job.world / (shape.stages * shape.tensor);
  shape.chunks = job.family == Family::kInterleaved ? 2 : 1;
  shape.microbatches = 2 * shape.stages;
  return shape;
}

class PipelineWriter {
 public:
  PipelineWriter(Job& job, const JobOptions& options)
      : job_(job), options_(options), shape_(ShapeOf(job)), groups_(job) {
    // Passes and bubbles take 0.75 of an iteration.
    const double slots = shape_.microbatches * shape_.chunks + (shape_.stages - 1.0);
    slot_s_ = 0.75 / (3 * slots);
  }

  void Write() {
    MakeGroups();
    for (uint32_t stage = 0; stage < shape_.stages; ++stage) {
      for (uint32_t replica = 0; replica < shape_.replicas; ++replica) {
        for (uint32_t place = 0; place < shape_.tensor; ++place) {
          WriteRank(stage, replica, place);
        }
      }
    }
  }

 private:
  void MakeGroups() {
    const uint32_t size = shape_.tensor;
    if (size > 1) tensor_ = groups_.Strided(CommunicatorRole::kTensor, size, 1);
    if (shape_.replicas > 1)
      data_ = groups_.Strided(CommunicatorRole::kData, shape_.replicas, size);
    pipes_.resize(job_.world);
    model_.resize(job_.world);
    tied_.resize(job_.world);
    for (uint32_t replica = 0; replica < shape_.replicas; ++replica) {
      std::vector<uint32_t> model;
      for (uint32_t place = 0; place < size; ++place) {
        std::vector<uint32_t> pipe;
        for (uint32_t stage = 0; stage < shape_.stages; ++stage) {
          pipe.push_back(shape_.RankOf(stage, replica, place));
          job_.replica_of[pipe.back()] = replica;
        }
        model.insert(model.end(), pipe.begin(), pipe.end());
        const uint32_t comm = job_.channels[groups_.Group(CommunicatorRole::kPipeline, pipe)].comm;
        for (const uint32_t rank : pipe) pipes_[rank] = comm;
        if (!options_.over_stages) continue;
        const std::vector<uint32_t> ends = {pipe.front(), pipe.back()};
        const uint32_t tied = groups_.Group(CommunicatorRole::kUnknown, ends);
        for (const uint32_t rank : ends) tied_[rank] = tied;
      }
      if (!options_.over_stages) continue;
      const uint32_t norm = groups_.Group(CommunicatorRole::kUnknown, model);
      for (const uint32_t rank : model) model_[rank] = norm;
    }
  }

  void WritePass(Writer& writer, const Pass& pass, uint32_t stage, uint32_t replica,
                 uint32_t place) {
    const uint32_t stages = shape_.stages;
    const uint32_t rank = shape_.RankOf(stage, replica, place);
    const bool from_outside = pass.backward ? stage == stages - 1 && pass.chunk == shape_.chunks - 1
                                            : stage == 0 && pass.chunk == 0;
    const bool to_outside = pass.backward ? stage == 0 && pass.chunk == 0
                                          : stage == stages - 1 && pass.chunk == shape_.chunks - 1;
    const uint32_t above = shape_.RankOf((stage + 1) % stages, replica, place);
    const uint32_t below = shape_.RankOf((stage + stages - 1) % stages, replica, place);
    const uint64_t bytes = 32 * kMiB;
    const double move_s = slot_s_ * 0.12;
    if (!from_outside) {
      const uint32_t from = pass.backward ? above : below;
      writer.Wait(writer.Transfer(groups_.Pair(pipes_[rank], from, rank, pass.backward),
                                  CollectiveKind::kReceive,
                                  pass.backward ? kBackwardIn : kForwardIn, move_s, bytes));
    }
    double load = 1;
    if (stage == 0 && pass.chunk == 0) load = options_.first_stage;
    if (stage == stages - 1 && pass.chunk == shape_.chunks - 1) load = options_.last_stage;
    const double seconds = slot_s_ * load * (pass.backward ? 2 : 1);
    const int parts = shape_.tensor > 1 ? 2 : 1;
    for (int part = 0; part < parts; ++part) {
      writer.Compute(seconds / parts * (shape_.tensor > 1 ? 0.9 : 1));
      if (shape_.tensor > 1) {
        writer.Wait(writer.Transfer(tensor_[rank], CollectiveKind::kAllReduce, kTensorStream,
                                    seconds / parts * 0.1, 16 * kMiB));
      }
    }
    if (to_outside) return;
    const uint32_t to = pass.backward ? below : above;
    const uint16_t label =
        writer.Transfer(groups_.Pair(pipes_[rank], rank, to, pass.backward), CollectiveKind::kSend,
                        pass.backward ? kBackwardOut : kForwardOut, move_s, bytes);
    if (options_.sends_wait) sends_.push_back(label);
  }

  void WriteRank(uint32_t stage, uint32_t replica, uint32_t place) {
    const uint32_t rank = shape_.RankOf(stage, replica, place);
    Writer writer(job_.programs[rank]);
    sends_.clear();
    writer.Load(0.004);
    writer.Host(0.01);
    for (const Pass& pass : Schedule(stage, shape_.stages, shape_.chunks, shape_.microbatches)) {
      WritePass(writer, pass, stage, replica, place);
      // Two buffers alternate, so the send before the last must have completed. With several
      // chunks, a stage has a buffer for each pass.
      if (sends_.size() > 1 && shape_.chunks == 1) {
        writer.Wait(sends_.front());
        sends_.erase(sends_.begin());
      }
    }
    for (const uint16_t label : sends_) writer.Wait(label);
    if (!data_.empty()) {
      writer.Wait(writer.Transfer(data_[rank], CollectiveKind::kReduceScatter, kDataStream, 0.08,
                                  256 * kMiB));
    }
    if (options_.over_stages) {
      const bool end = stage == 0 || stage + 1 == shape_.stages;
      if (end) {
        writer.Wait(
            writer.Transfer(tied_[rank], CollectiveKind::kAllReduce, kTiedStream, 0.01, 64 * kMiB));
      }
      writer.Wait(
          writer.Transfer(model_[rank], CollectiveKind::kAllReduce, kModelStream, 0.0005, 4));
    }
    writer.Compute(0.03, Work::kFixed);
    if (!data_.empty()) {
      writer.Wait(
          writer.Transfer(data_[rank], CollectiveKind::kAllGather, kDataStream, 0.06, 256 * kMiB));
    }
    if (options_.sync_each_step) writer.Sync();
    writer.Step();
  }

  Job& job_;
  const JobOptions& options_;
  const Shape shape_;
  Groups groups_;
  double slot_s_ = 0;
  std::vector<uint32_t> tensor_;  // channels by rank
  std::vector<uint32_t> data_;
  std::vector<uint32_t> model_;
  std::vector<uint32_t> tied_;
  std::vector<uint32_t> pipes_;  // communicators by rank
  std::vector<uint16_t> sends_;  // of the rank that is written, not yet waited for
};

}  // namespace

void WritePipeline(Job& job, const JobOptions& options) { PipelineWriter(job, options).Write(); }

}  // namespace holdfast::sim::program
