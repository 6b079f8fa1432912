// A device copier for tests: "device" memory is host memory, which a slow separate thread copies.
// HOLDFAST_TEST_DEVICE selects a failure: "abi", "start", "held", which delays copies until they
// are guarded, at most ten seconds, or "parts": the last piece is queued when the others are
// copied.

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "client/core/device_copier.h"

struct holdfast_device_context {
  int marks = 0;
};
struct holdfast_device_mark {};
struct holdfast_device_copy {
  std::mutex mutex;
  std::condition_variable changed;
  size_t done = 0;
  size_t queued_from = 0;  // pieces that must be copied before the last one is queued
  bool held = false;
  std::thread thread;
};

namespace {
bool Chosen(const char* what) {
  const char* chosen = std::getenv("HOLDFAST_TEST_DEVICE");
  return chosen != nullptr && std::string(chosen) == what;
}

int32_t Open(const int32_t*, size_t, holdfast_device_context** context, char*, size_t) {
  *context = std::make_unique<holdfast_device_context>().release();
  return 0;
}
void CloseContext(holdfast_device_context* context) {
  if (context->marks != 0) std::abort();  // a mark was lost
  delete context;
}
int32_t Pin(holdfast_device_context*, void*, uint64_t, char*, size_t) { return 0; }
void Unpin(holdfast_device_context*, void*) {}
int32_t Mark(holdfast_device_context* context, void*, holdfast_device_mark** mark, char*, size_t) {
  ++context->marks;
  *mark = std::make_unique<holdfast_device_mark>().release();
  return 0;
}
void DropMark(holdfast_device_context* context, holdfast_device_mark* mark) {
  --context->marks;
  delete mark;
}
int32_t Start(holdfast_device_context* context, holdfast_device_mark* mark,
              const holdfast_device_piece* pieces, size_t count, void* slot,
              holdfast_device_copy** copy, char* text, size_t text_bytes) {
  DropMark(context, mark);
  if (Chosen("start")) {
    std::snprintf(text, text_bytes, "the device fell off the bus");
    return 8;
  }
  auto made = std::make_unique<holdfast_device_copy>();
  made->held = Chosen("held");
  made->queued_from = Chosen("parts") ? count - 1 : 0;
  made->thread = std::thread([made = made.get(), pieces, count, slot] {
    {
      std::unique_lock lock(made->mutex);
      made->changed.wait_for(lock, std::chrono::seconds(10), [&] { return !made->held; });
    }
    for (size_t i = 0; i < count; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::memcpy(static_cast<char*>(slot) + pieces[i].slot_offset, pieces[i].device_memory,
                  pieces[i].bytes);
      std::lock_guard lock(made->mutex);
      made->done = i + 1;
      made->changed.notify_all();
    }
  });
  *copy = made.release();
  return 0;
}
int32_t WaitPieces(holdfast_device_copy* copy, size_t want, size_t* done, char*, size_t) {
  std::unique_lock lock(copy->mutex);
  copy->changed.wait(lock, [&] { return copy->done >= want; });
  *done = copy->done;
  return 0;
}
int32_t IsQueued(const holdfast_device_copy* copy) {
  std::lock_guard lock(const_cast<holdfast_device_copy*>(copy)->mutex);
  return copy->done >= copy->queued_from ? 1 : 0;
}
// Simulates a stream wait: sets the int at `stream` to 1, to 2 when a held copy has begun, or to 3
// when a piece is not queued yet.
int32_t Guard(holdfast_device_copy* copy, void* stream, char*, size_t) {
  std::lock_guard lock(copy->mutex);
  int state = copy->held && copy->done > 0 ? 2 : 1;
  if (copy->done < copy->queued_from) state = 3;
  if (stream != nullptr) *static_cast<int*>(stream) = state;
  copy->held = false;
  copy->changed.notify_all();
  return 0;
}
void FinishCopy(holdfast_device_copy* copy) {
  copy->thread.join();
  delete copy;
}
int32_t Restore(holdfast_device_context*, const holdfast_device_piece* pieces, size_t count,
                const void* slot, char*, size_t) {
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(pieces[i].device_memory, static_cast<const char*>(slot) + pieces[i].slot_offset,
                pieces[i].bytes);
  }
  return 0;
}
uint64_t GatherBelow(const holdfast_device_context*) { return 0; }
}  // namespace

extern "C" __attribute__((visibility("default"))) const holdfast_device_copier*
holdfast_device_copier_table(void) {
  static holdfast_device_copier table = {HOLDFAST_DEVICE_COPIER_ABI,
                                         sizeof(holdfast_device_copier),
                                         Open,
                                         CloseContext,
                                         Pin,
                                         Unpin,
                                         Mark,
                                         DropMark,
                                         Start,
                                         WaitPieces,
                                         IsQueued,
                                         Guard,
                                         FinishCopy,
                                         Restore,
                                         GatherBelow};
  table.abi = Chosen("abi") ? 99 : HOLDFAST_DEVICE_COPIER_ABI;
  return &table;
}
