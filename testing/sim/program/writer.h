#pragma once

#include <array>
#include <map>

#include "testing/sim/program/job.h"

// Helpers that write rank programs.

namespace holdfast::sim::program {

inline constexpr uint64_t kMiB = 1ULL << 20;

/// Appends to the program of one rank.
class Writer {
 public:
  explicit Writer(Program& program) : program_(program) {}

  void Host(double seconds) { Push({.kind = Instruction::Kind::kHost, .seconds = seconds}); }
  void Load(double seconds) { Push({.kind = Instruction::Kind::kLoad, .seconds = seconds}); }
  void Compute(double seconds, Work work = Work::kTokens) {
    Push({.kind = Instruction::Kind::kCompute, .work = work, .seconds = seconds});
  }
  /// Returns the label for Wait().
  uint16_t Transfer(uint32_t channel, CollectiveKind collective, uint8_t stream, double seconds,
                    uint64_t bytes, Work work = Work::kFixed) {
    Push({.kind = Instruction::Kind::kTransfer,
          .work = work,
          .collective = collective,
          .stream = stream,
          .label = ++label_,
          .every = every_,
          .channel = channel,
          .bytes = bytes,
          .seconds = seconds});
    return label_;
  }
  void Wait(uint16_t label) {
    Push({.kind = Instruction::Kind::kWait, .label = label, .every = every_});
  }
  /// Transfers and waits written from now on are executed only in every `iterations`-th iteration.
  void Every(uint32_t iterations) { every_ = static_cast<uint16_t>(iterations); }
  void Sync() { Push({.kind = Instruction::Kind::kSync}); }
  void Step() { Push({.kind = Instruction::Kind::kStep}); }

 private:
  void Push(const Instruction& one) { program_.push_back(one); }

  Program& program_;
  uint16_t label_ = 0;
  uint16_t every_ = 1;
};

/// Creates communicators and the channels of their operations.
class Groups {
 public:
  explicit Groups(Job& job) : job_(job) {}

  /// Creates groups of `size` ranks that are `stride` apart. Returns, by rank, the channel of its
  /// group.
  std::vector<uint32_t> Strided(CommunicatorRole role, uint32_t size, uint32_t stride);
  /// Creates one group and returns its channel.
  uint32_t Group(CommunicatorRole role, const std::vector<uint32_t>& members, bool recorded = true);
  /// Returns the channel from one rank to another, whose transfers belong to `comm`. Each `lane`
  /// keeps its own order. Created on first use.
  uint32_t Pair(uint32_t comm, uint32_t from, uint32_t to, uint32_t lane = 0);

 private:
  Job& job_;
  std::map<std::array<uint32_t, 4>, uint32_t> pairs_;
};

void WriteData(Job& job, const JobOptions& options);
void WriteSharded(Job& job, const JobOptions& options);
void WriteTensor(Job& job, const JobOptions& options);
void WriteExperts(Job& job, const JobOptions& options);
void WritePipeline(Job& job, const JobOptions& options);
void WriteWithoutCollectives(Job& job, const JobOptions& options);

}  // namespace holdfast::sim::program
