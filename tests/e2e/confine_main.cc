// confine: runs a command as a container engine would, with a seccomp profile and without an
// engine.
//
//   confine [--profile FILE] [--uid N] [--read-only --writable DIR...] [--shm BYTES] [--pids] --
//           COMMAND...
//
// --profile    a seccomp profile in the format of container engines
// --uid        the user and group of the command, without capabilities; ignored unless root
// --read-only  a mount namespace in which only the --writable folders can be written
// --shm        a /dev/shm of this size in that namespace
// --pids       a PID namespace in which the command is the first process
//
// The command ends with this process. Exit code: that of the command, 126 when it was not started.

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace {
using nlohmann::json;
constexpr int kNotStarted = 126;

struct Options {
  std::string profile;
  std::vector<std::string> writable;
  std::string shm_bytes;
  uid_t uid = 0;
  bool read_only = false;
  bool pids = false;
  char** command = nullptr;
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "confine: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(kNotStarted);
}

void Check(bool ok, const std::string& what) {
  if (!ok) Die(what);
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--" && has_value) {
      options.command = argv + i + 1;
      return options;
    }
    if (argument == "--read-only") {
      options.read_only = true;
    } else if (argument == "--pids") {
      options.pids = true;
    } else if (argument == "--profile" && has_value) {
      options.profile = argv[++i];
    } else if (argument == "--writable" && has_value) {
      options.writable.emplace_back(argv[++i]);
    } else if (argument == "--shm" && has_value) {
      options.shm_bytes = argv[++i];
    } else if (argument == "--uid" && has_value) {
      options.uid = static_cast<uid_t>(std::strtoul(argv[++i], nullptr, 10));
    } else {
      break;
    }
  }
  errno = EINVAL;
  Die("usage: see tests/e2e/confine_main.cc");
}

uint32_t ActionOf(const json& rule, const char* action_key, const char* errno_key) {
  const std::string action = rule.at(action_key);
  if (action == "SCMP_ACT_ALLOW") return SCMP_ACT_ALLOW;
  errno = EINVAL;
  Check(action == "SCMP_ACT_ERRNO", "action " + action);
  return SCMP_ACT_ERRNO(rule.value(errno_key, static_cast<uint16_t>(EPERM)));
}

scmp_arg_cmp ComparisonOf(const json& arg) {
  const std::string op = arg.at("op");
  scmp_arg_cmp compare{};
  compare.arg = arg.at("index");
  compare.datum_a = arg.at("value");
  compare.op = SCMP_CMP_EQ;
  if (op == "SCMP_CMP_EQ") return compare;
  errno = EINVAL;
  Check(op == "SCMP_CMP_MASKED_EQ", "operator " + op);
  compare.op = SCMP_CMP_MASKED_EQ;
  compare.datum_b = arg.value("valueTwo", uint64_t{0});
  return compare;
}

/// Loads the profile for this process and all that it starts.
void LoadProfile(const std::string& path) {
  std::ifstream file(path);
  const json profile = json::parse(file, nullptr, false);
  Check(profile.is_object(), path);
  const uint32_t fallback = ActionOf(profile, "defaultAction", "defaultErrnoRet");
  scmp_filter_ctx filter = seccomp_init(fallback);
  Check(filter != nullptr, "seccomp_init");
  for (const json& rule : profile.at("syscalls")) {
    const uint32_t action = ActionOf(rule, "action", "errnoRet");
    std::vector<scmp_arg_cmp> arguments;
    for (const json& arg : rule.value("args", json::array())) {
      arguments.push_back(ComparisonOf(arg));
    }
    for (const std::string name : rule.at("names")) {
      const int number = seccomp_syscall_resolve_name(name.c_str());
      if (number == __NR_SCMP_ERROR || action == fallback) continue;  // unknown to this machine
      const int error = seccomp_rule_add_array(
          filter, action, number, static_cast<unsigned>(arguments.size()), arguments.data());
      errno = -error;
      Check(error == 0, "rule of " + name);
    }
  }
  const int error = seccomp_load(filter);
  errno = -error;
  Check(error == 0, "seccomp_load");
  seccomp_release(filter);
}

void SetReadOnly(const std::string& path, bool read_only, unsigned flags) {
  mount_attr attributes{};
  (read_only ? attributes.attr_set : attributes.attr_clr) = MOUNT_ATTR_RDONLY;
  Check(::mount_setattr(AT_FDCWD, path.c_str(), flags, &attributes, sizeof(attributes)) == 0,
        "mount_setattr " + path);
}

void MakeMounts(const Options& options) {
  if (!options.read_only && options.shm_bytes.empty() && !options.pids) return;
  Check(::unshare(CLONE_NEWNS) == 0, "a mount namespace");
  Check(::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
  if (options.pids) Check(::mount("proc", "/proc", "proc", 0, nullptr) == 0, "mount /proc");
  if (options.read_only) {
    for (const std::string& path : options.writable) {
      Check(::mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0, "bind " + path);
    }
    SetReadOnly("/", true, AT_RECURSIVE);
    for (const std::string& path : options.writable) SetReadOnly(path, false, 0);
  }
  if (!options.shm_bytes.empty()) {
    const std::string data = "mode=1777,size=" + options.shm_bytes;
    Check(::mount("shm", "/dev/shm", "tmpfs", 0, data.c_str()) == 0, "mount /dev/shm");
  }
}

void BecomeUser(uid_t uid) {
  if (uid == 0 || ::geteuid() != 0) return;
  Check(::setgroups(0, nullptr) == 0, "setgroups");
  Check(::setresgid(uid, uid, uid) == 0, "setresgid");
  Check(::setresuid(uid, uid, uid) == 0, "setresuid");
}

[[noreturn]] void Run(const Options& options) {
  MakeMounts(options);
  BecomeUser(options.uid);
  Check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  // A change of the user has cleared this setting.
  Check(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "parent death signal");
  if (!options.profile.empty()) LoadProfile(options.profile);
  ::execv(options.command[0], options.command);
  Die(std::string("exec ") + options.command[0]);
}

pid_t child = 0;
void PassOn(int signal) { ::kill(child, signal); }

int RunAsFirstProcess(const Options& options) {
  Check(::unshare(CLONE_NEWPID) == 0, "a PID namespace");
  child = ::fork();
  Check(child >= 0, "fork");
  if (child == 0) Run(options);
  ::signal(SIGTERM, PassOn);
  ::signal(SIGINT, PassOn);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
}  // namespace

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  if (options.pids) return RunAsFirstProcess(options);
  Run(options);
}
