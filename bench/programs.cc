#include "bench/programs.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/report.h"
#include "testing/cluster/process.h"

namespace holdfast::bench {
namespace {

/// Runs a program with its output on this program's standard error. Returns OK if its exit code is
/// 0, else Aborted with the exit code or the signal.
Status RunProgram(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return InternalError(fmt::format("fork: {}", std::strerror(errno)));
  if (pid == 0) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  int state = 0;
  while (::waitpid(pid, &state, 0) < 0) {
    if (errno != EINTR) return InternalError(fmt::format("waitpid: {}", std::strerror(errno)));
  }
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return Status::Ok();
  return AbortedError(WIFEXITED(state)
                          ? fmt::format("{}: exit code {}", arguments[0], WEXITSTATUS(state))
                          : fmt::format("{}: signal {}", arguments[0], WTERMSIG(state)));
}

Result<std::vector<BenchResult>> RunAndRead(std::vector<std::string> arguments,
                                            const BenchOptions& options) {
  const std::string rows = options.dir + "/rows.json";
  arguments.insert(arguments.end(), {"--rows", rows});
  if (options.quick) arguments.push_back("--quick");
  if (!options.into.empty()) arguments.insert(arguments.end(), {"--into", options.into});
  if (!options.ranks.empty()) arguments.insert(arguments.end(), {"--ranks", options.ranks});
  HOLDFAST_RETURN_IF_ERROR(RunProgram(arguments));
  std::ifstream file(rows);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_array()) return Fail(InternalError(arguments[0] + " wrote no results"));
  std::vector<BenchResult> results;
  for (const nlohmann::json& row : json) {
    HOLDFAST_ASSIGN_OR_RETURN(BenchResult result, ResultFromJson(row));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

Result<std::vector<BenchResult>> RunTorch(const BenchOptions& options) {
  std::vector<std::string> arguments = {"bench/torch.sh", "--dir", options.dir};
  if (!options.quick) {
    arguments.insert(arguments.end(), {"--repeat", std::to_string(options.repeat)});
  }
  if (options.steps != 0) {
    arguments.insert(arguments.end(), {"--steps", std::to_string(options.steps)});
  }
  return RunAndRead(std::move(arguments), options);
}

Result<std::vector<BenchResult>> RunFaultMatrix(const BenchOptions& options) {
  std::vector<std::string> arguments = {local::BinaryDir() + "/holdfast-fault-matrix"};
  if (options.seeds != 0) {
    arguments.insert(arguments.end(), {"--seeds", std::to_string(options.seeds)});
  }
  if (!options.keep.empty()) arguments.insert(arguments.end(), {"--keep", options.keep});
  arguments.insert(arguments.end(), options.programs.begin(), options.programs.end());
  return RunAndRead(std::move(arguments), options);
}

}  // namespace holdfast::bench
