#include "testing/cluster/training.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/random.h"

namespace holdfast::local {
Training::Training(Cluster* cluster, TrainingOptions options)
    : cluster_(cluster), options_(std::move(options)) {
  if (cluster_ == nullptr) own_root_ = MakeTempDir("hf-plain").value_or("");
  dir_ = (cluster_ != nullptr ? cluster_->root() : own_root_) + "/" + options_.job;
  std::error_code error;
  std::filesystem::create_directories(dir_, error);  // Start() reports a failure to write
}

Training::~Training() {
  ranks_.clear();  // ends the ranks
  std::error_code ignored;
  if (!own_root_.empty()) std::filesystem::remove_all(own_root_, ignored);
}

std::string Training::EventPath(int rank) const {
  return dir_ + "/events-" + std::to_string(start_count_) + "-" + std::to_string(rank);
}

Status Training::Start(const std::string& crash, int crash_rank) {
  KillAll();
  ++start_count_;
  ranks_.clear();
  unread_.assign(options_.world, "");
  offsets_.assign(options_.world, 0);
  restored_.assign(options_.world, std::nullopt);
  newest_steps_.assign(static_cast<size_t>(options_.world), 0);
  step_ms_.clear();
  std::string run_id = "start-" + std::to_string(start_count_) + "-" + RandomHex(4);
  std::string rendezvous = dir_ + "/rendezvous-" + run_id;
  std::filesystem::create_directories(rendezvous);
  for (int rank = 0; rank < options_.world; ++rank) {
    ProcessOptions process;
    process.argv = {BinaryDir() + "/holdfast-charlm",
                    "--rank",
                    std::to_string(rank),
                    "--world",
                    std::to_string(options_.world),
                    "--rendezvous",
                    rendezvous,
                    "--steps",
                    std::to_string(options_.steps),
                    "--params",
                    std::to_string(options_.params),
                    "--seed",
                    std::to_string(options_.seed),
                    "--job",
                    options_.job,
                    "--run-id",
                    run_id,
                    "--step-sleep-ms",
                    std::to_string(options_.step_sleep_ms),
                    "--events",
                    EventPath(rank),
                    "--final",
                    FinalPath()};
    if (cluster_ == nullptr) {
      process.argv.push_back("--no-checkpoint");
    } else {
      int node = rank % cluster_->nodes();
      process.argv.insert(process.argv.end(), {"--socket", cluster_->AgentSocket(node)});
    }
    process.argv.insert(process.argv.end(), options_.flags.begin(), options_.flags.end());
    process.env = {{"HOLDFAST_CRASH", rank == crash_rank ? crash : ""}};
    process.log_path = dir_ + "/rank-" + std::to_string(rank) + ".log";
    HOLDFAST_ASSIGN_OR_RETURN(Process child, Process::Start(process));
    ranks_.push_back(std::move(child));
  }
  return Status::Ok();
}

void Training::KillRank(int rank) { ranks_[rank].Kill(); }

void Training::KillAll() {
  for (Process& rank : ranks_) rank.Signal(SIGKILL);
  for (Process& rank : ranks_) rank.Kill();
}

void Training::Poll() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    std::ifstream file(EventPath(rank), std::ios::binary);
    if (!file) continue;
    file.seekg(static_cast<std::streamoff>(offsets_[rank]));
    std::string more{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    offsets_[rank] += more.size();
    std::string& text = unread_[rank] += more;
    for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      auto event = nlohmann::json::parse(text.substr(0, end), nullptr, false);
      if (event.is_discarded()) continue;
      std::string kind = event.value("event", "");
      if (kind == "restored" || kind == "fresh") {
        restored_[rank] =
            Restored{rank, event.value("step", uint64_t{0}), event.value("tier", "none")};
      } else if (kind == "step") {
        uint64_t step = event.value("step", uint64_t{0});
        uint64_t& newest = newest_steps_[static_cast<size_t>(rank)];
        newest = std::max(newest, step);
        losses_[step] = event.value("loss", 0.0);
        if (rank == 0) step_ms_.push_back(event.value("ms", 0.0));
      }
    }
  }
}

uint64_t Training::newest_step() {
  Poll();
  return newest_steps_.empty() ? 0 : *std::ranges::max_element(newest_steps_);
}

uint64_t Training::newest_step_of(int rank) {
  Poll();
  return newest_steps_.at(static_cast<size_t>(rank));
}

const std::map<uint64_t, double>& Training::losses() {
  Poll();
  return losses_;
}

const std::vector<double>& Training::step_ms() {
  Poll();
  return step_ms_;
}

std::vector<Restored> Training::restored() {
  Poll();
  std::vector<Restored> all;
  for (const auto& entry : restored_) {
    if (!entry) return {};
    all.push_back(*entry);
  }
  return all;
}

bool Training::AnyEnded() {
  for (Process& rank : ranks_) {
    if (!rank.running()) return true;
  }
  return false;
}

bool Training::AwaitStep(uint64_t step, std::chrono::milliseconds timeout) {
  WaitUntil([&] { return newest_step() >= step || AnyEnded(); }, timeout);
  return newest_step() >= step;
}

bool Training::AwaitFailure(std::chrono::milliseconds timeout) {
  return WaitUntil([&] { return AnyEnded(); }, timeout);
}

Status Training::AwaitFinish(std::chrono::milliseconds timeout) {
  auto failed = [](Process& rank) { return !rank.running() && rank.exit_code().value_or(1) != 0; };
  bool ended = WaitUntil(
      [&] {
        bool all = true;
        for (Process& rank : ranks_) {
          if (failed(rank)) return true;
          all = all && !rank.running();
        }
        return all;
      },
      timeout);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (failed(ranks_[i])) {
      return AbortedError("rank " + std::to_string(i) + " ended with code " +
                          std::to_string(ranks_[i].exit_code().value_or(-1)) + "\n" + LogTail());
    }
  }
  return ended ? Status::Ok() : DeadlineExceededError("training did not finish\n" + LogTail());
}

Result<std::string> Training::FinalParameters() const {
  std::string bytes = ReadAll(FinalPath());
  if (bytes.empty()) return Fail(NotFoundError(FinalPath() + " is missing or empty"));
  return bytes;
}

std::string Training::LogTail() const {
  std::string out;
  for (int rank = 0; rank < options_.world; ++rank) {
    std::string log = ReadAll(dir_ + "/rank-" + std::to_string(rank) + ".log");
    out += "--- rank " + std::to_string(rank) + "\n" +
           log.substr(log.size() > 600 ? log.size() - 600 : 0);
  }
  return out;
}

Result<std::string> UninterruptedParameters(TrainingOptions options,
                                            std::chrono::milliseconds timeout) {
  options.job = "plain";
  options.step_sleep_ms = 0;
  Training plain(nullptr, std::move(options));
  HOLDFAST_RETURN_IF_ERROR(plain.Start());
  HOLDFAST_RETURN_IF_ERROR(plain.AwaitFinish(timeout));
  return plain.FinalParameters();
}

}  // namespace holdfast::local
