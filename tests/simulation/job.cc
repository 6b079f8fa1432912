#include "tests/simulation/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/simulation/node_host.h"

namespace holdfast::simulation {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;
}  // namespace

Job::Job(World& world, std::string name, uint64_t tensor_bytes)
    : world_(world),
      name_(std::move(name)),
      tensor_bytes_(tensor_bytes),
      process_{"launcher of " + name_} {}

void Job::Start() {
  world_.scheduler.Spawn(process_, [this] { Main(); });
}

void Job::Stop() {
  stopping_ = true;
  EndRun(/*in_order=*/false);
}

bool Job::AllEnded() const {
  return std::all_of(trainers_.begin(), trainers_.end(),
                     [](const auto& trainer) { return trainer->ended(); });
}

uint32_t Job::ChooseWorld() {
  if (last_world_ != 0 && !world_.random.OneIn(4)) return last_world_;
  return 1 + static_cast<uint32_t>(world_.random.Below(world_.nodes.size() + 1));
}

void Job::StartRun(uint32_t world, uint64_t steps, bool reshards) {
  run_ = std::make_shared<Run>();
  run_->job = name_;
  run_->number = next_run_++;
  run_->id = fmt::format("{}-{}", name_, run_->number);
  run_->world = last_world_ = world;
  run_->tensor_bytes = tensor_bytes_;
  run_->save_every = 1 + world_.random.Below(2);
  run_->steps = steps;
  run_->reshards = reshards;
  world_.checker.OnRunStarted(name_, run_->number);
  // Ranks go to machines that are up, where possible.
  std::vector<NodeHost*> hosts;
  for (const auto& node : world_.nodes) {
    if (node->up()) hosts.push_back(node.get());
  }
  if (hosts.empty()) hosts.push_back(world_.nodes[0].get());
  std::rotate(hosts.begin(),
              hosts.begin() + static_cast<std::ptrdiff_t>(
                                  world_.random.OneIn(3) ? world_.random.Below(hosts.size()) : 0),
              hosts.end());
  world_.Trace(fmt::format("{}: run {} starts with {} ranks{}", name_, run_->number, world,
                           reshards ? ", reshards" : ""));
  first_ = trainers_.size();
  for (uint32_t rank = 0; rank < world; ++rank) {
    trainers_.push_back(std::make_unique<Trainer>(world_, run_, *hosts[rank % hosts.size()], rank));
    trainers_.back()->Start();
  }
}

void Job::EndRun(bool in_order) {
  if (run_ == nullptr) return;
  run_->over = true;
  if (in_order) return;
  for (size_t i = first_; i < trainers_.size(); ++i) trainers_[i]->Kill();
}

void Job::Main() {
  while (!stopping_) {
    const uint32_t before = last_world_;
    const uint32_t world = ChooseWorld();
    const bool other = before != 0 && world != before;
    StartRun(world, 5 + world_.random.Below(60), other || world_.random.OneIn(8));
    const auto run = run_;
    const auto limit = world_.scheduler.Now() + milliseconds(500 + world_.random.Below(8'000));
    while (!stopping_ && run->ended == 0 && world_.scheduler.Now() < limit) {
      world_.clock.SleepFor(milliseconds(20));
    }
    // Some launchers start the next run before all ranks of the last one have ended.
    const bool in_order = run->ended != 0 && world_.random.OneIn(2);
    if (in_order) {
      for (int i = 0; i < 100 && run->ended < run->world; ++i) {
        world_.clock.SleepFor(milliseconds(20));
      }
    }
    EndRun(/*in_order=*/false);
    world_.clock.SleepFor(milliseconds(world_.random.Below(600)));
    const bool useless = run->refusals > 3 && !world_.checker.MustRestore(name_);
    if (useless && !stopping_ && world_.random.OneIn(2)) Forget();
  }
  stopped_ = true;
}

std::shared_ptr<Run> Job::StartLast() {
  const uint32_t world = last_world_ == 0 ? 1 : last_world_;
  StartRun(world, 100'000, false);
  return run_;
}

void Job::Forget() {
  world_.Trace(name_ + " is forgotten: " + (run_ != nullptr ? run_->refusal : ""));
  EndRun(/*in_order=*/false);
  for (int attempt = 0; attempt < 30; ++attempt) {
    const auto coordinator = world_.coordinator.life();
    auto outcome = std::make_shared<std::optional<Status>>();
    if (coordinator != nullptr) {
      const coord::RequestId id = coordinator->applier->NextId();
      coordinator->applier->Submit(
          coord::Event(coord::JobForgotten{id, name_}), id, [outcome](const coord::Reply* reply) {
            *outcome = reply != nullptr ? reply->outcome : UnavailableError("try again");
          });
    }
    world_.clock.SleepFor(seconds(1));
    if (!*outcome || !(*outcome)->ok()) continue;
    world_.checker.OnForgotten(name_);
    return;
  }
}

bool Job::KillOne() {
  Trainer* trainer = AnyTrainer();
  if (trainer == nullptr) return false;
  world_.Trace(trainer->process().name + " is killed");
  trainer->Kill();
  return true;
}

Trainer* Job::AnyTrainer() {
  std::vector<Trainer*> running;
  for (size_t i = first_; i < trainers_.size(); ++i) {
    if (!trainers_[i]->ended()) running.push_back(trainers_[i].get());
  }
  return running.empty() ? nullptr : running[world_.random.Below(running.size())];
}

}  // namespace holdfast::simulation
