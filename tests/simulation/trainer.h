#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/api/messages.h"
#include "agent/api/segment_layout.h"
#include "agent/api/socket.h"
#include "tests/simulation/world.h"

namespace holdfast::simulation {

/// One start of a job: its ranks train in step, as with collectives.
struct Run {
  std::string job;
  uint64_t number = 0;
  std::string id;
  uint32_t world = 0;
  uint64_t tensor_bytes = 0;
  uint64_t save_every = 1;
  uint64_t steps = 0;     // then the ranks end with a goodbye
  bool reshards = false;  // ranks read all shards
  bool over = false;
  uint32_t ended = 0;
  uint32_t restored = 0;
  uint32_t refusals = 0;                 // restores that were refused: no version is restorable
  std::string refusal;                   // the last error of a restore
  std::map<uint64_t, uint32_t> arrived;  // ranks at each step
};

/// The process of one rank. It speaks the protocol of the client library over a real socket, and
/// copies into the memory that the agent passes to it.
class Trainer {
 public:
  Trainer(World& world, std::shared_ptr<Run> run, NodeHost& host, uint32_t rank);
  ~Trainer();

  void Start();
  /// SIGKILL.
  void Kill();
  /// The agent's process has ended: the kernel closes the connection.
  void Disconnect();
  bool ended() const { return ended_; }
  SimProcess& process() { return process_; }

 private:
  void Main();
  bool Gone() const { return killed_ || run_->over; }
  /// Connects and joins. Returns false when the process must end.
  bool Join();
  Status TryJoin();
  /// Returns false when the process must end.
  bool Restore();
  Status TryRestore(bool* fresh);
  Status TryReshard(bool* fresh);
  Status ReadAllShards(const agent::ReplyMessage& opened, UniqueFd memory);
  bool AwaitOthers(uint64_t step);
  void Save(uint64_t step);
  void Sleep(uint64_t us_max);
  Status Send(std::span<const std::byte> packet);
  template <typename Message>
  Status SendMessage(const Message& message) {
    return Send(std::as_bytes(std::span(&message, 1)));
  }
  Result<agent::ReplyMessage> AwaitReply(uint64_t ticket, Clock::Duration timeout,
                                         UniqueFd* fd = nullptr);
  /// Handles the packets that have arrived.
  void ReadNotices();
  Result<std::vector<std::byte>> Receive(int timeout_ms, UniqueFd* fd = nullptr);
  void Unmap();

  World& world_;
  const std::shared_ptr<Run> run_;
  NodeHost& host_;
  const uint32_t rank_;
  SimProcess process_;
  const pid_t pid_;
  bool killed_ = false;
  bool ended_ = false;
  bool fenced_ = false;
  UniqueFd socket_;
  std::span<std::byte> memory_;
  agent::WelcomeMessage welcome_;
  uint64_t incarnation_ = 0;
  uint64_t base_step_ = 0;
  uint64_t life_ = 0;  // of the store, at the last restore
  uint64_t next_ticket_ = 1;
};

/// The image that a rank of a run saves at a version. Each byte depends on all of these, so that a
/// reader can find the save that any byte is from.
std::vector<std::byte> MakeImage(const ShardIdentity& identity, uint64_t run,
                                 uint64_t tensor_bytes);
/// Returns the run that saved the image; nullopt if any byte is not what it saved.
std::optional<uint64_t> RunOfImage(std::span<const std::byte> image, const ShardKey& expected);

}  // namespace holdfast::simulation
