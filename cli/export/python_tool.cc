#include "cli/export/python_tool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/fd.h"
#include "cli/core/interrupt.h"

namespace holdfast::cli {

namespace {

/// Larger than any result of the conversion.
constexpr size_t kAnswerBytesMax = 64 << 20;
constexpr int kNoPackages = 77;

struct Ended {
  int status = 0;  // as of waitpid()
  std::string out;
};

/// Runs a program with the stdin and stderr of this process, and waits until it ends.
Result<Ended> RunProgram(const std::vector<std::string>& words) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return Fail(ErrnoStatus(errno, "cannot make a pipe"));
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  // The child must not inherit this process's mask, which blocks SIGINT and SIGTERM.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = -1;
  int error = ::posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return Fail(ErrnoStatus(error, "cannot run " + words[0]));
  write_end.Reset();
  OnInterrupt stop([child] { ::kill(child, SIGTERM); });
  Ended ended;
  std::array<char, 4096> buffer;
  while (true) {
    ssize_t n = ::read(read_end.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (ended.out.size() < kAnswerBytesMax) ended.out.append(buffer.data(), static_cast<size_t>(n));
  }
  while (::waitpid(child, &ended.status, 0) < 0 && errno == EINTR) {
  }
  HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
  return ended;
}

}  // namespace

void PythonTool::AddTo(CLI::App& command) {
  command
      .add_option("--python", python_,
                  "A Python interpreter with the packages holdfast and torch; for DCP")
      ->type_name("PROGRAM")
      ->envname("HOLDFAST_PYTHON")
      ->capture_default_str();
}

Status PythonTool::Check() const {
  const std::string probe = fmt::format(
      "import importlib.util as u, sys; "
      "sys.exit(0 if u.find_spec('holdfast') and u.find_spec('torch') else {})",
      kNoPackages);
  Result<Ended> ended = RunProgram({python_, "-c", probe});
  if (!ended && ended.error().code() == ErrorCode::kCancelled) return ended.error();
  if (!ended || (WIFEXITED(ended->status) && WEXITSTATUS(ended->status) == 127)) {
    return FailedPreconditionError(
        "there is no interpreter '" + python_ +
        "': the format of torch.distributed.checkpoint needs Python with the packages holdfast "
        "and torch; name an interpreter with --python or HOLDFAST_PYTHON");
  }
  if (ended->status == 0) return Status::Ok();
  return FailedPreconditionError(
      "'" + python_ +
      "' does not have the packages holdfast and torch: install them (pip install "
      "./client/python torch numpy), or name an interpreter that has them with --python or "
      "HOLDFAST_PYTHON");
}

Result<std::string> PythonTool::Convert(const std::vector<std::string>& arguments) const {
  HOLDFAST_RETURN_IF_ERROR(Check());
  std::vector<std::string> words = {python_, "-m", "holdfast.torch.convert"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  HOLDFAST_ASSIGN_OR_RETURN(Ended ended, RunProgram(words));
  if (ended.status == 0) return std::move(ended.out);
  if (WIFSIGNALED(ended.status)) {
    return Fail(
        InternalError(fmt::format("{} was killed by signal {}", python_, WTERMSIG(ended.status))));
  }
  return Fail(FailedPreconditionError("the conversion failed, see the messages above"));
}

}  // namespace holdfast::cli
