#include "tests/client/cuda/simulated_driver/machine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/random.h"

namespace holdfast::cuda::simulated {

Machine& Machine::Get() {
  static Machine& machine = *std::make_unique<Machine>().release();
  return machine;
}

// ---- contexts ----------------------------------------------------------------------------------

CUcontext Machine::Retain(int device) {
  for (auto& [handle, context] : contexts_) {
    if (context->device != device) continue;
    ++context->retains;
    return reinterpret_cast<CUcontext>(handle);
  }
  auto made = std::make_shared<Context>();
  made->device = device;
  made->retains = 1;
  made->legacy = std::make_shared<Stream>();
  made->legacy->context = made;
  Launch(made->legacy);
  const uint64_t handle = NextHandle();
  contexts_[handle] = std::move(made);
  return reinterpret_cast<CUcontext>(handle);
}

bool Machine::Release(std::unique_lock<std::mutex>& lock, int device) {
  auto found = std::find_if(contexts_.begin(), contexts_.end(),
                            [&](const auto& entry) { return entry.second->device == device; });
  if (found == contexts_.end()) return false;
  if (--found->second->retains > 0) return true;
  // The last release destroys the remaining objects.
  auto context = found->second;
  contexts_.erase(found);
  AwaitContext(lock, *context);
  bool left = memory.LeftOn(device) > 0;
  for (auto& [handle, stream] : streams_) {
    if (stream->context != context || stream->destroyed) continue;
    stream->destroyed = left = true;
  }
  left |= std::erase_if(events_, [&](auto& entry) { return entry.second->context == context; }) > 0;
  if (left) Misuse();
  context->legacy->destroyed = true;
  context->legacy.reset();
  changed_.notify_all();
  return true;
}

std::shared_ptr<Context> Machine::FindContext(CUcontext handle) const {
  auto found = contexts_.find(Number(handle));
  return found == contexts_.end() ? nullptr : found->second;
}

CUcontext Machine::HandleOf(const Context& context) const {
  for (const auto& [handle, one] : contexts_) {
    if (one.get() == &context) return reinterpret_cast<CUcontext>(handle);
  }
  return nullptr;
}

// ---- streams and events ------------------------------------------------------------------------

CUstream Machine::MakeStream(const std::shared_ptr<Context>& context, bool blocking) {
  auto made = std::make_shared<Stream>();
  made->context = context;
  made->blocking = blocking;
  Launch(made);
  const uint64_t handle = NextHandle();
  streams_[handle] = std::move(made);
  return reinterpret_cast<CUstream>(handle);
}

std::shared_ptr<Stream> Machine::FindStream(CUstream handle, const Context& current) const {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return current.legacy;
  auto found = streams_.find(Number(handle));
  return found == streams_.end() || found->second->destroyed ? nullptr : found->second;
}

bool Machine::DestroyStream(CUstream handle) {
  auto found = streams_.find(Number(handle));
  if (found == streams_.end() || found->second->destroyed) return false;
  found->second->destroyed = true;
  if (!found->second->queue.empty()) Misuse();
  changed_.notify_all();
  return true;
}

CUevent Machine::MakeEvent(const std::shared_ptr<Context>& context) {
  const uint64_t handle = NextHandle();
  events_[handle] = std::make_shared<Event>(Event{context, nullptr, nullptr});
  return reinterpret_cast<CUevent>(handle);
}

std::shared_ptr<Event> Machine::FindEvent(CUevent handle) const {
  auto found = events_.find(Number(handle));
  return found == events_.end() ? nullptr : found->second;
}

// ---- order -------------------------------------------------------------------------------------

Point Machine::Enqueue(Stream& stream, std::function<CUresult()> work, const Point& after) {
  auto point = std::make_shared<Operation>();
  if (stream.capture != nullptr) {
    if (work) stream.capture->work.push_back(std::move(work));
    point->done = true;
    return point;
  }
  point->work = std::move(work);
  auto wait_for = [&](const Point& other) {
    if (other && !other->done) point->after.push_back(other);
  };
  wait_for(after);
  const bool legacy = stream.context->legacy.get() == &stream;
  if (legacy) {
    for (const auto& [handle, other] : streams_) {
      if (other->context == stream.context && other->blocking) wait_for(other->last);
    }
  } else if (stream.blocking) {
    wait_for(stream.context->legacy->last);
  }
  stream.queue.push_back(point);
  stream.last = point;
  changed_.notify_all();
  return point;
}

void Machine::Await(std::unique_lock<std::mutex>& lock, const Point& point) {
  const Point kept = point;
  changed_.wait(lock, [&] { return !kept || kept->done; });
}

void Machine::AwaitContext(std::unique_lock<std::mutex>& lock, const Context& context) {
  std::vector<Point> all = {context.legacy->last};
  for (const auto& [handle, stream] : streams_) {
    if (stream->context.get() == &context) all.push_back(stream->last);
  }
  for (const Point& point : all) Await(lock, point);
}

void Machine::Launch(const std::shared_ptr<Stream>& stream) {
  std::thread([this, stream] { Run(stream); }).detach();
}

void Machine::Run(const std::shared_ptr<Stream>& stream) {
  std::unique_lock lock(mutex);
  for (;;) {
    changed_.wait(lock, [&] { return !stream->queue.empty() || stream->destroyed; });
    if (stream->queue.empty()) break;
    const Point point = stream->queue.front();
    for (const Point& other : point->after) Await(lock, other);
    Context& context = *stream->context;
    if (point->work && !context.breaks) {
      ++context.running;
      lock.unlock();
      Jitter();
      const CUresult result = point->work();
      lock.lock();
      --context.running;
      if (result != CUDA_SUCCESS) {
        // A driver reports the error when it has stopped the device.
        context.breaks = true;
        changed_.wait(lock, [&] { return context.running == 0; });
        for (const auto& [handle, other] : streams_) {
          if (other->context != stream->context) continue;
          for (const Point& dropped : other->queue) dropped->work = nullptr;
        }
        context.error = result;
      }
    }
    point->after.clear();
    point->work = nullptr;
    point->done = true;
    stream->queue.pop_front();
    changed_.notify_all();
  }
  std::erase_if(streams_, [&](const auto& entry) { return entry.second == stream; });
}

void Jitter() {
  static std::atomic<uint64_t> calls{0};
  static const uint64_t seed = [] {
    const char* text = std::getenv("HOLDFAST_SIMULATED_DRIVER_SEED");
    return text == nullptr ? uint64_t{1} : std::strtoull(text, nullptr, 10);
  }();
  Random random((seed << 40) + calls.fetch_add(1));
  if (!random.OneIn(16)) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random.Below(200)));
}

// ---- the tests' interface ----------------------------------------------------------------------

CUresult Machine::TakeCallFailure(const std::string& function) {
  auto found = call_failures_.find(function);
  if (found == call_failures_.end() || --found->second.n > 0) return CUDA_SUCCESS;
  const CUresult result = found->second.result;
  call_failures_.erase(found);
  return result;
}

bool Machine::TakeCopyFailure(int device) {
  auto found = copy_failures_.find(device);
  if (found == copy_failures_.end() || --found->second > 0) return false;
  copy_failures_.erase(found);
  return true;
}

void Machine::FailCall(const std::string& function, uint64_t n, CUresult result) {
  call_failures_[function] = {n, result};
}

void Machine::FailNothing() {
  call_failures_.clear();
  copy_failures_.clear();
  LetCopiesGo();
}

void Machine::HoldCopy(int device, uint64_t n) { copies_held_[device] = n; }

void Machine::LetCopiesGo() {
  copies_held_.clear();
  changed_.notify_all();
}

void Machine::AwaitPermission(std::unique_lock<std::mutex>& lock, int device) {
  auto found = copies_held_.find(device);
  if (found == copies_held_.end() || --found->second > 0) return;
  found->second = 1;  // later copies wait, too
  changed_.wait(lock, [&] { return copies_held_.count(device) == 0; });
}

Counts Machine::CountAll() const {
  Counts counts;
  counts.contexts = contexts_.size();
  for (const auto& [handle, stream] : streams_) counts.streams += stream->destroyed ? 0 : 1;
  counts.events = events_.size();
  counts.allocations = memory.allocations();
  counts.registrations = memory.registrations();
  counts.copies_queued = copies_queued_;
  counts.copies_begun = copies_begun_;
  counts.misuses = misuses_;
  return counts;
}

}  // namespace holdfast::cuda::simulated
