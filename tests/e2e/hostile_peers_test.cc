// Hostile clients, with and without the secret, at the peer port of a live agent. All invalid
// requests are refused, the agent's memory stays bounded, and versions stay protected.

#include <csignal>
#include <sstream>

#include "agent/peers/tcp_transport.h"
#include "tests/agent/peers/raw_peer.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using agent::FrameBytes;
using agent::FrameKind;
using agent::PeerRequest;
using agent::PeerRequestKind;
using agent::RawPeer;
using ::testing::HasSubstr;
constexpr uint64_t kMiB = 1 << 20;

class HostilePeersTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    ProtectedCluster::SetUp();
    std::filesystem::create_directories(options_.root);
    secret_ = WriteSecret("secret", 's');
    options_.agent_settings.push_back("peers.secret_file=" + secret_);
    Start(2, 1);
    SaveUntilProtected();
  }
  std::string WriteSecret(const std::string& name, char what) const {
    std::string path = options_.root + "/" + name;
    std::ofstream(path) << std::string(32, what);
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    return path;
  }
  std::string Address() const { return "unix:" + cluster_->PeerSocket(0); }
  RawPeer Dial() const { return RawPeer::Dial(Address()); }
  /// The agent's resident memory in bytes, without the memory it shares with trainers.
  uint64_t ResidentBytes() {
    std::ifstream file("/proc/" + std::to_string(cluster_->agent(0).pid()) + "/status");
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string key;
      uint64_t kib = 0;
      if (fields >> key >> kib && key == "RssAnon:") return kib << 10;
    }
    ADD_FAILURE() << "no RssAnon";
    return 0;
  }
  std::unique_ptr<agent::PeerTransport> Transport(const std::string& secret) const {
    agent::TcpTransportOptions options;
    options.cluster = "local";
    options.node = "n1";
    options.secret_file = secret;
    auto transport = agent::MakeTcpTransport(options, Clock::Real());
    EXPECT_TRUE(transport) << transport.error().ToString();
    return *std::move(transport);
  }
  PeerRequest Request(PeerRequestKind kind) {
    PeerRequest request;
    request.kind = kind;
    request.job = "saved";
    request.version = job_->Newest(v1::Tier::kPeer).value_or(VersionId{});
    request.incarnation = request.version.incarnation;
    request.bytes = kMiB;
    return request;
  }
  void ExpectServes() {
    EXPECT_TRUE(cluster_->agent(0).running());
    SaveUntilProtected(job_->Newest(v1::Tier::kPeer));
  }

  std::string secret_;
};

TEST_F(HostilePeersTest, UnauthenticatedPeersAreRefused) {
  const uint64_t before = ResidentBytes();
  // Clients without a secret, or with a wrong one.
  for (const std::string& secret : {std::string(), WriteSecret("other", 'o')}) {
    const auto stream =
        Transport(secret)->Open(Address(), Request(PeerRequestKind::kShard), agent::Far());
    ASSERT_FALSE(stream);
    EXPECT_EQ(stream.error().code(), ErrorCode::kPermissionDenied) << stream.error().ToString();
  }
  // A frame of huge length, of an unknown kind or protocol, or before the handshake.
  for (const std::string& first :
       {agent::HeaderBytes(1, 1, ~0U), agent::HeaderBytes(1, 99, 8), agent::HeaderBytes(77, 1, 8),
        FrameBytes(FrameKind::kRequest, std::string(100'000, 'r')), std::string(kMiB, '\xff')}) {
    RawPeer peer = Dial();
    peer.Send(first);
    EXPECT_FALSE(peer.Refusal().ok()) << first.size();
  }
  // More silent connections than the agent accepts.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 500; ++i) {
    auto socket = agent::ConnectTo(*ParseEndpoint(Address()), agent::Far(), Clock::Real());
    if (socket) silent.push_back(*std::move(socket));  // else the backlog is full
  }
  EXPECT_GE(silent.size(), 64U);
  EXPECT_LE(ResidentBytes(), before + 16 * kMiB);
  silent.clear();
  ExpectServes();
}

TEST_F(HostilePeersTest, InvalidRequestsOfAuthenticatedPeersAreRefused) {
  const auto restored = ExpectBack(job_->Newest(v1::Tier::kPeer).value(), {});
  SaveUntilProtected(restored.version);  // saved by incarnation 2
  const auto transport = Transport(secret_);
  const auto request_status = [&](const PeerRequest& request) {
    const auto stream = transport->Open(Address(), request, agent::Far());
    return stream ? Status::Ok() : stream.error();
  };
  PeerRequest good = Request(PeerRequestKind::kShard);
  EXPECT_EQ(request_status(good), Status::Ok());
  const auto send_invalid_requests = [&] {
    PeerRequest unknown = good;
    unknown.job = "unknown";
    EXPECT_EQ(request_status(unknown).code(), ErrorCode::kNotFound);
    unknown = good;
    unknown.rank = Rank{4'000'000};
    EXPECT_EQ(request_status(unknown).code(), ErrorCode::kNotFound);
    PeerRequest late = good;
    late.incarnation = Incarnation{1};
    EXPECT_EQ(request_status(late).code(), ErrorCode::kFenced);
    EXPECT_THAT(request_status(late).message(), HasSubstr("a peer of incarnation 1 is not served"));

    PeerRequest decode = Request(PeerRequestKind::kDecode);
    for (const std::string& group :
         {std::string("{}"), std::string(kMiB - 1, '['), std::string(kMiB - 1, '7'),
          std::string(R"({"parity":1,"members":[{"node":"../x"}]})")}) {
      decode.group = group;
      EXPECT_FALSE(request_status(decode).ok()) << group.substr(0, 20);
    }
    PeerRequest row = Request(PeerRequestKind::kParityRow);
    for (uint32_t i = 0; i < 1000; ++i) {
      row.stripe = i;
      row.index = 1 + i % 3;
      row.version.step.value = 1'000'000 + i;
      static_cast<void>(request_status(row));
    }
  };
  // The allocator keeps freed memory for each of its arenas, up to about 5 MiB here.
  send_invalid_requests();
  [[maybe_unused]] const uint64_t before = ResidentBytes();
  for (int repetition = 0; repetition < 3; ++repetition) send_invalid_requests();
#if !defined(__SANITIZE_ADDRESS__)  // ASan keeps freed memory resident
  EXPECT_LE(ResidentBytes(), before + 96 * kMiB);
#endif
  ExpectServes();
}

}  // namespace
}  // namespace holdfast::local
