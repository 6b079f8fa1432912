#include "agent/server/self_tester.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace holdfast::agent {
namespace {
using selftest::CheckResult;
using selftest::Outcome;
}  // namespace

SelfTester::SelfTester(selftest::SelfTestOptions options) : options_(std::move(options)) {
  options_.cancelled = [this] { return stopping(); };
}

SelfTester::~SelfTester() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void SelfTester::Request(uint64_t number) {
  {
    MutexLock lock(mutex_);
    requested_ = number;
    // While a test runs, the next report asks again.
    if (number == 0 || number == started_ || running_ || stopping_) return;
    started_ = number;
    running_ = true;
  }
  if (thread_.joinable()) thread_.join();
  thread_ = Thread([this, number] { Run(number); });
}

std::optional<coordinator::SelfTest> SelfTester::result() const {
  MutexLock lock(mutex_);
  if (requested_ == 0 || result_.number() != requested_) return std::nullopt;
  return result_;
}

bool SelfTester::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

void SelfTester::Run(uint64_t number) {
  const std::vector<CheckResult> results = selftest::RunSelfTest(options_);
  coordinator::SelfTest tested;
  tested.set_number(number);
  for (const CheckResult& result : results) {
    coordinator::TestedPart* part = tested.add_parts();
    part->set_part(result.part);
    part->set_failed(result.outcome == Outcome::kFailed);
    part->set_what(std::string(ToString(result.outcome)) + ": " + result.what);
  }
  const bool failed = std::ranges::any_of(
      results, [](const CheckResult& result) { return result.outcome == Outcome::kFailed; });
  Log(failed ? LogLevel::kError : LogLevel::kInfo, "SelfTestEnded",
      {Kv("number", number), Kv("outcome", failed ? "failed" : "passed"),
       Kv("parts", results.size())});
  MutexLock lock(mutex_);
  running_ = false;
  if (!stopping_) result_ = std::move(tested);
}

}  // namespace holdfast::agent
