#include "agent/api/socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/process.h"
#include "base/random.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text));
}
std::string Text(const ReceivedPacket& packet) {
  return {reinterpret_cast<const char*>(packet.bytes.data()), packet.bytes.size()};
}

class SocketTest : public ::testing::Test {
 protected:
  SocketTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "holdfast-socket-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ + "/s.sock";
  }
  ~SocketTest() override { std::filesystem::remove_all(directory_); }

  struct Pair {
    UniqueFd client;
    UniqueFd server;
  };
  Pair Connect(int listener) {
    auto client = ConnectUnix(path_);
    EXPECT_TRUE(client) << client.error().ToString();
    auto server = AcceptUnix(listener);
    EXPECT_TRUE(server && server->has_value());
    return {*std::move(client), **std::move(server)};
  }

  std::string directory_;
  std::string path_;
};

TEST_F(SocketTest, PacketsKeepTheirBoundsAndOrder) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  ASSERT_TRUE(listener) << listener.error().ToString();
  EXPECT_FALSE(AcceptUnix(listener->get())->has_value());
  Pair pair = Connect(listener->get());
  ASSERT_TRUE(SendPacket(pair.client.get(), Bytes("first")).ok());
  ASSERT_TRUE(SendPacket(pair.client.get(), Bytes("second")).ok());
  EXPECT_EQ(Text(*AwaitPacket(pair.server.get(), 64, 1000, Clock::Real())), "first");
  EXPECT_EQ(Text(*AwaitPacket(pair.server.get(), 64, 1000, Clock::Real())), "second");
  EXPECT_EQ(AwaitPacket(pair.server.get(), 64, 10, Clock::Real()).error().code(),
            ErrorCode::kDeadlineExceeded);
  pair.client.Reset();
  EXPECT_TRUE(AwaitPacket(pair.server.get(), 64, 1000, Clock::Real())->bytes.empty());
  EXPECT_EQ(SendPacket(pair.server.get(), Bytes("x")).code(), ErrorCode::kUnavailable);
}

TEST_F(SocketTest, PassesDescriptorsCloseOnExec) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  Pair pair = Connect(listener->get());
  UniqueFd a(::memfd_create("a", MFD_CLOEXEC));
  UniqueFd b(::memfd_create("b", MFD_CLOEXEC));
  ASSERT_EQ(::write(a.get(), "A", 1), 1);
  ASSERT_EQ(::write(b.get(), "B", 1), 1);
  int fds[2] = {a.get(), b.get()};
  ASSERT_TRUE(SendPacket(pair.client.get(), Bytes("two"), fds).ok());
  auto packet = AwaitPacket(pair.server.get(), 64, 1000, Clock::Real());
  ASSERT_TRUE(packet);
  ASSERT_EQ(packet->fds.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    char byte = 0;
    EXPECT_EQ(::pread(packet->fds[i].get(), &byte, 1, 0), 1);
    EXPECT_EQ(byte, "AB"[i]);
    EXPECT_TRUE((::fcntl(packet->fds[i].get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  int many[5] = {a.get(), a.get(), a.get(), a.get(), a.get()};
  EXPECT_EQ(SendPacket(pair.client.get(), Bytes("x"), many).code(), ErrorCode::kInvalidArgument);
}

TEST_F(SocketTest, ARefusalIsReadEvenWhenTheServerClosedWithUnreadPackets) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  Pair pair = Connect(listener->get());
  ASSERT_TRUE(SendPacket(pair.client.get(), Bytes("never read")).ok());
  ASSERT_TRUE(SendPacket(pair.server.get(), Bytes("refused")).ok());
  pair.server.Reset();
  auto refusal = AwaitPacket(pair.client.get(), 64, 1000, Clock::Real());
  ASSERT_TRUE(refusal) << refusal.error().ToString();
  EXPECT_EQ(Text(*refusal), "refused");
  auto end = AwaitPacket(pair.client.get(), 64, 1000, Clock::Real());
  EXPECT_TRUE(end && end->bytes.empty());
  Pair other = Connect(listener->get());
  ASSERT_TRUE(SendPacket(other.client.get(), Bytes("never read")).ok());
  other.server.Reset();
  EXPECT_EQ(AwaitPacket(other.client.get(), 64, 1000, Clock::Real()).error().code(),
            ErrorCode::kUnavailable);
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST_F(SocketTest, APacketThatIsTooLongIsRefusedAndItsDescriptorsAreClosed) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  Pair pair = Connect(listener->get());
  int fds[4] = {0, 0, 0, 0};
  size_t before = OpenDescriptors();
  ASSERT_TRUE(SendPacket(pair.client.get(), Bytes("0123456789"), fds).ok());
  auto packet = AwaitPacket(pair.server.get(), 9, 1000, Clock::Real());
  ASSERT_FALSE(packet);
  EXPECT_EQ(packet.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(OpenDescriptors(), before);
  ASSERT_TRUE(SendPacket(pair.client.get(), Bytes("next")).ok());
  EXPECT_EQ(Text(*AwaitPacket(pair.server.get(), 9, 1000, Clock::Real())), "next");
}

TEST_F(SocketTest, MoreDescriptorsThanAllowedAreRefusedAndClosed) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  Pair pair = Connect(listener->get());
  size_t before = OpenDescriptors();
  // SendPacket() would refuse 8 descriptors.
  char byte = 'x';
  iovec data{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int) * 8);
  ASSERT_EQ(::sendmsg(pair.client.get(), &message, 0), 1);
  auto packet = AwaitPacket(pair.server.get(), 64, 1000, Clock::Real());
  ASSERT_FALSE(packet);
  EXPECT_THAT(packet.error().message(), HasSubstr("descriptors were truncated"));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(SocketTest, AFullNonBlockingSocketIsResourceExhausted) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  Pair pair = Connect(listener->get());
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i)
    status = SendPacket(pair.server.get(), Bytes("x"));
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
}

TEST_F(SocketTest, CredentialsAndPidFdsFollowTheProcess) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  pid_t child = ::fork();
  if (child == 0) {
    auto client = ConnectUnix(path_);
    if (!client) ::_exit(1);
    // A grandchild keeps the socket open: only the pidfd shows that the child has exited.
    if (::fork() == 0) {
      ::sleep(2);
      ::_exit(0);
    }
    auto go = AwaitPacket(client->get(), 16, 20'000, Clock::Real());
    ::_exit(go ? 0 : 2);
  }
  pollfd waiting{.fd = listener->get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&waiting, 1, 20'000), 1);
  UniqueFd server = **AcceptUnix(listener->get());
  auto peer = CredentialsOf(server.get());
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, child);
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->gid, ::getegid());
  auto by_pid = PidFdOf(child);
  auto by_peer = PidFdOfPeer(server.get());
  ASSERT_TRUE(by_pid && by_peer);
  pollfd exited[2] = {{.fd = by_pid->get(), .events = POLLIN, .revents = 0},
                      {.fd = by_peer->get(), .events = POLLIN, .revents = 0}};
  EXPECT_EQ(::poll(exited, 2, 0), 0) << "still alive";
  ASSERT_TRUE(SendPacket(server.get(), Bytes("go")).ok());
  for (pollfd& one : exited) EXPECT_EQ(::poll(&one, 1, 20'000), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(PidFdOf(child).error().code(), ErrorCode::kNotFound);
}

TEST_F(SocketTest, ReplacesAStaleSocketButNoLiveOne) {
  {
    auto first = ListenUnix(path_, 0600, Clock::Real());
    ASSERT_TRUE(first);
    auto second = ListenUnix(path_, 0600, Clock::Real());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(second.error().message(), HasSubstr("another process listens"));
  }
  EXPECT_EQ(ConnectUnix(path_).error().code(), ErrorCode::kUnavailable);
  auto third = ListenUnix(path_, 0640, Clock::Real());
  ASSERT_TRUE(third) << third.error().ToString();
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0640U);
}

TEST_F(SocketTest, OneOfManyStartersListens) {
  for (int round = 0; round < 20; ++round) {
    { auto stale = ListenUnix(path_, 0600, Clock::Real()); }
    std::vector<Result<UniqueFd>> results;
    for (int i = 0; i < 8; ++i) results.push_back(Fail(InternalError("not run")));
    std::vector<std::thread> threads;
    for (auto& result : results)
      threads.emplace_back([&] { result = ListenUnix(path_, 0600, Clock::Real()); });
    for (auto& thread : threads) thread.join();
    int listening = 0;
    for (auto& result : results) {
      if (result) {
        ++listening;
      } else {
        EXPECT_EQ(result.error().code(), ErrorCode::kAlreadyExists);
      }
    }
    ASSERT_EQ(listening, 1);
    EXPECT_TRUE(ConnectUnix(path_)) << "the winner's socket is the one in the directory";
  }
}

TEST_F(SocketTest, ModeIsExactWhateverTheUmask) {
  mode_t old = ::umask(077);
  auto listener = ListenUnix(path_, 0666, Clock::Real());
  ::umask(old);
  ASSERT_TRUE(listener);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0666U);
}

TEST_F(SocketTest, ErrorsNameTheCauseAndTheRemedy) {
  auto missing = ConnectUnix(path_);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("is the agent running"));

  std::string deep = directory_ + "/" + std::string(120, 'x');
  for (auto error : {ConnectUnix(deep).error(), ListenUnix(deep, 0600, Clock::Real()).error()}) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("107"));
    EXPECT_THAT(error.message(), HasSubstr("shorter"));
  }
  EXPECT_EQ(ListenUnix("", 0600, Clock::Real()).error().code(), ErrorCode::kInvalidArgument);

  auto no_directory = ListenUnix(directory_ + "/none/s.sock", 0600, Clock::Real());
  EXPECT_EQ(no_directory.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(no_directory.error().message(), HasSubstr("create it"));

  std::ofstream(path_) << "data";
  auto file = ListenUnix(path_, 0600, Clock::Real());
  EXPECT_EQ(file.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(file.error().message(), HasSubstr("not a socket"));
  EXPECT_EQ(std::filesystem::file_size(path_), 4U) << "the file is unchanged";
}

TEST_F(SocketTest, ThePathMayBeExactlyAsLongAsTheKernelAllows) {
  std::string longest = directory_ + "/";
  longest.append(107 - longest.size(), 's');
  auto listener = ListenUnix(longest, 0600, Clock::Real());
  ASSERT_TRUE(listener) << listener.error().ToString();
  EXPECT_TRUE(ConnectUnix(longest));
}

/// Runs `body` in a child process as another user. Returns whether `body` returned true.
template <typename Body>
bool AsOtherUser(Body body) {
  pid_t child = ::fork();
  if (child == 0) {
    bool ok = ::setgroups(0, nullptr) == 0 && ::setgid(65534) == 0 && ::setuid(65534) == 0;
    ::_exit(ok && body() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST_F(SocketTest, ARefusalOfAnotherUserNamesTheOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  EXPECT_TRUE(AsOtherUser([&] {
    Status status = ConnectUnix(path_).error();
    return status.code() == ErrorCode::kPermissionDenied &&
           status.message().find("belongs to user 0, group 0, mode 0600") != std::string::npos;
  }));
  EXPECT_TRUE(AsOtherUser([&] {
    Status status = ListenUnix(directory_ + "/other.sock", 0600, Clock::Real()).error();
    return status.code() == ErrorCode::kPermissionDenied &&
           status.message().find("writable") != std::string::npos;
  }));
}

TEST_F(SocketTest, AListenerThatNeverAcceptsDoesNotHangClients) {
  auto listener = ListenUnix(path_, 0600, Clock::Real());
  std::vector<UniqueFd> clients;
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) {
    auto client = ConnectUnix(path_);
    if (!client) {
      status = client.error();
    } else {
      clients.push_back(*std::move(client));
    }
  }
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("queue"));
}

}  // namespace
}  // namespace holdfast::agent
