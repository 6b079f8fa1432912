#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/api/messages.h"
#include "agent/api/segment_layout.h"
#include "agent/api/socket.h"
#include "base/fd.h"
#include "storage/format/image.h"

namespace holdfast::client {

/// A sealed memfd with slots, as the arena creates them. Outlives the agent that shares it.
class TestSegment {
 public:
  TestSegment(uint32_t slots, uint64_t slot_bytes, bool sealed = true);
  ~TestSegment();
  TestSegment(const TestSegment&) = delete;
  TestSegment& operator=(const TestSegment&) = delete;

  int fd() const { return fd_.get(); }
  uint32_t slots() const { return slots_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint64_t bytes() const { return agent::kControlBytes + slots_ * slot_bytes_; }
  std::span<std::byte> slot(uint32_t i) {
    return {base_ + agent::kControlBytes + i * slot_bytes_, slot_bytes_};
  }
  agent::SegmentControl& control() { return *reinterpret_cast<agent::SegmentControl*>(base_); }
  agent::SlotProgress& progress(uint32_t i) { return control().slots[i]; }

 private:
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  uint32_t slots_;
  uint64_t slot_bytes_;
};

/// The behaviour of a test's agent; may be changed while it runs.
struct Script {
  std::optional<Status> refuse_hello;
  std::optional<std::vector<std::byte>> raw_welcome;  // these bytes in place of a Welcome
  std::optional<agent::WelcomeMessage> welcome;       // this Welcome in place of the right one
  bool without_descriptor = false;
  bool silent = false;  // receives requests, and answers them when it is no longer silent
  bool hang_up_on_begin = false;
  bool hang_up_on_end = false;
  std::optional<Status> begin_save;  // the answer to every BeginSave
  std::optional<uint32_t> granted;   // this slot in place of a free one
  bool seal = true;                  // sends Sealed after each EndSave
  bool commit_memory = false;        // and Committed(memory)
  std::optional<Status> find_restore;
  bool hold_slots = false;  // a slot stays leased after its seal
  uint64_t incarnation = 7;
  /// Handles messages of readers. Returns false to hang up.
  std::function<bool(int socket, std::span<const std::byte> packet)> on_reader;
};

/// An agent that uses the real protocol over a real socket, and follows its script. Keeps
/// the image of every finished save.
class ScriptedAgent {
 public:
  explicit ScriptedAgent(std::string path) : path_(std::move(path)) {}
  ~ScriptedAgent() { Stop(); }

  void Start();
  /// Closes every connection, as a killed agent would. The segment stays.
  void Stop();
  /// The next Hello gets a new segment.
  void ForgetSegment();
  void Edit(const std::function<void(Script&)>& edit);
  void Send(const agent::NoticeMessage& notice);
  /// Answers the next restore with this image.
  void OfferRestore(VersionId version, const std::string& image, Tier tier = Tier::kMemory);

  struct SavedImage {
    uint32_t slot = 0;
    std::string image;
  };
  std::map<uint64_t, SavedImage> images();
  /// Returns the image of a step; empty when the step was not saved.
  std::string image(uint64_t step);
  std::vector<agent::MessageType> received();
  size_t Count(agent::MessageType type);
  agent::HelloMessage hello();
  /// May also be called from the script's functions. Null until the first Hello.
  TestSegment* segment() { return shown_segment_; }
  const std::string& path() const { return path_; }

 private:
  struct Lease {
    uint64_t step = 0;
    uint64_t image_bytes = 0;
  };
  void Serve();
  bool Handle(std::span<const std::byte> packet);
  bool OnHello(const agent::HelloMessage& hello);
  bool OnBegin(const agent::BeginSaveMessage& message);
  bool OnEnd(const agent::EndSaveMessage& message);
  bool OnFind(const agent::FindRestoreMessage& message);
  template <typename Message>
  bool SendMessage(const Message& message, std::span<const int> fds = {});

  const std::string path_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  Script script_;
  UniqueFd connection_;
  std::unique_ptr<TestSegment> segment_;
  std::atomic<TestSegment*> shown_segment_{nullptr};
  std::map<uint32_t, Lease> leases_;
  std::deque<std::vector<std::byte>> unanswered_;
  std::map<uint64_t, SavedImage> images_;
  std::vector<agent::MessageType> received_;
  agent::HelloMessage hello_;
  std::string restore_image_;
  VersionId restore_version_;
  Tier restore_tier_ = Tier::kMemory;
};

}  // namespace holdfast::client
