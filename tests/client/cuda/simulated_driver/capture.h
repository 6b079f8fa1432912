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

/// A graph in the making: what its streams are given is kept, not run.
struct Capture {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;  // that began it
  Stream* origin = nullptr;
  bool valid = true;
  bool joined = false;  // by another stream, through an event
  std::vector<std::function<CUresult()>> work;
};

/// The work of a graph, which every launch runs again.
using Graph = std::shared_ptr<const std::vector<std::function<CUresult()>>>;

/// All captures under way, and what threads may do meanwhile. The caller holds the machine's lock.
class Captures {
 public:
  CUresult Begin(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode);
  /// `graph` is null where the capture was broken.
  CUresult End(const std::shared_ptr<Stream>& stream, Graph* graph);
  /// Replaces the mode of the calling thread; global at first.
  CUstreamCaptureMode Exchange(CUstreamCaptureMode mode);
  /// What the calling thread may not do while a capture is under way breaks that capture.
  CUresult Check(const std::string& function);

 private:
  std::set<std::shared_ptr<Capture>> active_;
  std::map<std::thread::id, CUstreamCaptureMode> modes_;
};

}  // namespace holdfast::cuda::simulated
