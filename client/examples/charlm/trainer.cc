#include "charlm/trainer.h"

#include <atomic>
#include <bit>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <thread>
#include <utility>

namespace charlm {
namespace {
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;
constexpr int kLastWaitMs = 15'000;  // for a slot for the last version, and for its commit

double MillisecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

/// FNV-1a over the bits of all weights. Equal hashes mean equal results of two runs.
std::string HashOf(std::vector<Parameter>& parameters) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const Parameter& parameter : parameters) {
    for (float value : parameter.value) {
      hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}
}  // namespace

Trainer::Trainer(const Options& options)
    : options_(options),
      model_(Model::HiddenFor(options.parameters), options.seed),
      data_order_(options.seed * 1'000'003 + options.rank) {
  for (const Parameter& parameter : model_.parameters()) {
    adam_.emplace_back(parameter, options_.rank, options_.world);
  }
}

int Trainer::Run() {
  std::string problem;
  if (!events_.Open(options_.events, options_.rank)) return Fail("cannot write " + options_.events);
  if (!corpus_.Load(options_.text, &problem)) return Fail(problem);
  if (!ring_.Connect({.rank = options_.rank,
                      .world = options_.world,
                      .run_id = options_.run_id,
                      .rendezvous = options_.rendezvous,
                      .port_base = options_.rendezvous.empty() ? options_.port_base : 0,
                      .master_address = options_.master_address})) {
    return Fail(ring_.error(), kPeerLost);
  }
  if (!options_.no_checkpoint && !(OpenCheckpoints() && Restore())) return kError;
  if (checkpoints_ && !options_.no_records) ReportTransfers();
  if (!AllAgree()) return ring_.error().empty() ? kError : kPeerLost;
  while (step_ < options_.steps) {
    if (!TrainStep()) return Fail(ring_.error() + "; start all ranks again", kPeerLost);
  }
  return Finish() ? kDone : kError;
}

// ---- Holdfast ----------------------------------------------------------------------------------

/// Describes this rank's rows of each parameter and of its two moments. The descriptions include
/// their place in the global tensors, so that the tools can show and assemble the model.
std::vector<holdfast::Tensor> Trainer::DescribeState() {
  std::vector<holdfast::Tensor> state;
  for (size_t i = 0; i < adam_.size(); ++i) {
    Parameter& parameter = model_.parameters()[i];
    AdamShard& adam = adam_[i];
    holdfast::Shape shape = {adam.rows, parameter.columns};
    holdfast::Shape global_shape = {parameter.rows, parameter.columns};
    holdfast::Shape offset = {adam.first_row, 0};
    float* mine = parameter.value.data() + adam.first_row * parameter.columns;
    state.push_back(holdfast::Slice(parameter.name, mine, shape, global_shape, offset));
    state.push_back(
        holdfast::Slice(parameter.name + ".moment1", adam.moment1, shape, global_shape, offset));
    state.push_back(
        holdfast::Slice(parameter.name + ".moment2", adam.moment2, shape, global_shape, offset));
  }
  return state;
}

bool Trainer::OpenCheckpoints() {
  holdfast::Options options;
  options.job = options_.job;
  options.rank = options_.rank;
  options.world = options_.world;
  options.run_id = options_.run_id;
  options.socket_path = options_.socket;
  options.slots = options_.slots;
  options.connect_timeout = milliseconds(options_.connect_timeout_ms);
  options.start_offline = options_.allow_fresh;
  options.when_full =
      options_.when_full == "wait" ? holdfast::WhenFull::kWait : holdfast::WhenFull::kSkip;
  options.log = [this](holdfast::LogLevel level, std::string_view text) {
    if (level >= holdfast::LogLevel::kInfo) Print(std::string(text));
  };
  auto opened = holdfast::Client::Open(options, DescribeState());
  if (!opened.ok()) {
    Fail("cannot open checkpoints: " + opened.status().ToString());
    return false;
  }
  checkpoints_.emplace(std::move(*opened));
  return true;
}

bool Trainer::Restore() {
  SteadyClock::time_point start = SteadyClock::now();
  auto restored = checkpoints_->Restore(std::nullopt, milliseconds(options_.restore_timeout_ms));
  if (restored.ok()) {
    if (!LoadProgress(restored->extra("progress"))) {
      Fail("version " + restored->version.ToString() +
           " has no valid extra 'progress': another program saved it");
      return false;
    }
    std::string tier(holdfast::ToString(restored->tier));
    Print("restored version " + restored->version.ToString() + " from " + tier);
    events_.Emit("restored", {{"step", step_},
                              {"version", restored->version.ToString()},
                              {"tier", tier},
                              {"bytes", restored->bytes},
                              {"ms", MillisecondsSince(start)}});
    return true;
  }
  // Only "not found" means a fresh start. "Unavailable" does not: there may be a version.
  bool nothing = restored.status().code() == holdfast::Code::kNotFound;
  bool unknown = restored.status().code() == holdfast::Code::kUnavailable;
  if (nothing || (unknown && options_.allow_fresh)) {
    Print("starting fresh: " + restored.status().message());
    events_.Emit("fresh", {{"step", 0}, {"tier", "none"}, {"ms", MillisecondsSince(start)}});
    return true;
  }
  Fail("cannot restore: " + restored.status().ToString());
  for (const std::string& difference : checkpoints_->Differences()) Print("  " + difference);
  return false;
}

void Trainer::Save() {
  if (!checkpoints_ || options_.save_every == 0 || step_ % options_.save_every != 0) return;
  std::string progress = Progress();
  // A version may be skipped if all slots are busy, except the last one.
  milliseconds wait(step_ == options_.steps ? kLastWaitMs : 0);
  holdfast::Status status = checkpoints_->Save(step_, {{"progress", progress}}, nullptr, wait);
  if (status.ok() || status.asynchronous()) events_.Emit("saved", {{"step", step_}});
  Report("save", status);
}

/// Reports the versions that were skipped since the last call.
void Trainer::ReportSkipped() {
  holdfast_stats stats = checkpoints_->Stats();
  if (stats.skipped > skipped_) events_.Emit("skipped", {{"step", step_}, {"all", stats.skipped}});
  skipped_ = stats.skipped;
}

/// Logs a failed checkpoint. Training goes on.
void Trainer::Report(const char* what, const holdfast::Status& status) {
  // A lasting failure is logged once, not at every step.
  holdfast::Code before = std::exchange(last_report_[what], status.code());
  if (status.ok() || status.code() == before) return;
  Print(std::string(what) + ": " + status.ToString());
  events_.Emit("warning", {{"step", step_}, {"what", what}, {"error", status.ToString()}});
}

/// Reports which rank waits for which, for the detection of hangs and stragglers. The neighbours in
/// the ring are members of communicator 0, which has all ranks of the job.
void Trainer::ReportTransfers() {
  holdfast_client* client = checkpoints_->get();
  ring_.Observe(
      {.waits =
           [client](uint32_t peer, bool sends) {
             holdfast_peer_state(client, 0, peer,
                                 sends ? HOLDFAST_DIRECTION_SEND : HOLDFAST_DIRECTION_RECEIVE,
                                 sends ? HOLDFAST_EDGE_SEND_WAIT : HOLDFAST_EDGE_RECEIVE_WAIT);
           },
       .exchanged =
           [client](const Exchanged& block) {
             holdfast_transfer transfer{};
             transfer.struct_size = sizeof transfer;
             transfer.peer = block.peer;
             transfer.direction = block.sent ? HOLDFAST_DIRECTION_SEND : HOLDFAST_DIRECTION_RECEIVE;
             transfer.bytes = block.bytes;
             transfer.peer_wait_ns = static_cast<uint64_t>(block.waited.count());
             transfer.transfer_ns = static_cast<uint64_t>(block.moved.count());
             holdfast_peer_transfer(client, &transfer);
           }});
}

// ---- training ----------------------------------------------------------------------------------

/// Checks that all ranks are at the same step, and exchanges the weights: after a restore each rank
/// has only its own rows.
bool Trainer::AllAgree() {
  std::vector<uint64_t> steps;
  if (!Exchange(step_, &steps)) {
    Fail(ring_.error() + "; start all ranks again", kPeerLost);
    return false;
  }
  for (uint32_t rank = 0; rank < options_.world; ++rank) {
    if (steps[rank] == step_) continue;
    Fail("rank " + std::to_string(rank) + " is at step " + std::to_string(steps[rank]) +
         ", this rank is at step " + std::to_string(step_));
    return false;
  }
  SpreadWeights();
  return ring_.error().empty();
}

bool Trainer::TrainStep() {
  SteadyClock::time_point start = SteadyClock::now();
  uint64_t step = step_ + 1;
  if (checkpoints_ && !options_.no_records) checkpoints_->Step(step);
  std::vector<Example> batch = corpus_.Sample(options_.batch, data_order_);
  examples_seen_ += batch.size();
  double my_loss = model_.ComputeGradients(batch);
  if (options_.step_sleep_ms > 0) {
    std::this_thread::sleep_for(milliseconds(options_.step_sleep_ms));
  }
  if (step == options_.pause_at_step) {
    events_.Emit("paused", {{"step", step}});
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  InjectFaults(step);
  std::vector<uint64_t> losses;
  if (!SumGradients() || !Exchange(std::bit_cast<uint64_t>(my_loss), &losses)) return false;

  // The weights and moments change next: the guard waits until no copy reads them.
  if (checkpoints_) {
    Report("guard", checkpoints_->Guard());
    ReportSkipped();
  }
  for (size_t i = 0; i < adam_.size(); ++i) {
    adam_[i].Apply(model_.parameters()[i], step, options_.learning_rate);
  }
  step_ = step;
  Save();

  SpreadWeights();  // writes the other ranks' rows, which this rank does not save
  if (!ring_.error().empty()) return false;
  loss_ = 0;
  for (uint64_t bits : losses) loss_ += std::bit_cast<double>(bits) / options_.world;
  double ms = MillisecondsSince(start);
  events_.Emit("step", {{"step", step_}, {"loss", loss_}, {"ms", ms}});
  if (options_.rank == 0 && options_.log_every > 0 && step_ % options_.log_every == 0) {
    char line[96];
    std::snprintf(line, sizeof line, "step %" PRIu64 "  loss %.4f  %.1f ms", step_, loss_, ms);
    Print(line);
  }
  return true;
}

/// Injects the faults of the flags, after the gradients are computed and before the collectives.
void Trainer::InjectFaults(uint64_t step) {
  if (step >= options_.slow_from_step && options_.slow_ms > 0) {
    std::this_thread::sleep_for(milliseconds(options_.slow_ms));
  }
  if (step == options_.hang_at_step) {
    events_.Emit("hanging", {{"step", step}});
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  if (step == options_.spin_at_step) {
    events_.Emit("spinning", {{"step", step}});
    const std::atomic<bool> done{false};
    while (!done.load()) {
    }
  }
}

/// Marks a collective phase. Holdfast limits its own traffic between nodes meanwhile.
holdfast::PhaseScope Trainer::InCollective() {
  return {checkpoints_ ? &*checkpoints_ : nullptr, holdfast::Phase::kCollective};
}

/// Records one collective of all ranks, for the detection of hangs and stragglers.
std::optional<holdfast::CollectiveScope> Trainer::Record(holdfast::Kind kind, uint64_t bytes) {
  if (!checkpoints_ || options_.no_records) return std::nullopt;
  return std::optional<holdfast::CollectiveScope>(std::in_place, &*checkpoints_, kind, bytes);
}

bool Trainer::Exchange(uint64_t mine, std::vector<uint64_t>* all) {
  holdfast::PhaseScope phase = InCollective();
  auto record = Record(holdfast::Kind::kAllGather, sizeof mine);
  return ring_.Exchange(mine, all);
}

bool Trainer::SumGradients() {
  holdfast::PhaseScope phase = InCollective();
  for (Parameter& parameter : model_.parameters()) {
    auto record = Record(holdfast::Kind::kReduceScatter, parameter.gradient.size() * sizeof(float));
    if (!ring_.ReduceScatter(parameter.gradient, Bounds(parameter))) return false;
  }
  // The mean over ranks, for the rows that this rank owns.
  float share = 1 / static_cast<float>(options_.world);
  for (size_t i = 0; i < adam_.size(); ++i) {
    Parameter& parameter = model_.parameters()[i];
    uint64_t first = adam_[i].first_row * parameter.columns;
    for (uint64_t k = 0; k < adam_[i].moment1.size(); ++k) parameter.gradient[first + k] *= share;
  }
  return true;
}

void Trainer::SpreadWeights() {
  holdfast::PhaseScope phase = InCollective();
  for (Parameter& parameter : model_.parameters()) {
    auto record = Record(holdfast::Kind::kAllGather, parameter.value.size() * sizeof(float));
    if (!ring_.AllGather(parameter.value, Bounds(parameter))) return;
  }
}

std::vector<uint64_t> Trainer::Bounds(const Parameter& parameter) const {
  std::vector<uint64_t> bounds;
  for (uint32_t rank = 0; rank <= options_.world; ++rank) {
    bounds.push_back(FirstRow(parameter.rows, rank, options_.world) * parameter.columns);
  }
  return bounds;
}

/// The rest of this rank's state besides its tensors, as JSON.
std::string Trainer::Progress() const {
  return nlohmann::json{
      {"step", step_}, {"examples_seen", examples_seen_}, {"data_order", data_order_.state()}}
      .dump();
}

bool Trainer::LoadProgress(const std::string* text) {
  if (text == nullptr) return false;
  auto progress = nlohmann::json::parse(*text, nullptr, false);
  if (!progress.is_object()) return false;
  for (const char* key : {"step", "examples_seen", "data_order"}) {
    if (!progress.contains(key) || !progress[key].is_number_unsigned()) return false;
  }
  step_ = progress["step"].get<uint64_t>();
  examples_seen_ = progress["examples_seen"].get<uint64_t>();
  data_order_ = Random(progress["data_order"].get<uint64_t>());
  return true;
}

// ---- the end -----------------------------------------------------------------------------------

bool Trainer::Finish() {
  nlohmann::json fields = {{"step", step_}, {"loss", loss_}, {"weights", model_.size()}};
  if (checkpoints_) {
    bool saved_last = options_.save_every > 0 && options_.steps % options_.save_every == 0;
    // A run that was restored at its last step has saved nothing, so there is nothing to wait for.
    saved_last = saved_last && checkpoints_->Stats().saves > 0;
    if (saved_last && options_.wait_at_end != "none") {
      bool disk = options_.wait_at_end == "disk";
      Report("last version",
             checkpoints_->Wait(step_, disk ? holdfast::Tier::kDisk : holdfast::Tier::kMemory,
                                milliseconds(kLastWaitMs)));
    }
    holdfast_stats stats = checkpoints_->Stats();
    fields["saves"] = stats.saves;
    fields["sealed"] = stats.sealed;
    fields["skipped"] = stats.skipped;
    fields["failed"] = stats.failed;
    fields["guard_ms"] = static_cast<double>(stats.guard_ns) / 1e6;
    Print(std::to_string(stats.sealed) + " of " + std::to_string(stats.saves) + " saves sealed, " +
          std::to_string(stats.skipped) + " skipped, " + std::to_string(stats.failed) + " failed");
    Report("close", checkpoints_->Close(milliseconds(10'000)));
  }
  std::string hash = HashOf(model_.parameters());
  fields["hash"] = hash;
  if (!WriteFinal()) return false;
  events_.Emit("done", fields);
  Print("done: step " + std::to_string(step_) + ", weights " + hash);
  return true;
}

bool Trainer::WriteFinal() {
  if (options_.final_file.empty() || options_.rank != 0) return true;
  std::string temporary = options_.final_file + ".new";
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  bool written = file != nullptr;
  for (const Parameter& parameter : model_.parameters()) {
    written = written && std::fwrite(parameter.value.data(), sizeof(float), parameter.value.size(),
                                     file) == parameter.value.size();
  }
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (written && std::rename(temporary.c_str(), options_.final_file.c_str()) == 0) return true;
  Fail("cannot write " + options_.final_file);
  return false;
}

int Trainer::Fail(const std::string& message, int code) {
  std::fprintf(stderr, "rank %u: %s\n", options_.rank, message.c_str());
  events_.Emit("failed", {{"step", step_}, {"error", message}});
  return code;
}

void Trainer::Print(const std::string& message) const {
  std::FILE* to = options_.events == "-" ? stderr : stdout;
  std::fprintf(to, "rank %u: %s\n", options_.rank, message.c_str());
  std::fflush(to);
}

}  // namespace charlm
