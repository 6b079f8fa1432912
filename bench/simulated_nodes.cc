#include "bench/simulated_nodes.h"

#include <fmt/format.h>

namespace holdfast::bench {
namespace {
using SteadyClock = std::chrono::steady_clock;
constexpr auto kTurn = std::chrono::milliseconds(20);

double Millis(SteadyClock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}
}  // namespace

SimulatedNodes::SimulatedNodes(const std::vector<Endpoint>& endpoints, const LoadOptions& options)
    : options_(options) {
  agents_.reserve(options_.nodes);
  LoadObserver& observer = *this;
  for (uint32_t node = 0; node < options_.nodes; ++node) {
    agents_.push_back(std::make_unique<SimulatedAgent>(endpoints[node % endpoints.size()], node,
                                                       node * options_.ranks_per_node,
                                                       options_.ranks_per_node, world(), observer));
  }
  thread_ = std::thread([this] { Run(); });
}

SimulatedNodes::~SimulatedNodes() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  agents_.clear();
}

void SimulatedNodes::Run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kTurn, [this] { return stopping_; })) return;
    }
    const auto now = SteadyClock::now();
    for (auto& agent : agents_) agent->Turn(now);
  }
}

template <typename Done>
Status SimulatedNodes::Await(const std::string& what, const Done& done) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, options_.patience, done)) return Status::Ok();
  return DeadlineExceededError(fmt::format(
      "{}: {} of {} agents are attached, {} of {} ranks have joined, {} agents have the commit of "
      "step {}{}",
      what, attached_, options_.nodes, joined_, world(), committed_, step_,
      refused_.empty() ? "" : "; the last refusal: " + refused_));
}

Status SimulatedNodes::AwaitAttached() {
  return Await("not all agents attached", [this] { return attached_ == options_.nodes; });
}

Status SimulatedNodes::AwaitDetached() {
  return Await("no agent lost its stream", [this] { return attached_ < options_.nodes; });
}

Status SimulatedNodes::Join() {
  for (auto& agent : agents_) agent->JoinRanks();
  return Await("not all ranks joined", [this] { return joined_ == world(); });
}

void SimulatedNodes::Save(uint64_t step) {
  {
    std::lock_guard lock(mutex_);
    step_ = step;
    sent_ = committed_ = 0;
  }
  for (auto& agent : agents_) agent->Save(step);
}

Status SimulatedNodes::AwaitCommit(uint64_t step) {
  return Await(fmt::format("step {} was not committed everywhere", step),
               [this] { return committed_ == options_.nodes; });
}

Result<CommitTimes> SimulatedNodes::Commit(uint64_t step) {
  const auto start = SteadyClock::now();
  Save(step);
  HOLDFAST_RETURN_IF_ERROR(AwaitCommit(step));
  std::lock_guard lock(mutex_);
  return CommitTimes{Millis(last_committed_ - start), Millis(first_committed_ - last_sent_),
                     Millis(last_committed_ - last_sent_)};
}

TelemetryLoad SimulatedNodes::Observe(double per_second, std::chrono::milliseconds time) {
  const auto start = SteadyClock::now();
  const auto interval = std::chrono::duration_cast<SteadyClock::duration>(
      std::chrono::duration<double>(1 / per_second));
  TelemetryLoad load;
  uint64_t number = 0;
  for (auto due = start; due - start < time; due += interval) {
    std::this_thread::sleep_until(due);
    ++number;
    for (auto& agent : agents_) load.messages += agent->Observe(number, step_) ? 1 : 0;
    load.digests += agents_.size();
  }
  return load;
}

void SimulatedNodes::OnAttached() {
  std::lock_guard lock(mutex_);
  ++attached_;
  changed_.notify_all();
}

void SimulatedNodes::OnDetached() {
  std::lock_guard lock(mutex_);
  --attached_;
  changed_.notify_all();
}

void SimulatedNodes::OnJoined() {
  std::lock_guard lock(mutex_);
  if (++joined_ == world()) changed_.notify_all();
}

void SimulatedNodes::OnCommitted(uint64_t step) {
  std::lock_guard lock(mutex_);
  if (step != step_) return;
  last_committed_ = SteadyClock::now();
  if (committed_ == 0) first_committed_ = last_committed_;
  if (++committed_ == options_.nodes) changed_.notify_all();
}

void SimulatedNodes::OnReportSent(uint64_t step) {
  std::lock_guard lock(mutex_);
  if (step != step_) return;
  ++sent_;
  last_sent_ = SteadyClock::now();
}

void SimulatedNodes::OnRefused(const std::string& what) {
  std::lock_guard lock(mutex_);
  refused_ = what;
}

}  // namespace holdfast::bench
