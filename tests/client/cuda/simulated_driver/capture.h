#pragma once

#include <cuda.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace holdfast::cuda::simulated {

struct Stream;

/// A graph that is being captured: work on its streams is recorded, not run.
struct Capture {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;  // that began the capture
  Stream* origin = nullptr;
  bool valid = true;
  bool joined = false;  // another stream has joined through an event
  std::vector<std::function<CUresult()>> work;
};

/// The work of a graph, which every launch runs.
using Graph = std::shared_ptr<const std::vector<std::function<CUresult()>>>;

/// All current captures, and the threads' capture modes. The caller holds the machine's lock.
class Captures {
 public:
  CUresult Begin(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode);
  /// Sets `graph` to null when the capture was broken.
  CUresult End(const std::shared_ptr<Stream>& stream, Graph* graph);
  /// Exchanges the mode of the calling thread, which is global initially.
  CUstreamCaptureMode Exchange(CUstreamCaptureMode mode);
  /// Breaks captures during which the calling thread may not make this call.
  CUresult Check(const std::string& function);

 private:
  std::set<std::shared_ptr<Capture>> active_;
  std::map<std::thread::id, CUstreamCaptureMode> modes_;
};

}  // namespace holdfast::cuda::simulated
