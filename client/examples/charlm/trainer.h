#pragma once

#include <cstdint>
#include <holdfast/holdfast.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "charlm/adam.h"
#include "charlm/corpus.h"
#include "charlm/events.h"
#include "charlm/model.h"
#include "charlm/options.h"
#include "charlm/random.h"
#include "charlm/ring.h"

namespace charlm {

/// Exit codes.
inline constexpr int kDone = 0;
inline constexpr int kError = 1;
inline constexpr int kPeerLost = 3;

/// One rank of the job: all weights, this rank's part of the optimizer state, and a Holdfast client
/// that saves this rank's rows of both.
class Trainer {
 public:
  explicit Trainer(const Options& options);
  /// Trains to the end. Returns an exit code.
  int Run();

 private:
  std::vector<holdfast::Tensor> DescribeState();
  bool OpenCheckpoints();
  bool Restore();
  bool AllAgree();
  bool TrainStep();
  void ReportTransfers();
  void InjectFaults(uint64_t step);
  holdfast::PhaseScope InCollective();
  std::optional<holdfast::CollectiveScope> Record(holdfast::Kind kind, uint64_t bytes);
  bool SumGradients();
  bool Exchange(uint64_t mine, std::vector<uint64_t>* all);
  void SpreadWeights();
  void Save();
  void ReportSkipped();
  bool Finish();
  bool WriteFinal();

  std::vector<uint64_t> Bounds(const Parameter& parameter) const;
  std::string Progress() const;
  bool LoadProgress(const std::string* text);
  int Fail(const std::string& message, int code = kError);
  void Print(const std::string& message) const;
  void Report(const char* what, const holdfast::Status& status);

  const Options options_;
  Events events_;
  Corpus corpus_;
  Ring ring_;
  Model model_;
  std::vector<AdamShard> adam_;
  Random data_order_;  // saved, so that a restored job continues with the next data
  uint64_t step_ = 0;
  uint64_t examples_seen_ = 0;
  double loss_ = 0;
  uint64_t skipped_ = 0;
  std::map<std::string, holdfast::Code> last_report_;
  std::optional<holdfast::Client> checkpoints_;  // declared last, since it reads the state above
};

}  // namespace charlm
