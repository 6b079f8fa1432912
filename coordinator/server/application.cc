#include "coordinator/server/application.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "coordinator/server/coordinator_server.h"
#include "storage/base/clock.h"
#include "storage/base/fd.h"
#include "storage/base/log.h"

namespace holdfast::coord {
namespace {
/// Writes the listening address for scripts. The file appears complete, under its final name.
Status WriteEndpointFile(const std::string& data_dir, const std::string& endpoint) {
  const std::string path = data_dir + "/endpoint";
  const std::string temporary = path + ".tmp";
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, "create " + temporary);
  const std::string text = endpoint + "\n";
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, "write " + temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, "rename " + path);
  return Status::Ok();
}

Status Serve(const CoordinatorConfig& config, const sigset_t& signals) {
  HOLDFAST_ASSIGN_OR_RETURN(LogLevel level, ParseLogLevel(config.log_level));
  ConfigureLog("coordinator", level);
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint wanted, ParseEndpoint(config.listen));
  ::unlink((config.data_dir + "/endpoint").c_str());  // of an earlier start
  HOLDFAST_ASSIGN_OR_RETURN(auto server, CoordinatorServer::Start(config, Clock::Real()));
  const std::string endpoint = server->endpoint().ToString();
  if (wanted.kind == Endpoint::Kind::kTcp && wanted.port == 0) {
    HOLDFAST_RETURN_IF_ERROR(WriteEndpointFile(config.data_dir, endpoint));
  }
  Log(LogLevel::kInfo, "CoordinatorListening",
      {Kv("endpoint", endpoint), Kv("epoch", server->epoch().value),
       Kv("cluster", config.cluster)});
  int signal = 0;
  ::sigwait(&signals, &signal);
  Log(LogLevel::kInfo, "CoordinatorStopping", {Kv("signal", signal)});
  return Status::Ok();
}
}  // namespace

int Application::Run() {
  // Block the signals before any thread starts: all threads inherit the mask, and sigwait gets
  // them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::umask(077);  // the store has the environments of runs, which may contain keys
  Status status = Serve(config_, signals);
  if (status.ok()) return 0;
  std::fprintf(stderr, "holdfast-coordinator: %s\n", status.message().c_str());
  return 1;
}

}  // namespace holdfast::coord
