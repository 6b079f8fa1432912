// The rate of TLS between peers on one core, as a share of the rate in plain text.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>

#include "base/certificates/authority.h"
#include "base/certificates/durable_file.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
namespace c = certificates;

constexpr uint64_t kBytes = 128ULL << 20;
constexpr int kRounds = 3;
// Encryption and decryption cost more than the transfer itself. This bound detects a regression.
constexpr double kShareMin = 0.15;

/// Returns the CPU time of this process. Both sides are in it, so the time is that of one core that
/// they share, and other processes do not change the result much.
double CpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

double SecondsToRead(TestSource& source, const PeerTlsFiles& tls) {
  TcpPeerServerOptions server_options;
  server_options.cluster = "test";
  server_options.node = "server";
  server_options.tls = tls;
  TcpTransportOptions transport_options;
  transport_options.cluster = "test";
  transport_options.node = "server";
  transport_options.tls = tls;
  auto server = TcpPeerServer::Start(server_options, source);
  auto transport = MakeTcpTransport(transport_options);
  auto stream = (*transport)->Open((*server)->address(), ShardRequest(1, 0, kBytes), Far());
  EXPECT_TRUE(stream);
  if (!stream) return 0;
  std::vector<std::byte> unit(kPeerUnitBytes);
  const double begun = CpuSeconds();
  uint64_t bytes = 0;
  for (auto got = (*stream)->Read(unit, Far()); got && *got != 0;
       got = (*stream)->Read(unit, Far())) {
    bytes += *got;
  }
  EXPECT_EQ(bytes, kBytes);
  return CpuSeconds() - begun;
}

TEST(PeerRateTest, TlsHasAShareOfTheRateOfPlainTextOnOneCore) {
  const TempDir dir;
  const int64_t now = Clock::Real().WallNanos() / 1'000'000'000;
  const auto authority = *c::Authority::Create("test", now);
  const auto key = *c::PrivateKey::Generate();
  const auto made = authority.Sign(
      key.get(), {"spiffe://test/agent/server", {"127.0.0.1"}, now - 60, now + 3600});
  const std::string file = dir.Write("server", made->ToPem() + key.ToPem());
  const PeerTlsFiles tls{dir.Write("ca", authority.certificate().ToPem()), file, file};
  TestSource source;
  source.Add(1, kBytes);
  std::vector<double> shares;
  double plain = 0;
  double encrypted = 0;
  for (int round = 0; round < kRounds; ++round) {
    plain = SecondsToRead(source, {});
    encrypted = SecondsToRead(source, tls);
    shares.push_back(plain / encrypted);
  }
  std::ranges::sort(shares);
  RecordProperty("share", std::to_string(shares[kRounds / 2]));
  std::printf("TLS has %.2f of the rate in plain text: %.2f of %.2f GB/s\n", shares[kRounds / 2],
              kBytes / encrypted / 1e9, kBytes / plain / 1e9);
  EXPECT_GE(shares[kRounds / 2], kShareMin);
}

}  // namespace
}  // namespace holdfast::agent
