// Servers that the commands do not reach, and addresses that they may not call.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/cli/cli_test_util.h"

namespace holdfast::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(UnreachableTest, NoServerListens) {
  TempFolder folder;
  for (const std::string& endpoint :
       {"unix:" + (folder / "none.sock"), std::string("127.0.0.1:1")}) {
    CliResult result = RunCli({"status", "--insecure-loopback", "--endpoint", endpoint});
    EXPECT_EQ(result.exit_code, 5) << result.Shown();
    EXPECT_THAT(result.err, AllOf(HasSubstr("cannot reach the coordinator at " + endpoint),
                                  HasSubstr("is holdfast-coordinator running?")));
    EXPECT_EQ(result.out, "");
  }
}

TEST(UnreachableTest, EndpointFromTheEnvironment) {
  CliOptions options;
  options.env = {"HOLDFAST_ENDPOINT=unix:/nonexistent/by-env.sock"};
  EXPECT_THAT(RunCli({"status"}, options).err, HasSubstr("by-env.sock"));
  EXPECT_THAT(RunCli({"status", "--endpoint", "unix:/nonexistent/by-flag.sock"}, options).err,
              HasSubstr("by-flag.sock"));
}

TEST(UnreachableTest, BadEndpoints) {
  for (const char* endpoint : {"nonsense", "127.0.0.1:99999", "unix:relative", ""}) {
    CliResult result = RunCli({"status", "--endpoint", endpoint});
    EXPECT_EQ(result.exit_code, 64) << endpoint << result.Shown();
  }
  CliResult remote = RunCli({"status", "--endpoint", "192.0.2.1:7070"});
  EXPECT_EQ(remote.exit_code, 1);
  EXPECT_THAT(remote.err, HasSubstr("TLS"));
}

/// Any user may listen at a loopback address, so nothing may be sent there by default.
TEST(UnreachableTest, ALoopbackAddressWithoutTlsIsRefused) {
  TempFolder folder;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  const std::string endpoint = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const std::string socket = "unix:" + (folder / "none.sock");
  for (const std::string& list : {endpoint, socket + "," + endpoint}) {
    for (const char* command : {"status", "certificates", "runs"}) {
      const CliResult result = RunCli({command, "--endpoint", list, "--timeout", "300ms"});
      EXPECT_EQ(result.exit_code, 1) << command << result.Shown();
      EXPECT_THAT(result.err, AllOf(HasSubstr(endpoint), HasSubstr("insecure-loopback = true"),
                                    HasSubstr("--tls-ca"), HasSubstr("unix:/path")));
    }
  }
  EXPECT_EQ(::accept(listener, nullptr, nullptr), -1) << "a command has connected";
  // The configuration permits the address; this listener never answers.
  const std::string config = folder / "cli.toml";
  std::ofstream(config) << "insecure-loopback = true\n";
  const CliResult permitted =
      RunCli({"status", "--config", config, "--endpoint", endpoint, "--timeout", "300ms"});
  EXPECT_EQ(permitted.exit_code, 124) << permitted.Shown();
  const int connected = ::accept(listener, nullptr, nullptr);
  EXPECT_GE(connected, 0);
  ::close(connected);
  ::close(listener);
}

TEST(UnreachableTest, ListenerThatNeverAnswers) {
  TempFolder folder;
  std::string path = folder / "mute.sock";
  int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  CliResult result = RunCli({"status", "--endpoint", "unix:" + path, "--timeout", "300ms"});
  EXPECT_EQ(result.exit_code, 124) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("did not answer within 0.3 s"));
  ::close(listener);
}

}  // namespace
}  // namespace holdfast::cli
